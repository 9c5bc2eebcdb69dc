"""Figure of the share over each bound against the load, of runs with other bounds than the two p90s."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from analysis.capacity import dwell_table
from analysis.figures import canvas
from analysis.figures.canvas import Axes
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.windows import bounds_of, counted, lines, qps
from analysis.results.runs import Run
from conf.specs.bounds import LIMITS, Limit, allowed_over, label, short

HEIGHT_IN = 3.6
LEAST = 0.02
"""Smallest ratio that is drawn: of what is rarer nothing is to be seen."""


def applies(run: Run) -> bool:
    """True of a run with a bound that the figure of latencies does not show."""
    return any(limit not in LIMITS for limit in bounds_of(run).limits)


def plot_share_over(run: Run, ax: Axes | None = None) -> Axes:
    """Share over each bound, over the share that it allows (log), against offered QPS per node.

    Below 1 the bound is kept. A share of nothing stands at the lower edge. Raises NoData without a valid
    window.
    """
    ax = ax or canvas.new_axes(HEIGHT_IN)
    windows = _valid(run)
    for limit, style in zip(bounds_of(run).limits, canvas.STYLES, strict=False):
        known = [(line["rate_qps_per_node"], _ratio(line, limit)) for line in windows]
        points = [(rate, max(ratio, LEAST)) for rate, ratio in known if ratio is not None]
        if points:
            ax.plot(*zip(*points, strict=True), **style.drawn, label=short(limit))
    ax.set_ylim(LEAST / 1.3, 130)
    canvas.log_axis(ax, "y")
    canvas.label(ax, "offered load (QPS per node)", "share over / allowed share")
    canvas.bound(ax, 1.0, "as many over as allowed", right=False)
    canvas.legend(ax, columns=4)
    return ax


def share_over_table(run: Run) -> pa.Table:
    """One row per window and bound: the share of requests over it, and the allowed one, in percent."""
    rows = [
        {
            "window": line["index"],
            "rate_qps_per_node": line["rate_qps_per_node"],
            "bound": label(limit),
            "over_pct": None if (share := dwell_table.over_share(line, limit)) is None else 100 * share,
            "allowed_pct": 100 * allowed_over(limit),
            "valid": line["valid"],
        }
        for line in lines(run)
        for limit in bounds_of(run).limits
    ]
    return pa.Table.from_pylist(rows)


def share_over_alt(run: Run) -> str:
    """The number of windows in which each bound was kept, in words."""
    windows = _valid(run)
    said = []
    for limit in bounds_of(run).limits:
        kept = sum((_ratio(line, limit) or 0.0) <= 1 for line in windows)
        said.append(f"{label(limit)} was kept in {kept} of {counted(len(windows), 'valid window')}.")
    rates = [line["rate_qps_per_node"] for line in windows]
    return " ".join([f"Windows from {qps(min(rates))} to {qps(max(rates))} QPS per node.", *said])


def _valid(run: Run) -> Sequence[Mapping[str, Any]]:
    found = sorted((line for line in lines(run) if line["valid"]), key=lambda line: line["rate_qps_per_node"])
    if not found:
        raise NoData("every window is void")
    return found


def _ratio(line: Mapping[str, Any], limit: Limit) -> float | None:
    share = dwell_table.over_share(line, limit)
    return None if share is None else share / allowed_over(limit)


EXHIBIT = Exhibit(
    "share_over",
    "Share over each bound against offered load",
    plot_share_over,
    share_over_table,
    share_over_alt,
    "dwells.parquet: rate_qps_per_node, ttft_over to tpot_determined, bounds, valid",
    HEIGHT_IN,
    applies=applies,
)
