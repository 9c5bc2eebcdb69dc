"""Figures of a run in the order of a reader's questions.

A figure that cannot be drawn says why.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from analysis import figures
from analysis.figures.comparison import Comparison
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.run_data import RunData
from analysis.figures.scaling import Scaling
from analysis.report.blocks import Block, FigureBlock, Missing, Section
from analysis.report.wording import table
from analysis.results.runs import Run
from analysis.results.verdicts import MATRIX, StudyVerdict
from conf.io.one_line import reason

FIGURES_BYTES = 700_000
"""Most bytes of figures with their tables, so that a whole page stays under 1 MB (our choice)."""
LEAST_BYTES = 40_000
"""Room below which no further figure is tried (our choice: few are smaller)."""
CELL_BYTES = 32
"""Bytes of markup per table cell."""
BROKEN = "it could not be drawn"
ABSENT = "What this page would show of another run, and why it does not of this one."
FULL = "left out to keep this page under 1 MB"

QUESTIONS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "latency": (
        "The answer in one picture",
        "How both latencies grow with the load, and where the bounds cut.",
        ("latency",),
    ),
    "search": (
        "How it was found",
        "Which rates were offered in which order, and what was believed after each.",
        ("search",),
    ),
    "cdf": ("How close to the bounds", "All latencies of a rate, not only their 90th percentile.", ("cdf",)),
    "client": (
        "Was the load generator fast enough?",
        "A late generator looks like a slow server: did requests leave when they were planned?",
        ("client_lag",),
    ),
    "time": (
        "Was the service steady?",
        "Requests in flight and what the servers reported of themselves, over time.",
        ("timeseries",),
    ),
    "balance": (
        "Balance of the replicas",
        "Whether each replica got its share, and served it alike.",
        ("replica_balance",),
    ),
    "pareto": (
        "Throughput against interactivity",
        "On the axes that InferenceX uses, both of them measured.",
        ("pareto",),
    ),
    "bounds": (
        "Every bound",
        "How much of what each bound allows was over it, at each rate.",
        ("share_over",),
    ),
}
"""Anchor of each section in page order, with its heading, its purpose and its figures."""
MAIN = ("latency", "search", "client_lag")
"""Figures of a run that shares its page."""
POOLED_OR_COMPARED = ("deployments", "repeats", "compare", MATRIX)
"""Studies with a figure over all parts."""


@dataclass(slots=True)
class Room:
    """Bytes left for figures on a page."""

    left_bytes: int = FIGURES_BYTES

    def takes(self, figure: FigureBlock) -> bool:
        """Count a figure if it fits; True if it does."""
        cells = [str(cell) for row in figure.table.first_rows for cell in row]
        size_bytes = (
            len(figure.svg.encode())
            + len(figure.narrow.encode())
            + sum(len(cell.encode()) + CELL_BYTES for cell in cells)
        )
        fits = size_bytes <= self.left_bytes
        self.left_bytes -= size_bytes if fits else 0
        return fits


def sections(data: RunData, room: Room) -> list[Section]:
    """All figures of a run, by question."""
    known = {exhibit.name: exhibit for exhibit in figures.EXHIBITS}
    found = []
    for anchor, (title, purpose, names) in QUESTIONS.items():
        shown = [known[name] for name in names if name in known and known[name].applies(data)]
        blocks = tuple(block(exhibit, data, room) for exhibit in shown)
        found += [Section(anchor, title, purpose, blocks)] if blocks else []
    return found


def without_empty(found: Sequence[Section]) -> list[Section]:
    """The sections that show something, and one at the end for what the others could not show, and why."""
    empty = [one for one in found if one.blocks and all(isinstance(block, Missing) for block in one.blocks)]
    reasons = tuple(block for one in empty for block in one.blocks)
    kept = [one for one in found if one not in empty]
    return [*kept, Section("absent", "Not shown", ABSENT, reasons)] if reasons else kept


def main(data: RunData, room: Room, prefix: str) -> list[Block]:
    """The main figures of a run beside others; `prefix` keeps its anchors apart from theirs."""
    chosen = (exhibit for exhibit in figures.EXHIBITS if exhibit.name in MAIN)
    return [block(exhibit, data, room, prefix) for exhibit in chosen]


def of_study(verdict: StudyVerdict, room: Room) -> list[Block]:
    """The figure over all parts of a study."""
    return [block(Comparison, verdict, room)] if verdict.study in POOLED_OR_COMPARED else []


def of_runs(runs: Sequence[Run], room: Room) -> list[Block]:
    """The figures of several runs without a study."""
    return [block(exhibit, runs, room) for exhibit in (Comparison, Scaling)]


def block(exhibit: type[Exhibit], subject: Any, room: Room, prefix: str = "") -> Block:
    """The figure with its table, or the reason why there is none."""
    name, full = f"figure-{prefix}{exhibit.name}", Missing(exhibit.title, FULL)
    if room.left_bytes < LEAST_BYTES:
        return full
    try:
        shown = exhibit.read(subject)
        alt = shown.alt()
        named = f'<svg role="img" aria-label="{escape(alt)}" '
        svg, narrow = (svg.replace("<svg ", named, 1) for svg in shown.svgs(name))
        drawn = table(f"What is drawn: {exhibit.title}", shown.table())
        figure = FigureBlock(name, exhibit.title, svg, alt, drawn, exhibit.source, narrow)
    except NoData as why:
        return Missing(exhibit.title, str(why).rstrip("."))
    except Exception as error:  # noqa: BLE001  the verdict must not be lost with a figure
        return Missing(exhibit.title, f"{BROKEN} ({type(error).__name__}: {reason(error)})")
    return next((one for one in (figure, replace(figure, narrow="")) if room.takes(one)), full)
