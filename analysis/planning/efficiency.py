"""E(n), the efficiency of n nodes: capacity per node at n over that at the fewest nodes measured.

E(n) holds for one routing policy: behind a balancer each node serves more than one alone, until the
balancer or the skew of its choices costs more than pooling gains.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.planning.evidence import Evidence, Source, evidence_of
from analysis.results.runs import RunError
from analysis.stats.estimate import Estimate
from analysis.stats.pooling import Measured, pooled

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

    def relative(self, nodes: Floats, measured: int) -> Floats:
        """Capacity per node at each node count over that at `measured` nodes."""
        return np.asarray(self.at(nodes) / self.at(np.array([measured]))[0])

    def figure(self, nodes: int) -> Estimate:
        """E(nodes) with its 95 % interval by error propagation. Raises ValueError beyond the points."""
        if not self.fewest <= nodes <= self.most:
            raise ValueError(f"E({nodes}) was not measured")
        return Estimate.of_ln(float(self.at(np.array([nodes]))[0]), self._ln_sd(nodes))

    def measured(self) -> list[tuple[int, Estimate]]:
        """Each measured node count with its E, exactly 1 at the fewest; none where only one was measured."""
        if self.assumed:
            return []
        later = ((point.nodes, self.figure(point.nodes)) for point in self.points[1:])
        return [(self.fewest, Estimate(1.0)), *later]

    def _ln(self) -> tuple[Floats, Floats]:
        x = np.log([point.nodes for point in self.points])
        return x, np.log([point.qps_per_node / self.points[0].qps_per_node for point in self.points])

    def _ln_sd(self, nodes: int) -> float:
        """Sd of ln E, by the weights that interpolation gives the points, less one for the first."""
        x, _ = self._ln()
        weights = np.array([np.interp(math.log(nodes), x, one) for one in np.eye(len(x))])
        weights[0] -= 1.0
        return float(math.sqrt(sum((w * p.ln_sd) ** 2 for w, p in zip(weights, self.points, strict=True))))


def scaling(runs: Sequence[Source]) -> ScalingEfficiency:
    """E(n) from runs of one service at several node counts; runs of one count are pooled.

    Raises RunError for runs of different services or lengths, or without both ends of their interval.
    """
    evidence = [evidence_of(run) for run in runs]
    for other in evidence[1:]:
        if difference := unlike(evidence[0], other):
            raise RunError(
                f"{other.name} differs from {evidence[0].name} in {difference}; scaling compares node counts"
            )
    counts = sorted({one.nodes for one in evidence})
    return ScalingEfficiency(tuple(_measured(n, [one for one in evidence if one.nodes == n]) for n in counts))


def alone(of: Evidence) -> ScalingEfficiency:
    """E(n) from one node count: E = 1, an assumption."""
    return ScalingEfficiency((ScalingPoint(of.nodes, of.qps_per_node.value, 0.0),))


def unlike(one: Evidence, other: Evidence) -> str:
    """Properties, known of both, in which two capacities differ beside node counts; empty if none."""
    pairs = {key: (value, other.service[key]) for key, value in one.service.items()}
    keys = [key for key, (a, b) in pairs.items() if a is not None and b is not None and a != b]
    return ", ".join(keys) or ("lengths" if lengths_differ(one, other) else "")


def lengths_differ(one: Evidence, other: Evidence) -> bool:
    """True if prompts, answers or hit rates differ by more than 2 % of the prompt or answer."""
    if one.lengths is None or other.lengths is None:
        return False
    a, b = one.lengths, other.lengths
    pairs = ((a.input_tokens, b.input_tokens), (a.output_tokens, b.output_tokens))
    return any(abs(math.log(x / y)) > 0.02 for x, y in pairs) or abs(a.prefix_hit - b.prefix_hit) > 0.02


def _measured(nodes: int, evidence: Sequence[Evidence]) -> ScalingPoint:
    estimates = []
    for one in evidence:
        q = (
            one.sampling_qps_per_node or one.qps_per_node
        )  # the constants of the engine model are the same for both
        if q.is_open:
            raise RunError(
                f"{one.name}: an end of its interval is unknown, so that E({nodes}) would have none"
            )
        estimates.append(_estimate(one, q))
    if len(estimates) == 1:
        return ScalingPoint(nodes, estimates[0].qps, estimates[0].sd)
    qps = pooled(estimates).qps
    together = Measured.from_estimate(qps)
    return ScalingPoint(nodes, together.qps, together.sd)


def _estimate(one: Evidence, qps: Estimate) -> Measured:
    """An estimate of one run; the error that all cells of a grid of predictions share cancels in E."""
    if one.own_ln_sd is not None:
        return Measured(qps.value, one.own_ln_sd)
    return Measured.from_estimate(qps)
