"""Power and energy of a run: joins the power of its nodes with its requests. Unknown is None, never 0."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from analysis.capacity import window_table
from analysis.capacity.window_counts import in_window
from analysis.results.figures import CapacityFigures, WindowRow
from analysis.results.node_power import NodeSamples, by_node
from analysis.rows import metrics

J_PER_WH = 3600.0
WHOLE, ALONE = "whole nodes", "GPUs alone"


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """One node: the number of its GPUs that reported, its watts at rest and in the quoted window.

    `meter_watts` are those of the whole machine; most machines do not report them.
    """

    name: str
    gpus_told: int
    gpus: int
    source: str = ""
    idle_gpu_watts: float | None = None
    gpu_watts: float | None = None
    idle_meter_watts: float | None = None
    meter_watts: float | None = None


@dataclass(frozen=True, slots=True)
class WindowEnergy:
    """Power and energy in one window of `rate_qps_per_node`; `coverage` is the least of its nodes.

    Watts are the mean of the nodes. Energy is that of all nodes over the requests due in the window that were
    answered, and over their tokens: what failed is paid by the others. `idle_share` is watts at rest over
    watts in the window.
    """

    index: int
    rate_qps_per_node: float
    coverage: float
    watts_per_node: float | None = None
    wh_per_request: float | None = None
    kwh_per_1m_input_tokens: float | None = None
    kwh_per_1m_output_tokens: float | None = None
    idle_share: float | None = None


@dataclass(frozen=True, slots=True)
class PowerFigures:
    """Power and energy of a run, or why they are `unknown`.

    `of` says whose: whole machines, if every node has a meter of its own, else the GPUs alone. `at` is the
    index of the window that the verdict quotes, the one nearest to the capacity.
    """

    unknown: str = ""
    of: str = ""
    idle_watts_per_node: float | None = None
    at: int | None = None
    nodes: tuple[NodeFigures, ...] = ()
    windows: tuple[WindowEnergy, ...] = ()

    @property
    def quoted(self) -> WindowEnergy | None:
        """The window `at`; its watts are known."""
        known = (window for window in self.windows if window.watts_per_node is not None)
        return next((window for window in known if window.index == self.at), None)


def figures(
    samples: pa.Table,
    measured_windows: Sequence[WindowRow],
    requests: pa.Table,
    capacity: CapacityFigures | None,
    unknown: str = "",
) -> PowerFigures:
    """Power and energy of a run from its samples (schema `records.POWER`), windows and request rows.

    `unknown` is why there are no samples, where that is known.
    """
    measured = [row for row in measured_windows if row["kind"] != "ramp"]
    # A node that was replaced, or that came later, counts where it was asked.
    every = by_node(samples)
    nodes = [node for node in every if any(node.was_asked(*_span(row)) for row in measured)] or every
    described = tuple(map(_described, nodes))
    if silent := [node for node in nodes if node.silent]:
        who = f"{len(silent)} of {len(nodes)} node(s) told no power ({silent[0].name})"
        unknown = f"{who}: {silent[0].silent}"
    if not nodes or silent or not measured:
        nothing = "no window was measured" if nodes else "no node was asked"
        return PowerFigures(unknown or nothing, nodes=described)
    whole = all(not np.isnan(node.meter_watts).all() for node in nodes)
    windows = tuple(_window(row, nodes, requests, whole) for row in measured)
    at = _quoted(windows, [row["index"] for row in measured if row["valid"]], capacity)
    if at is None:
        covered = max(window.coverage for window in windows)
        why = f"no valid window is covered by samples; at most {covered:.0%} of one"
        return PowerFigures(why, nodes=described, windows=windows)
    span = next(_span(row) for row in measured if row["index"] == at)
    there = [node for node in nodes if node.was_asked(*span)]
    described = tuple(_described(node, span) for node in there)
    return PowerFigures("", WHOLE if whole else ALONE, _idle_watts(there, whole), at, described, windows)


def _span(row: WindowRow) -> tuple[int, int]:
    return row["window_start_ns"], row["window_end_ns"]


def _idle_watts(nodes: Sequence[NodeSamples], whole: bool) -> float | None:
    """Mean watts of nodes at rest; None if one of them was not seen so."""
    resting = [node.idle_watts()[whole] for node in nodes]
    return None if None in resting else sum(filter(None, resting)) / len(nodes)


def _described(node: NodeSamples, span: tuple[int, int] | None = None) -> NodeFigures:
    """A node, with its watts in a span where one is quoted."""
    idle_gpus, idle_meter = node.idle_watts()
    gpus, meter = (node.gpus_mean(*span).watts, node.meter_mean(*span).watts) if span else (None, None)
    source = ", ".join(node.sources)
    return NodeFigures(node.name, node.told, node.gpus, source, idle_gpus, gpus, idle_meter, meter)


def _window(row: WindowRow, nodes: Sequence[NodeSamples], requests: pa.Table, whole: bool) -> WindowEnergy:
    span = _span(row)
    there = [node for node in nodes if node.was_asked(*span)]
    means = [node.meter_mean(*span) if whole else node.gpus_mean(*span) for node in there]
    watts_of = [mean.watts for mean in means if mean.watts is not None]
    coverage = min((mean.coverage for mean in means), default=0.0) if len(there) >= row["nodes"] else 0.0
    offered = row["index"], row["rate_qps_per_node"], coverage
    if len(watts_of) < max(len(there), row["nodes"]):
        return WindowEnergy(*offered)
    joules = sum(watts_of) * (span[1] - span[0]) / 1e9
    rows = in_window(requests, window_table.window(dict(row)))
    rows = rows.filter(pa.array(metrics.status_in(rows, "ok")))
    watts, idle_watts = sum(watts_of) / len(there), _idle_watts(there, whole)
    each = joules / J_PER_WH / rows.num_rows if rows.num_rows else None
    of_input, of_output = (_kwh_per_1m(joules, rows, f"{kind}_tokens") for kind in ("prompt", "output"))
    idle_share = None if idle_watts is None else idle_watts / watts
    return WindowEnergy(*offered, watts, each, of_input, of_output, idle_share)


def _kwh_per_1m(joules: float, answered: pa.Table, column: str) -> float | None:
    """kWh for a million tokens; None where an answer does not report its number of them."""
    total = metrics.numbers(answered, column).sum()  # NaN if one of them is unknown
    return joules / J_PER_WH / 1e3 / total * 1e6 if total > 0 else None


def _quoted(
    windows: Sequence[WindowEnergy], valid: Sequence[int], capacity: CapacityFigures | None
) -> int | None:
    """The valid window nearest to the capacity, of several the last; without a capacity the last one."""
    covered = [window for window in windows if window.index in valid and window.watts_per_node is not None]
    if not covered:
        return None
    q = capacity.qps_per_node if capacity else None
    at_qps = next((qps for qps in (q.certified, q.value, q.low) if qps), None) if q else None
    if at_qps is None:
        return covered[-1].index
    return min(reversed(covered), key=lambda window: abs(window.rate_qps_per_node - at_qps)).index
