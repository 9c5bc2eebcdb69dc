"""Figure of the capacity of each part of a study, and of all of them together.

Knows parts and the verdict of their study; plain runs are pooled by `analysis.stats.pooling`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from analysis.figures import canvas, several
from analysis.figures.canvas import Axes, Look
from analysis.figures.exhibit import Exhibit
from analysis.figures.several import StudyOrRuns
from analysis.figures.windows import counted, qps
from analysis.stats.pooling import Estimate, pooled

HEIGHT_IN = 3.2
POOLED, MEAN = "pooled (random effects)", "mean of the repeats"


@dataclass(frozen=True, slots=True)
class _Together:
    """All parts as one: QPS per node with a 95 % interval, and by which rule."""

    estimate: float
    low: float
    high: float
    certified: float
    rule: str

    @property
    def words(self) -> str:
        return f"{self.rule}: {qps(self.estimate)} [{qps(self.low)}, {qps(self.high)}]"


def plot_repeats(subject: StudyOrRuns, ax: Axes | None = None) -> Axes:
    """Capacity of each part with its 95 % interval (QPS per node), and below them that of all together.

    `subject` is the tree of a study, or runs of one service; these are pooled by random effects. Raises
    NoData where no part has a capacity.
    """
    whole, ax = canvas.single(ax, HEIGHT_IN, top=0.08)
    found, together = several.parts(subject), _together(subject)
    several.forest(ax, found, [together.words] if together else [])
    if together:
        place, line = -len(found), [together.low, together.high]
        ax.axvspan(*line, facecolor=canvas.ORANGE, alpha=0.16, linewidth=0)
        ax.plot(line, [place] * 2, color=canvas.INK, linewidth=2.4)
        diamond: Look = {"marker": "D", "markersize": 7, "color": canvas.INK, "linestyle": ""}
        ax.plot([together.estimate], [place], **diamond, label="all together")
    canvas.legend(ax)
    return whole


def repeats_table(subject: StudyOrRuns) -> pa.Table:
    """One row per part and one of all together: QPS per node, 95 % interval, certified; null if unknown."""
    rows = [
        {
            "part": part.name,
            "qps_per_node": part.estimate,
            "low_qps_per_node": part.low,
            "high_qps_per_node": part.high,
            "certified_qps_per_node": part.certified,
            "why_not": part.why,
        }
        for part in several.parts(subject)
    ]
    if one := _together(subject):
        ends = one.estimate, one.low, one.high, one.certified
        rows.append(dict(zip(rows[0], (one.rule, *ends, ""), strict=True)))
    return pa.Table.from_pylist(rows)


def repeats_alt(subject: StudyOrRuns) -> str:
    """Range of the parts' capacities, and the capacity of all together."""
    found = several.parts(subject)
    estimates = [part.estimate for part in found if part.estimate is not None]
    said = f"{counted(len(found), 'part')}, {len(estimates)} with a capacity"
    if estimates:
        said += f" from {qps(min(estimates))} to {qps(max(estimates))} QPS per node"
    together = _together(subject)
    return f"{said}; {together.words}, 95 % interval." if together else f"{said}."


def _together(subject: StudyOrRuns) -> _Together | None:
    """The verdict of a study, or the closed intervals of runs pooled; None for fewer than two of these."""
    if isinstance(subject, Mapping):
        capacity = subject.get("capacity") if subject.get("valid") else None
        if not capacity or capacity.get("open_above") or capacity.get("open_below"):
            return None
        q, rule = capacity["qps_per_node"], MEAN if "variation_pct" in subject else POOLED
        return _Together(q["estimate"], q["low"], q["high"], q["certified"], rule)
    closed = [part.closed for part in several.parts(subject) if part.closed]
    if len(closed) < 2:
        return None
    found = pooled([Estimate.of_interval(*ends) for ends in closed])
    return _Together(found.qps.value, found.qps.low, found.qps.high, found.certified, POOLED)


EXHIBIT = Exhibit(
    "repeats",
    "Capacity of each part, and of all together",
    plot_repeats,
    repeats_table,
    repeats_alt,
    "study.json: parts, capacity; or sweep.json of each run: capacity",
    HEIGHT_IN,
    several.count,
)
