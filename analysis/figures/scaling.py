"""Figure of the scaling efficiency E(n): as measured, between the measured node counts, and beyond."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from analysis.figures import canvas
from analysis.figures.canvas import Figure, Look
from analysis.figures.exhibit import Exhibit, NoData, Row, counted, qps
from analysis.planning.efficiency import ScalingEfficiency, scaling
from analysis.results.runs import Run, RunError

EfficiencyOrRuns = ScalingEfficiency | Sequence[Run]
"""Runs of one service at several node counts, or what `scaling` made of them."""

BEYOND = 2.0
"""The assumption beyond the last measured count is shown up to so many times that count."""


@dataclass(frozen=True, slots=True)
class Scaling(Exhibit):
    """E(n), measured at two node counts at least."""

    efficiency: ScalingEfficiency

    name = "scaling"
    title = "Scaling efficiency"
    source = "sweep.json of each run: asked.nodes, capacity"

    @classmethod
    def read(cls, subject: EfficiencyOrRuns) -> Self:
        try:
            efficiency = subject if isinstance(subject, ScalingEfficiency) else scaling(subject)
        except RunError as error:
            raise NoData(str(error)) from error
        if efficiency.assumed:
            only = counted(efficiency.fewest, "node")
            raise NoData(f"only {only} was measured, so that E(n) = 1 is an assumption")
        return cls(_rows(efficiency), efficiency)

    def draw(self, figure: Figure) -> None:
        ax = figure.subplots()
        rows, most = self.rows, self.efficiency.most
        end = round(BEYOND * most)
        ax.set_xlim(self.efficiency.fewest / 1.1, end * 1.03)
        ax.axhline(1, color=canvas.PALE, linewidth=1, linestyle=":", label="E = 1")
        nodes, beyond = [row["nodes"] for row in rows], np.geomspace(most, end, 20)
        dot: Look = {"marker": "o", "color": canvas.BLUE, "linewidth": 1.3}
        ax.plot(nodes, [row["e"] for row in rows], **dot, label="measured, 95 % interval")
        dashed: Look = {"color": canvas.PURPLE, "linewidth": 1.3, "linestyle": "--"}
        ax.plot(beyond, self.efficiency.at(beyond), **dashed, label="ASSUMED")
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


def plot_scaling(subject: EfficiencyOrRuns) -> Figure:
    """E(n), capacity per node at n nodes over that at the fewest measured, with 95 % intervals; n is log.

    Between the points the line is what a plan uses, beyond them it is ASSUMED and dashed. Raises NoData
    where one node count was measured, or where runs differ in more than it.
    """
    return Scaling.read(subject).figure()


def _rows(efficiency: ScalingEfficiency) -> list[Row]:
    """QPS per node, and E(n) with a 95 % interval; at the fewest nodes it is 1."""
    rows: list[Row] = []
    for point in efficiency.points:
        e = efficiency.figure(point.nodes)
        low, high = (None, None) if point.nodes == efficiency.fewest else (e.low, e.high)
        row = {"nodes": point.nodes, "qps_per_node": point.qps_per_node, "e": e.value}
        rows.append(row | {"e_low": low, "e_high": high})
    return rows
