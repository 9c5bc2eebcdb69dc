"""One run of requests on engines that begin empty, with the gaps between the tokens of every request.

Knows engines and a balancer; knows no workload, no bound and no quantile over requests.
"""

from typing import Any

import numpy as np

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine
from serve_apps.engine_model.compiled.fast_engine import FastEngine, FastSpec, Floats, Times, checked
from serve_apps.engine_model.compiled.native import native
from serve_apps.engine_model.service import whole_service
from serve_apps.engine_model.service.closed_loop import serve_circle
from serve_apps.engine_model.service.requests import Replicas, Requests

LATE_GAP = 0.99
"""The gap that stands for a request is its own 99 % quantile, as other tools print it."""


def replay(
    spec: SimulatedEngine,
    model: Model,
    hardware: Hardware,
    layout: Layout,
    requests: Requests,
    replicas: Replicas,
    concurrency: int = 0,
) -> tuple[Times, Floats]:
    """All requests to their end, and the late gap of each in seconds.

    With a `concurrency` they come in a closed loop behind one balancer, else when they are sent. Gaps are nan
    of an answer of one token, and of all where the engine has to be simulated block by block. Raises
    UnsupportedByFastPath for a closed loop that needs books of every block, and ValueError as
    `whole_service.serve` does.
    """
    engine, asked = (spec, model, hardware, layout), requests.asked
    if concurrency:
        times = serve_circle(FastSpec.of(*engine), concurrency, asked, replicas)
    else:
        times = whole_service.serve(*engine, requests, replicas)
    gaps = np.full(len(times.sent_s), np.nan)
    if np.isnan(times.work.busy_s):
        return times, gaps
    fast = FastSpec.of(*engine)
    for replica in range(replicas.count):
        mine = np.flatnonzero(times.replica == replica)
        own = [column[mine] for column in checked(fast, asked)]
        alone = FastEngine(fast, int(own[1].max(initial=1)), replicas.seed, times.work.steps)
        if concurrency and replicas.count == 1:
            alone.serve_closed(concurrency, own)
        else:  # between two sends engines do not touch each other: each serves again what it got
            alone.serve(times.sent_s[mine], own)
        for number in np.flatnonzero(own[1] > 1).tolist():
            gaps[mine[number]] = late_gap_s(alone.token_times(number), LATE_GAP)
    return times, gaps


@native
def late_gap_s(ends: Any, share: Any) -> Any:
    """The quantile `share` of the gaps between the times `ends`, of which there are two or more.

    By numpy's `linear` rule; the largest gaps alone are kept, for there may be millions of requests.
    """
    count = len(ends) - 1
    place = share * (count - 1)
    low = int(place)
    largest = np.zeros(count - low)
    for i in range(count):
        gap = ends[i + 1] - ends[i]
        if i < len(largest) or gap > largest[0]:
            at = 0 if i >= len(largest) else len(largest) - 1 - i
            while at + 1 < len(largest) and largest[at + 1] < gap:
                largest[at] = largest[at + 1]
                at += 1
            largest[at] = gap
    if len(largest) == 1:
        return largest[0]
    return largest[0] + (place - low) * (largest[1] - largest[0])
