"""`analysis.capacity.posterior`: the quantiles that a capacity is made of, where its posterior is known.

Without a window that says anything, the capacity is the smallest of several equal limits: of Student's t with
three degrees of freedom around a centre, or with a small chance at no rate.
"""

import math

import numpy as np
import pytest

from analysis.capacity.limit_posterior import LOAD_GRID, Prior
from analysis.capacity.posterior import Capacity, posterior
from analysis.capacity.share_curves import FLOOR_BELIEF, FLOORS
from analysis.capacity.window_counts import NS, LimitCount, WindowCounts
from conf.specs.bounds import LIMITS

CENTRE_QPS, SD = 3.0, 0.1
PRIOR = Prior(math.log(CENTRE_QPS), SD)
NOTHING = LimitCount(0, 0, (), ())
ENDS = {"certified": 0.05, "low": 0.025, "qps_per_node": 0.5, "high": 0.975}
"""The share of the posterior below each figure."""


def of_prior(limits: int, **more: float) -> Capacity:
    """The capacity under so many limits that no request says anything of."""
    names = ("ttft", "tpot", "e2e_p90")[:limits]
    empty = WindowCounts(0, "window", 3.0, 1, 0, 0, 45 * NS, 45 * NS, limits=dict.fromkeys(names, NOTHING))
    return posterior([empty], PRIOR, **more)


def smallest_below(qps: float, limits: int) -> float:
    """P(the smallest of so many limits <= QPS): half as if independent, half as if all were one."""
    at, furthest = (student_t3(apart / SD) for apart in (math.log(qps / CENTRE_QPS), LOAD_GRID[-1]))
    chance = np.exp(FLOOR_BELIEF)
    kept = chance[FLOORS < 1].sum() / chance.sum()
    above = kept * (1 - (at - (1 - furthest)) / (2 * furthest - 1))
    return float(1 - (above**limits + above) / 2)


def student_t3(t: float) -> float:
    """P(Student's t of three degrees of freedom <= t)."""
    scaled = t / math.sqrt(3)
    return 0.5 + (scaled / (1 + scaled**2) + math.atan(scaled)) / math.pi


@pytest.mark.parametrize("limits", [1, 2, 3])
def test_each_figure_is_its_quantile_of_the_smallest_limit(limits: int) -> None:
    capacity = of_prior(limits)
    below = {name: smallest_below(getattr(capacity, name), limits) for name in ENDS}
    assert below == pytest.approx(ENDS, abs=2e-3)


def test_the_tail_moves_both_ends_and_not_what_is_certified() -> None:
    capacity = of_prior(2, tail=0.2)
    below = [smallest_below(qps, 2) for qps in (capacity.low, capacity.high, capacity.certified)]
    assert below == pytest.approx([0.2, 0.8, 0.05], abs=2e-3)


def test_the_interval_of_one_limit_holds_95_percent() -> None:
    limit = posterior([], PRIOR).limits[LIMITS[0]]
    below = [smallest_below(qps, 1) for qps in (limit.low, limit.qps_per_node, limit.high)]
    assert below == pytest.approx([0.025, 0.5, 0.975], abs=2e-3)
