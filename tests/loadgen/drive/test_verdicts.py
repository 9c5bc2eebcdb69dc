"""loadgen/run/verdicts.py: how searches, probes and required rates end, and no impossible figure."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.results import summary
from analysis.results.figures import Quantile
from analysis.results.json_border import to_tree
from analysis.results.verdicts import RunVerdict
from analysis.rows import metrics, records
from analysis.stats.estimate import Estimate, span
from conf import load
from loadgen.__main__ import main
from loadgen.drive import programs
from loadgen.drive.driver import Driver
from loadgen.drive.loss_recovery import TargetLost
from loadgen.drive.programs import require, required_s, sweep
from loadgen.run import verdicts
from loadgen.search import acceptance
from loadgen.search.window_plan import Start
from loadgen.traffic.schedule import NS
from tests.support.runs.verdict_trees import screen, text_of
from tests.support.search import scenarios
from tests.support.virtual.toy_services import OneAtATime
from tests.support.virtual.virtual_drivers import Altering, Breaking, Changed, altered, driver, engines
from tests.support.virtual.virtual_target import VirtualTarget

CEILING_QPS = 10.0
"""No service that takes a tenth of a second for each request does more."""
LENGTHS = "requests of 256/20 tokens"
WORDS = ["workload=smoke", "workload.output_tokens.mean=20", "slo.tpot_p90_ms=1000", "slo.ttft_p90_ms=20000"]


def searched(*words: str) -> RunVerdict:
    """A search of that service with windows of half a minute, under a bound of 20 s on the first token."""
    target = VirtualTarget(OneAtATime(1 / CEILING_QPS))
    drive, experiment, _ = driver([*WORDS, "search=quick", *words], Start(CEILING_QPS, 11.0), target=target)
    return verdicts.sweep_verdict(experiment, drive, sweep(drive))


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
    verdict = verdicts.sweep_verdict(experiment, drive, sweep(drive))
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


def test_a_probe_of_few_requests_is_within_its_bounds_and_shows_nothing() -> None:
    verdict = probed(1.0, 60)
    assert verdict.probe is not None and verdict.probe.limits
    assert (ttft := verdict.probe.limits["ttft"]).passed and not ttft.has_interval
    assert (verdict.valid, verdict.passed, verdict.exit_code) == (True, False, summary.EXIT_OPEN)
    assert screen(verdict).splitlines()[0] == (
        "VALID  1 QPS per node: within the bounds so far, not shown: "
        f"57 requests, and the interval of p90 TTFT and p90 TPOT needs 100; {LENGTHS}"
    )
    for rate_qps, code in ((2.0, summary.EXIT_OK), (17.0, summary.EXIT_SLO_MISSED)):
        verdict = probed(rate_qps, 60)
        assert (verdict.valid, verdict.passed, verdict.exit_code) == (True, code == summary.EXIT_OK, code)


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


SHORT = ["search=quick", "search.budget_s=100", "search.window_s=15", "search.first_transition_s=5"]
SHORT_WORDS = ["workload=smoke", "workload.output_tokens.mean=20", "slo.tpot_p90_ms=null", *SHORT]


@pytest.mark.parametrize(
    ("guess_qps", "words", "row", "code"),
    [
        (8.0, ["slo.ttft_p90_ms=400"], {}, summary.EXIT_OK),
        (2.0, ["slo.ttft_p90_ms=4000"], {}, summary.EXIT_OPEN),
        (7.0, ["slo.ttft_p90_ms=400"], {"send_offset_ns": NS // 10}, summary.EXIT_VOID),
    ],
    ids=["bracketed", "far below the capacity", "a late client"],
)
def test_a_search_ends_with_its_code(
    guess_qps: float, words: list[str], row: dict[str, Any], code: int
) -> None:
    """The service takes a tenth of a second for each request; its rows have other figures."""
    target = Changed(OneAtATime(0.1), lambda rows: altered(rows, row))
    drive, experiment, _ = driver([*SHORT_WORDS, *words], Start(guess_qps, guess_qps), target=target)
    verdict = verdicts.sweep_verdict(experiment, drive, sweep(drive))
    assert verdict.exit_code == code and verdict.passed is (code == summary.EXIT_OK)
    assert verdict.valid is (code != summary.EXIT_VOID)


def late(rows: pa.Table) -> pa.Table:
    """The rows, the first token of every fifth request five seconds later."""
    name = "first_token_offset_ns"
    more = pa.array(np.where(rows["seq"].to_numpy() % 5 == 0, 5 * NS, 0))
    return rows.set_column(rows.schema.get_field_index(name), name, pc.add(rows[name], more))


def test_a_share_that_misses_a_bound_at_any_rate_is_said() -> None:
    words = [*SHORT_WORDS[: -len(SHORT)], "search=standard", "slo.ttft_p90_ms=2000"]
    drive, experiment, _ = driver(words, Start(5.0, 5.0), target=Changed(OneAtATime(0.05), late))
    verdict = verdicts.sweep_verdict(experiment, drive, sweep(drive))
    assert verdict.exit_code == summary.EXIT_OPEN and verdict.capacity and verdict.capacity.open_below
    assert "20 % missed the bound on p90 TTFT, hardly fewer at lower rates, and 10 % may" in verdict.reason


def test_the_wait_for_a_service_that_comes_back_costs_no_budget() -> None:
    target = Breaking(load([]), 1e9)
    drive, _, _ = driver([], target=target, repair=target.repair)
    before_s, began_ns = drive.elapsed_s(), target.now_ns()
    drive.loss.recover(TargetLost("1 of 1 replicas gone"))
    assert (target.now_ns() - began_ns) / NS >= 400
    assert drive.elapsed_s() == pytest.approx(before_s, abs=1)


def required(words: list[str], **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]], Driver]:
    """The conclusion, the looks in order, and the driver of a rate required of the engine model."""
    drive, experiment, events = driver(words, **more)
    assert experiment.rate_qps
    result = require(drive, experiment.rate_qps, required_s(experiment))
    tree = to_tree(verdicts.required_verdict(experiment, drive, result))
    assert text_of(tree)
    return tree, [facts for kind, facts in events if kind == "look"], drive


# The capacity of the default node is near 3.35 QPS.
@pytest.mark.parametrize(
    ("rate_qps", "verdict", "exit_code"),
    [(2.4, "passed", summary.EXIT_OK), (5.2, "failed", summary.EXIT_SLO_MISSED)],
)
def test_far_from_the_knee_the_answer_is_clear(rate_qps: float, verdict: str, exit_code: int) -> None:
    tree, looks, _ = required([f"rate_qps={rate_qps}"])
    assert tree["probe"]["required"]["verdict"] == verdict
    assert (tree["exit_code"], tree["valid"], tree["passed"]) == (exit_code, True, verdict == "passed")
    assert verdict == "passed" or len(looks) == 1  # a failure is clear at once
    assert [look["verdict"] for look in looks] == ["undecided"] * (len(looks) - 1) + [verdict]
    first, second = text_of(tree).splitlines()[:2]
    assert first == f"VALID  {rate_qps:g} QPS per node: {verdict}; requests of 5600/140 tokens"
    assert second == f"  why: {tree['reason']}" and looks[-1]["text"].endswith(tree["reason"])


def test_at_the_knee_a_short_look_says_so_with_the_remedy() -> None:
    tree, looks, drive = required(["rate_qps=3.35", "duration_s=200"])
    assert (tree["exit_code"], tree["valid"], tree["passed"]) == (summary.EXIT_OPEN, True, False)
    assert "neither is shown after" in tree["reason"] and "offer longer (duration_s=...)" in tree["reason"]
    windows = [outcome.counts for outcome in drive.windows.outcomes]
    assert len(looks) == len(windows) == 3
    # No gap in the load: for this second the arrivals of the window before go on.
    assert [b.window_start_ns - a.window_end_ns for a, b in pairwise(windows)] == [NS, NS]


def test_the_shortest_duration_has_room_for_a_pass() -> None:
    quick = VirtualTarget(OneAtATime(0.05))
    _, looks, _ = required(["rate_qps=3", "duration_s=289"], target=quick)
    assert len(looks) == acceptance.PASS_WINDOWS


def test_an_invalid_load_neither_passes_nor_fails() -> None:
    words = ["rate_qps=2.4"]
    tree, _, drive = required(words, target=Altering(load(words), send_offset_ns=NS // 10))
    assert (tree["exit_code"], tree["valid"], tree["passed"]) == (summary.EXIT_VOID, False, False)
    assert tree["reason"].startswith("client_limited: 2 windows in a row were void. Give the load generator")
    assert len(drive.windows.outcomes) == 2


@pytest.mark.parametrize(("flag", "ends"), [(["--require"], "run=NAME --require"), ([], "run=NAME")])
def test_a_probe_is_not_resumed_but_run_again_as_it_was(
    flag: list[str], ends: str, tmp_path: Path, capsys: Any
) -> None:
    argv = ["loadgen", "probe", "rate_qps=4", *flag]
    (tmp_path / "manifest.json").write_text(json.dumps({"verb": "probe", "argv": argv}))
    assert main(["resume", str(tmp_path), "--dry-run"]) == summary.EXIT_USAGE
    error = capsys.readouterr().err
    assert error.startswith("error: a probe is not continued") and error.endswith(f"{ends}\n")
