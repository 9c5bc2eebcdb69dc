"""Measurements that would change a choice of shape, with their expected worth in nodes; runs nothing.

The choice is the shape with the fewest expected nodes. A measurement is simulated in every joint draw: what
it would show is the draw's own capacity with the error of a search. The expected nodes of every shape given
what was shown are a regression on it (Strong, Oakley, Brennan and Breeze 2015, for the expected value of
sample information), so that no simulation is nested in another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.recommendation.ranking import Floats, Ints

SWEEP_SD, SWEEP_S = 0.03, 345.0
"""Sd of ln capacity of a search of so many seconds (docs/search_accuracy.md: 3 to 5 % for search=quick, where
the engine drifts and where it does not)."""
RATIO_SD = 0.02
"""Sd of the ratio of two such searches on the same requests (docs/search_accuracy.md: .4 to 1.5 % of two
searches of 15 minutes; here of some six)."""
NODE = 0.05
"""A smaller gain, in nodes, is none (our choice)."""
MOST_PROPOSED = 3
SEED = 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One search of a shape, or two on the same requests of two shapes; `shapes` are rows of the tables."""

    shapes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Worth:
    """The expected worth of a measurement, after those proposed before it.

    The choice changes with `change_probability`, which saves `saved_nodes` on average; the sd of the nodes
    that the first choice needs becomes `sd_nodes`.
    """

    measurement: Measurement
    change_probability: float
    saved_nodes: float
    sd_nodes: float


def candidates(nodes: Ints, most: int) -> list[Measurement]:
    """Searches of the shapes with the fewest expected nodes: each alone, and the first paired with each."""
    first, *others = np.argsort(nodes.mean(axis=1), kind="stable")[:most].tolist()
    return [
        *(Measurement((first, other)) for other in others),
        *(Measurement((one,)) for one in (first, *others)),
    ]


def proposed(
    nodes: Ints, ln_qps: Floats, possible: Sequence[Measurement], seconds: float = SWEEP_S
) -> list[Worth]:
    """Up to three measurements, each the one that adds most to those before it.

    That is first the nodes it saves by changing the choice; where none would, how well each of its searches
    makes known what the choice needs. `seconds` is the length of a search.
    """
    found: list[Worth] = []
    taken: list[Measurement] = []
    left = list(possible)
    saved, sd = 0.0, float(nodes[_choice(nodes)].std())
    while left and len(found) < MOST_PROPOSED:
        worths = [worth([*taken, one], nodes, ln_qps, seconds) for one in left]
        best = max(worths, key=lambda one: _order(one, _choice(nodes), saved, sd))
        if found and best.saved_nodes - saved < NODE and sd - best.sd_nodes < NODE:
            break
        gain = max(0.0, best.saved_nodes - saved)
        found.append(Worth(best.measurement, best.change_probability, gain, best.sd_nodes))
        saved, sd = best.saved_nodes, best.sd_nodes
        taken.append(best.measurement)
        left.remove(best.measurement)
    return found


def _order(one: Worth, choice: int, saved: float, sd: float) -> tuple[int, float]:
    """The nodes it saves in steps of `NODE`, then what each search of the choice makes known of it."""
    shapes = one.measurement.shapes
    known = (sd - one.sd_nodes) / len(shapes) if choice in shapes else 0.0
    return round((one.saved_nodes - saved) / NODE), known


def worth(several: Sequence[Measurement], nodes: Ints, ln_qps: Floats, seconds: float = SWEEP_S) -> Worth:
    """The worth of all of `several` together, in the name of the last."""
    seen = np.column_stack([_shown(one, ln_qps, seconds) for one in several])
    seen = (seen - seen.mean(axis=0)) / np.maximum(seen.std(axis=0), 1e-12)
    features = np.column_stack([np.ones(len(seen)), seen, seen**2])
    weights, *_ = np.linalg.lstsq(features, nodes.T.astype(np.float64), rcond=None)
    expected = features @ weights
    now = _choice(nodes)
    rest = nodes[now] - expected[:, now]
    return Worth(
        measurement=several[-1],
        change_probability=float((expected[:, now] > expected.min(axis=1)).mean()),
        saved_nodes=max(0.0, float((expected[:, now] - expected.min(axis=1)).mean())),
        sd_nodes=float(rest.std()),
    )


def _choice(nodes: Ints) -> int:
    return int(nodes.mean(axis=1).argmin())


def _shown(one: Measurement, ln_qps: Floats, seconds: float) -> Floats:
    """The result of the measurement in each draw: ln capacity, and of a second shape the ln ratio."""
    longer = math.sqrt(SWEEP_S / seconds)
    first, *others = one.shapes
    draws = ln_qps.shape[1]
    errors = np.random.default_rng([SEED, *one.shapes]).standard_normal((len(one.shapes), draws))
    columns = [ln_qps[first] + SWEEP_SD * longer * errors[0]]
    for other, error in zip(others, errors[1:], strict=True):
        columns.append(ln_qps[other] - ln_qps[first] + RATIO_SD * longer * error)
    return np.column_stack(columns)
