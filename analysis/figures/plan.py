"""Figure of the nodes that a demand needs: over the demand, and over the hours of a day if known."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Look
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.words import counted
from analysis.planning.plan import Plan
from analysis.planning.plan_tree import tree

Tree = Mapping[str, Any]
HOURS = 24
KEYS = ("demand_qps", "nodes", "nodes_at_high", "naive_nodes")
"""Nodes for each demand: as planned, at the upper end of the capacity, and by plain division."""
BASIS = {"low": "lower end", "certified": "certified rate", "estimate": "estimate"}


@dataclass(frozen=True, slots=True)
class Nodes(Exhibit):
    """The tree of a plan."""

    plan: Tree

    name = "nodes"
    title = "Nodes for a demand"
    source = "the plan: by_demand, answer, day"
    height_in = 3.2

    @classmethod
    def read(cls, subject: Tree) -> Self:
        if not subject.get("valid"):
            raise NoData(subject.get("reason") or "nothing was planned")
        rows = [{key: row[key] for key in KEYS} for row in subject["by_demand"]]
        return cls(rows, subject)

    @property
    def whole_height_in(self) -> float:
        """Higher with the panel of a day."""
        return self.height_in + (1.4 if self.plan["day"] else 0)

    def draw(self, figure: Figure) -> None:
        heights = (1.4, 1) if self.plan["day"] else (1,)
        demand, *hours = figure.subplots(len(heights), height_ratios=heights, squeeze=False)[:, 0]
        self._draw_demand(demand)
        for panel in hours:
            self._draw_day(panel)

    def alt(self) -> str:
        """The nodes at the peak and by plain division, and of the quietest and the busiest hour."""
        answer, day = self.plan["answer"], self.plan["day"]
        said = f"{counted(answer['nodes'], 'node')} at {self.plan['demand']['peak_qps']:,.6g} QPS; "
        said += f"plain division by the estimate gives {answer['naive_nodes']:,}."
        return said + (f" By the hour {min(day['nodes'])} to {max(day['nodes'])} are needed." if day else "")

    def _draw_demand(self, ax: Axes) -> None:
        answer, peak = self.plan["answer"], self.plan["demand"]["peak_qps"]
        series = (
            (f"planned ({BASIS[answer['basis']]}, headroom, spares)", "nodes", canvas.STYLES[0]),
            ("at the upper end of the interval", "nodes_at_high", canvas.STYLES[2]),
            ("plain division by the estimate", "naive_nodes", canvas.STYLES[1]),
        )
        for name, key, style in series:
            known = [(row["demand_qps"], row[key]) for row in self.rows if row[key] is not None]
            if known:
                ax.plot(*zip(*known, strict=True), **style.drawn, label=name)
        ax.axvline(peak, color=canvas.PALE, linewidth=0.9, linestyle=":")
        ax.plot([peak], [answer["nodes"]], marker="*", markersize=14, color=canvas.INK, linestyle="")
        words = f"{counted(answer['nodes'], 'node')} at {peak:,.6g} QPS"
        canvas.note(ax, peak, answer["nodes"], words, xytext=(-8, 8), ha="right", va="bottom")
        ax.set_xlim(0, None)
        ax.set_ylim(0, None)
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.yaxis.set_major_formatter("{x:,.0f}")
        canvas.label(ax, "peak demand of the whole service (QPS)", "nodes")

    def _draw_day(self, ax: Axes) -> None:
        needed, fixed = self.plan["day"]["nodes"], self.plan["answer"]["nodes"]
        bars: Look = {"facecolor": canvas.SKY, "edgecolor": canvas.BLUE, "linewidth": 0.8}
        ax.bar([hour + 0.5 for hour in range(HOURS)], needed, width=1.0, label="needed in the hour", **bars)
        line: Look = {"color": canvas.VERMILLION, "linestyle": "--", "linewidth": 1.3}
        ax.axhline(fixed, **line, label=f"fixed fleet, {counted(fixed, 'node')}")
        ax.set_xlim(0, HOURS)
        ax.set_ylim(0, 1.1 * max(fixed, *needed))
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.set_xticks(range(0, HOURS + 1, 3))
        canvas.label(ax, "hour of the day", "nodes")


def plot_plan(plan: Plan) -> Figure:
    """Nodes against demand (QPS): as planned, at the upper end of the capacity, and by plain division.

    With a day's demand a second panel has the nodes of each hour beside the fixed fleet.
    """
    return Nodes.read(tree(plan)).figure()
