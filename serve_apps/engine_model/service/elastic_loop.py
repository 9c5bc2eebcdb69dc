"""Engines that come and go behind one balancer, as compiled loops; knows columns, no objects and no noise."""

import math
from typing import Any, NamedTuple

import numpy as np

from serve_apps.engine_model.compiled.loop import OUT_OF_ROOM, REACHED, advance, submit
from serve_apps.engine_model.compiled.native import inlined, native

LEAST, TURN, FEWER, RANDOM = range(4)
"""Ways to choose among the engines that serve: the least busy, in turn, the less busy of two, any."""
NONE = -1
FLEET_STATE = np.dtype([("next", np.int64), ("turn", np.int64)])


class FleetArrays(NamedTuple):
    """A fleet: `serving` engines get requests, `alive` ones still compute.

    `state` is one record: the next request to send, and the engine at which the next search begins. `number`
    is the request in each row of each engine.
    """

    state: Any
    serving: Any
    alive: Any
    number: Any


def fleet_arrays(engines: int, room: int) -> FleetArrays:
    """A fleet of which no engine serves yet."""
    return FleetArrays(
        np.zeros(1, FLEET_STATE),
        np.zeros(engines, np.bool_),
        np.zeros(engines, np.bool_),
        np.zeros((engines, room), np.int64),
    )


@native
def serve_until(until_s: Any, mode: Any, sent_s: Any, asked: Any, fleet: Any, engines: Any) -> int:
    """Send what is due by `until_s` (`asked`: prompt, output, shared tokens, two chances) and compute.

    A request for which no engine serves is left without times. `OUT_OF_ROOM` ends the call before a request
    is sent: rows must be freed.
    """
    prompts, outputs, shares, chance, other = asked
    state = fleet.state[0]
    while state.next < len(sent_s) and sent_s[state.next] <= until_s:
        j = state.next
        status: int = _run(sent_s[j], fleet, engines)
        if status != REACHED:
            return status
        r = _chosen(mode, chance[j], other[j], fleet, engines)
        if r != NONE:
            shared = shares[j]
            if engines.limits.counted:  # what is in the cache is counted here: all but the first find it
                block = engines.limits.block
                found = min(shared, prompts[j] - 1) // block * block
                shared = found if engines.states[r].prefill_tokens > 0 else 0
            i = submit(engines, r, sent_s[j], prompts[j], outputs[j], shared)
            if i < 0:
                return OUT_OF_ROOM
            engines.requests[r, i].first_s = math.nan
            engines.requests[r, i].last_s = math.nan
            fleet.number[r, i] = j
        state.next += 1
    return _run(until_s, fleet, engines)  # type: ignore[no-any-return]


@inlined
def _run(until_s: Any, fleet: Any, engines: Any) -> int:
    for r in range(len(fleet.alive)):
        if fleet.alive[r]:
            status: int = advance(until_s, engines, r)
            if status != REACHED:
                return status
    return REACHED


@inlined
def _chosen(mode: Any, chance: Any, other: Any, fleet: Any, engines: Any) -> Any:
    """The engine of a request, or NONE where none serves."""
    count = 0
    for r in range(len(fleet.serving)):
        count += fleet.serving[r]
    if count == 0:
        return NONE
    if mode == RANDOM:
        return _nth(int(chance * count), fleet)
    if mode == FEWER:
        a, b = int(chance * count), int(other * (count - 1))
        one = _nth(a, fleet)
        two = _nth(b + (b >= a), fleet) if count > 1 else one
        return two if engines.states[two].open < engines.states[one].open else one
    return _in_turn(mode == LEAST, fleet, engines)


@inlined
def _nth(n: Any, fleet: Any) -> Any:
    """The n-th of the engines that serve."""
    seen = 0
    for r in range(len(fleet.serving)):
        if fleet.serving[r]:
            if seen == n:
                return r
            seen += 1
    return NONE


@inlined
def _in_turn(least: Any, fleet: Any, engines: Any) -> Any:
    """The next engine in turn that serves; of the `least` busy ones only."""
    state, size, best = fleet.state[0], len(fleet.serving), NONE
    r = state.turn
    for _ in range(size):
        if fleet.serving[r] and (
            best == NONE or (least and engines.states[r].open < engines.states[best].open)
        ):
            best = r
        r = r + 1 if r + 1 < size else 0
    state.turn = best + 1 if best + 1 < size else 0
    return best


@native
def collect(first_s: Any, last_s: Any, fleet: Any, engines: Any) -> None:
    """Copy the times of requests that have ended, in order of arrival on each engine, and free their rows."""
    for r in range(len(fleet.alive)):
        state, requests = engines.states[r], engines.requests[r]
        k = 0
        while k < state.added and not math.isnan(requests[k].last_s):
            first_s[fleet.number[r, k]] = requests[k].first_s
            last_s[fleet.number[r, k]] = requests[k].last_s
            k += 1
        if k:
            _shift(k, r, fleet, engines)


@inlined
def _shift(k: Any, r: Any, fleet: Any, engines: Any) -> None:
    """Give back the first `k` rows of an engine: all numbers of rows become smaller by that."""
    state, requests, ring = engines.states[r], engines.requests[r], engines.ring[r]
    for m in range(k, state.added):
        requests[m - k] = requests[m]
        fleet.number[r, m - k] = fleet.number[r, m]
        if requests[m - k].link >= 0:
            requests[m - k].link -= k
    for b in range(len(ring)):
        if ring[b].leaver >= 0:
            ring[b].leaver -= k
    state.added -= k
    state.head -= k
    if state.part >= 0:
        state.part -= k
    state.ahead_low -= k
    state.ahead_high -= k
    state.in_flight_low -= k
    state.in_flight_high -= k
