"""One run of requests on engines that begin empty, with the gaps between the tokens of every request.

Also a closed loop over several engines behind one balancer: each answer makes room for the next request. A
step stands in `loop`, the choice of an engine in `route_loop`.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine
from serve_apps.engine_model.compiled import fast_engine
from serve_apps.engine_model.compiled.fast_engine import (
    FastEngine,
    FastSpec,
    Floats,
    Ints,
    Times,
    UnsupportedByFastPath,
    checked,
)
from serve_apps.engine_model.compiled.gaps import late_gap_s
from serve_apps.engine_model.compiled.loop import OUT_OF_ROOM, REACHED, advance, submit
from serve_apps.engine_model.compiled.native import inlined, native
from serve_apps.engine_model.service import whole_service
from serve_apps.engine_model.service.balancer import choice
from serve_apps.engine_model.service.route_loop import NONE, balancer_arrays, choose, recount
from serve_apps.engine_model.service.routed import Replicas, Requests, in_enough_room
from serve_apps.engine_model.service.split_run import SplitSpec, late_gaps_s

LATE_GAP = 0.99
"""The gap that stands for a request is its own 99 % quantile, as other tools print it."""

__all__ = ["LATE_GAP", "late_gap_s", "replay", "serve_circle"]


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
    of an answer of one token, and of all where the engine has to be simulated block by block or is one of
    data-parallel ranks. Raises UnsupportedByFastPath for a closed loop that needs books of every block, and
    ValueError as `whole_service.serve` does.
    """
    engine, asked = (spec, model, hardware, layout), requests.asked
    if layout.prefill is not None:
        return _split_replay(*engine, requests, replicas, concurrency)
    if concurrency:
        times = serve_circle(FastSpec.of(*engine), concurrency, asked, replicas)
    else:
        times = whole_service.serve(*engine, requests, replicas)
    gaps = np.full(len(times.sent_s), np.nan)
    if np.isnan(times.work.busy_s) or layout.data_parallel > 1:
        return times, gaps
    for number, ends_s in token_times(FastSpec.of(*engine), asked, times, replicas, concurrency):
        gaps[number] = late_gap_s(ends_s, LATE_GAP)
    return times, gaps


def token_times(
    spec: FastSpec, asked: Sequence[Ints], times: Times, replicas: Replicas, concurrency: int = 0
) -> Iterator[tuple[int, Floats]]:
    """The number of each request of two tokens or more, and the time of each of its tokens (s).

    `times` are those of the same requests on the same engines, each of which serves again what it got.
    """
    for replica in range(replicas.count):
        mine = np.flatnonzero(times.replica == replica)
        own = [column[mine] for column in checked(spec, asked)]
        alone = FastEngine(spec, int(own[1].max(initial=1)), replicas.seed, times.work.steps)
        if concurrency and replicas.count == 1:
            alone.serve_closed(concurrency, own)
        else:  # between two sends engines do not touch each other
            alone.serve(times.sent_s[mine], own)
        for number in np.flatnonzero(own[1] > 1).tolist():
            yield int(mine[number]), alone.token_times(number)


def _split_replay(
    spec: SimulatedEngine,
    model: Model,
    hardware: Hardware,
    layout: Layout,
    requests: Requests,
    replicas: Replicas,
    concurrency: int,
) -> tuple[Times, Floats]:
    if concurrency:
        raise UnsupportedByFastPath("split engines are replayed at a rate only")
    try:
        fast = SplitSpec.of(spec, model, hardware, layout)
        return late_gaps_s(fast, requests, replicas, LATE_GAP)
    except UnsupportedByFastPath:
        times = whole_service.serve(spec, model, hardware, layout, requests, replicas)
        return times, np.full(len(times.sent_s), np.nan)


def serve_circle(spec: FastSpec, concurrency: int, asked: Sequence[Ints], replicas: Replicas) -> Times:
    """Serve all with `concurrency` requests in flight over all replicas, each sent when another ends.

    The balancer chooses the replica of each, which need not be that of the one that ended. `asked`: prompt,
    output and shared tokens. Raises UnsupportedByFastPath, also of several engines with noise, or
    ValueError for a request that can never be served.
    """
    if replicas.count == 1:
        return fast_engine.serve_closed(spec, concurrency, asked, replicas.seed)
    asked = checked(spec, asked)
    count, longest = len(asked[0]), int(asked[1].max(initial=1))
    routed = choice(replicas.balance, replicas.count, replicas.seed, np.zeros(count))
    taken, place = np.zeros(count, np.int64), np.zeros(count, np.int64)
    engines = spec.arrays(0, 0, longest)

    def serve(room: int) -> int:
        nonlocal engines
        engines, balancer = spec.arrays(replicas.count, room, longest), balancer_arrays(replicas.count, count)
        return circulate(taken, place, concurrency, tuple(asked), routed, balancer, engines)  # type: ignore[no-any-return]

    in_enough_room(spec, replicas.seed, 2 * count // replicas.count + 64, serve)
    return fast_engine.times(engines.requests[taken, place], taken, engines.states)


@native
def circulate(
    taken: Any, place: Any, concurrency: Any, asked: Any, choice: Any, balancer: Any, engines: Any
) -> int:
    """Send all requests, `concurrency` of them at once, and serve them.

    `taken` receives the engine of each request and `place` its number there. Engines are advanced in the
    order of time, so that none has gone beyond the instant at which it gets a request.
    """
    prompts, outputs, shares = asked
    listed = np.zeros(len(engines.states), np.bool_)
    events = [(math.inf, NONE)]  # when an engine's step ends, or just after one may begin
    j, due, now_s = 0, min(concurrency, len(taken)), 0.0
    while True:
        for _ in range(due):
            r = choose(j, choice, balancer)
            i = submit(engines, r, now_s, prompts[j], outputs[j], shares[j])
            if i < 0:
                return OUT_OF_ROOM
            taken[j], place[j] = r, i
            recount(r, balancer.open[r] + 1, balancer)
            if not listed[r]:
                begins_s = max(engines.states[r].now_s, engines.requests[r, i].ready_s)
                heapq.heappush(events, (np.nextafter(begins_s, math.inf), r))
                listed[r] = True
            j += 1
        if events[0][1] == NONE:
            return REACHED
        now_s, r = heapq.heappop(events)
        status: int = advance(now_s, engines, r)
        if status != REACHED:
            return status
        state = engines.states[r]
        due = min(balancer.open[r] - state.open, len(taken) - j)
        recount(r, state.open, balancer)
        listed[r] = state.open > 0
        if listed[r]:
            heapq.heappush(events, (_next_event_s(now_s, engines, r), r))


@inlined
def _next_event_s(now_s: Any, engines: Any, r: Any) -> Any:
    """The end of the step that runs on a busy engine, or just after the instant at which one may begin."""
    state = engines.states[r]
    if state.in_flight:
        return state.end_s
    begins_s = max(now_s, state.now_s)
    if not state.ahead and not state.decoders and state.part < 0:
        begins_s = max(begins_s, engines.requests[r, state.head].ready_s)
    return np.nextafter(begins_s, math.inf)
