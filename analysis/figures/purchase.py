"""Figure of the nodes that a demand needs: over the demand, and over the hours of a day if known."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Look
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.windows import counted

Tree = Mapping[str, Any]
HEIGHT_IN = 4.6
HOURS = 24
BASIS = {"low": "lower end", "certified": "certified rate", "estimate": "estimate"}


def plot_plan(tree: Tree, ax: Axes | None = None) -> Axes:
    """Nodes against demand (QPS): as planned, at the upper end of the capacity, and by plain division.

    With a day's demand a second panel has the nodes of each hour beside the fixed fleet. `tree` is what
    `analysis.planning.tree` makes of a plan. Raises NoData for a refused one.
    """
    ax = ax or canvas.new_axes(HEIGHT_IN)
    if not tree.get("valid"):
        raise NoData(tree.get("reason") or "nothing was planned")
    ax.set_axis_off()
    day = tree["day"]
    _draw_demand(ax.inset_axes((0, 0.52, 1, 0.4) if day else (0, 0, 1, 0.88)), tree)
    if day:
        _draw_day(ax.inset_axes((0, 0, 1, 0.28)), day, tree["answer"]["nodes"])
    return ax


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
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.yaxis.set_major_formatter("{x:,.0f}")
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
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.set_xticks(range(0, HOURS + 1, 3))
    canvas.label(ax, "hour of the day", "nodes")
    canvas.legend(ax)


def purchase_table(tree: Tree) -> pa.Table:
    """One row per demand: nodes as planned, at the upper end of the capacity, and by plain division."""
    keys = "demand_qps", "nodes", "nodes_at_high", "naive_nodes"
    return pa.table({key: [row[key] for row in tree["by_demand"]] for key in keys})


def purchase_alt(tree: Tree) -> str:
    """The nodes at the peak and by plain division, and of the quietest and the busiest hour."""
    answer, day = tree["answer"], tree["day"]
    said = f"{counted(answer['nodes'], 'node')} at {tree['demand']['peak_qps']:,.6g} QPS; "
    said += f"plain division by the estimate gives {answer['naive_nodes']:,}."
    return said + (f" By the hour {min(day['nodes'])} to {max(day['nodes'])} are needed." if day else "")


EXHIBIT = Exhibit(
    "nodes",
    "Nodes for a demand",
    plot_plan,
    purchase_table,
    purchase_alt,
    "the plan: by_demand, answer, day",
    HEIGHT_IN,
)
