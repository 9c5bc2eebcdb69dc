"""The one event loop of every service, compiled: when an engine's step ends, choose, send, go on.

Open and closed loops, split nodes and lost replicas differ in who chooses (`balancer`), in what an end
triggers and in who is alive. Of one instant ends of steps come first, then arrivals, then begins of steps.
"""

import math
from typing import Any

from serve_apps.engine_model.cost.links import link_free_s
from serve_apps.engine_model.engine import kv, state, steps
from serve_apps.engine_model.engine.native import NONE, inlined, native
from serve_apps.engine_model.service.balancer import choose, lose, recount

REACHED, OUT_OF_NOISE, STANDSTILL = range(3)
"""Results: the instant is reached; more noise is due; requests are open that no event will serve."""

_link_free_s = native(link_free_s)


@native
def run(arrays: Any, until_s: Any) -> int:
    """Send what is due by `until_s`, end every step that ends by then, begin none at that instant."""
    service, due_s = state.service(arrays, 0), state.due_s(arrays)
    while service.arrived < min(service.closed, len(state.due(arrays))):
        send(arrays, 0.0)
    while True:
        comes = service.arrived < len(due_s) and not service.closed and due_s[service.arrived] <= until_s
        horizon_s = due_s[service.arrived] if comes else until_s
        g = state.heap(arrays)[0]
        group = state.group(arrays, g)
        waits = _waits(group, horizon_s)
        if comes and (service.apart or waits):
            lose(arrays, horizon_s)
            send(arrays, horizon_s)
        elif waits:
            stands = group.due_s == math.inf and state.balancer(arrays, 0).in_flight > 0
            return STANDSTILL if stands else REACHED
        elif not _serve(arrays, g, horizon_s):
            return OUT_OF_NOISE


@native
def refresh(arrays: Any, g: Any) -> None:
    """Find the next event of a replica anew, and its place among those of all."""
    state.group(arrays, g).due_s = steps.due_s(arrays, g)
    heap, at = state.heap(arrays), state.group(arrays, g).place
    while at > 0 and _before(arrays, g, heap[(at - 1) >> 1]):
        _put(arrays, at, heap[(at - 1) >> 1])
        at = (at - 1) >> 1
    while 2 * at + 1 < len(heap):
        child = 2 * at + 1
        if child + 1 < len(heap) and _before(arrays, heap[child + 1], heap[child]):
            child += 1
        if not _before(arrays, heap[child], g):
            break
        _put(arrays, at, heap[child])
        at = child
    _put(arrays, at, g)


@inlined
def _before(arrays: Any, g: Any, other: Any) -> bool:
    """Order of events: by time, ends before begins, then by number."""
    ours, two = state.group(arrays, g), state.group(arrays, other)
    if ours.due_s != two.due_s:
        return ours.due_s < two.due_s  # type: ignore[no-any-return]
    if ours.in_flight != two.in_flight:
        return ours.in_flight > two.in_flight  # type: ignore[no-any-return]
    return g < other  # type: ignore[no-any-return]


@inlined
def _put(arrays: Any, at: Any, g: Any) -> None:
    state.heap(arrays)[at] = g
    state.group(arrays, g).place = at


@inlined
def _waits(group: Any, horizon_s: Any) -> bool:
    """The next event of a replica comes after `horizon_s`, or is the begin of a step at that instant."""
    return group.due_s > horizon_s or (not group.in_flight and group.due_s == horizon_s)


@native
def _serve(arrays: Any, g: Any, horizon_s: Any) -> bool:
    """Take the event that is due on a replica, and all of its events up to `horizon_s` if none else matters.

    False if its noise has to be drawn.
    """
    group, drawn = state.group(arrays, g), True
    while drawn:
        if group.in_flight:
            steps.end(arrays, g)
            finish(arrays, g)
        elif steps.lacks_noise(arrays, g):
            drawn = False
        else:
            if steps.begin(arrays, g, group.due_s):
                steps.begin_ahead(arrays, g)
            start(arrays, g)
        group.due_s = steps.due_s(arrays, g)
        if state.service(arrays, 0).coupled or _waits(group, horizon_s):
            break
    refresh(arrays, g)
    return drawn


@native
def send(arrays: Any, now_s: Any) -> None:
    """Send the next request: choose, and hand it to the engine, or to both of a split node."""
    service, k = state.service(arrays, 0), state.service(arrays, 0).arrived
    service.arrived += 1
    i, g = state.due(arrays)[k], choose(arrays, 0, k)
    request = state.request(arrays, i)
    request.sent_s = now_s
    if now_s < service.from_s:
        _fill_caches(arrays, g, i, k)
        return
    recount(arrays, 0, g, 1)
    if request.mate == NONE:
        _hand_over(arrays, g, i, now_s)
        return
    request.engine = g
    if service.writes:
        _hand_over(arrays, g, i, now_s)
    prefill = choose(arrays, 1, k)
    recount(arrays, 1, prefill, 1)
    _hand_over(arrays, prefill, request.mate, now_s)


@native
def _hand_over(arrays: Any, g: Any, i: Any, now_s: Any) -> None:
    """Give a request to a replica."""
    steps.add(arrays, steps.choose_rank(arrays, g, now_s), i, now_s, 0.0)
    refresh(arrays, g)


@inlined
def _fill_caches(arrays: Any, g: Any, i: Any, k: Any) -> None:
    """The request is in the cache of its replica from now on, and nothing else happens."""
    request, group = state.request(arrays, i), state.group(arrays, g)
    _cache(arrays, group.first + k % group.width, i)
    if request.mate != NONE:
        _cache(arrays, choose(arrays, 1, k), request.mate)


@native
def _cache(arrays: Any, r: Any, i: Any) -> None:
    """Take blocks for a whole request, and give them back."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    request.engine = r
    if engine.enable_prefix_caching:
        kv.find(arrays, r, i, (request.prompt - 1) // engine.block_size, True)
        kv.extend(arrays, r, i, request.prompt + request.output - 1)
        kv.free(arrays, r, i, (request.prompt + request.output - 1) // engine.block_size)


@inlined
def finish(arrays: Any, g: Any) -> None:
    """What the ends of requests trigger: the next one of a closed loop, or the decoding of a prompt."""
    group, service = state.group(arrays, g), state.service(arrays, 0)
    for r in range(group.first, group.first + group.width):
        if not state.engine(arrays, r).stepping:
            continue
        i = steps.pop_finished(arrays, r)
        while i != NONE:
            recount(arrays, group.side, g, -1)
            request = state.request(arrays, i)
            if group.side == 1:
                state.request(arrays, request.mate).computed_s = group.end_s
                if service.writes:
                    _transfer(arrays, request.mate)
                else:
                    decode = state.request(arrays, request.mate).engine
                    _hand_over(arrays, decode, request.mate, group.end_s)
            elif service.closed and service.arrived < len(state.due(arrays)):
                send(arrays, group.end_s)
            i = steps.pop_finished(arrays, r)


@inlined
def start(arrays: Any, g: Any) -> None:
    """Blocks were taken for the KV of some requests: it may come."""
    group = state.group(arrays, g)
    i = steps.pop_started(arrays, group.first)
    while i != NONE:
        state.request(arrays, i).taken_s = group.began_s
        _transfer(arrays, i)
        i = steps.pop_started(arrays, group.first)


@native
def _transfer(arrays: Any, i: Any) -> None:
    """Carry the KV of request `i` over as soon as it is computed and has blocks to go to."""
    request, service = state.request(arrays, i), state.service(arrays, 0)
    computed_s, taken_s = request.computed_s, request.taken_s
    if not (computed_s < math.inf and taken_s < math.inf):  # nan: not yet
        return
    prompt, engine = state.request(arrays, request.mate), state.engine(arrays, request.engine)
    work_s, free_s = request.to_load * service.token_s, engine.link_free_s
    free_s = _link_free_s(free_s, work_s, service.last_share, prompt.begun_s, computed_s, taken_s)
    engine.link_free_s, end_s = free_s, free_s + service.latency_s
    steps.transfer_ends(arrays, request.engine, i, end_s)
    refresh(arrays, request.engine)
    steps.transfer_ends(arrays, prompt.engine, request.mate, end_s)
    refresh(arrays, prompt.engine)
