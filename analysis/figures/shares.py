"""Figure of the share over each bound against the load, of runs with other bounds than the two p90s."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from analysis.capacity import window_table
from analysis.figures import canvas
from analysis.figures.canvas import Figure
from analysis.figures.exhibit import Exhibit, NoData, Row
from analysis.figures.run_data import RunData
from analysis.figures.words import counted, qps
from conf.specs.bounds import LIMITS, Limit, allowed_over, label

LEAST = 0.02
"""Smallest ratio that is drawn: of what is rarer nothing is to be seen."""


@dataclass(frozen=True, slots=True)
class ShareOver(Exhibit):
    """Share of the requests over each bound and the allowed one, in percent, of each window by start."""

    name = "share_over"
    title = "Share over each bound against offered load"
    source = "windows.parquet: rate_qps_per_node, ttft_over to tpot_determined, bounds, valid"

    @classmethod
    def applies(cls, subject: RunData) -> bool:
        """True of a run with a bound that the figure of latencies does not show."""
        return any(limit not in LIMITS for limit in subject.bounds.limits)

    @classmethod
    def read(cls, subject: RunData) -> Self:
        lines, limits = subject.lines(), subject.bounds.limits
        if not any(line["valid"] for line in lines):
            raise NoData("every window is void")
        return cls([_row(line, limit) for line in lines for limit in limits])

    @property
    def valid(self) -> dict[str, list[Row]]:
        """By bound, its rows of windows that are not void, by rate."""
        by_bound: dict[str, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: row["rate_qps_per_node"]):
            if row["valid"]:
                by_bound.setdefault(row["bound"], []).append(row)
        return by_bound

    def draw(self, figure: Figure) -> None:
        """Over the allowed share, on a log axis; a share of nothing stands at the lower edge."""
        ax = figure.subplots()
        for (bound, rows), style in zip(self.valid.items(), canvas.STYLES, strict=False):
            known = [
                (row["rate_qps_per_node"], max(_ratio(row), LEAST))
                for row in rows
                if row["over_pct"] is not None
            ]
            if known:
                ax.plot(*zip(*known, strict=True), **style.drawn, label=bound)
        ax.set_ylim(LEAST / 1.3, 130)
        canvas.log_axis(ax, "y")
        canvas.label(ax, "rate offered (QPS per node)", "share over / allowed share")
        canvas.bound(ax, 1.0, "as many over as allowed", right=False)

    def alt(self) -> str:
        """The number of windows in which each bound was kept, in words."""
        said, rates = [], []
        for bound, rows in self.valid.items():
            rates = [row["rate_qps_per_node"] for row in rows]
            kept = sum(_ratio(row) <= 1 for row in rows)
            said.append(f"{bound} was kept in {kept} of {counted(len(rows), 'valid window')}.")
        return " ".join([f"Windows from {qps(rates[0])} to {qps(rates[-1])} QPS per node.", *said])


def _row(line: Mapping[str, Any], limit: Limit) -> Row:
    share = window_table.over_share(line, limit)
    return {
        "window": line["index"],
        "rate_qps_per_node": line["rate_qps_per_node"],
        "bound": label(limit),
        "over_pct": None if share is None else 100 * share,
        "allowed_pct": 100 * allowed_over(limit),
        "valid": line["valid"],
    }


def _ratio(row: Row) -> float:
    """Share over the allowed share; 0 where it is unknown."""
    return float(row["over_pct"] or 0.0) / float(row["allowed_pct"])
