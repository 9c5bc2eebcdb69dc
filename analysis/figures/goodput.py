"""Figure of the requests that kept both bounds, against those that were offered.

Knows the windows' own counts; a stricter question than two percentiles.
"""

import pyarrow as pa

from analysis.figures import canvas
from analysis.figures.canvas import Axes
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.outcomes import draw_points, outcome
from analysis.figures.windows import bounds_ms, counted, lines, qps, share
from analysis.results.runs import Run

HEIGHT_IN = 3.6


def plot_goodput(run: Run, ax: Axes | None = None) -> Axes:
    """Goodput and arrivals of each valid window against its offered rate, all in QPS per node.

    On the dashed line everything offered would be good. Arrivals differ from the offered rate by chance,
    goodput from arrivals by what was late or failed. Raises NoData without a valid window.
    """
    whole, ax = canvas.single(ax, HEIGHT_IN, top=0.16)
    rows = goodput_table(run).to_pylist()
    rates = [row["rate_qps_per_node"] for row in rows]
    came, good = ([row[f"{name}_qps_per_node"] for row in rows] for name in ("arrived", "goodput"))
    low, high = 0.92 * min([*rates, *came, *good]), 1.06 * max([*rates, *came, *good])
    ax.plot(
        [low, high], [low, high], color=canvas.PALE, linewidth=1, linestyle="--", label="goodput = offered"
    )
    apart = [[rate, rate] for rate in rates], list(zip(came, good, strict=True))
    canvas.segments(ax, *apart, color=canvas.PALE, linewidth=0.9)
    ax.plot(rates, came, linestyle="", marker="_", markersize=12, color=canvas.INK, label="arrived")
    ended = [row["outcome"] for row in rows]
    draw_points(ax, list(zip(rates, good, ended, strict=True)))
    ax.set_xlim(min(rates) * 0.96, max(rates) * 1.04)
    ax.set_ylim(low, high)
    canvas.label(ax, "offered load (QPS per node)", "goodput (QPS per node)")
    canvas.legend(ax, columns=2)
    return whole


def goodput_table(run: Run) -> pa.Table:
    """One row per valid window by rate: offered, arrived and good QPS per node, and good over arrived in %.

    Raises NoData without a valid window.
    """
    bounds = bounds_ms(run)
    valid = [line for line in lines(run) if line["valid"] and line["goodput_qps_per_node"] is not None]
    if not valid:
        raise NoData("no valid window has a goodput")
    rows = []
    for line in sorted(valid, key=lambda line: line["rate_qps_per_node"]):
        seconds = (line["window_end_ns"] - line["window_start_ns"]) / 1e9
        arrived = line["requests"] / seconds / line["nodes"]
        good = line["goodput_qps_per_node"]
        rows.append(
            {
                "window": line["index"],
                "rate_qps_per_node": line["rate_qps_per_node"],
                "arrived_qps_per_node": arrived,
                "goodput_qps_per_node": good,
                "good_of_arrived_pct": 100 * good / arrived if arrived else None,
                "outcome": outcome(line, bounds),
            }
        )
    return pa.Table.from_pylist(rows)


def goodput_alt(run: Run) -> str:
    """The best goodput and the share that was good at the highest rate."""
    rows = goodput_table(run).to_pylist()
    best, last = max(rows, key=lambda row: row["goodput_qps_per_node"]), rows[-1]
    part = "unknown" if last["good_of_arrived_pct"] is None else share(last["good_of_arrived_pct"] / 100)
    return (
        f"The goodput of {counted(len(rows), 'window')} is highest, {qps(best['goodput_qps_per_node'])} QPS"
        f" per node, where {qps(best['rate_qps_per_node'])} were offered; at the highest rate,"
        f" {qps(last['rate_qps_per_node'])}, {part} of the arrived requests kept both bounds."
    )


EXHIBIT = Exhibit(
    "goodput",
    "Goodput against offered load",
    plot_goodput,
    goodput_table,
    goodput_alt,
    "dwells.parquet: rate_qps_per_node, requests, goodput_qps_per_node, window_start_ns, window_end_ns, "
    "valid",
    HEIGHT_IN,
)
