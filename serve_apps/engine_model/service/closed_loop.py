"""A closed loop over several engines behind one balancer: each answer makes room for the next request.

Knows in which order engines end steps; a step stands in `loop`, the choice of an engine in `route_loop`.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from serve_apps.engine_model.compiled.fast_engine import (
    FastSpec,
    Ints,
    Times,
    checked,
    serve_closed,
    times,
)
from serve_apps.engine_model.compiled.loop import OUT_OF_ROOM, REACHED, advance, submit
from serve_apps.engine_model.compiled.native import inlined, native
from serve_apps.engine_model.service.balancer import choice
from serve_apps.engine_model.service.requests import Replicas
from serve_apps.engine_model.service.route_loop import NONE, balancer_arrays, choose, recount
from serve_apps.engine_model.service.routed import in_enough_room


def serve_circle(spec: FastSpec, concurrency: int, asked: Sequence[Ints], replicas: Replicas) -> Times:
    """Serve all with `concurrency` requests in flight over all replicas, each sent when another ends.

    The balancer chooses the replica of each, which need not be that of the one that ended. `asked`: prompt,
    output and shared tokens. Raises UnsupportedByFastPath, also of several engines with noise, or
    ValueError for a request that can never be served.
    """
    if replicas.count == 1:
        return serve_closed(spec, concurrency, asked, replicas.seed)
    return circle(spec, concurrency, asked, replicas)


def circle(spec: FastSpec, concurrency: int, asked: Sequence[Ints], replicas: Replicas) -> Times:
    """The same for engines without noise, whose columns have a row for each."""
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
    return times(engines.requests[taken, place], taken, engines.states)


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
