"""Figures of several runs and of plans: capacities with their ratios, the answers of a gate, nodes."""

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from analysis.capacity import paired_ratio
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Look, counted
from analysis.figures.exhibit import CapacityRow, Exhibit, NoData, Row, run_capacity
from analysis.planning.money import HOURS, Day
from analysis.planning.plan import Plan
from analysis.quality.gate import GateMoment, GateVerdict
from analysis.results.runs import Run
from analysis.results.studies import Study
from analysis.results.verdicts import (
    PAIRED,
    REFERENCE,
    UNPAIRED,
    CellRatio,
    MatrixCell,
    PartRow,
    StudyVerdict,
)
from analysis.stats.estimate import Estimate, span
from analysis.views.plan import BASES
from conf.io.one_line import one_line

StudyOrRuns = StudyVerdict | Sequence[Run]
ROW_IN, MARGIN_IN = 0.42, 0.8
"""Height of a row with its words above it, and of what is around the rows."""
MOST_LETTERS, MOST_WORDS = 22, 44
"""Most letters of a part's name and of its words in the figure; the table has all of them."""
ABOVE: Look = {"xytext": (0, 8), "ha": "center", "va": "center"}


class Comparison(Exhibit):
    """Capacities with 95 % intervals (QPS per node), and next to them their ratios to the first with theirs.

    A ratio is paired where the parts had common arrivals. A study that pools has its own capacity below its
    parts. Raises NoData where none has a capacity.
    """

    def __init__(self, subject: Study | StudyOrRuns) -> None:
        subject = subject.verdict if isinstance(subject, Study) else subject
        self.parts, self.together = capacity_rows(subject), None
        capacity = subject.capacity if isinstance(subject, StudyVerdict) and subject.valid else None
        if isinstance(subject, StudyVerdict) and capacity and not capacity.claimed.is_open:
            self.together = capacity.claimed
            rule = "mean of the repeats" if subject.variation_pct else "pooled (random effects)"
            simulated = next((part.simulated for part in subject.parts if part.simulated), "")
            self.parts.append(CapacityRow(rule, capacity.claimed, simulated=simulated))
        self.rows = [_row(part) for part in self.parts]
        self.height_in = max(canvas.HEIGHT_IN, MARGIN_IN + ROW_IN * len(self.parts))

    def draw(self, figure: Figure) -> None:
        parts, names = self.parts, [one_line(part.name, MOST_LETTERS) for part in self.parts]
        ratios = [part.ratio.estimate if part.ratio else None for part in parts]
        panels = figure.subplots(1, 2 if any(ratios) else 1, sharey=True, squeeze=False)[0]
        words = [one_line(part.words, MOST_WORDS) for part in parts]
        _draw_intervals(panels[0], [part.claim for part in parts], words)
        for place, part in enumerate(parts):
            if part.certified is not None:
                look = canvas.dots(canvas.INK, "|", 10)
                panels[0].plot([part.certified], [-place], **look, label="certified")
        if self.together:
            panels[0].axvspan(*canvas.within(self.together, 0, 0), **canvas.BETWEEN, label="together")
        canvas.label(panels[0], "capacity (QPS per node)", "")
        if any(ratios):
            panels[1].axvline(1, **canvas.LIMIT)
            words = [f"{span(part.ratio.estimate)}, {part.ratio.how}" if part.ratio else "" for part in parts]
            _draw_intervals(panels[1], ratios, words, [1.0])
            canvas.label(panels[1], f"capacity over that of {names[0]}", "")
        panels[0].set_yticks([-place for place in range(len(names))], names)
        panels[0].set_ylim(-len(names) + 0.5, 0.8)
        for panel in panels:
            panel.grid(False, axis="y")

    def alt(self) -> str:
        """Every capacity, and its ratio to the first with its interval."""
        sentences = []
        for part in self.parts:
            ratio = f", {span(part.ratio.estimate)} times the first ({part.ratio.how})" if part.ratio else ""
            sentences.append(f"{part.name}: {part.words}{ratio}")
        return f"{counted(len(sentences), 'row')}. {'; '.join(sentences)}."


def _row(part: CapacityRow) -> Row:
    claim, ratio = part.claim, part.ratio.estimate if part.ratio else None
    return {
        "part": part.name,
        "qps_per_node": part.closed.value if part.closed else None,
        "low_qps_per_node": claim.low if claim else None,
        "high_qps_per_node": claim.high if claim else None,
        "certified_qps_per_node": part.certified,
        "simulated": part.simulated,
        "ratio_to_first": ratio.value if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "ratio_is": part.ratio.how if part.ratio else "",
        "why_not": part.why,
    }


def _draw_intervals(
    ax: Axes, estimates: Sequence[Estimate | None], words: Sequence[str], shown: Sequence[float] = ()
) -> None:
    """Each estimate with its interval and its words in a row of its own; an open end runs to the edge."""
    ends = [end for estimate in estimates if estimate for end in estimate.ends if end is not None]
    ends += shown
    spare = 0.2 * (max(ends) - min(ends)) or 0.05 * max(ends)
    left, right = min(ends) - spare, max(ends) + spare
    ax.set_xlim(left, right)
    for place, (estimate, text) in enumerate(zip(estimates, words, strict=True)):
        at = -place
        canvas.note(ax, (left + right) / 2, at, text, **ABOVE, **canvas.OVER)
        if estimate is None:
            continue
        ax.plot(canvas.within(estimate, left, right), [at] * 2, **canvas.line(canvas.BLUE, width=1.8))
        if not estimate.is_bound:
            look = canvas.dots(canvas.BLUE, "o")
            ax.plot([estimate.value], [at], **look, label="estimate, 95 % interval")


def capacity_rows(subject: StudyOrRuns) -> list[CapacityRow]:
    """The parts of a study or the runs in their order, with ratios to the first. Raises NoData without any.

    The ratio of a comparison is the study's, that of two runs the one of their intervals by sampling noise.
    """
    if isinstance(subject, StudyVerdict):
        rows = [_from_part(part) for part in subject.cells or subject.parts]
        if subject.valid and subject.ratio:
            rows[1] = replace(rows[1], ratio=CellRatio(subject.ratio.estimate, PAIRED))
    else:
        rows = [run_capacity(run, _name(run, subject)) for run in subject]
        for place, row in enumerate(rows):
            if place and rows[0].sampling and row.sampling:
                ratio = paired_ratio.unpaired(rows[0].sampling, row.sampling)
                rows[place] = replace(row, ratio=CellRatio(ratio, UNPAIRED))
    if not any(part.claim for part in rows):
        raise NoData("no part has a capacity")
    return rows


def _name(run: Run, runs: Sequence[Run]) -> str:
    """The name of a run's folder, behind as many folders above it as tell it from others of that name."""
    others = [other.path.resolve().parts for other in runs if other.name == run.name and other is not run]
    if not others:
        return run.name
    own = run.path.resolve().parts
    apart = (n for n in range(1, len(own)) if all(own[-n:] != other[-n:] for other in others))
    return "/".join(own[-next(apart, 1) :])


def _from_part(part: PartRow | MatrixCell) -> CapacityRow:
    why = part.reason or ("not measured yet" if part.exit_code is None else "no result")
    # A part keeps the posterior of a void run too, which is no capacity.
    claim = part.qps_per_node if part.exit_code in (0, 6) else None
    ratio = part.ratio if isinstance(part, MatrixCell) else None
    if ratio and ratio.how == REFERENCE:
        ratio = None
    return CapacityRow(part.name, claim, why if claim is None else "", ratio, part.simulated)


SHOWN_MARGINS = 6.0
"""Ends of an interval are drawn up to so many margins: the first ones are anywhere (our choice)."""


class GateIntervals(Exhibit):
    """Both intervals after each prompt: excess divergence, excess of broken prompts."""

    def __init__(self, moments: Sequence[GateMoment]) -> None:
        if not moments:
            raise NoData("no prompt was compared")
        self.last = moments[-1]
        self.rows = [
            {"prompts": moment.prompts}
            | {
                f"excess_{name}_{end}": getattr(getattr(moment, name), end)
                for name in ("nats", "broken")
                for end in ("low", "high")
            }
            for moment in moments
        ]

    def draw(self, figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        self._draw_ends(left, "nats", 1.0, "excess divergence, nats per token")
        self._draw_ends(right, "broken", 100.0, "excess of broken prompts, %")

    def alt(self) -> str:
        """The number of prompts; the last ends stand in the gate's table."""
        return f"Both ends of each interval after {counted(self.last.prompts, 'prompt')}, with the margins."

    def _draw_ends(self, ax: Axes, name: str, unit: float, words: str) -> None:
        """One interval over prompts, in a unit, cut some margins away from nothing."""
        margin = unit * getattr(self.last, name).margin
        most, prompts = SHOWN_MARGINS * margin, [row["prompts"] for row in self.rows]
        for end, label, dashes in (("low", "lower end", "--"), ("high", "upper end", "-")):
            values = np.array([unit * row[f"excess_{name}_{end}"] for row in self.rows])
            ax.plot(prompts, values.clip(-most, most), **canvas.line(canvas.BLUE, dashes), label=label)
        canvas.bound(ax, margin, "margin")
        canvas.label(ax, "prompts", words, ylim=(-1.05 * most, 1.05 * most))


class GatePositions(Exhibit):
    """Mean divergence from A's first answer at each position, of A's second answer and of B's."""

    def __init__(self, verdict: GateVerdict) -> None:
        if not verdict.by_position:
            raise NoData("no prompt was compared")
        self.rows = [asdict(position) for position in verdict.by_position]

    def draw(self, figure: Figure) -> None:
        ax = figure.subplots()
        names = ("again_nats", "A again"), ("candidate_nats", "B")
        for (name, label), look in zip(names, canvas.STYLES, strict=False):
            canvas.series(ax, [(row["position"], row[name]) for row in self.rows], **look, label=label)
        canvas.label(ax, "position in the answer", "mean divergence, nats", ylim=(0, None))


class Nodes(Exhibit):
    """Nodes against demand (QPS): as planned, at the upper end of the capacity, and by plain division.

    With a day's demand a second panel has the nodes of each hour beside the fixed fleet.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rows = [asdict(point) for point in plan.by_demand]
        self.height_in = 4.6 if plan.day else 3.2

    def draw(self, figure: Figure) -> None:
        heights = (1.4, 1) if self.plan.day else (1,)
        demand, *hours = figure.subplots(len(heights), height_ratios=heights, squeeze=False)[:, 0]
        self._draw_demand(demand)
        if self.plan.day:
            self._draw_day(hours[0], self.plan.day)

    def _draw_demand(self, ax: Axes) -> None:
        nodes, peak = self.plan.nodes, self.plan.demand.peak_qps
        series = (
            (f"planned ({BASES[self.plan.basis]}, headroom, spares)", "nodes", canvas.STYLES[0]),
            ("at the upper end of the interval", "nodes_at_high", canvas.STYLES[2]),
            ("plain division by the estimate", "naive_nodes", canvas.STYLES[1]),
        )
        for name, key, look in series:
            canvas.series(ax, [(row["demand_qps"], row[key]) for row in self.rows], **look, label=name)
        at_peak = f"{counted(nodes, 'node')} at {peak:,.6g} QPS"
        ax.axvline(peak, color=canvas.PALE, linewidth=0.9, linestyle=":", label=at_peak)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter("{x:,.0f}")
        whole = "peak demand of the whole service (QPS)"
        canvas.label(ax, whole, "nodes", xlim=(0, None), ylim=(0, None))

    def _draw_day(self, ax: Axes, day: Day) -> None:
        needed, fixed = day.nodes, self.plan.nodes
        bars: Look = {"facecolor": canvas.SKY, "edgecolor": canvas.BLUE, "linewidth": 0.8}
        ax.bar([hour + 0.5 for hour in range(HOURS)], needed, width=1.0, label="needed in the hour", **bars)
        look = canvas.line(canvas.VERMILLION, "--")
        ax.axhline(fixed, **look, label=f"fixed fleet, {counted(fixed, 'node')}")
        ax.yaxis.set_major_formatter("{x:,.0f}")
        limits = {"xlim": (0, HOURS), "ylim": (0, 1.1 * max(fixed, *needed))}
        canvas.label(ax, "hour of the day", "nodes", **limits, xticks=range(0, HOURS + 1, 3))
