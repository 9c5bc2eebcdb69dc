"""Which windows are void, for which reason, and what is merely noted."""

import math

import numpy as np
import pytest

from analysis.dwell import NS, Window
from analysis.records import table
from analysis.validity import (
    REMEDIES,
    Check,
    Verdict,
    check_little,
    judge_dwell,
    judge_run,
    slope_t,
)
from conf.schema import Slo

MS = 1_000_000
SLO = Slo("s", ttft_p90_ms=1000.0, tpot_p90_ms=50.0)
WINDOW = Window(0, "dwell", 10.0, 1, 0, 10 * NS, 55 * NS, 55 * NS)


def rows(count=450, **more):
    """An even window of healthy requests; a list in `more` gives the values of the first rows."""
    healthy = {
        "dwell": 0,
        "status": "ok",
        "replica_id": "r0",
        "send_offset_ns": MS,
        "first_token_offset_ns": 100 * MS,
        "last_token_offset_ns": 900 * MS,
        "end_offset_ns": 901 * MS,
        "output_tokens": 50,
        "reads": 50,
        "engine_steps": 50,
        "engine_late_steps": 0,
    }
    plain = {key: value for key, value in more.items() if not isinstance(value, list)}
    made = [healthy | plain | {"due_ns": 10 * NS + i * 45 * NS // count} for i in range(count)]
    for key, values in more.items():
        for row, value in zip(made, values if isinstance(values, list) else [], strict=False):
            row[key] = value
    return made


def judged(made, **evidence):
    return judge_dwell(table(made), WINDOW, SLO, **evidence)


def named(verdict, name):
    return next(check for check in verdict.checks if check.name == name)


def test_a_healthy_window_is_valid():
    verdict = judged(
        rows(), planned=450, expected_replicas={"r0", "r1"}, health={"a": {"cpu_share": 0.4, "stall_ms": 9}}
    )
    assert (verdict.valid, verdict.reason, verdict.remedy) == (True, "", "")
    assert named(verdict, "send_lag_p99").value == 1.0
    assert named(verdict, "loop_stall").passed is True


@pytest.mark.parametrize(
    ("made", "evidence", "reason"),
    [
        (rows(send_offset_ns=[11 * MS] * 6), {}, "client_limited"),
        (rows(status=["missed"] * 3), {}, "client_limited"),
        (rows(440), {"planned": 450}, "client_limited"),
        (rows(), {"health": {"a": {"cpu_share": 0.2}, "b": {"cpu_share": 0.61}}}, "client_limited"),
        (rows(engine_late_steps=[50] * 5), {}, "engine_late"),
        (rows(replica_id=["r9"]), {"expected_replicas": ["r0"]}, "replica_lost"),
        (rows(), {"lost_actors": ["c1"]}, "actor_lost"),
        (rows(reads=[2] * 5), {}, "burst_delivery"),
    ],
)
def test_a_failed_gate_voids_the_window_and_names_a_remedy(made, evidence, reason):
    verdict = judged(made, **evidence)
    assert (verdict.valid, verdict.reason) == (False, reason)
    assert verdict.remedy == REMEDIES[reason]


@pytest.mark.parametrize(
    ("made", "evidence"),
    [
        (rows(send_offset_ns=[11 * MS] * 4), {}),
        (rows(status=["missed"] * 2), {}),
        (rows(status=["timeout"] * 300), {}),
        (rows(status=["conn_error"] * 300, send_offset_ns=[None] * 300), {}),
        (rows(engine_late_steps=[50] * 4), {}),
        (rows(reads=[2] * 4), {}),
        (rows(output_tokens=9, reads=1), {}),
        (rows(), {"health": {"a": {"cpu_share": 0.6, "stall_ms": 500.0}}}),
        (rows(status=["pending"] * 9, send_offset_ns=[None] * 9), {"planned": 450}),
    ],
)
def test_a_failing_service_or_a_small_flaw_does_not(made, evidence):
    assert judged(made, **evidence).valid


def test_what_is_not_given_is_unknown_and_does_not_pass():
    bare = rows(replica_id=None, reads=None, engine_steps=None, engine_late_steps=None)
    verdict = judged(bare, expected_replicas=["r0"])
    unknown = {check.name for check in verdict.checks if check.passed is None}
    assert verdict.valid
    assert unknown == {
        "actor_cpu",
        "loop_stall",
        "engine_late_steps",
        "unexpected_replicas",
        "burst_delivery",
        "little",
        "prompt_tokens_error",
    }
    assert all(check.value is None for check in verdict.checks if check.passed is None)


def test_rows_outside_the_window_do_not_count():
    outside = [row | {"due_ns": 9 * NS, "status": "missed"} for row in rows(100)]
    assert judged(rows() + outside).valid


def test_failures_are_noted_as_not_achieved_but_the_backlog_is_not():
    assert named(judged(rows(status=["timeout"] * 10)), "achieved").passed is False
    assert named(judged(rows(status=["pending"] * 100)), "achieved").value == 1.0


def test_little_compares_with_an_independent_count():
    made = table(rows())
    expected = 450 / 45 * 0.901 - 0.901**2 * 10 / 2 / 45
    assert check_little(made, WINDOW, expected).value == pytest.approx(0, abs=3e-3)
    assert check_little(made, WINDOW, expected * 1.04).passed is True
    assert check_little(made, WINDOW, expected * 1.06).passed is False


def test_a_growing_queue_is_noted_as_unstable_and_does_not_void():
    rng = np.random.default_rng(2)
    growing = [100 * i * MS + int(rng.integers(0, 500 * MS)) for i in range(450)]
    verdict = judged(rows(end_offset_ns=growing, last_token_offset_ns=growing))
    assert named(verdict, "backlog_slope_t").passed is False
    assert verdict.valid


def test_the_trend_test_allows_for_autocorrelation():
    rng = np.random.default_rng(4)
    alarms = []
    for _ in range(400):
        walk = np.zeros(45)
        for i in range(1, 45):
            walk[i] = 0.7 * walk[i - 1] + rng.normal()
        alarms.append(abs(slope_t(walk)) > 3)
    assert np.mean(alarms) < 0.06
    assert slope_t(np.arange(45.0)) == math.inf
    assert abs(slope_t(np.arange(45.0) + rng.normal(size=45))) > 20
    assert slope_t(np.ones(45)) is None
    assert slope_t(np.arange(9.0)) is None


def void(reason):
    return Verdict(False, reason, (Check("c", False, 1.0, 0.0, "", reason),))


VALID = Verdict(True, "", ())


@pytest.mark.parametrize(
    ("dwells", "min_dwells", "reason"),
    [
        ([VALID] * 6, 6, ""),
        ([VALID] * 6 + [void("engine_late")], 6, ""),
        ([VALID] * 5 + [void("engine_late"), void("actor_lost")], 6, "engine_late"),
        ([VALID] * 5, 6, "too_few_dwells"),
        ([VALID], 1, "too_few_dwells"),
        ([], 1, "too_few_dwells"),
    ],
)
def test_a_run_needs_enough_valid_dwells(dwells, min_dwells, reason):
    verdict = judge_run(dwells, min_dwells)
    assert (verdict.valid, verdict.reason) == (not reason, reason)
    assert verdict.remedy == REMEDIES.get(reason, "")
