"""Outcome of a window and its mark in every figure: filled where it passes, hollow where it fails.

Knows lines of dwells.parquet and the bounds; a void window is neither, and crossed.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Look
from conf.specs.bounds import LIMITS, Limit, column

PASS, FAIL, VOID, UNKNOWN = "pass", "fail", "void", "unknown"
WORDS = {
    PASS: "p90s within their bounds",
    FAIL: "a p90 over its bound",
    VOID: "void, not counted",
    UNKNOWN: "latency unknown",
}
FILLS = {PASS: canvas.BLUE, FAIL: "white", UNKNOWN: canvas.GRID}


def outcome(line: Mapping[str, Any], bounds: Mapping[Limit, float], limits: Sequence[Limit] = LIMITS) -> str:
    """`void`; `fail` where a p90 of `limits` is over its bound; `unknown` where none is known; or `pass`."""
    if not line["valid"]:
        return VOID
    p90s = {limit: line[column(limit)] for limit in limits}
    if any(p90 is not None and p90 > bounds[limit] for limit, p90 in p90s.items()):
        return FAIL
    return UNKNOWN if all(p90 is None for p90 in p90s.values()) else PASS


def mark(ended: str, shape: str = "o") -> Look:
    """Keywords of `Axes.plot` for the windows that ended so."""
    if ended == VOID:
        return {
            "linestyle": "",
            "marker": "x",
            "markersize": 7,
            "markeredgecolor": canvas.PALE,
            "markeredgewidth": 1.6,
        }
    look: Look = {"linestyle": "", "marker": shape, "markersize": 6.5, "zorder": 3}
    return {**look, "markerfacecolor": FILLS[ended], "markeredgecolor": canvas.BLUE}


def name_outcomes(ax: Axes, outcomes: Collection[str]) -> None:
    """Legend entries of the outcomes that occur."""
    for ended, words in WORDS.items():
        if ended in outcomes:
            ax.plot([], [], **mark(ended), label=words)


def draw_points(ax: Axes, points: Sequence[tuple[float, float, str]], named: bool = True) -> None:
    """Marks at (x, y) by outcome; `named`, each outcome that occurs has an entry of the legend."""
    for ended, words in WORDS.items():
        at = [(x, y) for x, y, one in points if one == ended]
        if at:
            ax.plot(*zip(*at, strict=True), **mark(ended), label=words if named else "")
