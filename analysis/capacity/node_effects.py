"""Differences between nodes that each had a stream of their own, and what they add to the interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import CERTIFIED, NORMAL, TAIL, Capacity, farther, posterior
from analysis.capacity.window_counts import WindowCounts
from analysis.stats.estimate import Estimate
from analysis.stats.pooling import Measured, pooled

LEAST_EFFECT = 0.02
"""Smallest difference from the mean for which a node is named (the method, 4.4)."""


@dataclass(frozen=True, slots=True)
class NodeEffects:
    """Distance of each node's capacity from the nodes' mean, drawn towards it by what noise explains.

    `between` is the sd between nodes; all are of ln QPS, that is as shares, with 95 % intervals.
    """

    effects: tuple[Estimate, ...]
    between: Estimate

    @property
    def differing(self) -> tuple[int, ...]:
        """The nodes whose effect exceeds 2 %, from 0."""
        return tuple(node for node, effect in enumerate(self.effects) if abs(effect.value) > LEAST_EFFECT)


def node_effects(windows: Sequence[WindowCounts], prior: Prior) -> NodeEffects | None:
    """Random effects over the posterior of each node alone; None without streams of several nodes."""
    streams = sorted({window.stream for window in windows if window.stream is not None})
    if len(streams) < 2:
        return None
    # Nodes are compared over the same minutes, so that good times are no difference between them.
    own = [[window for window in windows if window.stream == stream] for stream in streams]
    alone = [posterior(part, prior, steady=True) for part in own]
    known = [Estimate(node.qps_per_node, node.low, node.high) for node in alone]
    together = pooled(list(map(Measured.from_estimate, known)))
    return NodeEffects(together.effects, together.between)


def including(capacity: Capacity, effects: NodeEffects | None, tail: float = TAIL) -> Capacity:
    """The capacity of all nodes together; where one differs, its ends take in the variance between them."""
    if effects is None:
        return capacity
    # Each window was counted once for each node.
    capacity = replace(capacity, windows=tuple(sorted(set(capacity.windows))))
    if not effects.differing:
        return capacity
    sd = effects.between.value / math.sqrt(len(effects.effects))

    def at(end: float, q: float) -> float:
        distance = math.log(end / capacity.qps_per_node)
        return capacity.qps_per_node * math.exp(farther(distance, NORMAL.inv_cdf(q) * sd))

    return replace(
        capacity,
        low=at(capacity.low, tail),
        high=at(capacity.high, 1 - tail),
        certified=at(capacity.certified, CERTIFIED),
    )
