"""What the figures of one run read of its folder, each file once; a window's outcome as a mark.

A mark is filled where a window passes and hollow where it fails; a void window is neither, and crossed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity import window_table
from analysis.capacity.window_counts import Window, in_window
from analysis.figures import canvas, capacities
from analysis.figures.canvas import Axes, Floats, Look
from analysis.figures.exhibit import NoData
from analysis.results.runs import Run
from analysis.rows import metrics, records
from analysis.views import rates
from analysis.views.rates import COUNTED, FAIL, PASS, UNKNOWN, VOID
from conf.specs.bounds import LIMITS, Limit, Slo

COLUMNS = (
    *("due_ns", "window_index", "phase", "status", "time_scale", "turn_blocked_ns", "send_offset_ns"),
    *("end_offset_ns", "first_token_offset_ns", "last_token_offset_ns", "engine_first_token_ns"),
    *("engine_last_token_ns", *metrics.TOKEN_COUNTS),
)
"""Columns of a request that figures are made of."""
LATENCIES = {"ttft": metrics.ttft, "tpot": metrics.tpot}
WORDS = {
    PASS: "within the bounds",
    FAIL: "over a bound",
    VOID: "void, not counted",
    UNKNOWN: "latency unknown",
}
FILLS = {PASS: canvas.BLUE, FAIL: canvas.PAPER, UNKNOWN: canvas.GRID}


@dataclass(frozen=True)
class WindowRows:
    """A window with its line of windows.parquet and its requests by due time."""

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
        return rates.load(self.line)

    @property
    def void(self) -> bool:
        return not self.line["valid"]

    @cached_property
    def latency_ms(self) -> Mapping[Limit, Floats]:
        """TTFT and TPOT of each request; infinite of a failed one, nan if unknown."""
        return {limit: LATENCIES[limit](self.rows) for limit in LIMITS}

    @cached_property
    def lag_ms(self) -> Floats:
        """Send lag of each request; infinite if it never left, nan if unknown."""
        return metrics.send_lag(self.rows)


@dataclass(frozen=True)
class RunData:
    """A run as its figures read it, every file once; `columns` of requests are all for a whole report."""

    run: Run
    columns: Sequence[str] = COLUMNS

    @classmethod
    def whole(cls, run: Run) -> "RunData":
        """With every column of the requests, the gaps between tokens among them."""
        return cls(run, records.REQUESTS.names)

    @cached_property
    def all_lines(self) -> list[dict[str, Any]]:
        """The rows of windows.parquet by start."""
        table = self.run.windows()
        lines = table.to_pylist() if table.num_rows else []
        return sorted(lines, key=lambda line: line["window_start_ns"])

    def lines(self, kinds: Collection[str] = COUNTED) -> list[dict[str, Any]]:
        """The rows of windows.parquet of these kinds, by start. Raises NoData where there are none."""
        lines = [line for line in self.all_lines if line["kind"] in kinds]
        if not lines:
            raise NoData("the run has no finished window")
        return lines

    @property
    def ramp(self) -> list[dict[str, Any]]:
        """The lines of the ramp's steps, which are no measurements."""
        return [line for line in self.all_lines if line["kind"] == "ramp"]

    @cached_property
    def requests(self) -> pa.Table:
        """Every planned request by due time. Raises NoData for a run without requests."""
        rows = self.run.requests(columns=self.columns)
        if not rows.num_rows:
            raise NoData("the run has no requests")
        return rows

    @cached_property
    def windows(self) -> Sequence[WindowRows]:
        """Every counted window by start. Raises NoData where there is none."""
        lines = self.lines()
        # Cut by due time first: the definition then looks at the rows of one window, not of the whole run.
        due = metrics.numbers(self.requests, "due_ns")
        return [_window_rows(line, self.requests, due) for line in lines]

    @property
    def valid_by_rate(self) -> list[WindowRows]:
        """The windows that are not void, by offered rate. Raises NoData without one."""
        valid = sorted((w for w in self.windows if not w.void), key=lambda window: window.rate)
        if not valid:
            raise NoData("every window is void")
        return valid

    @cached_property
    def bounds(self) -> Slo:
        """The bounds that the run's verdict was asked for, or those of its configuration."""
        return self.run.verdict.asked.slo if self.run.verdict else self.run.config.slo

    @property
    def bounds_ms(self) -> dict[Limit, float]:
        """The most in ms of every bound by its name; infinite of one on a share."""
        return {bound.limit: float(bound.ms) for bound in self.bounds.bounds}

    @cached_property
    def capacity(self) -> capacities.CapacityRow:
        """The capacity of the run, or why it claims none."""
        return capacities.of_run(self.run)

    def outcome(self, line: Mapping[str, Any], limits: Collection[Limit] | None = None) -> str:
        """`rates.outcome` of a window by the bounds of this run."""
        return rates.outcome(line, self.bounds_ms, limits)


def mark(ended: str, shape: str = "o") -> Look:
    """Keywords of `Axes.plot` for the windows that ended so."""
    if ended == VOID:
        cross: Look = {"marker": "x", "markersize": 7, "markeredgewidth": 1.6}
        return {"linestyle": "", "markeredgecolor": canvas.PALE, **cross}
    look: Look = {"linestyle": "", "marker": shape, "markersize": 6.5, "zorder": 3}
    return {**look, "markerfacecolor": FILLS[ended], "markeredgecolor": canvas.BLUE}


def draw_points(ax: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Marks at (x, y) by outcome."""
    for ended, words in WORDS.items():
        at = [(x, y) for x, y, point_ended in points if point_ended == ended]
        if at:
            ax.plot(*zip(*at, strict=True), **mark(ended), label=words)


def _window_rows(line: dict[str, Any], rows: pa.Table, due: Floats) -> WindowRows:
    window = window_table.window(line)
    first, end = np.searchsorted(due, (window.window_start_ns, window.window_end_ns))
    return WindowRows(line, window, in_window(rows.slice(int(first), int(end - first)), window))
