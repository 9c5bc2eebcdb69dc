"""States of a run that is watched: the golden run's windows, and one that runs now."""

import json
from dataclasses import replace
from typing import Any

from analysis.live.state import LatencySoFar, LiveState, WindowSoFar
from tests.support.runs.golden import GOLDEN

LINES = (GOLDEN / "events.jsonl").read_bytes().splitlines(keepends=True)
"""The log of a run that has ended."""
RUNNING = WindowSoFar(
    index=8,
    kind="window",
    rate_qps_per_node=3.31,
    achieved_qps_per_node=3.27,
    now_s=412.3,
    window_start_s=395.0,
    window_end_s=425.0,
    sent=61,
    answered=40,
    failed=1,
    pending=20,
    in_flight=31,
    latencies={
        "ttft_p90_ms": LatencySoFar(2000.0, 58, 512.3, 1234.5, 3.4),
        "tpot_p90_ms": LatencySoFar(100.0, 41, 61.2, 103.4, 12.2),
    },
    lag_p99_ms=4.2,
    lag_gate_ms=20.0,
    elapsed_s=330.1,
    budget_s=345.0,
)
DONE: dict[str, Any] = {
    "index": 3,
    "kind": "window",
    "rate_qps_per_node": 5.21,
    "requests": 246,
    "pending": 0,
    "failed": 0,
    "void": False,
    "ttft_p90_ms": float("inf"),
    "tpot_p90_ms": None,
    "over_ttft_pct": 1.0,
    "over_tpot_pct": None,
    "lag_p99_ms": 0.4,
    "verdict": "within",
}
"""The facts of a window that has ended."""


def running(now: WindowSoFar | None = RUNNING) -> LiveState:
    """The golden run before its end, with a window that runs."""
    state = LiveState()
    for line in LINES:
        event = json.loads(line)
        if event["event"] not in ("stop", "end"):
            state = state.after(event)
    return replace(state, run_id="20261124-050000-a1b2", verb="sweep", now=now, nodes=1)
