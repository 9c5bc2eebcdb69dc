"""Figure of the scaling efficiency E(n): as measured, between the measured node counts, and beyond."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Look
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.windows import counted, qps
from analysis.planning.efficiency import ScalingEfficiency, scaling
from analysis.results.runs import Run, RunError

EfficiencyOrRuns = ScalingEfficiency | Sequence[Run]
"""Runs of one service at several node counts, or what `scaling` made of them."""

HEIGHT_IN = 3.4
BEYOND = 2.0
"""The assumption beyond the last measured count is shown up to so many times that count."""


def plot_scaling(subject: EfficiencyOrRuns, ax: Axes | None = None) -> Axes:
    """E(n), capacity per node at n nodes over that at the fewest measured, with 95 % intervals; n is log.

    Between the points the line is what a plan uses, beyond them it is ASSUMED and dashed. Raises NoData
    where one node count was measured, or where runs differ in more than it.
    """
    whole, ax = canvas.single(ax, HEIGHT_IN, top=0.1)
    found = _measured(subject)
    rows = scaling_table(found).to_pylist()
    most, end = found.most, round(BEYOND * found.most)
    ax.set_xlim(found.fewest / 1.1, end * 1.03)
    ax.axhline(1, color=canvas.PALE, linewidth=1, linestyle=":", label="E = 1")
    nodes, beyond = [row["nodes"] for row in rows], np.geomspace(most, end, 20)
    dot: Look = {"marker": "o", "color": canvas.BLUE, "linewidth": 1.3}
    ax.plot(nodes, [row["e"] for row in rows], **dot, label="measured, 95 % interval")
    dashed: Look = {"color": canvas.PURPLE, "linewidth": 1.3, "linestyle": "--"}
    ax.plot(beyond, found.at(beyond), **dashed, label="ASSUMED")
    ends = [[row["nodes"]] * 2 for row in rows[1:]], [[row["e_low"], row["e_high"]] for row in rows[1:]]
    canvas.segments(ax, *ends, color=canvas.INK, linewidth=1.1)
    canvas.log_axis(ax, "x")
    ax.set_xticks([*nodes, end])
    canvas.label(ax, "nodes n", "E(n)")
    canvas.legend(ax, columns=4)
    return whole


def scaling_table(subject: EfficiencyOrRuns) -> pa.Table:
    """One row per node count: QPS per node, and E(n) with a 95 % interval; at the fewest it is 1."""
    found = _measured(subject)
    rows = []
    for point in found.points:
        e, exact = found.figure(point.nodes), point.nodes == found.fewest
        low, high = (None, None) if exact else (e.low, e.high)
        qps_per_node = point.qps_per_node
        rows.append(
            {"nodes": point.nodes, "qps_per_node": qps_per_node, "e": e.value, "e_low": low, "e_high": high}
        )
    return pa.Table.from_pylist(rows)


def scaling_alt(subject: EfficiencyOrRuns) -> str:
    """E at the most nodes measured, with its interval."""
    first, *_, last = scaling_table(subject).to_pylist()
    return (
        f"At {last['nodes']} nodes a node serves {qps(last['qps_per_node'])} QPS, {last['e']:.3f} of"
        f" what it serves at {counted(first['nodes'], 'node')} (95 % interval {last['e_low']:.3f} to"
        f" {last['e_high']:.3f})."
    )


def _measured(subject: EfficiencyOrRuns) -> ScalingEfficiency:
    try:
        found = subject if isinstance(subject, ScalingEfficiency) else scaling(subject)
    except RunError as error:
        raise NoData(str(error)) from error
    if found.assumed:
        raise NoData(f"only {counted(found.fewest, 'node')} was measured, so that E(n) = 1 is an assumption")
    return found


EXHIBIT = Exhibit(
    "scaling",
    "Scaling efficiency",
    plot_scaling,
    scaling_table,
    scaling_alt,
    "sweep.json of each run: asked.nodes, capacity",
    HEIGHT_IN,
)
