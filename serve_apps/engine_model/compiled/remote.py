"""Engines that get the KV of every prompt from another engine, compiled, at O(1) per step; draws no noise.

vLLM behind a connector: a prompt takes all its blocks when its turn in the queue comes and waits for its KV
without a slot; then its last token is computed as a decoder's, before any prompt that has no blocks yet.
Else the rules and books are those of `loop`. `test_split_run` holds this to `BlockEngine`, whose `_schedule`
says when vLLM looks for transfers that have ended, and when it knows of them.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from serve_apps.engine_model.compiled.loop import (
    OUT_OF_KV,
    REACHED,
    EngineArrays,
    begin_step,
    blocks_of,
    end_step,
    fits,
    join,
    plan,
    submit,
)
from serve_apps.engine_model.compiled.native import inlined, native
from serve_apps.engine_model.scheduler.engine import IDLE_POLL_S

LOAD = np.dtype([(name, np.float64) for name in ("begun_s", "computed_s", "taken_s", "here_s")])
"""The KV of a request: when another engine begins to compute it and has done so, when there are blocks for
it, and when it is here (inf before its transfer is due)."""
RECEIVER = np.dtype(
    [
        # The first request whose KV is awaited, how many are, and the tokens of their prompts.
        *((name, np.int64) for name in ("first", "awaited", "tokens")),
        # The engine is idle and waits for an arrival or a transfer, for which it looks now and then.
        ("stalled", np.int64),
        # Transfers that ended by then are known; are found, to be known after the next choice of a step.
        *((name, np.float64) for name in ("known_s", "unread_s")),
        # The last look for transfers; those of the step chosen last, and of the step that runs.
        *((name, np.float64) for name in ("looked_s", "ahead_looked_s", "in_flight_looked_s")),
        # An idle engine sleeps until then; the link is free again.
        *((name, np.float64) for name in ("idle_until_s", "link_free_s")),
    ]
)
"""An engine's transfers."""
NEVER_S = -math.inf


class LoadSeconds(NamedTuple):
    """Transfers, as `cost.transfer` has them; with `written` KV flows while its prompt is computed."""

    token_s: float
    latency_s: float
    last_share: float
    written: int


class RemoteArrays(NamedTuple):
    """Engines that get KV; engine `r` owns row `r` of `receivers`, and of `loads` in its requests' order."""

    engines: EngineArrays
    seconds: LoadSeconds
    receivers: Any
    loads: Any


def remote_arrays(engines: EngineArrays, seconds: LoadSeconds) -> RemoteArrays:
    """Engines without noise that have seen nothing."""
    count, room = engines.requests.shape
    engines.requests["born"] = -1
    receivers = np.zeros(count, RECEIVER)
    for name in RECEIVER.names or ():
        if RECEIVER[name] == np.float64:
            receivers[name] = NEVER_S
    return RemoteArrays(engines, seconds, receivers, np.zeros((count, room), LOAD))


@native
def give(remote: Any, r: Any, now_s: Any, asked: Any, begun_s: Any, computed_s: Any) -> Any:
    """Give a request (`asked`: prompt, output, shared) to engine `r`, as `loop.submit` does."""
    prompt, output, shared = asked
    i = submit(remote.engines, r, now_s, prompt, output, shared)
    if i >= 0:
        load = remote.loads[r, i]
        load.begun_s, load.computed_s, load.here_s = begun_s, computed_s, math.inf
    return i


@native
def advance(until_s: Any, remote: Any, r: Any) -> int:
    """Run engine `r` to `until_s`, as `loop.advance` does."""
    engines = remote.engines
    limits, costs, ends_s = engines.limits, engines.costs, engines.ends_s[r]
    state, requests, ring = engines.states[r], engines.requests[r], engines.ring[r]
    receiver = remote.receivers[r]
    while True:
        if state.in_flight:
            if state.end_s > until_s:
                return REACHED
            if state.ended < len(ends_s):
                ends_s[state.ended] = state.end_s
            for i in range(state.in_flight_low, state.in_flight_high):
                if requests[i].born == state.ended:  # KV need not come in the order of the requests
                    requests[i].first_s = state.end_s
            state.in_flight_low = state.in_flight_high
            receiver.known_s = max(receiver.known_s, receiver.in_flight_looked_s)
            receiver.stalled = 0
            end_step(limits, costs, state, requests, ring)
            if limits.asynchronous and not state.ahead:
                receiver.idle_until_s = state.now_s
            continue
        start_s = state.now_s
        if not state.ahead:
            start_s = max(start_s, ready_s(remote, r))
        if start_s >= until_s:
            return REACHED
        state.now_s = start_s
        if not state.ahead and not _schedule(remote, r):
            return OUT_OF_KV
        if state.ahead:
            receiver.in_flight_looked_s = receiver.ahead_looked_s
            state.kv_token_seconds += state.ahead_s * receiver.tokens
            begin_step(limits, state, state.ahead_s)
            if limits.asynchronous and not _schedule(remote, r):
                return OUT_OF_KV


@inlined
def ready_s(remote: Any, r: Any) -> Any:
    """The time at which an idle engine may choose a step or look for transfers; inf where it is empty."""
    state, receiver = remote.engines.states[r], remote.receivers[r]
    arrives_s = math.inf
    if state.head < state.added:
        arrives_s = remote.engines.requests[r, state.head].ready_s
    idle_s = receiver.idle_until_s
    if receiver.stalled:
        due_s = min(arrives_s, _next_here_s(remote, r))
        if due_s == math.inf:
            return math.inf
        return idle_s + math.ceil(max(0.0, due_s - idle_s) / IDLE_POLL_S) * IDLE_POLL_S
    if state.decoders or receiver.awaited:
        return idle_s
    return max(arrives_s, idle_s)


@inlined
def _next_here_s(remote: Any, r: Any) -> Any:
    """The arrival of the next KV that no look has found; inf where none is on its way."""
    seconds, receiver, requests = remote.seconds, remote.receivers[r], remote.engines.requests[r]
    found_s = next_s = math.inf
    first = -1
    for i in range(receiver.first, remote.engines.states[r].head):
        load = remote.loads[r, i]
        if requests[i].born < 0:
            if load.here_s < math.inf:
                if load.here_s > receiver.looked_s:
                    found_s = min(found_s, load.here_s)
            elif max(load.computed_s, load.taken_s) < next_s:
                first, next_s = i, max(load.computed_s, load.taken_s)
    if first >= 0:
        work_s = _work_s(seconds, requests[first], remote.loads[r, first])
        found_s = min(found_s, max(receiver.link_free_s, next_s) + work_s + seconds.latency_s)
    return found_s


@inlined
def _work_s(seconds: Any, request: Any, load: Any) -> Any:
    """Work of the link for a request that is computed and has blocks."""
    whole_s = (request.prompt - request.cached) * seconds.token_s
    if not seconds.written:
        return whole_s
    flown_s = max(0.0, load.computed_s - max(load.begun_s, load.taken_s))
    return max(whole_s - flown_s, whole_s * seconds.last_share)


@inlined
def _send(seconds: Any, state: Any, requests: Any, receiver: Any, loads: Any) -> None:
    """Put on the link what is computed and has blocks by now, in the order in which that was so."""
    while True:
        first, next_s = -1, math.inf
        for i in range(receiver.first, state.head):
            load = loads[i]
            if requests[i].born < 0 and load.here_s == math.inf:
                due_s = max(load.computed_s, load.taken_s)
                if due_s <= state.now_s and due_s < next_s:
                    first, next_s = i, due_s
        if first < 0:
            return
        work_s = _work_s(seconds, requests[first], loads[first])
        receiver.link_free_s = max(receiver.link_free_s, next_s) + work_s
        loads[first].here_s = receiver.link_free_s + seconds.latency_s


@inlined
def _schedule(remote: Any, r: Any) -> bool:  # noqa: PLR0915 (a compiled kernel)
    """Choose the tokens of the next step, if there are any; False where the KV cache may overflow."""
    engines, seconds, receiver, loads = remote.engines, remote.seconds, remote.receivers[r], remote.loads[r]
    limits, costs, state = engines.limits, engines.costs, engines.states[r]
    requests, ring = engines.requests[r], engines.ring[r]
    tokens, context_tokens = state.decoders, state.context
    bucket = ring[state.steps & (len(ring) - 1)]
    state.context += tokens - bucket.leaving_context
    state.decoders -= bucket.leaving
    if receiver.awaited and seconds.written:
        _send(seconds, state, requests, receiver, loads)
    low = high = receiver.first
    found = 0
    for i in range(receiver.first, state.head):
        if requests[i].born >= 0:
            continue
        here_s = loads[i].here_s
        if here_s > state.now_s:
            if not seconds.written:
                break
            continue
        if here_s > receiver.looked_s:
            found += 1
        if here_s <= receiver.known_s and tokens < limits.max_tokens and state.running < limits.max_seqs:
            tokens, high = tokens + 1, i + 1
            context_tokens += requests[i].prompt - 1
            receiver.awaited -= 1
            receiver.tokens -= requests[i].prompt
            state.warm = max(state.warm, requests[i].shared // limits.block)
            state.running += 1
            state.part = i
            join(state, requests[i], ring)
    while receiver.first < state.head and requests[receiver.first].born >= 0:
        receiver.first += 1
    taken = state.head
    while tokens < limits.max_tokens and fits(limits, state, requests):
        _take(limits, state, requests[state.head], receiver, loads[state.head])
        if state.reserved + state.warm > limits.blocks:
            return False
    if taken < state.head:
        _send(seconds, state, requests, receiver, loads)
    if tokens:
        plan(costs, state, (tokens, 0, context_tokens, 0.0, tokens), low, high)
    _look(limits, state, receiver, tokens > 0, found > 0)
    return True


@inlined
def _look(limits: Any, state: Any, receiver: Any, works: Any, found: Any) -> None:
    """The step just chosen, perhaps empty, looks for ended transfers (`BlockEngine._schedule`)."""
    learned = receiver.unread_s > NEVER_S
    receiver.known_s = max(receiver.known_s, receiver.unread_s)
    receiver.unread_s = NEVER_S
    receiver.looked_s = state.now_s
    receiver.stalled = 0
    if works:
        receiver.ahead_looked_s = state.now_s
        return
    if found and limits.asynchronous:
        receiver.unread_s = state.now_s
    elif found:
        receiver.known_s = state.now_s
    if receiver.awaited or state.decoders:
        receiver.idle_until_s = state.now_s + IDLE_POLL_S
        receiver.stalled = 0 if learned or found else 1


@inlined
def _take(limits: Any, state: Any, request: Any, receiver: Any, load: Any) -> None:
    """Take the blocks of the next request, and wait for what is not cached of its prompt."""
    cached = min(min(request.shared // limits.block, state.warm), (request.prompt - 1) // limits.block)
    request.cached = cached * limits.block
    state.reserved += blocks_of(limits, request) - cached
    state.borrowed += request.cached
    load.taken_s = state.now_s
    receiver.awaited += 1
    receiver.tokens += request.prompt
    state.head += 1
