"""analysis.live.prometheus_text: units, labels, and nothing where nothing is known."""

import math
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from analysis.live import prometheus_text
from analysis.live.state import LatencySoFar, LiveState
from tests.support.runs.live_states import RUNNING, running

RUN = {"run": "20261124-050000-a1b2", "verb": "sweep"}


def samples(state: LiveState) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Value by name and labels beside run and verb."""
    text = prometheus_text.metrics_page(state).decode()
    return {
        (
            sample.name,
            tuple((key, word) for key, word in sample.labels.items() if key not in RUN),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_figures_are_in_base_units() -> None:
    found = samples(running())
    expected = {
        ("maxqps_run_info", ()): 1,
        ("maxqps_offered_qps", ()): 3.31,
        ("maxqps_achieved_qps", ()): 3.27,
        ("maxqps_in_flight", ()): 31,
        ("maxqps_nodes", ()): 1,
        ("maxqps_ttft_p90_seconds", ()): 1.2345,
        ("maxqps_tpot_p50_seconds", ()): 0.0612,
        ("maxqps_bound_seconds", (("bound", "ttft_p90_ms"),)): 2,
        ("maxqps_over_bound_ratio", (("bound", "tpot_p90_ms"),)): 0.122,
        ("maxqps_known_requests", (("bound", "tpot_p90_ms"),)): 41,
        ("maxqps_send_lag_p99_seconds", ()): 0.0042,
        ("maxqps_send_lag_gate_seconds", ()): 0.02,
        ("maxqps_window_pending_ratio", ()): 20 / 61,
        ("maxqps_budget_seconds", ()): 345,
        ("maxqps_windows", ()): 8,
        ("maxqps_void_windows", ()): 0,
        ("maxqps_ended", ()): 0,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    low, certified, best, high = (
        found[f"maxqps_{name}", ()]
        for name in ("capacity_low_qps", "certified_qps", "capacity_qps", "capacity_high_qps")
    )
    assert low < certified < best < high


def test_requests_are_counted_over_all_windows() -> None:
    done = running().windows
    found = samples(running())
    answered = sum(window.requests - window.failed - window.pending for window in done)
    assert found["maxqps_requests_total", (("status", "answered"),)] == answered + 40
    assert found["maxqps_requests_total", (("status", "failed"),)] == 1


def test_what_is_unknown_is_absent() -> None:
    names = {name for name, _ in samples(LiveState())}
    assert names == {
        *("maxqps_run_info", "maxqps_ended", "maxqps_windows", "maxqps_void_windows", "maxqps_requests_total")
    }
    unknown = LatencySoFar(2000.0, 0, None, math.nan, None)
    now = replace(
        RUNNING, latencies={"ttft_p90_ms": unknown}, achieved_qps_per_node=None, in_flight=None, budget_s=None
    )
    names = {name for name, _ in samples(running(now))}
    assert "maxqps_bound_seconds" in names and "maxqps_offered_qps" in names
    absent = ("ttft_p50_seconds", "ttft_p90_seconds", "over_bound_ratio", "achieved_qps", "in_flight")
    assert not names & {f"maxqps_{name}" for name in (*absent, "budget_seconds", "exit_code")}


def test_a_failure_is_infinitely_late() -> None:
    late = LatencySoFar(2000.0, 9, 10.0, math.inf, 20.0)
    found = samples(running(replace(RUNNING, latencies={"ttft_p90_ms": late})))
    assert found["maxqps_ttft_p90_seconds", ()] == math.inf


def test_a_bound_of_another_name_or_a_strangers_becomes_no_metric() -> None:
    one = LatencySoFar(100.0, 5, 1.0, 2.0, 3.0)
    names = ("itl_pooled_p99_ms", "joint_p90_ms", 'x"} 1\nevil 1', "x" * 99, "e2e_p999_ms")
    found = samples(running(replace(RUNNING, latencies=dict.fromkeys(names, one))))
    bounds = {labels for name, labels in found if name == "maxqps_bound_seconds"}
    assert bounds == {(("bound", "itl_pooled_p99_ms"),), (("bound", "e2e_p999_ms"),)}
    assert ("maxqps_itl_pooled_p90_seconds", ()) in found


def test_a_strangers_run_name_stays_a_label() -> None:
    state = LiveState(run_id='x"} 1\nevil_total 9', verb="\\")
    families = list(text_string_to_metric_families(prometheus_text.metrics_page(state).decode()))
    assert all(family.name.startswith("maxqps_") for family in families)
    assert families[0].samples[0].labels["run"] == 'x"} 1\nevil_total 9'
