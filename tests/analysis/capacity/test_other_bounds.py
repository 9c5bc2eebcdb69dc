"""analysis.capacity.window_counts and .posterior with bounds of any latency and quantile, and several."""

import math
from typing import Any

import numpy as np
import pytest

from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import posterior
from analysis.capacity.window_counts import (
    EVERY,
    NS,
    LimitCount,
    Window,
    WindowCounts,
    count,
    parts_over,
)
from analysis.capacity.window_table import over_share
from analysis.rows.records import table
from conf.specs.bounds import Slo
from conf.specs.experiment import Lengths, Workload
from tests.support.runs.run_in_memory import request
from tests.support.search.search_windows import on_the_curve

MS = 1_000_000
MEANS = Workload("w", Lengths(100), Lengths(50))
WINDOW = Window(3, "window", 2.0, 1, 0, 0, 45 * NS, 45 * NS)


def row(due_s: float, status: str = "ok", **more: Any) -> dict[str, Any]:
    """A request of 50 tokens: the first after 500 ms, the last after 2 s, the 99 % gap 40 ms, 49 gaps."""
    tokens = {"requested_input_tokens": 100, "requested_output_tokens": 50, "output_tokens": 50}
    made = request(3, due_s, 500.0, 150.0, own_itl_us=40_000, gaps=49, gaps_over=7, **tokens)
    if status != "ok":
        ends = "last_token_offset_ns", "end_offset_ns", "own_itl_us", "gaps", "gaps_over"
        made |= dict.fromkeys(ends) | {"output_tokens": 3}
    gone = {"first_token_offset_ns": None} if status == "timeout" else {}
    return made | {"status": status} | gone | more


def counts(slo: Slo, *rows: dict[str, Any], now_s: float = 50.0) -> dict[str, LimitCount]:
    return dict(count(table(list(rows)), WINDOW, slo, MEANS, int(now_s * NS)).limits)


def test_each_latency_is_counted_against_its_own_bound() -> None:
    slo = Slo("s", 400.0, None, {"itl_p99": 39.0, "e2e_p95": 2500.0})
    counted = counts(
        slo, row(1), row(2, own_itl_us=38_000, last_token_offset_ns=3000 * MS), row(3, "timeout")
    )
    assert {name: (one.over, one.determined) for name, one in counted.items()} == {
        "ttft": (3, 3),
        "itl_p99": (2, 3),
        "e2e_p95": (2, 3),
    }
    assert counted["itl_p99"].block_over == (2, 0, 0, 0, 0, 0, 0, 0, 0)


def test_the_share_over_a_bound_is_of_those_that_are_determined() -> None:
    counted = {"bounds": [{"bound": "itl_p99", "over": 1.0, "determined": 50.0}]}
    assert over_share(counted, "itl_p99") == 0.02
    assert over_share({"ttft_over": 3, "ttft_determined": 12}, "ttft") == 0.25
    assert over_share({"bounds": None}, "joint_p90") is None


def test_what_is_in_flight_is_over_e2e_once_it_is_older_and_its_gaps_are_unknown() -> None:
    slo = Slo("s", None, None, {"itl_p99": 39.0, "e2e_p95": 2500.0})
    young, old = (counts(slo, row(44, "pending"), now_s=at_s) for at_s in (46.0, 47.0))
    assert [(one["e2e_p95"].over, one["e2e_p95"].determined) for one in (young, old)] == [(0, 0), (1, 1)]
    assert old["itl_p99"].determined == 0


def test_a_joint_bound_counts_requests_that_miss_any_bound() -> None:
    slo = Slo("s", 600.0, None, {"itl_p99": 39.0, "e2e_p95": 2500.0}, joint=0.9)
    late = row(2, own_itl_us=30_000, last_token_offset_ns=3000 * MS)
    counted = counts(slo, row(1, own_itl_us=30_000), late, row(3), row(4, "timeout"))["joint_p90"]
    assert (counted.over, counted.determined) == (3, 4)
    waits = row(44, "pending", own_itl_us=None)
    early, aged = (counts(slo, waits, now_s=at_s)["joint_p90"] for at_s in (45.0, 47.0))
    assert [(one.over, one.determined) for one in (early, aged)] == [(0, 0), (1, 1)]


def test_pooled_gaps_count_a_request_in_parts_by_its_gaps() -> None:
    slo = Slo("s", None, None, {"itl_pooled_p95": 30.0})
    short, long_ = row(1, gaps=20, gaps_over=10), row(2, gaps=80, gaps_over=8)
    counted = counts(slo, short, long_, row(44, "pending"))["itl_pooled_p95"]
    assert counted.share == pytest.approx(18 / 100) and counted.determined == pytest.approx(2)
    failed = counts(slo, short, long_, row(3, "timeout", requested_output_tokens=51))["itl_pooled_p95"]
    assert failed.share == pytest.approx(68 / 150)


def test_a_queue_that_is_not_told_is_unknown_and_of_a_failure_endless() -> None:
    slo = Slo("s", None, None, {"queue_p90": 500.0})
    told = [row(1, queue_us=499_000), row(2, queue_us=501_000), row(3, "timeout")]
    counted = counts(slo, *told, row(4), row(44, "pending"))["queue_p90"]
    assert (counted.over, counted.determined) == (2, 3)
    assert counts(slo, row(1), row(2))["queue_p90"].share is None


def test_a_joint_share_of_bounds_that_no_request_keeps_alone_is_of_all() -> None:
    slo = Slo("s", None, None, {"itl_pooled_p95": 30.0})
    result = parts_over(table([row(1), row(44, "pending")]), slo, EVERY, 50 * NS)
    assert [part.tolist() for part in result] == [[0, 0], [1, 0]]


def test_a_window_without_requests_says_nothing() -> None:
    slo = Slo("s", 600.0, None, {"itl_pooled_p95": 30.0, "itl_p99": 39.0}, joint=0.9)
    assert all(count.determined == 0 and count.share is None for count in counts(slo).values())


def around(limit: str, rates: np.ndarray, others: tuple[str, ...] = ()) -> list[WindowCounts]:
    """Windows whose counts over one limit are those of a capacity of 5 QPS."""
    return on_the_curve(5.0, 25, rates, limit, others, 9000)


@pytest.mark.parametrize("limit", ["ttft", "ttft_p99", "itl_p95", "itl_pooled_p99", "e2e_p50", "joint_p90"])
def test_the_capacity_is_where_the_allowed_share_is_over(limit: str) -> None:
    capacity = posterior(around(limit, np.geomspace(4.5, 5.4, 8)), Prior(math.log(5.5)))
    assert capacity.qps_per_node == pytest.approx(5.0, rel=0.02)
    assert capacity.low < 5.0 < capacity.high and capacity.binding == limit
    assert capacity.limits[limit].informative
