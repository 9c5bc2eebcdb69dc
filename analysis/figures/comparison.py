"""Figures of several runs and of plans: capacities with their ratios, the answers of a gate, nodes."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from analysis.capacity import paired_ratio
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Look, counted, qps
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
from analysis.stats.estimate import interval, middle, span
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

    A ratio is filled where its interval excludes 1; round where the parts had common arrivals, square where
    the estimates are independent. A study that pools has its own capacity below its parts. Raises NoData
    where none has a capacity.
    """

    name = "compare"
    title = "Capacities side by side"
    source = "study.json: parts or cells, capacity, ratio; or sweep.json of each run: capacity"

    def __init__(self, subject: Study | StudyOrRuns) -> None:
        subject = subject.verdict if isinstance(subject, Study) else subject
        self.parts, self.together = capacity_rows(subject), pooled_rows(subject)
        self.all_parts = [*self.parts, *self.together]
        self.rows = [_row(part) for part in self.all_parts]
        self.height_in = max(canvas.HEIGHT_IN, MARGIN_IN + ROW_IN * len(self.all_parts))

    def draw(self, figure: Figure) -> None:
        with_ratios = any(part.ratio for part in self.parts)
        panels = figure.subplots(1, 2 if with_ratios else 1, sharey=True, squeeze=False)[0]
        self._draw_capacities(panels[0])
        if with_ratios:
            self._draw_ratios(panels[1])
        panels[0].set_yticks(
            [-i for i in range(len(self.all_parts))],
            [one_line(row.name, MOST_LETTERS) for row in self.all_parts],
        )
        panels[0].set_ylim(-len(self.all_parts) + 0.5, 0.8)
        for panel in panels:
            panel.grid(False, axis="y")

    def alt(self) -> str:
        """Range of the capacities, that of all together, and every ratio with its interval and verdict."""
        estimates = [part.closed.value for part in self.parts if part.closed]
        sentences = [f"{counted(len(self.parts), 'part')}, {len(estimates)} with a capacity."]
        if estimates:
            sentences.append(f"They carry {qps(min(estimates))} to {qps(max(estimates))} QPS per node.")
        sentences += [f"All together, {row.name}: {row.words}." for row in self.together]
        for part in self.parts:
            if part.ratio:
                ratio = part.ratio.estimate
                low, high = canvas.within(ratio, -math.inf, math.inf)
                shown = "more" if low > 1 else "less" if high < 1 else "no difference shown"
                sentences.append(
                    f"{part.name} carries {middle(ratio)} times as much (95 % interval"
                    f" {interval(ratio)}, {part.ratio.how}): {shown}."
                )
        return " ".join(sentences)

    def _draw_capacities(self, ax: Axes) -> None:
        ends = [end for row in self.all_parts if row.claim for end in row.claim.ends if end is not None]
        left, right = min(ends), max(ends)
        spare = 0.12 * (right - left) or 0.05 * right
        ax.set_xlim(left - spare, right + spare)
        for place, row in enumerate(self.all_parts):
            words = one_line(row.words, MOST_WORDS)
            canvas.note(ax, (left + right) / 2, -place, words, **ABOVE)
            _draw_capacity(ax, row, -place)
        for claim in (row.claim for row in self.together if row.claim):
            ax.axvspan(*canvas.within(claim, left, right), **canvas.BETWEEN, label="together")
        canvas.label(ax, "capacity (QPS per node)", "")

    def _draw_ratios(self, ax: Axes) -> None:
        ax.axvline(1, **canvas.LIMIT)
        ends = [1.0]
        for place, part in enumerate(self.parts):
            if not part.ratio:
                continue
            ratio, how = part.ratio.estimate, part.ratio.how
            low, high = canvas.within(ratio, -math.inf, math.inf)
            ends += [low, high]
            ax.plot([low, high], [-place] * 2, **canvas.line(canvas.BLUE, width=1.8))
            look = canvas.dots(canvas.BLUE, "o" if how == PAIRED else "s", 6.5)
            fill = canvas.PAPER if low <= 1 <= high else canvas.BLUE
            ax.plot([ratio.value], [-place], **look, markerfacecolor=fill, label=f"{how} ratio")
            canvas.note(ax, (low + high) / 2, -place, span(ratio), **ABOVE, **canvas.OVER)
        first = one_line(self.parts[0].name, MOST_LETTERS)
        canvas.note(ax, 1, 0, f"{first} = 1", ha="center", va="center", **canvas.OVER)
        spare = 0.35 * (max(ends) - min(ends))
        ax.set_xlim(min(ends) - spare, max(ends) + spare)
        canvas.label(ax, f"capacity over that of {first}", "")


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


def _draw_capacity(ax: Axes, part: CapacityRow, place: int) -> None:
    if not part.claim:
        return
    left, right = ax.get_xlim()
    ax.plot(canvas.within(part.claim, left, right), [place] * 2, **canvas.line(canvas.BLUE, width=1.8))
    if part.claim.is_bound:
        marker, at = (">", right) if part.claim.is_lower_bound else ("<", left)
        ax.plot([at], [place], **canvas.dots(canvas.BLUE, marker), clip_on=False)
        return
    ax.plot([part.claim.value], [place], **canvas.dots(canvas.BLUE, "o"), label="estimate, 95 % interval")
    if part.certified is not None:
        ax.plot([part.certified], [place], **canvas.dots(canvas.INK, "|", 10), label="certified")


def capacity_rows(subject: StudyOrRuns) -> list[CapacityRow]:
    """The parts of a study or the runs in their order, with ratios to the first. Raises NoData without any.

    The ratio of a comparison is the study's, that of two runs the one of their intervals by sampling noise.
    """
    if not isinstance(subject, StudyVerdict):
        first, *others = (run_capacity(run, name) for run, name in zip(subject, _names(subject), strict=True))
        rows = [first, *(_beside(first, other) for other in others)]
    else:
        rows = [_from_part(part) for part in subject.cells or subject.parts]
        if subject.valid and subject.ratio:
            rows[1] = replace(rows[1], ratio=CellRatio(subject.ratio.estimate, PAIRED))
    if not any(part.claim for part in rows):
        raise NoData("no part has a capacity")
    return rows


def _beside(first: CapacityRow, part: CapacityRow) -> CapacityRow:
    if not (first.sampling and part.sampling):
        return part
    return replace(part, ratio=CellRatio(paired_ratio.unpaired(first.sampling, part.sampling), UNPAIRED))


def pooled_rows(subject: StudyOrRuns) -> list[CapacityRow]:
    """The capacity of a whole study as a row, if both ends of it are known; runs have none."""
    capacity = subject.capacity if isinstance(subject, StudyVerdict) and subject.valid else None
    if not isinstance(subject, StudyVerdict) or capacity is None or capacity.claimed.is_open:
        return []
    rule = "mean of the repeats" if subject.variation_pct else "pooled (random effects)"
    simulated = next((part.simulated for part in subject.parts if part.simulated), "")
    return [CapacityRow(rule, capacity.claimed, simulated=simulated)]


def _names(runs: Sequence[Run]) -> list[str]:
    """Names of the folders, with the folder above where two are the same."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    return ["/".join(run.path.resolve().parts[-2:]) for run in runs]


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

    name = "quality_gate"
    title = "Both intervals, prompt after prompt"
    source = "answers.parquet of A and B: tokens, log_probabilities"

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
        ax.set_ylim(-1.05 * most, 1.05 * most)
        canvas.label(ax, "prompts", words)


class GatePositions(Exhibit):
    """Mean divergence from A's first answer at each position, of A's second answer and of B's."""

    name = "quality_positions"
    title = "Divergence along an answer"
    source = "answers.parquet of A and B: tokens, log_probabilities"
    noun = "position"
    shown = {
        "again_nats": "nats of mean divergence for A's second answers",
        "candidate_nats": "nats for B's",
    }

    def __init__(self, verdict: GateVerdict) -> None:
        self.verdict = verdict
        if not self.verdict.by_position:
            raise NoData("no prompt was compared")
        self.rows = [asdict(position) for position in self.verdict.by_position]

    def draw(self, figure: Figure) -> None:
        ax = figure.subplots()
        names = ("again_nats", "A again"), ("candidate_nats", "B")
        for (name, label), look in zip(names, canvas.STYLES, strict=False):
            canvas.series(ax, [(row["position"], row[name]) for row in self.rows], **look, label=label)
        ax.set_ylim(bottom=0)
        canvas.label(ax, "position in the answer", "mean divergence, nats")


class Nodes(Exhibit):
    """Nodes against demand (QPS): as planned, at the upper end of the capacity, and by plain division.

    With a day's demand a second panel has the nodes of each hour beside the fixed fleet.
    """

    name = "nodes"
    title = "Nodes for a demand"
    source = "the plan: by_demand, nodes, day"
    noun = "demand"
    shown = {
        "demand_qps": "QPS at the peak",
        "nodes": "nodes as planned",
        "naive_nodes": "by plain division",
    }

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
        ax.axvline(peak, color=canvas.PALE, linewidth=0.9, linestyle=":")
        ax.plot([peak], [nodes], **canvas.dots(canvas.INK, "*", 14))
        words = f"{counted(nodes, 'node')} at {peak:,.6g} QPS"
        canvas.note(ax, peak, nodes, words, xytext=(-8, 8), ha="right", va="bottom")
        ax.set_xlim(0, None)
        ax.set_ylim(0, None)
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.yaxis.set_major_formatter("{x:,.0f}")
        canvas.label(ax, "peak demand of the whole service (QPS)", "nodes")

    def _draw_day(self, ax: Axes, day: Day) -> None:
        needed, fixed = day.nodes, self.plan.nodes
        bars: Look = {"facecolor": canvas.SKY, "edgecolor": canvas.BLUE, "linewidth": 0.8}
        ax.bar([hour + 0.5 for hour in range(HOURS)], needed, width=1.0, label="needed in the hour", **bars)
        look = canvas.line(canvas.VERMILLION, "--")
        ax.axhline(fixed, **look, label=f"fixed fleet, {counted(fixed, 'node')}")
        ax.set_xlim(0, HOURS)
        ax.set_ylim(0, 1.1 * max(fixed, *needed))
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.set_xticks(range(0, HOURS + 1, 3))
        canvas.label(ax, "hour of the day", "nodes")
