"""Figures of several capacities: side by side with their ratios to the first, and the scaling efficiency."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.capacity import paired_ratio
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Look
from analysis.figures.exhibit import CapacityRow, Exhibit, NoData, Row, counted, plot_of, qps, run_capacity
from analysis.planning.sizing import ScalingEfficiency, scaling
from analysis.results.runs import Run, RunError
from analysis.results.studies import Study
from analysis.results.verdicts import PAIRED, UNPAIRED, MatrixCell, PartRow, StudyVerdict
from analysis.stats.estimate import Estimate, interval, middle, span
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
        self.parts, self.together = _with_ratios(subject), pooled_rows(subject)
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
        said = [f"{counted(len(self.parts), 'part')}, {len(estimates)} with a capacity."]
        if estimates:
            said.append(f"They carry {qps(min(estimates))} to {qps(max(estimates))} QPS per node.")
        said += [f"All together, {row.name}: {row.words}." for row in self.together]
        for part in self.parts:
            if part.ratio:
                low, high = _within(part.ratio, -math.inf, math.inf)
                shown = "more" if low > 1 else "less" if high < 1 else "no difference shown"
                said.append(
                    f"{part.name} carries {middle(part.ratio)} times as much (95 % interval"
                    f" {interval(part.ratio)}, {part.how}): {shown}."
                )
        return " ".join(said)

    def _draw_capacities(self, ax: Axes) -> None:
        ends = [end for row in self.all_parts for end in (row.low, row.high) if end is not None]
        left, right = min(ends), max(ends)
        spare = 0.12 * (right - left) or 0.05 * right
        ax.set_xlim(left - spare, right + spare)
        for place, row in enumerate(self.all_parts):
            words = one_line(row.words, MOST_WORDS)
            canvas.note(ax, (left + right) / 2, -place, words, **ABOVE)
            _draw_capacity(ax, row, -place)
        for claim in (row.claim for row in self.together if row.claim):
            ax.axvspan(
                *_within(claim, left, right), facecolor=canvas.BAND, linewidth=0, zorder=0, label="together"
            )
        canvas.label(ax, "capacity (QPS per node)", "")

    def _draw_ratios(self, ax: Axes) -> None:
        ax.axvline(1, **canvas.LIMIT)
        ends = [1.0]
        for place, part in enumerate(self.parts):
            if not part.ratio:
                continue
            low, high = _within(part.ratio, -math.inf, math.inf)
            ends += [low, high]
            ax.plot([low, high], [-place] * 2, **canvas.line(canvas.BLUE, width=1.8))
            look = canvas.dots(canvas.BLUE, "o" if part.how == PAIRED else "s", 6.5)
            fill = canvas.PAPER if low <= 1 <= high else canvas.BLUE
            ax.plot([part.ratio.value], [-place], **look, markerfacecolor=fill, label=f"{part.how} ratio")
            canvas.note(ax, (low + high) / 2, -place, span(part.ratio), **ABOVE, **canvas.OVER)
        first = one_line(self.parts[0].name, MOST_LETTERS)
        canvas.note(ax, 1, 0, f"{first} = 1", ha="center", va="center", **canvas.OVER)
        spare = 0.35 * (max(ends) - min(ends))
        ax.set_xlim(min(ends) - spare, max(ends) + spare)
        canvas.label(ax, f"capacity over that of {first}", "")


plot_compare = plot_of(Comparison)


def _row(part: CapacityRow) -> Row:
    ratio = part.ratio
    return {
        "part": part.name,
        "qps_per_node": part.closed.value if part.closed else None,
        "low_qps_per_node": part.low,
        "high_qps_per_node": part.high,
        "certified_qps_per_node": part.certified,
        "simulated": part.simulated,
        "ratio_to_first": ratio.value if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "ratio_is": part.how,
        "why_not": part.why,
    }


def _within(estimate: Estimate, left: float, right: float) -> tuple[float, float]:
    """The interval's ends; an open one is that of the axis."""
    low, high = estimate.ends
    return left if low is None else low, right if high is None else high


def _with_ratios(subject: StudyOrRuns) -> list[CapacityRow]:
    """The parts, with their ratios to the first: the study's, or those of two closed intervals of runs."""
    parts = capacity_rows(subject)
    if not isinstance(subject, StudyVerdict):
        first, *others = parts
        for place, part in enumerate(others, 1):
            if first.sampling and part.sampling:
                apart = paired_ratio.unpaired(first.sampling, part.sampling)
                parts[place] = replace(part, ratio=apart, how=UNPAIRED)
    elif subject.valid and subject.ratio:
        parts[1] = replace(parts[1], ratio=subject.ratio.estimate, how=PAIRED)
    return parts


def _draw_capacity(ax: Axes, part: CapacityRow, place: int) -> None:
    if not part.claim:
        return
    left, right = ax.get_xlim()
    ax.plot(_within(part.claim, left, right), [place] * 2, **canvas.line(canvas.BLUE, width=1.8))
    if part.claim.is_bound:
        marker, at = (">", right) if part.claim.is_lower_bound else ("<", left)
        ax.plot([at], [place], **canvas.dots(canvas.BLUE, marker), clip_on=False)
        return
    ax.plot([part.claim.value], [place], **canvas.dots(canvas.BLUE, "o"), label="estimate, 95 % interval")
    if part.certified is not None:
        ax.plot([part.certified], [place], **canvas.dots(canvas.INK, "|", 10), label="certified")


def capacity_rows(subject: StudyOrRuns) -> list[CapacityRow]:
    """The parts of a study or the runs, in their order. Raises NoData where none has a capacity."""
    if isinstance(subject, StudyVerdict):
        rows = [_from_part(part) for part in subject.cells or subject.parts]
    else:
        rows = [run_capacity(run, name) for run, name in zip(subject, _names(subject), strict=True)]
    if not any(part.claim for part in rows):
        raise NoData("no part has a capacity")
    return rows


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
    if ratio is None or ratio.how not in (PAIRED, UNPAIRED):
        return CapacityRow(part.name, claim, why if claim is None else "", simulated=part.simulated)
    return CapacityRow(part.name, claim, "", ratio.estimate, ratio.how, part.simulated)


BEYOND = 2.0
"""The assumption beyond the last measured count is shown up to so many times that count."""


class Scaling(Exhibit):
    """E(n), capacity per node at n nodes over that at the fewest measured, with 95 % intervals; n is log.

    Between the points the line is what a plan uses, beyond them it is ASSUMED and dashed. Raises NoData
    where one node count was measured, or where runs differ in more than it.
    """

    name = "scaling"
    title = "Scaling efficiency"
    source = "sweep.json of each run: asked.nodes, capacity"

    def __init__(self, subject: ScalingEfficiency | Sequence[Run]) -> None:
        try:
            efficiency = subject if isinstance(subject, ScalingEfficiency) else scaling(subject)
        except RunError as error:
            raise NoData(str(error)) from error
        if efficiency.assumed:
            only = counted(efficiency.fewest, "node")
            raise NoData(f"only {only} was measured, so that E(n) = 1 is an assumption")
        self.efficiency = efficiency
        rates = (point.qps_per_node for point in efficiency.points)
        self.rows = [
            {"nodes": nodes, "qps_per_node": rate, "e": e.value, "e_low": e.low, "e_high": e.high}
            for (nodes, e), rate in zip(efficiency.measured(), rates, strict=True)
        ]

    def draw(self, figure: Figure) -> None:
        ax = figure.subplots()
        rows, most = self.rows, self.efficiency.most
        end = round(BEYOND * most)
        ax.set_xlim(self.efficiency.fewest / 1.1, end * 1.03)
        ax.axhline(1, color=canvas.PALE, linewidth=1, linestyle=":", label="E = 1")
        nodes, beyond = [row["nodes"] for row in rows], np.geomspace(most, end, 20)
        measured = canvas.line(canvas.BLUE)
        ax.plot(nodes, [row["e"] for row in rows], marker="o", **measured, label="measured, 95 % interval")
        ax.plot(beyond, self.efficiency.at(beyond), **canvas.line(canvas.PURPLE, "--"), label="ASSUMED")
        ends = [[row["nodes"]] * 2 for row in rows[1:]], [[row["e_low"], row["e_high"]] for row in rows[1:]]
        canvas.segments(ax, *ends, color=canvas.INK, linewidth=1.1)
        canvas.log_axis(ax, "x")
        ax.set_xticks([*nodes, end])
        canvas.label(ax, "nodes n", "E(n)")

    def alt(self) -> str:
        """E at the most nodes measured, with its interval."""
        first, *_, last = self.rows
        return (
            f"At {last['nodes']} nodes a node serves {qps(last['qps_per_node'])} QPS, {last['e']:.3f} of"
            f" what it serves at {counted(first['nodes'], 'node')} (95 % interval {last['e_low']:.3f} to"
            f" {last['e_high']:.3f})."
        )


plot_scaling = plot_of(Scaling)
