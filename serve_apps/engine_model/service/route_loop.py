"""Several engines behind one balancer, as one compiled loop; knows columns, no objects and no noise."""

import heapq
import math
from typing import Any

import numpy as np

from serve_apps.engine_model.compiled.loop import (
    BESIDE,
    FLYING,
    FLYING_END,
    FRONT_FREE,
    HEAD,
    OPEN,
    OUT_OF_ROOM,
    REACHED,
    TAIL,
    advance,
)
from serve_apps.engine_model.compiled.native import native
from serve_apps.engine_model.service.prefix_reuse import found
from serve_apps.routing.hash_ring import bound

LEAST, GIVEN, FEWER, BOUNDED = range(4)
"""Ways to choose: the least busy of all; as told; the less busy of two; the next on the ring with room."""

_bound = native(bound)


@native
def serve_one(
    until: Any, limits: Any, costs: Any, ints: Any, floats: Any, requests: Any, ring: Any, noise: Any, r: Any
) -> Any:
    """`advance` for engine r of many."""
    ready, prompt, output, shared, sent, cached, born, first, last, link = requests
    leavers, leaving, leaving_context, ends = ring
    waiting = (ready[r], prompt[r], output[r], shared[r], sent[r])
    own = waiting + (cached[r], born[r], first[r], last[r], link[r])  # noqa: RUF005  # numba knows no star
    buckets = (leavers[r], leaving[r], leaving_context[r], ends[r])
    return advance(until, limits, costs, ints[r], floats[r], own, buckets, noise)


@native
def route(
    taken: Any,
    due: Any,
    asked: Any,
    choice: Any,
    books: Any,
    limits: Any,
    costs: Any,
    ints: Any,
    floats: Any,
    requests: Any,
    ring: Any,
    noise: Any,
) -> int:
    """Give every arrival (`due` s, `asked`: prompt, output, shared) to one of many engines, and serve all.

    Engine r owns row r of every array; `taken` receives the number of each arrival's engine, which is chosen
    as `balance.Choice` says. With `counted` in the limits `books` are those of `reuse`. Noise is not drawn.
    """
    prompts, outputs, shares = asked
    mode, one, other, owners, load_factor, lost, lost_s, from_s = choice
    ready, prompt, output, shared, sent, cached, born, first, last, link = requests
    count = np.zeros(len(ints), np.int32)
    holders = np.zeros(len(due) + 2, np.int64)  # engines by their open requests
    holders[0], fewest, flying, alive, out = len(ints), 0, 0, len(ints), -1
    events = [(math.inf, -1)]  # when an engine's next step ends, or may begin where none runs
    turn = 0
    for j in range(len(due) + 1):
        now = due[j] if j < len(due) else math.inf
        while events[0][0] <= now and events[0][1] >= 0:
            r = heapq.heappop(events)[1]
            status: int = serve_one(now, limits, costs, ints, floats, requests, ring, noise, r)
            if status != REACHED:
                return status
            if r != out:
                holders[count[r]] -= 1
                holders[ints[r, OPEN]] += 1
                flying += ints[r, OPEN] - count[r]
                fewest = min(fewest, ints[r, OPEN])
            count[r] = ints[r, OPEN]
            if ints[r, FLYING]:
                heapq.heappush(events, (floats[r, FLYING_END], r))
            elif count[r]:
                at = np.nextafter(now, math.inf)  # all that came by now has been seen
                if ints[r, HEAD] < ints[r, TAIL]:
                    at = max(at, ready[r, ints[r, HEAD]])
                heapq.heappush(events, (at, r))
        if j == len(due):
            break
        if lost >= 0 and out < 0 and now >= lost_s:
            out, alive = lost, alive - 1
            holders[count[out]] -= 1
            flying -= count[out]
        if mode == LEAST:
            while holders[fewest] == 0:
                fewest += 1
            r = turn
            while count[r] != fewest or r == out:
                r = r + 1 if r + 1 < len(ints) else 0
            turn = r + 1 if r + 1 < len(ints) else 0
        elif mode == BOUNDED:
            most, at = _bound(flying, alive, load_factor), one[j]
            while count[owners[at]] >= most or owners[at] == out:
                at = at + 1 if at + 1 < len(owners) else 0
            r = owners[at]
        elif mode == FEWER and count[other[j]] < count[one[j]]:
            r = other[j]
        else:
            r = one[j]
        taken[j] = r
        if now < from_s:
            if limits[6]:
                found(j, r, books)
            continue
        i = ints[r, TAIL]
        if i == ready.shape[1]:
            return OUT_OF_ROOM
        floats[r, FRONT_FREE] = max(now, floats[r, FRONT_FREE]) + costs[BESIDE]
        ready[r, i], sent[r, i] = floats[r, FRONT_FREE] + costs[BESIDE + 1], now
        prompt[r, i], output[r, i], shared[r, i] = prompts[j], outputs[j], shares[j]
        if limits[6]:
            block = limits[2]
            shared[r, i] = min(found(j, r, books), (prompts[j] - 1) // block) * block
        ints[r, TAIL] += 1
        ints[r, OPEN] += 1
        if mode != GIVEN:
            holders[count[r]] -= 1
            count[r] += 1
            holders[count[r]] += 1
            flying += 1
            if count[r] == 1:
                heapq.heappush(events, (ready[r, i], r))
    if mode == GIVEN:  # nobody looked at what the engines did: each runs on its own
        for r in range(len(ints)):
            status = serve_one(math.inf, limits, costs, ints, floats, requests, ring, noise, r)
            if status != REACHED:
                return status
    return REACHED
