"""Routing of sessions over all valid windows of a run, as facts."""

from collections.abc import Sequence

import numpy as np

from analysis.results.types.shared_figures import AskedExperiment, WindowRow
from analysis.stats.estimate import number
from analysis.views.shown import Fact


def facts(asked: AskedExperiment, windows: Sequence[WindowRow]) -> list[Fact]:
    """Hit rate, replicas per session and the busiest replica; none without sessions or conversations."""
    if not (asked.sessions or asked.conversations):
        return []
    used = [window for window in windows if window["valid"]]
    names = ("prefix_hit", "replicas_per_session", "max_over_mean_share")
    hit, met, share = (number(_mean(used, name), 3) for name in names)
    who = f"{asked.sessions} sessions" if asked.sessions else f"{asked.conversations} conversations"
    how = f"routing {asked.routing} by {asked.data_path or 'unknown'}"
    words = f"hit rate {hit}, {met} replicas per session, busiest replica {share} of the mean"
    return [(f"{who}, {how}", words), *_blocked(used)]


def _blocked(windows: Sequence[WindowRow]) -> list[Fact]:
    """The share of turns that waited for the turn before, if any did."""
    longest = max((window.get("turn_blocked_max_ms") or 0.0 for window in windows), default=0.0)
    if not longest:
        return []
    share = _mean(windows, "turns_blocked") or 0.0
    words = f"{share:.1%} of the turns were due before the answer before had ended; longest {longest:.0f} ms"
    return [("blocked", words)]


def _mean(windows: Sequence[WindowRow], name: str) -> float | None:
    """Mean over windows, each as heavy as its requests; None if any of them does not know it."""
    values = [window.get(name) for window in windows]
    if not values or any(value is None for value in values):
        return None
    weights = [window["requests"] for window in windows]
    return float(np.average(np.array(values, dtype=np.float64), weights=weights))
