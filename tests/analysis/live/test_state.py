"""analysis.live.state: a run's events add up to its state, and what is damaged changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.live.state import KIND, MOST_LINES, LiveState

GOLDEN = Path(__file__).parents[2] / "data" / "golden_run"
WINDOW: dict[str, Any] = {
    "event": KIND,
    "index": 3,
    "kind": "window",
    "rate_qps_per_node": 3.2,
    "achieved_qps_per_node": 3.1,
    "now_s": 20.0,
    "window_start_s": 10.0,
    "window_end_s": 55.0,
    "sent": 31,
    "answered": 20,
    "failed": 1,
    "pending": 10,
    "in_flight": 25,
    "latencies": {
        "ttft_p90_ms": {"bound_ms": 2000.0, "known": 25, "p50_ms": 500.0, "p90_ms": "inf", "over_pct": 4.0}
    },
    "lag_p99_ms": 1.5,
    "lag_gate_ms": 20.0,
    "elapsed_s": 120.0,
    "budget_s": 300.0,
}
DONE: dict[str, Any] = {
    "event": "window_done",
    "index": 3,
    "kind": "window",
    "rate_qps_per_node": 3.2,
    "requests": 140,
    "pending": 30,
    "failed": 1,
    "ttft_p90_ms": 900.0,
    "itl_p99_ms": "inf",
    "over_ttft_pct": 2.0,
    "over_itl_p99_pct": None,
    "lag_p99_ms": 1.0,
    "verdict": "over itl_p99",
    "void": False,
    "capacity": {
        **{"qps_per_node": 3.3, "low": 3.0, "high": 3.6, "certified": 3.1, "binding": "itl_p99"},
        **{"open_above": False, "open_below": True, "windows": [0, 1, 3]},
    },
}


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
    running = after(WINDOW)
    assert running.now is not None and running.now.pending_pct == pytest.approx(100 * 10 / 31)
    assert running.now.latencies["ttft_p90_ms"].p90_ms == float("inf")
    ended = running.after(DONE)
    assert ended.now is None and ended.windows[0].pending == 30
    assert ended.windows[0].over_pct == {"ttft_p90_ms": 2.0, "itl_p99_ms": None}
    assert ended.windows[0].latencies_p90_ms == {"ttft_p90_ms": 900.0, "itl_p99_ms": float("inf")}
    assert ended.belief is not None and (ended.belief.windows, ended.belief.open_below) == (3, True)


def test_a_window_that_is_measured_again_replaces_those_from_it_on() -> None:
    again = after(DONE, DONE | {"index": 4}, DONE | {"requests": 7})
    assert [(w.index, w.requests) for w in again.windows] == [(3, 7)]


def test_final_figures_replace_those_of_their_window_and_the_last_belief() -> None:
    capacity = DONE["capacity"] | {"qps_per_node": 3.1, "certified": 2.9}
    first = {
        "event": "window_final",
        "pending": 0,
        "ttft_p90_ms": 700.0,
        "verdict": "within",
        "capacity": None,
    }
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
