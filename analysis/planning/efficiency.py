"""E(n), the efficiency of n nodes: capacity per node at n over that at the fewest nodes measured.

Knows capacities by node count; knows no demand. E(n) holds for one routing policy: behind a balancer each
node serves more than one alone, until the balancer or the skew of its choices costs more than pooling gains.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.planning.evidence import Evidence, IntervalEstimate
from analysis.planning.sources import Source, evidence_of
from analysis.results.runs import RunError
from analysis.stats.pooling import Estimate, pooled

Floats = NDArray[np.float64]

LEAST_USL_POINTS = 4
"""Fewest node counts for a fit of three parameters with one degree of freedom left."""


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """Capacity per node at one node count in QPS, with the sd of its logarithm."""

    nodes: int
    qps_per_node: float
    ln_sd: float


@dataclass(frozen=True, slots=True)
class Usl:
    """The Universal Scalability Law, 1/c(n) = (1 + contention (n - 1) + coherency n (n - 1)) / c(1).

    Gunther, Guerrilla Capacity Planning (2007), chapter 4: contention is serialised work, coherency the work
    that grows with pairs of nodes. `coefficients` and their `covariance` are of 1/c in node-seconds per
    request.
    """

    coefficients: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    @property
    def contention(self) -> float:
        return self.coefficients[1] / self.coefficients[0]

    @property
    def coherency(self) -> float:
        return self.coefficients[2] / self.coefficients[0]

    def node_seconds(self, nodes: Floats) -> Floats:
        """1/c(n) in node-seconds per request."""
        return np.asarray(_design(nodes) @ np.array(self.coefficients))

    def ln_sd(self, nodes: float, base: float) -> float:
        """Sd of ln E(nodes), by the delta method."""
        rows = _design(np.array([nodes, base])) / self.node_seconds(np.array([nodes, base]))[:, None]
        gradient = rows[1] - rows[0]
        return float(math.sqrt(max(0.0, gradient @ np.array(self.covariance) @ gradient)))


@dataclass(frozen=True, slots=True)
class ScalingEfficiency:
    """E(n) from the measured points, in order of node count.

    Between points ln E is linear in ln n, or follows the USL where one was fitted. Beyond the last point E is
    ASSUMED: a falling trend goes on and a rising one stops, so that an assumption never saves a node.
    """

    points: tuple[ScalingPoint, ...]
    usl: Usl | None = None

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
        if self.usl is not None:
            base = float(self.usl.node_seconds(np.array([float(self.fewest)]))[0])
            return np.asarray(base / self.usl.node_seconds(n))
        x, y = self._ln()
        inside = np.interp(np.log(n), x, y)
        slope = min(0.0, (y[-1] - y[-2]) / (x[-1] - x[-2])) if len(x) > 1 else 0.0
        return np.asarray(np.exp(inside + slope * np.maximum(0.0, np.log(n) - x[-1])))

    def relative(self, nodes: Floats, measured: int) -> Floats:
        """Capacity per node at each node count over that at `measured` nodes."""
        return np.asarray(self.at(nodes) / self.at(np.array([measured]))[0])

    def figure(self, nodes: int) -> IntervalEstimate:
        """E(nodes) with its 95 % interval by error propagation. Raises ValueError beyond the points."""
        if not self.fewest <= nodes <= self.most:
            raise ValueError(f"E({nodes}) was not measured")
        value = float(self.at(np.array([nodes]))[0])
        sd = self.usl.ln_sd(nodes, self.fewest) if self.usl else self._ln_sd(nodes)
        return IntervalEstimate.of_ln(value, sd)

    def seen(self, point: ScalingPoint) -> IntervalEstimate:
        """E at one of `points` as measured, not as fitted; 1 by definition at the first."""
        first = self.points[0]
        value = point.qps_per_node / first.qps_per_node
        sd = 0.0 if point == first else math.hypot(point.ln_sd, first.ln_sd)
        return IntervalEstimate.of_ln(value, sd)

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
    found = [evidence_of(run) for run in runs]
    for other in found[1:]:
        if difference := unlike(found[0], other):
            raise RunError(
                f"{other.name} differs from {found[0].name} in {difference}; scaling compares node counts"
            )
    counts = sorted({one.nodes for one in found})
    points = tuple(_measured(n, [one for one in found if one.nodes == n]) for n in counts)
    return ScalingEfficiency(points, _usl(points) if len(points) >= LEAST_USL_POINTS else None)


def alone(of: Evidence) -> ScalingEfficiency:
    """E(n) from one node count: E = 1, an assumption."""
    qps = of.qps.estimate or of.qps.low or math.nan
    return ScalingEfficiency((ScalingPoint(of.nodes, qps, 0.0),))


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


def _measured(nodes: int, found: Sequence[Evidence]) -> ScalingPoint:
    estimates = []
    for one in found:
        q = one.qps
        if q.estimate is None or q.low is None or q.high is None:
            raise RunError(
                f"{one.name}: an end of its interval is unknown, so that E({nodes}) would have none"
            )
        estimates.append(_estimate(one, q.estimate, q.low, q.high))
    if len(estimates) == 1:
        return ScalingPoint(nodes, estimates[0].qps, estimates[0].sd)
    qps = pooled(estimates).qps
    together = Estimate.of_interval(qps.value, qps.low, qps.high)
    return ScalingPoint(nodes, together.qps, together.sd)


def _estimate(one: Evidence, qps: float, low: float, high: float) -> Estimate:
    """An estimate of one run; the error that all cells of a grid of predictions share cancels in E."""
    if one.own_ln_sd is not None:
        return Estimate(qps, one.own_ln_sd)
    return Estimate.of_interval(qps, low, high)


def _usl(points: Sequence[ScalingPoint]) -> Usl | None:
    """Weighted least squares of 1/c with one or both terms: the best fit without a negative coefficient.

    None where each node serves more among more nodes, because the law knows no gain of pooling.
    """
    nodes = np.array([float(point.nodes) for point in points])
    y = np.array([1 / point.qps_per_node for point in points])
    weight = 1 / np.maximum([point.ln_sd for point in points], 1e-6) / y
    best: tuple[float, Usl] | None = None
    for kept in ([0, 1, 2], [0, 1], [0, 2]):
        design = _design(nodes)[:, kept] * weight[:, None]
        covariance = np.linalg.inv(design.T @ design)
        fitted = covariance @ design.T @ (y * weight)
        chi2 = float(np.sum((design @ fitted - y * weight) ** 2))
        if (fitted >= 0).all() and (best is None or chi2 < best[0]):
            grown = covariance * max(1.0, chi2 / (len(points) - len(kept)))
            full, cells = np.zeros(3), np.zeros((3, 3))
            full[kept], cells[np.ix_(kept, kept)] = fitted, grown
            best = chi2, Usl(tuple(full.tolist()), tuple(map(tuple, cells.tolist())))
    return best and best[1]


def _design(nodes: Floats) -> Floats:
    """Columns 1, n - 1 and n (n - 1)."""
    n = np.asarray(nodes, dtype=np.float64)
    return np.column_stack([np.ones_like(n), n - 1, n * (n - 1)])
