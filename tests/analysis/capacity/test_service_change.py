"""analysis.capacity.service_change: a service that changed for good, and one that is disturbed at times."""

import math
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import posterior
from analysis.capacity.service_change import claimed, service_change
from analysis.capacity.window_counts import LOOK_AHEAD, LOOK_BACK, NS, LimitCount, WindowCounts
from analysis.rows import records

WINDOWS, BLOCKS, ANSWERS = 16, 9, 20


def run(
    slower: Callable[[float], float], seed: int = 0
) -> tuple[list[WindowCounts], Callable[[int], pa.Table]]:
    """Windows of 45 s around 6 QPS: a token takes 40 ms, more with the load, times what `slower` says."""
    chance = np.random.default_rng(seed)
    windows, tables = [], []
    for index in range(WINDOWS):
        begin_s = 50.0 * index
        load = 6 * np.exp(chance.normal(0, 0.1, LOOK_BACK + BLOCKS + LOOK_AHEAD))
        rows, over = [], []
        for block in range(BLOCKS):
            felt = load[LOOK_BACK + block - 2 : LOOK_BACK + block + 2].mean()
            pace_s = 0.04 * (felt / 6) ** 2 * slower(begin_s + 5 * block)
            paces = pace_s * np.exp(chance.normal(0, 0.1, ANSWERS))
            due_ns = [int((begin_s + 5 * block + i / ANSWERS) * NS) for i in range(ANSWERS)]
            rows += [answer(index, due, each) for due, each in zip(due_ns, paces, strict=True)]
            over.append(int(np.sum(paces > 0.045)))
        count = LimitCount(sum(over), BLOCKS * ANSWERS, tuple(over), (ANSWERS,) * BLOCKS)
        ends_ns = [int(at * NS) for at in (begin_s, begin_s, begin_s + 45, begin_s + 45)]
        known = {
            "requests": BLOCKS * ANSWERS,
            "log_work": math.log(6),
            "load": tuple(load),
            "median_e2e_s": 5.0,
        }
        windows.append(WindowCounts(index, "window", 6.0, 1, *ends_ns, **known, limits={"tpot": count}))
        tables.append(records.table(rows))
    return windows, tables.__getitem__


def answer(index: int, due_ns: int, pace_s: float) -> dict[str, object]:
    offsets = {"first_token_offset_ns": NS // 5, "last_token_offset_ns": NS // 5 + int(100 * pace_s * NS)}
    return {"window_index": index, "status": "ok", "due_ns": due_ns, "output_tokens": 101, **offsets}


@pytest.mark.parametrize("times", [1.12, 1 / 1.12])
def test_a_change_for_good_is_found_where_it_was_and_nothing_is_certified_that_a_half_denies(
    times: float,
) -> None:
    windows, requests = run(lambda at_s: times if at_s > 400 else 1.0)
    change = service_change(windows, requests)
    assert change is not None and change.times == pytest.approx(times, rel=0.04)
    assert change.at_ns / NS == pytest.approx(400, abs=40)
    assert "the service changed during the run" in str(change)
    assert ("longer" in str(change)) == (times > 1)
    every = [posterior(part, Prior(math.log(6))) for part in (windows, windows[:8], windows[8:])]
    told = claimed(windows, Prior(math.log(6)), windows, requests).capacity
    assert told.certified == min(each.certified for each in every)
    assert told.low == min(each.low for each in every) and told.high >= every[0].high
    assert told.qps_per_node == every[0].qps_per_node


@pytest.mark.parametrize(
    "slower",
    [
        lambda at_s: 1.0,
        lambda at_s: 1.2 if at_s % 240 > 180 else 1.0,
        lambda at_s: 1.2 if 500 < at_s < 620 else 1.0,
        lambda at_s: 1.12 if at_s > 740 else 1.0,
    ],
    ids=["steady", "a neighbour now and then", "a neighbour once", "the last minute alone"],
)
def test_a_steady_service_or_a_disturbance_is_no_change(slower: Callable[[float], float]) -> None:
    windows, requests = run(slower)
    assert service_change(windows, requests) is None
    plain = posterior(windows, Prior(math.log(6)))
    assert claimed(windows, Prior(math.log(6)), windows, requests).capacity.certified == plain.certified


def test_few_answers_or_minutes_show_no_change() -> None:
    windows, requests = run(lambda at_s: 1.5 if at_s > 400 else 1.0)
    assert service_change(windows[:10], requests) is None
    assert service_change(windows, lambda index: requests(index).slice(0, 2)) is None
