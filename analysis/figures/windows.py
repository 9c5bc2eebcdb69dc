"""Shared by the figures of one run: its windows with their requests and marks, its bounds, figures in words.

A mark is filled where a window passes and hollow where it fails; a void window is neither, and crossed.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity import dwell_table
from analysis.capacity.window_counts import Window, in_window
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Look
from analysis.figures.exhibit import NoData
from analysis.results.json_border import from_tree
from analysis.results.runs import Run
from analysis.results.types.shared_figures import AskedBounds
from analysis.rows import metrics
from conf.specs.bounds import LIMITS, Limit, Slo, allowed_over, column

PLACE = ("due_ns", "dwell", "phase", "status")
"""Columns of a request's window and status."""
LATENCY = (
    *("first_token_offset_ns", "last_token_offset_ns", "engine_first_token_ns", "engine_last_token_ns"),
    *("time_scale", "turn_blocked_ns", *metrics.TOKEN_COUNTS),
)
"""Columns from which `metrics.ttft` and `metrics.tpot` are made."""
LAG = ("send_offset_ns", "time_scale", "turn_blocked_ns")
COUNTED = ("dwell", "hold")
"""Kinds of windows that are measurements; a ramp step only looks for where to measure."""
LATENCIES = {"ttft": metrics.ttft, "tpot": metrics.tpot}
PASS, FAIL, VOID, UNKNOWN = "pass", "fail", "void", "unknown"
WORDS = {
    PASS: "within the bounds",
    FAIL: "over a bound",
    VOID: "void, not counted",
    UNKNOWN: "latency unknown",
}
FILLS = {PASS: canvas.BLUE, FAIL: "white", UNKNOWN: canvas.GRID}


@dataclass(frozen=True, slots=True)
class WindowRows:
    """A window with its line of dwells.parquet and, where they were read, its requests by due time."""

    line: Mapping[str, Any]
    window: Window
    rows: pa.Table

    @property
    def rate(self) -> float:
        """Offered, in QPS per node."""
        return float(self.line["rate_qps_per_node"])

    @property
    def load(self) -> float:
        """The load that arrived, as QPS per node of mean requests; the offered rate where no row tells it."""
        realised = self.line["work_qps_per_node"]
        return self.rate if realised is None or not realised > 0 else float(realised)

    @property
    def void(self) -> bool:
        return not self.line["valid"]


def lines(run: Run, kinds: Sequence[str] = COUNTED) -> list[dict[str, Any]]:
    """The rows of dwells.parquet of these kinds, by start. Raises NoData where there are none."""
    table = run.dwells()
    found = [line for line in table.to_pylist() if line["kind"] in kinds] if table.num_rows else []
    if not found:
        raise NoData("the run has no finished window")
    return sorted(found, key=lambda line: line["window_start_ns"])


def measured(run: Run, columns: Sequence[str] = ()) -> list[WindowRows]:
    """Every counted window by start, with these columns of its requests and those of `PLACE`.

    Raises NoData where there is no window.
    """
    found = lines(run)
    rows = requests(run, (*PLACE, *columns))
    # Cut by due time first: the definition then looks at the rows of one window, not of the whole run.
    due = metrics.numbers(rows, "due_ns")
    return [_measured(line, rows, due) for line in found]


def requests(run: Run, columns: Sequence[str]) -> pa.Table:
    """These columns of every planned request, by due time. Raises NoData for a run without requests."""
    rows = run.requests(columns=tuple(dict.fromkeys(("due_ns", *columns))))
    if not rows.num_rows:
        raise NoData("the run has no requests")
    return rows


def bounds_of(run: Run) -> Slo:
    """The bounds that the run's verdict was asked for, or those of its configuration."""
    if run.sweep and (asked := run.sweep.get("asked")):
        return from_tree(AskedBounds, asked["slo"], "sweep.json")
    return run.config.slo


def bounds_ms(run: Run) -> dict[Limit, float]:
    """The most in ms of every bound by its name; infinite of one on a share."""
    return {bound.limit: float(bound.ms) for bound in bounds_of(run).bounds}


def outcome(
    line: Mapping[str, Any], bounds: Mapping[Limit, float], limits: Collection[Limit] | None = None
) -> str:
    """`void`; `fail` where one of `limits`, by default all, is not kept; `unknown` where none is known; or
    `pass`.

    A p90 of TTFT or TPOT is compared with its bound, of another bound the share over it with what is allowed.
    """
    if not line["valid"]:
        return VOID
    kept = [_kept(line, limit, bounds[limit]) for limit in limits or bounds if limit in bounds]
    if False in kept:
        return FAIL
    return PASS if True in kept else UNKNOWN


def _kept(line: Mapping[str, Any], limit: Limit, most_ms: float) -> bool | None:
    if limit in LIMITS:
        p90 = line[column(limit)]
        return None if p90 is None else bool(p90 <= most_ms)
    share = dwell_table.over_share(line, limit)
    return None if share is None else share <= allowed_over(limit)


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


def qps(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def ms(value: float | None) -> str:
    """A latency with its unit, or `infinite`, or `unknown`."""
    if value is None or math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "infinite"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def counted(count: int, one: str, many: str = "") -> str:
    """A count with its noun in the right number."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def share(value: float) -> str:
    """A share in per cent; 100 only for all."""
    if 0.9995 <= value < 1:
        return "over 99.9 %"
    return f"{100 * value:.3g} %"


def _measured(line: dict[str, Any], rows: pa.Table, due: metrics.Floats) -> WindowRows:
    window = dwell_table.window(line)
    first, end = np.searchsorted(due, (window.window_start_ns, window.window_end_ns))
    return WindowRows(line, window, in_window(rows.slice(int(first), int(end - first)), window))
