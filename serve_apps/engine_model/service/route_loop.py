"""Several engines behind one balancer, as one compiled loop; knows columns, no objects and no noise."""

import heapq
import math
from typing import Any, NamedTuple

import numpy as np

from serve_apps.engine_model.compiled.loop import OUT_OF_ROOM, REACHED, advance, submit
from serve_apps.engine_model.compiled.native import inlined, native
from serve_apps.engine_model.service.prefix_reuse import found
from serve_apps.routing.hash_ring import bound

LEAST, GIVEN, FEWER, BOUNDED = range(4)
"""Ways to choose: the least busy of all; as given; the less busy of two; the next on the ring with room."""
NONE = -1
BALANCER_STATE = np.dtype([(name, np.int64) for name in ("fewest", "in_flight", "alive", "lost", "turn")])

_bound = native(bound)


class BalancerArrays(NamedTuple):
    """State of a balancer: `open` requests of each engine, and the number of engines with each count.

    `state` is one record: the fewest open requests of an engine, requests in flight, engines alive, the
    lost engine or `NONE`, and the engine at which the next search for the least busy one begins.
    """

    state: Any
    open: Any
    engines_with: Any


def balancer_arrays(engines: int, requests: int) -> BalancerArrays:
    """A balancer that has seen nothing."""
    state, engines_with = np.zeros(1, BALANCER_STATE), np.zeros(requests + 2, np.int64)
    state["alive"], state["lost"], engines_with[0] = engines, NONE, engines
    return BalancerArrays(state, np.zeros(engines, np.int32), engines_with)


@native
def route(taken: Any, due_s: Any, asked: Any, choice: Any, balancer: Any, caches: Any, engines: Any) -> int:
    """Give every arrival (`asked`: prompt, output, shared) to one of many engines, and serve all.

    `taken` receives the number of each arrival's engine, which `balancer.Choice` decides. With
    `counted` limits, `caches` are those of `prefix_reuse`.
    """
    prompts, outputs, shares = asked
    counted, block = engines.limits.counted, engines.limits.block
    events = [(math.inf, NONE)]  # when an engine's next step ends, or may begin where none runs
    for j in range(len(due_s)):
        now_s = due_s[j]
        status: int = _serve_until(now_s, events, balancer, engines)
        if status != REACHED:
            return status
        if choice.lost != NONE and now_s >= choice.lost_s:
            _lose(choice.lost, balancer)
        r = choose(j, choice, balancer)
        taken[j] = r
        if now_s < choice.from_s:
            if counted:
                found(j, r, caches)
            continue
        shared = min(found(j, r, caches), (prompts[j] - 1) // block) * block if counted else shares[j]
        i = submit(engines, r, now_s, prompts[j], outputs[j], shared)
        if i < 0:
            return OUT_OF_ROOM
        if choice.mode != GIVEN:
            recount(r, balancer.open[r] + 1, balancer)
            if balancer.open[r] == 1:
                heapq.heappush(events, (engines.requests[r, i].ready_s, r))
    if choice.mode != GIVEN:
        return _serve_until(math.inf, events, balancer, engines)  # type: ignore[no-any-return]
    for r in range(len(engines.states)):  # no choice depends on an engine: each runs on its own
        status = advance(math.inf, engines, r)
        if status != REACHED:
            return status
    return REACHED


@inlined
def _serve_until(now_s: Any, events: Any, balancer: Any, engines: Any) -> int:
    """Run the engines whose steps end, or may begin, by `now_s`, and count their open requests."""
    while events[0][0] <= now_s and events[0][1] != NONE:
        r = heapq.heappop(events)[1]
        status: int = advance(now_s, engines, r)
        if status != REACHED:
            return status
        state = engines.states[r]
        recount(r, state.open, balancer)
        if state.in_flight:
            heapq.heappush(events, (state.end_s, r))
        elif state.open:
            at_s = np.nextafter(now_s, math.inf)  # arrivals of this instant are in
            if state.head < state.added:
                at_s = max(at_s, engines.requests[r, state.head].ready_s)
            heapq.heappush(events, (at_s, r))
    return REACHED


@inlined
def _lose(r: Any, balancer: Any) -> None:
    """Engine `r` is passed over from now on, and its open requests count no longer."""
    state = balancer.state[0]
    if state.lost == NONE:
        state.lost = r
        state.alive -= 1
        balancer.engines_with[balancer.open[r]] -= 1
        state.in_flight -= balancer.open[r]


@inlined
def recount(r: Any, open_requests: Any, balancer: Any) -> None:
    """Set the number of requests that are open on engine `r`."""
    state = balancer.state[0]
    if r != state.lost:
        balancer.engines_with[balancer.open[r]] -= 1
        balancer.engines_with[open_requests] += 1
        state.in_flight += open_requests - balancer.open[r]
        state.fewest = min(state.fewest, open_requests)
    balancer.open[r] = open_requests


@inlined
def choose(j: Any, choice: Any, balancer: Any) -> Any:
    """The engine of request `j`."""
    if choice.mode == LEAST:
        return _least_busy(balancer)
    if choice.mode == BOUNDED:
        return _next_with_room(choice.one[j], choice, balancer)
    one = choice.one[j]
    if choice.mode == FEWER:
        other = choice.other[j]
        if balancer.open[other] < balancer.open[one]:
            return other
    return one


@inlined
def _least_busy(balancer: Any) -> Any:
    """The first engine in turn of those with the fewest open requests."""
    state, engines = balancer.state[0], len(balancer.open)
    while balancer.engines_with[state.fewest] == 0:
        state.fewest += 1
    r = state.turn
    while balancer.open[r] != state.fewest or r == state.lost:
        r = r + 1 if r + 1 < engines else 0
    state.turn = r + 1 if r + 1 < engines else 0
    return r


@inlined
def _next_with_room(start: Any, choice: Any, balancer: Any) -> Any:
    """The first engine on the ring, from `start` on, that is neither full nor lost."""
    state, at = balancer.state[0], start
    most = _bound(state.in_flight, state.alive, choice.load_factor)
    while balancer.open[choice.owners[at]] >= most or choice.owners[at] == state.lost:
        at = at + 1 if at + 1 < len(choice.owners) else 0
    return choice.owners[at]
