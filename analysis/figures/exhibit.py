"""An exhibit: a figure's data, drawing, table and words, from one read of a run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from analysis.capacity import window_table
from analysis.capacity.window_counts import Window, in_window
from analysis.figures import canvas
from analysis.figures.canvas import Figure, Floats, Look
from analysis.results.figures import WindowRow
from analysis.results.runs import Run
from analysis.results.verdicts import CellRatio
from analysis.rows import metrics
from analysis.stats import estimate
from analysis.stats.estimate import Estimate, number, span
from analysis.views import rates
from analysis.views.rates import COUNTED, FAIL, PASS, UNKNOWN, VOID
from conf.io import bounded_yaml
from conf.specs.bounds import LIMITS, Limit, Slo

Row = dict[str, Any]
"""A row of a table, by column."""


_WORDS: dict[str, dict[str, Any]] = bounded_yaml.read(Path(__file__).with_name("exhibits.yaml").read_text())


class NoData(ValueError):
    """A figure cannot be drawn of this run; the message says why in one sentence for the reader."""


class Exhibit(ABC):
    """What a figure shows, read once; `draw`, `table` and `alt` show the same.

    `rows` are those of the table, compact and with units in the names of columns. A run is read as `RunData`,
    so that several exhibits share one read. The words of each stand in exhibits.yaml.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    section: ClassVar[str]
    noun: ClassVar[str] = "window"
    shown: ClassVar[Mapping[str, str]]
    height_in: float = canvas.HEIGHT_IN
    """Height of the panels."""
    rows: Sequence[Row]

    def __init_subclass__(cls) -> None:
        for key, value in _WORDS[cls.__name__].items():
            setattr(cls, key, value)

    @abstractmethod
    def __init__(self, subject: Any) -> None:
        """Read a run's data, several runs, or a study. Raises NoData where nothing can be drawn of it."""

    @abstractmethod
    def draw(self, figure: Figure) -> None:
        """Draw on an empty figure; what has a label is named in its legend."""

    def table(self) -> pa.Table:
        """What is drawn, as a table."""
        return pa.Table.from_pylist(list(self.rows))

    def alt(self) -> str:
        """What is seen, in a sentence with numbers; a void window is counted and says nothing else."""
        valid = [row for row in self.rows if not (row.get("outcome") == VOID or row.get("valid") is False)]
        void = len(self.rows) - len(valid)
        apart = f" Void and not counted: {void}." if void else ""
        ranges = []
        for column, words in self.shown.items():
            known = [row[column] for row in valid if row[column] is not None]
            ends = [number(end, 3) for end in (min(known), max(known))] if known else [UNKNOWN]
            ranges.append(f"{' to '.join(dict.fromkeys(ends))} {words}")
        return f"{canvas.counted(len(valid), self.noun)}: {'; '.join(ranges)}.{apart}"

    def figure(self) -> Figure:
        """The figure for a notebook."""
        return canvas.notebook_figure(self.draw, self.height_in)

    def svg(self, name: str = "", width_in: float = canvas.PAGE_IN) -> str:
        """The figure as inline SVG, the same bytes for the same data.

        `name`, by default the exhibit's own, tells it from others on a page.
        """
        return canvas.svg(self.draw, self.height_in, name or self.name, width_in)


def plot_of(exhibit: type[Exhibit]) -> Callable[[Any], Figure]:
    """The function with which a notebook draws an exhibit, with the exhibit's words as its help."""

    def plot(subject: Any) -> Figure:
        return exhibit(RunData(subject) if isinstance(subject, Run) else subject).figure()

    plot.__doc__ = exhibit.__doc__
    return plot


FAILURE = "status", "error_kind", "http_status"
"""Columns by which failures are counted."""
COLUMNS = tuple(
    dict.fromkeys(("due_ns", "window_index", "phase", "end_offset_ns", *metrics.NEEDED, *FAILURE, "error"))
)
"""Columns of a request that figures are made of."""
REPORTED = (*COLUMNS, "itl_us")
"""Those of a report, whose tables have gaps too: most bytes of a row."""
LATENCIES = {"ttft": metrics.ttft, "tpot": metrics.tpot}
WORDS = {
    PASS: "within the bounds",
    FAIL: "over a bound",
    VOID: "void, not counted",
    UNKNOWN: "latency unknown",
}
FAR = 1.5
"""An end of the capacity's interval widens an axis of rates up to this factor (our choice)."""
FILLS = {PASS: canvas.BLUE, FAIL: canvas.PAPER, UNKNOWN: canvas.GRID}


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """What is claimed in QPS per node, or `why` nothing is; a claim with an open end has no certified rate.

    `ratio` is that to the first part. `simulated` is the kind of a simulated interval, `sampling` the
    capacity by sampling noise alone.
    """

    name: str
    claim: Estimate | None
    why: str = ""
    ratio: CellRatio | None = None
    simulated: str = ""
    sampling: Estimate | None = None

    @property
    def closed(self) -> Estimate | None:
        """The claim where both ends of its interval are known."""
        return self.claim if self.claim and not self.claim.is_open else None

    @property
    def certified(self) -> float | None:
        """The certified rate of a closed interval."""
        return self.closed.certified if self.closed else None

    @property
    def words(self) -> str:
        """The capacity as text, or why there is none."""
        kind = f" (simulated, {self.simulated})" if self.simulated else ""
        return f"{span(self.claim)}{kind}" if self.claim else self.why or "no result"

    @property
    def certified_words(self) -> str:
        """The certified rate, rounded down."""
        return f"certified {estimate.certified(self.closed)}" if self.closed else ""

    @property
    def sentence(self) -> str:
        """What is claimed, in a sentence."""
        if not self.claim:
            return "No capacity is claimed."
        certified = f", {self.certified_words}" if self.closed else ""
        return f"The capacity in QPS per node is {self.words}{certified}."

    def rates_around(self, rates: Iterable[float]) -> tuple[float, float]:
        """Ends of an axis that shows these rates, the certified one, and what is not far off of the claim."""
        rates = list(rates)
        least, most = min(rates), max(rates)
        ends = self.claim.ends if self.claim else ()
        shown = [*rates, *(end for end in ends if end and least / FAR < end < most * FAR)]
        shown.append(self.certified or most)
        return 0.95 * min(shown), 1.05 * max(shown)


def run_capacity(run: Run, name: str = "capacity") -> CapacityRow:
    """The capacity of a run, or why it claims none."""
    verdict = run.verdict
    if verdict is None:
        return CapacityRow(name, None, "the run did not end")
    capacity = verdict.capacity if run.claims else None
    if capacity is None:
        return CapacityRow(name, None, verdict.reason or "no capacity is claimed")
    kind, sampling = capacity.kind(verdict.experiment), capacity.claimed_of(capacity.sampling)
    return CapacityRow(
        name, capacity.claimed, simulated=kind, sampling=None if sampling.is_open else sampling
    )


@dataclass(frozen=True)
class WindowRows:
    """A window with its line of windows.parquet and its requests by due time."""

    line: WindowRow
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
    """A run as its figures read it, every file once, with these `columns` of its requests."""

    run: Run
    columns: Sequence[str] = COLUMNS

    @cached_property
    def all_lines(self) -> list[WindowRow]:
        """The rows of windows.parquet by start."""
        table = self.run.windows()
        lines = table.to_pylist() if table.num_rows else []
        return sorted(lines, key=lambda line: line["window_start_ns"])

    def lines(self, kinds: Collection[str] = COUNTED) -> list[WindowRow]:
        """The rows of windows.parquet of these kinds, by start. Raises NoData where there are none."""
        lines = [line for line in self.all_lines if line["kind"] in kinds]
        if not lines:
            raise NoData("the run has no finished window")
        return lines

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
        due, windows = metrics.numbers(self.requests, "due_ns"), []
        for line in lines:
            window = window_table.window(dict(line))
            first, end = map(int, np.searchsorted(due, (window.window_start_ns, window.window_end_ns)))
            rows = self.requests.slice(first, end - first)
            windows.append(WindowRows(line, window, in_window(rows, window)))
        return windows

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
        return self.run.verdict.experiment.slo if self.run.verdict else self.run.config.slo

    @property
    def bounds_ms(self) -> dict[Limit, float]:
        """The most in ms of every bound by its name; infinite of one on a share."""
        return {bound.limit: float(bound.ms) for bound in self.bounds.bounds}

    @cached_property
    def capacity(self) -> CapacityRow:
        """The capacity of the run, or why it claims none."""
        return run_capacity(self.run)

    def outcome(self, line: WindowRow, limits: Collection[Limit] | None = None) -> str:
        """`rates.outcome` of a window by the bounds of this run."""
        return rates.outcome(line, self.bounds_ms, limits)


def mark(ended: str, shape: str = "o") -> Look:
    """Keywords of `Axes.plot` for the windows that ended so."""
    if ended == VOID:
        return {**canvas.dots(canvas.PALE, "x", 7), "markeredgewidth": 1.6}
    look: Look = {"linestyle": "", "marker": shape, "markersize": 6.5, "zorder": 3}
    return {**look, "markerfacecolor": FILLS[ended], "markeredgecolor": canvas.BLUE}
