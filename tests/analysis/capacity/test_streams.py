"""`analysis.capacity.posterior`: windows of several nodes, of which each node's own follow each other."""

import math
from dataclasses import replace

import pytest

from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import posterior
from analysis.capacity.window_counts import LOOK_AHEAD, LOOK_BACK, NS, LimitCount, WindowCounts

BLOCKS, REQUESTS = 9, 20
PRIOR = Prior(math.log(3.0))


def window(index: int, stream: int, over: int) -> WindowCounts:
    """A window at 3 QPS of which each block has so many requests over the limit."""
    blocks = (over,) * BLOCKS, (REQUESTS,) * BLOCKS
    edges_ns = (60 * index * NS, 60 * index * NS, (60 * index + 45) * NS, (60 * index + 45) * NS)
    return WindowCounts(
        *(index, "window", 3.0, 1),
        *edges_ns,
        requests=BLOCKS * REQUESTS,
        median_e2e_s=10.0,
        log_work=math.log(3.0),
        load=(3.0,) * (LOOK_BACK + BLOCKS + LOOK_AHEAD),
        limits={"ttft": LimitCount(BLOCKS * over, BLOCKS * REQUESTS, *blocks)},
        stream=stream,
    )


def test_the_windows_of_two_nodes_are_as_alike_as_those_of_one_node_after_the_other() -> None:
    slow, quick = ([window(index, stream, over) for index in range(4)] for stream, over in ((0, 4), (1, 0)))
    later = [replace(one, index=one.index + 4, stream=0) for one in quick]
    two, one = (posterior(windows, PRIOR, steady=True) for windows in ([*quick, *slow], [*slow, *later]))
    assert two.limits["ttft"].phi == one.limits["ttft"].phi
    assert (two.low, two.high) == pytest.approx((one.low, one.high))
    taking_turns = [replace(w, index=2 * w.index + (w.stream or 0), stream=0) for w in (*slow, *quick)]
    assert two.limits["ttft"].phi > 2 * posterior(taking_turns, PRIOR).limits["ttft"].phi
