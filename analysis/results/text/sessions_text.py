"""Routing of sessions over all valid windows of a run, as lines of the screen."""

from collections.abc import Sequence

import numpy as np

from analysis.results.types.shared_figures import AskedExperiment, WindowRow


def lines(asked: AskedExperiment, windows: Sequence[WindowRow]) -> list[str]:
    """Hit rate, replicas per session and the busiest replica; nothing without sessions or conversations."""
    if not (asked.sessions or asked.conversations):
        return []
    used = [window for window in windows if window["valid"]]
    hit, met, share = (
        _mean(used, figure) for figure in ("prefix_hit", "replicas_per_session", "max_over_mean_share")
    )
    who = f"{asked.sessions} sessions" if asked.sessions else f"{asked.conversations} conversations"
    sessions = f"{who}, routing {asked.routing} by {asked.data_path or 'unknown'}"
    words = (
        f"hit rate {_figure(hit)}, {_figure(met)} replicas per session, busiest replica "
        f"{_figure(share)} of the mean"
    )
    return [f"  {sessions}: {words}", *_blocked(used)]


def _blocked(windows: Sequence[WindowRow]) -> list[str]:
    """The share of turns that waited for the one before, if any did."""
    longest = max((window.get("turn_blocked_max_ms") or 0.0 for window in windows), default=0.0)
    if not longest:
        return []
    share = _mean(windows, "turns_blocked") or 0.0
    return [
        f"  {share:.1%} of the turns were due before the answer before had ended; longest {longest:.0f} ms"
    ]


def _mean(windows: Sequence[WindowRow], figure: str) -> float | None:
    """Mean over windows, each as heavy as its requests; None if any of them does not know it."""
    values = [window.get(figure) for window in windows]
    if not values or any(value is None for value in values):
        return None
    weights = [window["requests"] for window in windows]
    return float(np.average(np.array(values, dtype=np.float64), weights=weights))


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
