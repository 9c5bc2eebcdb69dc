"""The fewest nodes that serve a rate by two rules, and of which enough are up.

Normal: D <= n L (1 - h) E(n). Degraded: D <= (n - k) L E(n - k). Adding k spares to the nodes of the normal
rule would count twice, because the headroom may be used when k nodes fail. Nodes that are up follow the
binomial distribution of independent failures: a failure of several nodes at once (a rack, a release, a bad
model file) is not in it, so that an availability found here is an upper bound.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from analysis.planning.evidence import Evidence, Source, evidence_of
from analysis.results.runs import RunError
from analysis.stats.estimate import Estimate
from analysis.stats.pooling import Measured, pooled
from conf.specs.planning import Margins

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """Capacity per node at one node count in QPS, with the sd of its logarithm."""

    nodes: int
    qps_per_node: float
    ln_sd: float


@dataclass(frozen=True, slots=True)
class ScalingEfficiency:
    """E(n) from the measured points, in order of node count.

    Between points ln E is linear in ln n. Beyond the last point E is ASSUMED: a falling trend goes on and a
    rising one stops, so that an assumption never saves a node.
    """

    points: tuple[ScalingPoint, ...]

    @property
    def fewest(self) -> int:
        """Fewest nodes measured; E is 1 there."""
        return self.points[0].nodes

    @property
    def most(self) -> int:
        return self.points[-1].nodes

    @property
    def assumed(self) -> bool:
        """True if only one node count was measured, so that E = 1 everywhere is an assumption."""
        return len(self.points) < 2

    def at(self, nodes: Floats) -> Floats:
        """E at each node count above 0; 1 below the fewest measured."""
        n = np.maximum(np.asarray(nodes, dtype=np.float64), self.fewest)
        x, y = self._ln()
        inside = np.interp(np.log(n), x, y)
        slope = min(0.0, (y[-1] - y[-2]) / (x[-1] - x[-2])) if len(x) > 1 else 0.0
        return np.asarray(np.exp(inside + slope * np.maximum(0.0, np.log(n) - x[-1])))

    def figure(self, nodes: int) -> Estimate:
        """E(nodes) with its 95 % interval by error propagation. Raises ValueError beyond the points."""
        if not self.fewest <= nodes <= self.most:
            raise ValueError(f"E({nodes}) was not measured")
        x, _ = self._ln()
        # What interpolation makes of each point's error, less that of the first, by which E is divided.
        weights = np.array([np.interp(math.log(nodes), x, unit) for unit in np.eye(len(x))])
        weights[0] -= 1.0
        variance = sum((w * point.ln_sd) ** 2 for w, point in zip(weights, self.points, strict=True))
        return Estimate.of_ln(float(self.at(np.array([nodes]))[0]), math.sqrt(variance))

    def measured(self) -> list[tuple[int, Estimate]]:
        """Each measured node count with its E, exactly 1 at the fewest; none where only one was measured."""
        if self.assumed:
            return []
        later = ((point.nodes, self.figure(point.nodes)) for point in self.points[1:])
        return [(self.fewest, Estimate(1.0)), *later]

    def _ln(self) -> tuple[Floats, Floats]:
        x = np.log([point.nodes for point in self.points])
        return x, np.log([point.qps_per_node / self.points[0].qps_per_node for point in self.points])


def scaling(runs: Sequence[Source]) -> ScalingEfficiency:
    """E(n) from runs of one service at several node counts; runs of one count are pooled.

    Raises RunError for runs of different services or lengths, or without both ends of their interval.
    """
    evidence = [evidence_of(run) for run in runs]
    for other in evidence[1:]:
        if difference := unlike(evidence[0], other):
            raise RunError(
                f"{other.name} differs from {evidence[0].name} in {difference}; the efficiency of more nodes "
                "is that of one service and its lengths, at several node counts"
            )
    counts = sorted({each.nodes for each in evidence})
    points = (_measured(n, [each for each in evidence if each.nodes == n]) for n in counts)
    return ScalingEfficiency(tuple(points))


def unlike(evidence: Evidence, other: Evidence) -> str:
    """Properties, known of both, in which two capacities differ beside node counts; empty if none."""
    pairs = {key: (value, other.service[key]) for key, value in evidence.service.items()}
    keys = [key for key, (a, b) in pairs.items() if a is not None and b is not None and a != b]
    if keys or evidence.lengths is None or other.lengths is None:
        return ", ".join(keys)
    a, b = evidence.lengths, other.lengths
    apart = math.log(a.input_tokens / b.input_tokens), math.log(a.output_tokens / b.output_tokens)
    far = [abs(each) > ALIKE for each in (*apart, a.prefix_hit - b.prefix_hit)]
    return "lengths" if any(far) else ""


def _measured(nodes: int, evidence: Sequence[Evidence]) -> ScalingPoint:
    estimates = []
    for row in evidence:
        # The constants of the engine model are the same for all, and so is the error of the cells of a grid.
        q = row.sampling_qps_per_node or row.qps_per_node
        if q.is_open:
            raise RunError(
                f"{row.name}: an end of its interval is unknown, so that E({nodes}) would have none"
            )
        own = row.own_ln_sd
        estimates.append(Measured.from_estimate(q) if own is None else Measured(q.value, own))
    point = estimates[0] if len(estimates) == 1 else Measured.from_estimate(pooled(estimates).qps)
    return ScalingPoint(nodes, point.qps, point.sd)


ALIKE = 0.02
"""Most by which prompts, answers or hit rates of one service differ, as a share (our choice)."""
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
        n, measured = np.asarray(nodes, dtype=np.float64), np.array([self.measured_nodes])
        relative = self.efficiency.at(n) / self.efficiency.at(measured)[0]
        return np.where(n > 0, n * self.qps_per_node * relative, 0.0)

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
    # First up to four times the nodes that E(n) = 1 needs.
    likely = 4 * demand_qps / service.qps_per_node / (1 - headroom) + spare_nodes + 16
    for most in (int(min(likely, MOST_NODES)), MOST_NODES):
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


@cache  # draws of a capacity ask for few numbers of nodes, each thousands of times
def availability(needed: int, care: Margins) -> Availability | None:
    """The fewest nodes of which at least `needed` are up as often as the margins of a plan want.

    None where they want nothing. Raises RunError if that takes more than 100,000.
    """
    node_availability, target = care.node_availability, care.target_availability
    if node_availability is None or target is None:
        return None
    most = MOST_NODES - needed
    # That with so many more than needed just enough are up: the negative binomial distribution.
    ways = np.concatenate([[0.0], np.cumsum(np.log1p((needed - 1) / np.arange(1, most + 1)))])
    ln = ways + needed * math.log(node_availability) + np.arange(most + 1) * math.log1p(-node_availability)
    more = int(np.searchsorted(np.cumsum(np.exp(ln)), target))
    if more > most:
        raise RunError(f"plan.target_availability={target} needs more than {MOST_NODES} nodes; lower it")
    nodes = needed + more
    return Availability(
        node_availability, target, needed, nodes, up_probability(needed, nodes, node_availability)
    )


def down_at_once(nodes: int, node_availability: float, target: float) -> int:
    """The most nodes that are down at once, in all but a share `1 - target` of the time."""

    def kept(down: int) -> float:
        return up_probability(nodes - down, nodes, node_availability)

    return bisect_left(range(nodes), target, key=kept)


def fleet(rate_qps: float, service: FleetCapacity, care: Margins) -> int:
    """Nodes for a rate by all rules: headroom, spares, and the availability if one was asked.

    Raises RunError if no number of nodes serves it.
    """
    enough_up = availability(needed(rate_qps, service), care)
    by_rules = size(rate_qps, service, care.headroom, care.spare_nodes).nodes
    return max(by_rules, enough_up.nodes if enough_up else 0)


def fleet_at(
    rate_qps: float, service: FleetCapacity, qps_per_node: float | None, care: Margins
) -> int | None:
    """`fleet` at another capacity per node; None if that is unknown, or no number of nodes suffices."""
    if qps_per_node is None:
        return None
    try:
        return fleet(rate_qps, replace(service, qps_per_node=qps_per_node), care)
    except RunError:
        return None
