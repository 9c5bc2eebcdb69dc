"""Figures of planning: nodes over a demand and over the hours of a day, and the scaling efficiency."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Look, counted, qps
from analysis.figures.exhibit import Exhibit, NoData
from analysis.planning.money import Day
from analysis.planning.plan import Plan
from analysis.planning.sizing import ScalingEfficiency, scaling
from analysis.results.runs import Run, RunError

HOURS = 24
BASIS = {"low": "lower end", "certified": "certified rate", "estimate": "estimate"}


class Nodes(Exhibit):
    """Nodes against demand (QPS): as planned, at the upper end of the capacity, and by plain division.

    With a day's demand a second panel has the nodes of each hour beside the fixed fleet.
    """

    name = "nodes"
    title = "Nodes for a demand"
    source = "the plan: by_demand, nodes, day"

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

    def alt(self) -> str:
        """The nodes at the peak and by plain division, and of the quietest and the busiest hour."""
        plan = self.plan
        said = f"{counted(plan.nodes, 'node')} at {plan.demand.peak_qps:,.6g} QPS; "
        said += f"plain division by the estimate gives {plan.naive_nodes:,}."
        return said + (
            f" By the hour {min(plan.day.nodes)} to {max(plan.day.nodes)} are needed." if plan.day else ""
        )

    def _draw_demand(self, ax: Axes) -> None:
        nodes, peak = self.plan.nodes, self.plan.demand.peak_qps
        series = (
            (f"planned ({BASIS[self.plan.basis]}, headroom, spares)", "nodes", canvas.STYLES[0]),
            ("at the upper end of the interval", "nodes_at_high", canvas.STYLES[2]),
            ("plain division by the estimate", "naive_nodes", canvas.STYLES[1]),
        )
        for name, key, style in series:
            canvas.series(ax, [(row["demand_qps"], row[key]) for row in self.rows], **style.drawn, label=name)
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
        at, low, high = zip(*((row["nodes"], row["e_low"], row["e_high"]) for row in rows[1:]), strict=True)
        ax.vlines(at, low, high, color=canvas.INK, linewidth=1.1)
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
