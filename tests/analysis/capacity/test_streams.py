"""`analysis.capacity.posterior`: windows of several nodes, of which each node's own follow each other."""

import math
from dataclasses import replace

import pytest

from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import posterior
from analysis.capacity.window_counts import WindowCounts
from tests.support.search.search_windows import BLOCKS, limit_count, window

REQUESTS = 20
PRIOR = Prior(math.log(3.0))


def of_stream(index: int, stream: int, over: int) -> WindowCounts:
    """A window at 3 QPS of which each block has so many of 20 requests over the limit."""
    limits = {"ttft": limit_count(BLOCKS * over, BLOCKS * REQUESTS)}
    return window(3.0, limits, BLOCKS * REQUESTS, index, median_e2e_s=10.0, stream=stream)


def test_the_windows_of_two_nodes_are_as_alike_as_those_of_one_node_after_the_other() -> None:
    slow, quick = (
        [of_stream(index, stream, over) for index in range(4)] for stream, over in ((0, 4), (1, 0))
    )
    later = [replace(one, index=one.index + 4, stream=0) for one in quick]
    two, one = (posterior(windows, PRIOR, level=0.0) for windows in ([*quick, *slow], [*slow, *later]))
    assert two.limits["ttft"].phi == one.limits["ttft"].phi
    assert (two.low, two.high) == pytest.approx((one.low, one.high))
    taking_turns = [replace(w, index=2 * w.index + (w.stream or 0), stream=0) for w in (*slow, *quick)]
    assert two.limits["ttft"].phi > 2 * posterior(taking_turns, PRIOR).limits["ttft"].phi
