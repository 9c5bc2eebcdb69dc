"""Figure of fleets over a simulated day: the demand, the nodes of each fleet, the share over the bounds."""

import pyarrow as pa

from analysis.autoscaling.elastic import EITHER, NODE_HOURS, SPAN_S, ElasticDay, clock
from analysis.figures import canvas
from analysis.figures.canvas import Axes
from analysis.figures.exhibit import Exhibit

HEIGHT_IN = 5.4
HOURS = 24
HOUR_S = 3600.0


def plot_fleets(found: ElasticDay, ax: Axes | None = None) -> Axes:
    """QPS offered, nodes, and share of requests over any bound of every fleet, over the hours of the day.

    Each point is a mean over five minutes and over the simulated days.
    """
    ax = ax or canvas.new_axes(HEIGHT_IN)
    demand, nodes, over = canvas.panels(ax, (1, 1.6, 1.6), top=0.02, gaps=(0.07, 0.03))
    hours = [(i + 0.5) * SPAN_S / HOUR_S for i in range(len(found.qps))]
    demand.plot(hours, found.qps, color=canvas.INK, linewidth=1.1)
    for one, style in zip(found.fleets, canvas.STYLES, strict=False):
        look = {**style.drawn, "marker": ""}
        nodes.plot(hours, one.nodes, **look, label=one.name)
        over.plot(hours, [100 * share for share in one.over], **look)
    for panel, name in ((demand, "QPS"), (nodes, "nodes"), (over, "over any bound (%)")):
        panel.set_xlim(0, HOURS)
        panel.set_ylim(0, None)
        panel.set_xticks(range(0, HOURS + 1, 3))
        canvas.label(panel, "hour of the day" if panel is over else "", name)
        for at_s in (found.crowd_from_s, found.lost_s):
            panel.axvline(at_s / HOUR_S, color=canvas.PALE, linewidth=0.9, linestyle=":")
    for at_s, word in ((found.crowd_from_s, "crowd"), (found.lost_s, "node lost")):
        canvas.note(demand, at_s / HOUR_S, 0, word, xytext=(3, 2), va="bottom")
    canvas.legend(nodes)
    return ax


def fleets_table(found: ElasticDay) -> pa.Table:
    """One row per five minutes: QPS offered, and nodes and per cent over any bound of each fleet."""
    columns = {"hour": [i * SPAN_S / HOUR_S for i in range(len(found.qps))], "qps": list(found.qps)}
    for one in found.fleets:
        columns[f"{one.name}_nodes"] = list(one.nodes)
        columns[f"{one.name}_over_pct"] = [100 * share for share in one.over]
    return pa.table(columns)


def fleets_alt(found: ElasticDay) -> str:
    """Node-hours and share over any bound of every fleet, and when the crowd comes and the node is lost."""
    said = [
        f"{one.name}: {one.figures[NODE_HOURS].value:,.0f} node-hours, "
        f"{100 * one.figures[EITHER].value:.2f} % of requests over any bound."
        for one in found.fleets
    ]
    when = f"A crowd comes at {clock(found.crowd_from_s)}, a node is lost at {clock(found.lost_s)}."
    return " ".join([*said, when])


EXHIBIT = Exhibit(
    "fleets",
    "Three fleets over the day",
    plot_fleets,
    fleets_table,
    fleets_alt,
    "the engine model: means over five minutes and the simulated days",
    HEIGHT_IN,
)
