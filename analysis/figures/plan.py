"""Figure of the nodes that a demand needs: over the demand, and over the hours of a day if known."""

from dataclasses import asdict

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Look
from analysis.figures.exhibit import Exhibit, counted, plot_of
from analysis.planning.money import Day
from analysis.planning.verdict import Plan

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


plot_plan = plot_of(Nodes)
