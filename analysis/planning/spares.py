"""How many nodes must be there so that enough are up: binomial, for failures that are independent only.

Knows shares of time; knows no rate. A failure that takes several nodes at once (a rack, a release, a bad
model file) is in no binomial, so that an availability found here is an upper bound.
"""

from dataclasses import dataclass

import numpy as np

from analysis.results.runs import RunError

MOST_NODES = 100_000


@dataclass(frozen=True, slots=True)
class Availability:
    """`nodes` hold `needed_nodes` up with probability `reached`, at least `target`."""

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

    Raises RunError where that takes more than 100,000.
    """
    low, high = needed, min(needed + 1, MOST_NODES)
    while up_probability(needed, high, node_availability) < target:
        if high == MOST_NODES:
            raise RunError(f"plan.target_availability={target} needs more than {MOST_NODES} nodes; lower it")
        low, high = high, min(2 * high, MOST_NODES)
    while low < high:  # more nodes are never worse
        middle = (low + high) // 2
        if up_probability(needed, middle, node_availability) >= target:
            high = middle
        else:
            low = middle + 1
    reached = up_probability(needed, low, node_availability)
    return Availability(node_availability, target, needed, low, reached)
