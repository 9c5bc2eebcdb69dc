"""Differences between nodes that each had a stream of their own, and what they add to the interval.

Knows window counts by stream and their posterior; knows no request and no address.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import TAIL, Capacity, posterior
from analysis.capacity.window_counts import WindowCounts
from analysis.stats.pooling import NORMAL_95, Estimate, Interval, pooled

LEAST_EFFECT = 0.02
"""Smallest difference from the mean for which a node is named (the method, 4.4)."""


@dataclass(frozen=True, slots=True)
class NodeEffects:
    """Distance of each node's capacity from the nodes' mean, drawn towards it by what noise explains.

    `between` is the sd between nodes; all are of ln QPS, that is as shares, with 95 % intervals.
    """

    effects: tuple[Interval, ...]
    between: Interval

    @property
    def differing(self) -> tuple[int, ...]:
        """The nodes whose effect exceeds 2 %, from 0."""
        return tuple(node for node, effect in enumerate(self.effects) if abs(effect.value) > LEAST_EFFECT)


def node_effects(windows: Sequence[WindowCounts], prior: Prior) -> NodeEffects | None:
    """Random effects over the posterior of each node alone; None without streams of several nodes."""
    streams = sorted({window.stream for window in windows if window.stream is not None})
    if len(streams) < 2:
        return None
    alone = [posterior([window for window in windows if window.stream == s], prior) for s in streams]
    together = pooled([Estimate.of_interval(node.qps_per_node, node.low, node.high) for node in alone])
    return NodeEffects(together.effects, together.between)


def including(capacity: Capacity, effects: NodeEffects | None, tail: float = TAIL) -> Capacity:
    """The capacity of all nodes together, with the variance between them where one differs.

    It is added to each end of the interval, beyond which lies `tail`, in ln, as that of a mean over so many
    nodes.
    """
    if effects is None:
        return capacity
    # Each window was counted once for each node.
    capacity = replace(capacity, dwells=tuple(sorted(set(capacity.dwells))))
    if not effects.differing:
        return capacity
    sd = effects.between.value / math.sqrt(len(effects.effects))
    beyond = NormalDist().inv_cdf(1 - tail)

    def at(end: float, quantile: float) -> float:
        distance = math.log(end / capacity.qps_per_node)
        return capacity.qps_per_node * math.exp(math.copysign(math.hypot(distance, quantile * sd), distance))

    return replace(
        capacity,
        low=at(capacity.low, beyond),
        high=at(capacity.high, beyond),
        certified=at(capacity.certified, NORMAL_95),
    )


def tree(effects: NodeEffects) -> dict[str, Any]:
    """The effects as they stand in sweep.json, in percent of the mean."""
    return {
        "between_sd_pct": _percent(effects.between),
        "effects_pct": [_percent(effect) for effect in effects.effects],
        "differing": list(effects.differing),
    }


def lines(found: Mapping[str, Any]) -> list[str]:
    """Lines for the screen from a `tree`."""
    count, between = len(found["effects_pct"]), found["between_sd_pct"]
    head = f"  independent streams per node: each of {count} nodes was sent arrivals of its own, no balancer"
    spread = "sd between nodes {value:.1f} % [{low:.1f}, {high:.1f}]".format(**between)
    if not found["differing"]:
        return [
            head,
            f"  no node is shown to differ from the mean by more than {100 * LEAST_EFFECT:.0f} % ({spread})",
        ]
    named = [_line(node, found["effects_pct"][node]) for node in found["differing"]]
    return [head, *named, f"  {spread}: the capacity's interval includes it"]


def _line(node: int, effect: Mapping[str, float]) -> str:
    side, sign = ("below", -1) if effect["value"] < 0 else ("above", 1)
    low, high = sorted(sign * effect[end] for end in ("low", "high"))
    return f"  node {node} is {abs(effect['value']):.1f} % {side} the mean [{low:.1f}, {high:.1f}]"


def _percent(figure: Interval) -> dict[str, float]:
    return {"value": 100 * figure.value, "low": 100 * figure.low, "high": 100 * figure.high}
