"""Figure of the nodes that a demand needs: over the demand, and over the hours of a day if known.

Knows the tree of a plan; sizes nothing.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Look
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.windows import counted, qps

Tree = Mapping[str, Any]
HEIGHT_IN = 4.6
HOURS = 24
BASIS = {"low": "lower end", "certified": "certified rate", "estimate": "estimate"}
COLUMNS = ("demand_qps", "nodes", "nodes_at_high", "naive_nodes")


def plot_plan(tree: Tree, ax: Axes | None = None) -> Axes:
    """Nodes against demand (QPS): as planned, at the upper end of the capacity, and by plain division.

    With a day's demand a second panel has the nodes of each hour beside the fixed fleet. `tree` is what
    `analysis.planning.tree` makes of a plan. Raises NoData for a refused one.
    """
    ax = ax or canvas.new_axes(HEIGHT_IN)
    _refuse(tree)
    ax.set_axis_off()
    day = tree["day"]
    _draw_demand(ax.inset_axes((0, 0.52, 1, 0.4) if day else (0, 0, 1, 0.88)), tree)
    if day:
        _draw_day(ax.inset_axes((0, 0, 1, 0.28)), day, tree["answer"]["nodes"])
    return ax


def plan_table(tree: Tree) -> pa.Table:
    """One row per demand: QPS of the whole service, and nodes as planned, at the upper end, and naively."""
    _refuse(tree)
    return pa.Table.from_pylist([{name: row[name] for name in COLUMNS} for row in tree["by_demand"]])


def plan_alt(tree: Tree) -> str:
    """The answer, what plain division says, and the day's node-hours."""
    _refuse(tree)
    answer, day = tree["answer"], tree["day"]
    said = [
        f"{counted(answer['nodes'], 'node')} for a peak of {tree['demand']['peak_qps']:,.6g} QPS, at the"
        f" {BASIS[answer['basis']]} of {qps(answer['planned_qps_per_node'])} QPS per node; plain division by"
        f" the estimate says {answer['naive_nodes']:,}."
    ]
    if answer["nodes_at_high"] is not None:
        said.append(f"At the upper end of the interval {answer['nodes_at_high']:,} would do.")
    if day:
        said.append(
            f"Over the day {min(day['nodes'])} to {counted(max(day['nodes']), 'node')} are needed:"
            f" {day['autoscaled_node_hours']:,.0f} node-hours autoscaled,"
            f" {day['fixed_node_hours']:,.0f} fixed."
        )
    return " ".join(said)


def _refuse(tree: Tree) -> None:
    if not tree.get("valid"):
        raise NoData(tree.get("reason") or "nothing was planned")


def _draw_demand(ax: Axes, tree: Tree) -> None:
    rows, answer, peak = tree["by_demand"], tree["answer"], tree["demand"]["peak_qps"]
    series = (
        (f"planned ({BASIS[answer['basis']]}, headroom, spares)", "nodes", canvas.STYLES[0]),
        ("at the upper end of the interval", "nodes_at_high", canvas.STYLES[2]),
        ("plain division by the estimate", "naive_nodes", canvas.STYLES[1]),
    )
    for name, key, style in series:
        known = [(row["demand_qps"], row[key]) for row in rows if row[key] is not None]
        if known:
            ax.plot(*zip(*known, strict=True), **style.drawn, label=name)
    ax.axvline(peak, color=canvas.PALE, linewidth=0.9, linestyle=":")
    ax.plot([peak], [answer["nodes"]], marker="*", markersize=14, color=canvas.INK, linestyle="")
    words = f"{counted(answer['nodes'], 'node')} at {peak:,.6g} QPS"
    canvas.note(ax, peak, answer["nodes"], words, xytext=(-8, 8), ha="right", va="bottom")
    ax.set_xlim(0, None)
    ax.set_ylim(0, None)
    canvas.thousands(ax)
    canvas.label(ax, "peak demand of the whole service (QPS)", "nodes")
    canvas.legend(ax, columns=2)


def _draw_day(ax: Axes, day: Tree, fixed: int) -> None:
    bars: Look = {"facecolor": canvas.SKY, "edgecolor": canvas.BLUE, "linewidth": 0.8}
    middles = [hour + 0.5 for hour in range(HOURS)]
    ax.bar(middles, day["nodes"], width=1.0, label="needed in the hour", **bars)
    line: Look = {"color": canvas.VERMILLION, "linestyle": "--", "linewidth": 1.3}
    ax.axhline(fixed, **line, label=f"fixed fleet, {counted(fixed, 'node')}")
    ax.set_xlim(0, HOURS)
    ax.set_ylim(0, 1.1 * max(fixed, *day["nodes"]))
    canvas.thousands(ax)
    ax.set_xticks(range(0, HOURS + 1, 3))
    canvas.label(ax, "hour of the day", "nodes")
    canvas.legend(ax)


EXHIBIT = Exhibit(
    "plan",
    "Nodes against demand",
    plot_plan,
    plan_table,
    plan_alt,
    "plan.json: by_demand, answer, demand, day",
    HEIGHT_IN,
)
