"""The fewest nodes that serve a rate by two rules, and of which enough are up.

Normal: D <= n L (1 - h) E(n). Degraded: D <= (n - k) L E(n - k). Adding k spares to the nodes of the normal
rule would count twice, because the headroom may be used when k nodes fail. Nodes that are up follow the
binomial distribution of independent failures: a failure of several nodes at once (a rack, a release, a bad
model file) is not in it, so that an availability found here is an upper bound.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.planning.efficiency import ScalingEfficiency
from analysis.results.runs import RunError
from conf.specs.planning import Margins

Floats = NDArray[np.float64]

MOST_NODES = 100_000
"""Most nodes that are tried (our choice: ten times the need of 30,000 QPS at 3 QPS per node)."""
ROUNDING = 1e-9
"""Relative shortfall of the served rate that counts as floating-point error."""


@dataclass(frozen=True, slots=True)
class FleetCapacity:
    """Rate that n nodes serve, from `qps_per_node` on `measured_nodes` and the efficiency of more."""

    qps_per_node: float
    measured_nodes: int
    efficiency: ScalingEfficiency

    def qps(self, nodes: Floats) -> Floats:
        """The rate in QPS that each number of nodes serves within the bounds; 0 for 0 nodes."""
        n = np.asarray(nodes, dtype=np.float64)
        return np.where(n > 0, n * self.qps_per_node * self.efficiency.relative(n, self.measured_nodes), 0.0)

    def kept_qps(self, nodes: int) -> float:
        """`qps` for one number of nodes."""
        return float(self.qps(np.array([nodes]))[0])


@dataclass(frozen=True, slots=True)
class Sizing:
    """The fewest nodes for a rate by both rules and by each; `binding` names the stricter one, or `both`."""

    demand_qps: float
    qps_per_node: float
    nodes: int
    normal_nodes: int
    degraded_nodes: int
    binding: str


def size(demand_qps: float, service: FleetCapacity, headroom: float, spare_nodes: int) -> Sizing:
    """The smallest n that satisfies both rules, with at least one node left when the spares have failed.

    Raises RunError if no number of nodes serves it.
    """
    for most in (_likely(demand_qps, service, headroom, spare_nodes), MOST_NODES):
        served = service.qps(np.arange(most + 1, dtype=np.float64)) * (1 + ROUNDING)
        normal = served * (1 - headroom) >= demand_qps
        degraded = np.zeros(most + 1, dtype=bool)
        degraded[spare_nodes + 1 :] = served[1 : most + 1 - spare_nodes] >= demand_qps
        normal[0] = False
        if (normal & degraded).any():
            break
    else:
        raise RunError(_unreachable(demand_qps, served, service))
    normal_nodes, degraded_nodes = int(normal.argmax()), int(degraded.argmax())
    binding = "normal" if normal_nodes > degraded_nodes else "degraded"
    return Sizing(
        demand_qps=demand_qps,
        qps_per_node=service.qps_per_node,
        nodes=int((normal & degraded).argmax()),
        normal_nodes=normal_nodes,
        degraded_nodes=degraded_nodes,
        binding="both" if normal_nodes == degraded_nodes else binding,
    )


def _likely(demand_qps: float, service: FleetCapacity, headroom: float, spare_nodes: int) -> int:
    """A first upper limit of the search: four times the nodes that E(n) = 1 needs."""
    needed_nodes = demand_qps / service.qps_per_node / (1 - headroom)
    return int(min(4 * needed_nodes + spare_nodes + 16, MOST_NODES))


def naive(demand_qps: float, qps_per_node: float) -> int:
    """Rate over capacity, rounded up, without headroom, spare and interval; shown for comparison only."""
    return max(1, math.ceil(demand_qps / qps_per_node * (1 - ROUNDING)))


def needed(demand_qps: float, service: FleetCapacity) -> int:
    """The fewest nodes that carry a rate with neither headroom nor spare. Raises RunError if none."""
    return size(demand_qps, service, 0.0, 0).nodes


def _unreachable(demand_qps: float, served: Floats, service: FleetCapacity) -> str:
    peak = int(served.argmax())
    if served[peak] < MOST_NODES * service.qps_per_node / 2:
        most = f"one service reaches at most {served[peak]:.4g} QPS (n = {peak})"
        why = f"if E(n) goes on falling as it does up to {service.efficiency.most} nodes"
        return f"{most}, {why}: split {demand_qps:g} QPS (and headroom and spares) over several"
    return f"{demand_qps:g} QPS need more than {MOST_NODES} nodes; lower the demand"


@dataclass(frozen=True, slots=True)
class Availability:
    """`nodes` of which at least `needed_nodes` are up with probability `reached`, at least `target`."""

    node_availability: float
    target: float
    needed_nodes: int
    nodes: int
    reached: float


def up_probability(needed: int, nodes: int, node_availability: float) -> float:
    """Probability that at least `needed` of `nodes` are up, each independently with `node_availability`."""
    if nodes < needed:
        return 0.0
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, nodes + 1)))])
    down = np.arange(nodes - needed + 1, nodes + 1)
    ln = log_factorial[nodes] - log_factorial[down] - log_factorial[nodes - down]
    ln += down * np.log1p(-node_availability) + (nodes - down) * np.log(node_availability)
    return float(max(0.0, 1.0 - np.exp(ln).sum()))


def available(needed: int, node_availability: float, target: float) -> Availability:
    """The fewest nodes of which at least `needed` are up with probability `target`.

    Raises RunError if that takes more than 100,000.
    """

    def reached(nodes: int) -> float:
        return up_probability(needed, nodes, node_availability)

    most = next((n for n in _doubled(needed + 1) if reached(n) >= target), None)
    if most is None:
        raise RunError(f"plan.target_availability={target} needs more than {MOST_NODES} nodes; lower it")
    nodes = bisect_left(range(most), target, lo=needed, key=reached)  # more nodes are never worse
    return Availability(node_availability, target, needed, nodes, reached(nodes))


def down_at_once(nodes: int, node_availability: float, target: float) -> int:
    """The most nodes that are down at once, in all but a share `1 - target` of the time."""

    def kept(down: int) -> float:
        return up_probability(nodes - down, nodes, node_availability)

    return bisect_left(range(nodes), target, key=kept)


def _doubled(nodes: int) -> Iterator[int]:
    while nodes < MOST_NODES:
        yield nodes
        nodes *= 2
    yield MOST_NODES


def availability(needed_nodes: int, care: Margins) -> Availability | None:
    """`available` by the margins of a plan; None where they have no availability."""
    if care.node_availability is None or care.target_availability is None:
        return None
    return available(needed_nodes, care.node_availability, care.target_availability)


def fleet(rate_qps: float, service: FleetCapacity, care: Margins) -> int:
    """Nodes for a rate by all rules: headroom, spares, and the availability if one was asked.

    Raises RunError if no number of nodes serves it.
    """
    enough_up = availability(needed(rate_qps, service), care)
    by_rules = size(rate_qps, service, care.headroom, care.spare_nodes).nodes
    return max(by_rules, enough_up.nodes if enough_up else 0)
