"""The fewest nodes of which enough are up, by the binomial distribution of independent failures.

Knows shares of time; knows no rate. A failure of several nodes at once (a rack, a release, a bad model file)
is not in the binomial, so that an availability found here is an upper bound.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from analysis.results.runs import RunError

MOST_NODES = 100_000
"""Most nodes that are tried (as in `sizing`)."""


@dataclass(frozen=True, slots=True)
class Availability:
    """`nodes` of which at least `needed_nodes` are up with probability `reached`, at least `target`."""

    node_availability: float
    target: float
    needed_nodes: int
    nodes: int
    reached: float

    @property
    def spare_nodes(self) -> int:
        return self.nodes - self.needed_nodes


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


def _doubled(nodes: int) -> Iterator[int]:
    while nodes < MOST_NODES:
        yield nodes
        nodes *= 2
    yield MOST_NODES
