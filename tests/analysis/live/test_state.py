"""analysis.live.state, screen, prometheus_text: what the events of a run add up to, and how it is shown."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from analysis.live import prometheus_text
from analysis.live.screen import interval_axis, screen
from analysis.live.state import KIND, MOST_LINES, Belief, DoneWindow, LatencySoFar, LiveState
from analysis.results.json_border import to_tree
from tests.support.runs import live_states
from tests.support.runs.live_states import RUNNING, running
from tests.support.words.words import TABLES

GOLDEN = Path(__file__).parents[2] / "data" / "golden_run"
WINDOW: dict[str, Any] = to_tree(RUNNING) | {"event": KIND}
CAPACITY = {
    **{"qps_per_node": 3.3, "low": 3.0, "high": 3.6, "certified": 3.1, "binding": "itl_p99"},
    **{"open_above": False, "open_below": True, "windows": [0, 1, 3]},
}
LATENCIES = {"ttft_p90_ms": 900.0, "itl_p99_ms": "inf", "over_ttft_pct": 2.0, "over_itl_p99_pct": None}
JUDGED = {"event": "window_done", "pending": 30, "verdict": "over itl_p99", "capacity": CAPACITY}
DONE = live_states.DONE | LATENCIES | JUDGED


def after(*events: dict[str, Any]) -> LiveState:
    state = LiveState()
    for event in events:
        state = state.after(event)
    return state


def test_the_golden_run_adds_up_to_its_own_verdict() -> None:
    events = [json.loads(line) for line in (GOLDEN / "events.jsonl").read_text().splitlines()]
    verdict = json.loads((GOLDEN / "sweep.json").read_text())
    state = after(*events)
    assert [w.index for w in state.windows if w.kind == "window"] == [d["index"] for d in verdict["windows"]]
    assert state.belief is not None and state.belief.low < state.belief.qps_per_node < state.belief.high


def test_the_running_window_stands_until_it_is_over() -> None:
    running = after(WINDOW | {"index": 3})
    assert running.now is not None and running.now.pending_pct == pytest.approx(100 * 20 / 61)
    late = {"ttft_p90_ms": WINDOW["latencies"]["ttft_p90_ms"] | {"p90_ms": "inf"}}
    slow = after(WINDOW | {"latencies": late}).now
    assert slow is not None and slow.latencies["ttft_p90_ms"].p90_ms == math.inf
    ended = running.after(DONE)
    assert ended.now is None and ended.windows[0].pending == 30
    assert ended.windows[0].over_pct == {"ttft_p90_ms": 2.0, "tpot_p90_ms": None, "itl_p99_ms": None}
    assert ended.windows[0].latencies_p90_ms == {
        **{"ttft_p90_ms": 900.0, "tpot_p90_ms": None, "itl_p99_ms": float("inf")},
    }
    assert ended.belief is not None and (ended.belief.windows, ended.belief.open_below) == (3, True)


def test_a_window_that_is_measured_again_replaces_those_from_it_on() -> None:
    again = after(DONE, DONE | {"index": 4}, DONE | {"requests": 7})
    assert [(w.index, w.requests) for w in again.windows] == [(3, 7)]


def test_final_figures_replace_those_of_their_window_and_the_last_belief() -> None:
    capacity = CAPACITY | {"qps_per_node": 3.1, "certified": 2.9}
    final = {"event": "window_final", "pending": 0, "verdict": "within", "ttft_p90_ms": 700.0}
    first = final | {"capacity": None}
    last = first | {"index": 4, "capacity": capacity}
    state = after(DONE, DONE | {"index": 4}, DONE | first, DONE | last)
    told = [(w.index, w.judged, w.latencies_p90_ms["ttft_p90_ms"]) for w in state.windows]
    assert told == [(3, "within", 700.0), (4, "within", 700.0)]
    assert state.belief == state.beliefs[-1] and len(state.beliefs) == 2
    assert state.belief is not None and state.belief.certified == 2.9


def test_the_log_is_bounded_and_its_last_line_is_the_phase() -> None:
    state = after(*({"event": "deploy", "text": f"line {n}"} for n in range(MOST_LINES + 5)))
    assert len(state.log) == MOST_LINES and state.phase == state.log[-1] == f"line {MOST_LINES + 4}"


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)


@given(st.sampled_from([WINDOW, DONE, DONE | {"event": "window_final"}]), st.data())
def test_a_damaged_event_raises_nothing(event: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(event)))
    damaged = event | {key: data.draw(VALUES)}
    state = LiveState().after(damaged)
    assert isinstance(state, LiveState)


UNKNOWN = LatencySoFar(100.0, 160, None, math.inf, None)
NOW = replace(
    RUNNING, latencies=RUNNING.latencies | {"tpot_p90_ms": UNKNOWN}, elapsed_s=240.0, budget_s=720.0
)
OVER = DoneWindow(
    2, "window", 5.0, 300, 0, 0, {"ttft_p90_ms": 900.0}, {"ttft_p90_ms": 1.0}, 0.4, "within", False
)
WIDE = Belief(5.2, 4.0, 7.0, 4.4, "tpot", False, True, 1)
NARROW = Belief(5.1, 4.9, 5.4, 4.9, "tpot", False, False, 3)
STATE = LiveState(
    run_id="20261124-120000-a1b2",
    verb="sweep",
    phase="window 3 at 5.200 QPS per node: near the estimate",
    now=NOW,
    windows=(replace(OVER, index=0), replace(OVER, index=1), OVER),
    beliefs=(WIDE, NARROW),
    log=("the engine model predicts 5.20 QPS per node",),
)


def test_one_screen_says_load_window_and_capacity() -> None:
    lines = screen(STATE, 79, 40, NOW)
    text = "\n".join(lines)
    assert "4:00 of 12:00, 8:00 left" in text
    assert "window 4 of about 9: window 3 at 5.200 QPS per node" in text
    assert "offered 3.31, achieved 3.27 QPS per node; 31 in flight" in text
    assert "provisional: 61 sent, 1 failed, 33 % of answers still out" in " ".join(text.split())
    assert "p90 TTFT         512.3    1234.5      2000     3.4 %" in text
    assert "unknown       inf       100 unknown %" in text
    belief = "capacity so far 5.10 QPS per node, 95 % interval [4.90, 5.40], 5 % quantile 4.90"
    assert belief in " ".join(text.split())
    assert text.index("  0 window") < text.index("  2 window")


@settings(max_examples=40)
@given(st.integers(1, 200), st.integers(1, 60), st.text(), st.text())
def test_whatever_is_said_the_screen_is_no_wider_and_no_higher(
    width: int, height: int, words: str, key: str
) -> None:
    now = replace(NOW, latencies={key: NOW.latencies["ttft_p90_ms"]})
    state = replace(STATE, phase=words, log=(words,) * 5, run_id=words, now=now)
    lines = screen(state, width, height, now)
    assert len(lines) <= height and all(len(line) <= max(width, 40) for line in lines)
    assert all(line.isprintable() for line in lines)


def test_an_interval_narrows_on_one_axis() -> None:
    wide, narrow = (interval_axis(belief, (WIDE, NARROW), 70) for belief in (WIDE, NARROW))
    assert len(wide) == len(narrow) <= 70 and wide.split()[0] == narrow.split()[0]
    assert "<" in wide and "<" not in narrow  # an open end is said
    assert narrow.count("=") < wide.count("=")
    assert narrow.index("[") < narrow.index("|") < narrow.index("]")


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
        (f"maxqps_{name}", (("bound", bound),) if bound else ()): value
        for name, bound, value in TABLES["metrics of a run in base units"]
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
