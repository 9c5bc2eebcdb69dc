"""search/pacing.py, drive/programs.py: with long answers nothing is judged before the service is full.

The server is the shared processor of known capacity: each answer makes all others slower, so that a batch
fills for minutes.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from analysis.capacity.window_counts import e2e_so_far
from analysis.results.json_border import to_tree
from analysis.rows import records
from conf import load
from loadgen.cli import output
from loadgen.drive import programs
from loadgen.drive.programs import require, required_s
from loadgen.run import verdicts
from loadgen.search import pacing
from loadgen.search.pacing import RAMP_SHARE, paced
from loadgen.search.window_plan import Start, long_queue
from loadgen.traffic.schedule import NS
from tests.support.search.scenarios import EDGES, truths
from tests.support.search.search_windows import window_of
from tests.support.search.searches import swept
from tests.support.virtual.shared_processor import SharedProcessor
from tests.support.virtual.toy_services import OneAtATime
from tests.support.virtual.virtual_drivers import driver
from tests.support.virtual.virtual_target import VirtualTarget


def rows(*parts: dict[str, object]) -> pa.Table:
    """Requests due at 0 that asked for 101 tokens."""
    base = {"due_ns": 0, "status": records.PENDING, "requested_output_tokens": 101}
    whole = [dict.fromkeys(records.PROGRESS.names) | base | part for part in parts]
    return pa.Table.from_pylist(whole, schema=records.PROGRESS)


def test_an_unfinished_answer_lasts_as_its_pace_has_it() -> None:
    first = {"first_token_offset_ns": NS}
    ended = {
        "status": records.OK,
        "last_token_offset_ns": 3 * NS,
        "end_offset_ns": 3 * NS,
        "output_tokens": 101,
    }
    seen = rows(
        first | ended,
        first | {"output_tokens": 21},  # 20 more tokens in two seconds: 100 take ten
        first | {"output_tokens": 2},
        {"output_tokens": None},
        {"status": records.FAILURES[0], "end_offset_ns": NS},
    )
    assert np.allclose(e2e_so_far(seen, 3 * NS), [3e3, 11e3, np.nan, np.nan, np.nan], equal_nan=True)


@pytest.mark.parametrize("name", ["quick", "standard"])
def test_a_search_of_short_answers_is_as_it_was_asked(name: str) -> None:
    experiment = load([f"search={name}"]).search
    assert paced(experiment, 0.0, 0.0) == paced(experiment, 16.0, 16.0) == experiment


@pytest.mark.parametrize("name", ["quick", "standard"])
@pytest.mark.parametrize("answer_s", [60.0, 240.0])
def test_a_search_of_long_answers_has_windows_as_long_and_a_budget_that_holds_them(
    name: str, answer_s: float
) -> None:
    experiment = load([f"search={name}"]).search
    longer = paced(experiment, answer_s, 2 * answer_s)
    assert longer.window_s >= answer_s and longer.settle_s >= 2 * answer_s
    least_s = 2 * answer_s + 5 * longer.window_s
    assert longer.budget_s * (1 - RAMP_SHARE) >= 0.999 * least_s
    assert replace(longer, window_s=45, settle_s=120, budget_s=900) == replace(
        experiment, window_s=45, settle_s=120, budget_s=900
    )


def test_a_ramp_step_is_bad_where_its_queue_lasts_longer_than_the_ttft_bound() -> None:
    slo = load(["slo.ttft_p90_ms=20000"]).slo
    step = window_of(160, 0, 0, 0)  # so many were due in 45 s, and none of those that waited is over 20 s yet
    assert not long_queue(step, 40, slo)  # 120 have a first token: 40 more take 15 s
    assert long_queue(step, 80, slo)


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "times"), [("L1000", 1.2), ("L2000", 1.3)])
def test_a_probe_above_the_capacity_is_not_judged_while_it_fills(scenario: str, times: float) -> None:
    words = [*EDGES[scenario], f"rate_qps={times * truths()[scenario]}", "duration_s=120"]
    drive, experiment, events = driver(words, target=VirtualTarget(SharedProcessor()))
    programs.offer_load(drive, experiment)
    probe = to_tree(verdicts.probe_verdict(experiment, drive))["probe"]["limits"]["tpot"]
    assert not probe["passed"] and probe["ms"]["value"] > 1.03 * experiment.slo.tpot_p90_ms
    assert [facts["text"] for kind, facts in events if kind == "steady"][0].endswith("fill the service")


@pytest.mark.slow
def test_a_rate_well_above_the_capacity_is_not_passed_by_answers_that_have_just_begun() -> None:
    words = [*EDGES["L4000"], f"rate_qps={1.3 * truths()['L4000']}"]
    drive, experiment, _ = driver(words, target=VirtualTarget(SharedProcessor()))
    assert experiment.rate_qps
    result = require(drive, experiment.rate_qps, required_s(experiment))
    assert verdicts.required_verdict(experiment, drive, result).passed is False


@pytest.mark.slow
@pytest.mark.parametrize("words", [["search=standard"], ["search=quick", "search.expected_qps=1.4"]])
def test_long_answers_are_searched_for_as_long_as_they_need(words: list[str]) -> None:
    truth_qps = truths()["L1000"]
    start = Start(roofline_qps=truth_qps, prediction_qps=1.4)
    drive, _, _ = driver([*EDGES["L1000"], *words], start, target=VirtualTarget(SharedProcessor()))
    result = swept(drive)
    assert result.capacity is not None and result.capacity.low < truth_qps < result.capacity.high
    assert not (result.capacity.open_above or result.capacity.open_below)
    windows = [outcome for outcome in result.outcomes if outcome.plan.kind == "window"]
    assert all(outcome.plan.window_s >= 45 for outcome in windows[1:])


def test_a_dry_run_says_how_long_answers_may_last() -> None:
    long = load([*EDGES["L2000"], "search=standard"])
    assert pacing.swept_s(long) > pacing.swept_s(load(["search=standard"])) == 900
    text = output.plan_text(output.PlannedRun(long, pacing.swept_s(long)))
    assert "answers of 2000 tokens may last 122 s within the bounds: windows of 183 s" in text
    assert long.request_timeout_s == 4 * 122 and load([]).request_timeout_s == 120
    assert load(["fleet.request_timeout_s=3"]).request_timeout_s == 3


@pytest.mark.parametrize(("rate_qps", "times"), [(2.0, 1), (0.25, 4), (0.01, 8)])
def test_below_one_request_a_second_a_budget_counts_requests(rate_qps: float, times: int) -> None:
    quick = load(["search=quick"])
    fitted = pacing.fitted(quick.search, Start(prediction_qps=rate_qps), [])
    assert fitted.budget_s == times * quick.search.budget_s
    planned = output.PlannedRun(quick, 240.0, rate_qps)
    text = output.plan_text(planned)
    assert output.plan_tree(planned)["load_s"] == times * 240
    assert (f"a search counts requests: {times}.0 times its budget" in text) == (times > 1)


@pytest.mark.slow
def test_windows_at_a_low_rate_do_not_bring_the_ramp_back() -> None:
    """The budget grows with the first of them, and of that the ramp would have had a third."""
    drive, _, _ = driver([*EDGES["M1"], "search=quick"], Start(), target=VirtualTarget(OneAtATime(5.0)))
    kinds = [outcome.plan.kind for outcome in swept(drive).outcomes]
    assert kinds == sorted(kinds) and {"ramp", "window"} == set(kinds)
