"""Differences between the nodes of a service, as lines of the screen."""

from analysis.capacity.node_effects import LEAST_EFFECT, NodeEffects
from analysis.results.types.run_verdict import NodeSpread
from analysis.stats.pooling import Interval


def spread(effects: NodeEffects) -> NodeSpread:
    """The effects in percent of the mean."""
    return NodeSpread(_percent(effects.between), tuple(map(_percent, effects.effects)), effects.differing)


def lines(found: NodeSpread) -> list[str]:
    """Streams per node, the nodes that differ, and the sd between nodes."""
    count, between = len(found.effects_pct), found.between_sd_pct
    head = f"  independent streams per node: each of {count} nodes was sent arrivals of its own, no balancer"
    sd = f"sd between nodes {between.value:.1f} % [{between.low:.1f}, {between.high:.1f}]"
    if not found.differing:
        least = f"{100 * LEAST_EFFECT:.0f} %"
        return [head, f"  no node is shown to differ from the mean by more than {least} ({sd})"]
    named = [_line(node, found.effects_pct[node]) for node in found.differing]
    return [head, *named, f"  {sd}: the capacity's interval includes it"]


def _line(node: int, effect: Interval) -> str:
    side, sign = ("below", -1) if effect.value < 0 else ("above", 1)
    low, high = sorted(sign * end for end in (effect.low, effect.high))
    return f"  node {node} is {abs(effect.value):.1f} % {side} the mean [{low:.1f}, {high:.1f}]"


def _percent(figure: Interval) -> Interval:
    return Interval(100 * figure.value, 100 * figure.low, 100 * figure.high)
