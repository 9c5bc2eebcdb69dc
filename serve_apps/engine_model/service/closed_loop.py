"""A closed loop over several engines behind one balancer: whoever gets an answer sends the next request.

Knows in which order engines end steps; what one does in a step stands in `loop`, who is chosen in `balancer`.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from serve_apps.engine_model.compiled.fast_engine import (
    Ints,
    Machine,
    Times,
    Unfit,
    checked,
    columns,
    rings,
    serve_closed,
    states,
    worked,
)
from serve_apps.engine_model.compiled.loop import (
    AHEAD,
    BESIDE,
    DECODERS,
    FLYING,
    FLYING_END,
    FRONT_FREE,
    HEAD,
    NOW,
    OPEN,
    OUT_OF_KV,
    OUT_OF_ROOM,
    PART,
    REACHED,
    TAIL,
)
from serve_apps.engine_model.compiled.native import native, plain
from serve_apps.engine_model.cost.noise import Noise
from serve_apps.engine_model.service.balancer import Balance, choice
from serve_apps.engine_model.service.route_loop import FEWER, LEAST, serve_one


def serve_circle(
    machine: Machine,
    concurrency: int,
    asked: Sequence[Ints],
    seed: int = 0,
    replicas: int = 1,
    balance: Balance = Balance(),  # noqa: B008  # frozen
) -> Times:
    """As many requests in flight over all replicas as `concurrency`, each sent when another ended.

    The next request goes where the balancer sends it, which need not be where the last one ended. `asked`:
    prompt, output and shared tokens. Raises Unfit, also of several engines with noise, or ValueError for a
    request that can never be served.
    """
    if replicas == 1:
        return serve_closed(machine, concurrency, asked, seed)
    return circle(machine, concurrency, asked, seed, replicas, balance)


def circle(
    machine: Machine,
    concurrency: int,
    asked: Sequence[Ints],
    seed: int,
    replicas: int,
    balance: Balance = Balance(),  # noqa: B008  # frozen
    is_native: bool = True,
) -> Times:
    """The same for engines without noise, whose columns have a row for each and grow until it is enough."""
    asked, noise = checked(machine, asked), Noise(machine.spec, seed)
    if not noise.silent:
        raise Unfit("noise of many engines is drawn by each of them")
    count, longest = len(asked[0]), int(asked[1].max(initial=1))
    turn = choice(balance, replicas, seed, np.zeros(count))
    chosen = turn.mode, turn.one, turn.other
    circling = circulate if is_native else plain(circulate)
    room = 2 * count // replicas + 64
    while True:
        (ints, floats), requests = states(replicas), columns(replicas, room)
        taken, place = np.zeros(count, np.int64), np.zeros(count, np.int64)
        state = ints, floats, requests, rings(replicas, longest), tuple(np.zeros(0) for _ in range(3))
        limits, costs = machine.limits(), machine.costs(noise)
        why = circling(taken, place, concurrency, tuple(asked), chosen, limits, costs, *state)
        if why == REACHED:
            break
        if why == OUT_OF_KV:
            raise Unfit("the KV cache may overflow")
        room *= 2
    sent, cached, first, last = (requests[column][taken, place] for column in (4, 5, 7, 8))
    return Times(sent, first, last, cached, taken, worked(ints.sum(axis=0), floats.sum(axis=0)))


@native
def circulate(
    taken: Any,
    place: Any,
    held: Any,
    asked: Any,
    choice: Any,
    limits: Any,
    costs: Any,
    ints: Any,
    floats: Any,
    requests: Any,
    ring: Any,
    noise: Any,
) -> int:
    """Send all requests, `held` of them at once, and serve them; arrays are those of `route_loop.route`.

    `taken` receives the engine of each request and `place` its number there. Engines are advanced in the
    order of time, so that nobody has gone beyond the instant at which a request is sent to him.
    """
    prompts, outputs, shares = asked
    mode, one, other = choice
    ready, prompt, output, shared, sent = requests[:5]
    count = np.zeros(len(ints), np.int64)
    listed = np.zeros(len(ints), np.bool_)
    events = [(math.inf, -1)]  # when an engine's step ends, or just after the instant at which one may begin
    j, due, turn, now = 0, min(held, len(taken)), 0, 0.0
    while True:
        for _ in range(due):
            if mode == LEAST:
                r = turn
                for away in range(len(ints)):
                    at = (turn + away) % len(ints)
                    if count[at] < count[r]:
                        r = at
                turn = (r + 1) % len(ints)
            elif mode == FEWER and count[other[j]] < count[one[j]]:
                r = other[j]
            else:
                r = one[j]
            i = ints[r, TAIL]
            if i == ready.shape[1]:
                return OUT_OF_ROOM
            floats[r, FRONT_FREE] = max(now, floats[r, FRONT_FREE]) + costs[BESIDE]
            ready[r, i], sent[r, i] = floats[r, FRONT_FREE] + costs[BESIDE + 1], now
            prompt[r, i], output[r, i], shared[r, i] = prompts[j], outputs[j], shares[j]
            taken[j], place[j] = r, i
            ints[r, TAIL] += 1
            ints[r, OPEN] += 1
            count[r] += 1
            if not listed[r]:
                heapq.heappush(events, (np.nextafter(max(floats[r, NOW], ready[r, i]), math.inf), r))
                listed[r] = True
            j += 1
        if events[0][1] < 0:
            return REACHED
        now, r = heapq.heappop(events)
        status: int = serve_one(now, limits, costs, ints, floats, requests, ring, noise, r)
        if status != REACHED:
            return status
        due = min(count[r] - ints[r, OPEN], len(taken) - j)
        count[r] = ints[r, OPEN]
        listed[r] = count[r] > 0
        if ints[r, FLYING]:
            heapq.heappush(events, (floats[r, FLYING_END], r))
        elif count[r]:
            begins = max(now, floats[r, NOW])
            if not ints[r, AHEAD] and not ints[r, DECODERS] and ints[r, PART] < 0:
                begins = max(begins, ready[r, ints[r, HEAD]])
            heapq.heappush(events, (np.nextafter(begins, math.inf), r))
