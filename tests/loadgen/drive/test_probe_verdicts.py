"""loadgen/run/verdicts.py: growing queues, few requests, and no impossible figure of a short window."""

import math
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.results import summary
from analysis.results.figures import Quantile
from analysis.results.verdicts import RunVerdict
from analysis.rows import metrics, records
from analysis.stats.estimate import Estimate, span
from conf import load
from loadgen.drive import programs
from loadgen.drive.programs import sweep
from loadgen.run import verdicts
from loadgen.search.window_plan import Start
from tests.support.runs.verdict_trees import screen
from tests.support.search import scenarios
from tests.support.virtual.toy_services import OneAtATime
from tests.support.virtual.virtual_drivers import Changed, driver, engines
from tests.support.virtual.virtual_target import VirtualTarget

CEILING_QPS = 10.0
"""No service that takes a tenth of a second for each request does more."""
LENGTHS = "requests of 256/20 tokens"
WORDS = ["workload=smoke", "workload.output_tokens.mean=20", "slo.tpot_p90_ms=1000", "slo.ttft_p90_ms=20000"]


def searched(*words: str) -> RunVerdict:
    """A search of that service with windows of half a minute, under a bound of 20 s on the first token."""
    target = VirtualTarget(OneAtATime(1 / CEILING_QPS))
    drive, experiment, _ = driver([*WORDS, "search=quick", *words], Start(CEILING_QPS, 11.0), target=target)
    return verdicts.sweep_verdict(experiment, drive, sweep(drive), "wall")


def probed(rate_qps: float, duration_s: float, *words: str) -> RunVerdict:
    target = VirtualTarget(OneAtATime(1 / CEILING_QPS))
    drive, experiment, _ = driver(
        [*WORDS, f"rate_qps={rate_qps}", f"duration_s={duration_s}", *words], target=target
    )
    programs.offer_load(drive, experiment)
    return verdicts.probe_verdict(experiment, drive)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("seed=1",), ("seed=2", "search.budget_s=120")], ids=["bracketed", "no bound was missed"]
)
def test_a_queue_that_still_grew_makes_a_capacity_an_upper_bound(words: tuple[str, ...]) -> None:
    """It said 12.33 [11.52, 12.94], certified 11.73, and at least 11.83."""
    verdict = searched(*words)
    assert (verdict.valid, verdict.passed, verdict.exit_code) == (True, False, summary.EXIT_OPEN)
    assert verdict.capacity is not None and verdict.capacity.open_below and not verdict.capacity.open_above
    q = verdict.capacity.qps_per_node
    assert q.low is None and q.certified is None and q.high is not None and q.high > CEILING_QPS
    text = screen(verdict).splitlines()
    high = span(Estimate.at_most(q.high)).removeprefix("at most ")
    claim = f"VALID  at most {high} QPS per node (the queue still grew: an upper bound only)"
    assert text[0] == f"SIMULATED, {claim}; {LENGTHS}"
    assert "longer search.window_s" in text[1]
    assert any(line.startswith(f"  per replica: at most {high} QPS:") for line in text)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["PS", "S4", "T20"])
def test_a_queue_that_comes_and_goes_near_the_capacity_is_none(scenario: str) -> None:
    drive, experiment, _ = driver(
        [*scenarios.SCENARIOS[scenario], "search=quick"],
        Start(scenarios.guess_qps(scenario), scenarios.truths()[scenario]),
        target=scenarios.target(scenario, 3),
    )
    verdict = verdicts.sweep_verdict(experiment, drive, sweep(drive), "wall")
    assert verdict.capacity is not None and not verdict.capacity.queue_grew


@pytest.mark.slow
def test_a_probe_whose_queue_still_grew_is_within_its_bounds_only_so_far() -> None:
    verdict = probed(11.0, 60)
    assert (verdict.valid, verdict.passed, verdict.exit_code) == (True, False, summary.EXIT_OPEN)
    assert screen(verdict).splitlines()[0] == (
        f"VALID  11 QPS per node: within the bounds so far, not shown: the queue still grew; {LENGTHS}"
    )
    assert verdict.reason.startswith("the window is too short to show that the bounds are kept; offer longer")
    assert probed(7.0, 40).exit_code == summary.EXIT_OK
    assert probed(17.0, 60).exit_code == summary.EXIT_SLO_MISSED


def test_a_probe_of_few_requests_is_within_its_bounds_and_shows_nothing() -> None:
    verdict = probed(1.0, 60)
    assert verdict.probe is not None and verdict.probe.limits
    assert (ttft := verdict.probe.limits["ttft"]).passed and not ttft.has_interval
    assert (verdict.valid, verdict.passed, verdict.exit_code) == (True, False, summary.EXIT_OPEN)
    assert screen(verdict).splitlines()[0] == (
        "VALID  1 QPS per node: within the bounds so far, not shown: "
        f"57 requests, and the interval of p90 TTFT and p90 TPOT needs 100; {LENGTHS}"
    )
    assert probed(2.0, 60).exit_code == summary.EXIT_OK


def test_a_p99_needs_more_requests_than_a_p90() -> None:
    verdict = probed(7.0, 60, "slo.ttft_p99_ms=30000")
    assert verdict.exit_code == summary.EXIT_OPEN
    assert screen(verdict).splitlines()[0].endswith(f"and the interval of p99 TTFT needs 1000; {LENGTHS}")


BOUNDS = ["slo.e2e_p50_ms=9000", "slo.queue_p99_ms=50"]
OFFSETS = ("first_token_offset_ns", "last_token_offset_ns", "end_offset_ns")


def erratic(seed: int, spread: float) -> Changed:
    """A node whose answers come later by random times, in stretches."""

    def later(rows: pa.Table) -> pa.Table:
        stretch = rows["due_ns"].to_numpy() // 10_000_000_000
        lags_ns = [int(1e8 * np.random.default_rng([seed, at]).exponential(spread)) for at in stretch]
        lags_ns = np.where(metrics.status_in(rows, records.OK), lags_ns, 0)
        lags_ns = np.where(metrics.status_in(rows, records.OK), lags_ns, 0)
        for name in OFFSETS:
            moved = pc.add(rows[name], pa.array(lags_ns, pa.int64()))
            rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), moved)
        return rows

    return Changed(engines(load([])), later)


def check(rate_qps: float, seconds: float, seed: int, spread: float) -> None:
    """Each quantile is a time that may be, in an interval around it or in none; the screen shows no nan."""
    drive, experiment, _ = driver(BOUNDS, target=erratic(seed, spread))
    programs.offer_rate(drive, rate_qps, seconds, 5)
    verdict = verdicts.probe_verdict(experiment, drive)
    assert verdict.probe is not None
    for found in verdict.probe.limits.values():
        possible(found)
    assert not re.search(r"\bnan\b|-\d+(\.\d+)? ms", screen(verdict))


def possible(quantile: Quantile) -> None:
    assert quantile.ms is None or quantile.ms.value >= 0
    if quantile.ms is None or not quantile.has_interval:
        return
    low_ms, high_ms = quantile.ms.ends
    assert low_ms is not None and 0 <= low_ms <= quantile.ms.value and math.isfinite(low_ms)
    assert high_ms is None or quantile.ms.value <= high_ms


questions: dict[str, Any] = {
    "rate_qps": st.floats(0.3, 4.0),
    "seconds": st.floats(10.0, 90.0),
    "seed": st.integers(0, 1000),
    "spread": st.sampled_from([0.0, 1.0, 50.0, 2000.0]),
}


@settings(max_examples=3)
@given(**questions)
def test_a_probe_shows_possible_latencies(**question: Any) -> None:
    check(**question)
