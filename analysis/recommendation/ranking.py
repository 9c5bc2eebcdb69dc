"""The order of shapes by the nodes they need, over joint draws of capacities.

Column d of every table is one draw of all constants, the same one for all shapes: what they share cancels.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from analysis.planning.sizing import MOST_NODES, FleetCapacity, fleet
from analysis.results.runs import RunError
from conf.specs.planning import Margins

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TOLD_APART = 0.95
"""Share of the draws in which one shape must need strictly fewer nodes to be told from another."""


def nodes_of(peak_qps: float, service: FleetCapacity, care: Margins, qps_per_node: Floats) -> Ints:
    """Nodes for the peak at each capacity, by all rules of a plan; `MOST_NODES` where that is not enough."""

    def nodes(qps: float) -> int:
        try:
            return fleet(peak_qps, replace(service, qps_per_node=qps), care)
        except RunError:
            return MOST_NODES

    values, place = np.unique(qps_per_node, return_inverse=True)
    return _monotone(nodes, values)[place].reshape(qps_per_node.shape)


def _monotone(function: Callable[[float], int], values: Floats) -> Ints:
    """The falling function at each of the rising values; asked only where its steps are."""
    found = np.zeros(len(values), dtype=np.int64)
    open_ends = [(0, len(values) - 1)]
    found[0], found[-1] = function(float(values[0])), function(float(values[-1]))
    while open_ends:
        first, last = open_ends.pop()
        if found[first] == found[last]:
            found[first : last + 1] = found[first]
        elif last - first > 1:
            middle = (first + last) // 2
            found[middle] = function(float(values[middle]))
            open_ends += [(first, middle), (middle, last)]
    return found


def best_probability(nodes: Ints) -> Floats:
    """The probability of each shape (a row) that it is the best; a draw in which several need equally few
    counts for each of them in equal parts, so that the sum is 1.
    """
    least = nodes == nodes.min(axis=0)
    shares: Floats = (least / least.sum(axis=0)).mean(axis=1)
    return shares


def tie_probability(nodes: Ints) -> float:
    """The share of draws in which two shapes or more need the fewest nodes."""
    return float(((nodes == nodes.min(axis=0)).sum(axis=0) > 1).mean())


def fewer_probability(nodes: Ints, one: int, other: int) -> float:
    """The share of draws in which shape `one` needs strictly fewer nodes than the `other`."""
    return float((nodes[one] < nodes[other]).mean())


def told_apart(nodes: Ints, one: int, other: int) -> bool:
    """True if one of the two needs strictly fewer nodes in nearly all draws."""
    return max(fewer_probability(nodes, one, other), fewer_probability(nodes, other, one)) >= TOLD_APART


def places(planned: Sequence[int], best_qps: Sequence[float]) -> list[tuple[int, int, bool]]:
    """(index, rank, tied) of the shapes in order: the fewest nodes first, then the most QPS per node.

    Shapes that need equally many nodes share a rank.
    """
    order = sorted(range(len(planned)), key=lambda each: (planned[each], -best_qps[each]))
    counts = {nodes: planned.count(nodes) for nodes in planned}
    first = {nodes: place for place, nodes in reversed(list(enumerate((planned[i] for i in order), 1)))}
    return [(each, first[planned[each]], counts[planned[each]] > 1) for each in order]
