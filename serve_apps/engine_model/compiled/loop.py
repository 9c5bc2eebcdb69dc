"""The scheduling rules once more, as a compiled loop at O(1) per step; draws no noise.

It serves where nothing can be preempted: prompts share one prefix or nothing, every decoder gets its token
in every step (max_num_seqs <= max_num_batched_tokens), and the KV cache holds whatever may run at once.
`test_fast_engine` holds it to the times of `Scheduler`. Where prompts share more than one prefix, what each
finds in the cache is counted when it arrives (`prefix_reuse`), and a prompt waits while it does not fit whole
beside those that run.

Decoders are a count and a sum of contexts. A request with its first token in step s emits the last one in
step s + output - 1: a ring of buckets, one per step, has the requests that leave. What is scheduled
will happen, for nobody is preempted: the state of the decoders is that of the next step to schedule.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from serve_apps.engine_model.compiled.native import inlined, native
from serve_apps.engine_model.cost.noise import drifted
from serve_apps.engine_model.cost.step_time import step_terms, total_s
from serve_apps.engine_model.scheduler.engine import IDLE_POLL_S, free_again_s

_COUNTS = (
    # Requests given to the engine and not ended, and all ever given; the next one to admit, and to queue.
    *("open", "added", "head", "queued"),
    # The request whose prompt is prefilled in part (-1: none), and how many of its tokens are.
    *("part", "part_done"),
    # Requests that hold a slot; of them the decoders, and the sum of their contexts.
    *("running", "decoders", "context"),
    # Steps scheduled and ended, and factors of noise used.
    *("steps", "ended", "drawn"),
    # KV: blocks of running requests, blocks of the common prefix, tokens that requests use of it.
    *("reserved", "warm", "borrowed"),
    # The step scheduled but not begun, and the one that runs: if there is one, and whose prompts end in it.
    *("ahead", "ahead_low", "ahead_high", "in_flight", "in_flight_low", "in_flight_high"),
    # Scheduling the step after the one that runs has been tried.
    "next_tried",
    # Sums over all steps, as `Batch` counts them.
    *("decode_tokens", "prefill_tokens", "context_tokens", "sequences"),
)
_FIGURES = (
    # Now, the duration of the step scheduled, the end of the one that runs, the end of the front end's work.
    *("now_s", "ahead_s", "end_s", "front_free_s"),
    # ln of the slowness, and when it was last drawn.
    *("drift", "drifted_at_s"),
    # Sums over all steps.
    *("busy_s", "attention_pairs", "kv_token_seconds"),
)
STATE = np.dtype([(name, np.int64) for name in _COUNTS] + [(name, np.float64) for name in _FIGURES])
"""The state of one engine: a record that the compiled functions read and write by name."""

REQUEST = np.dtype(
    [
        *((name, np.float64) for name in ("sent_s", "ready_s", "queued_s", "scheduled_s")),
        *((name, np.float64) for name in ("first_s", "last_s")),
        *((name, np.int64) for name in ("prompt", "output", "shared", "cached", "begun", "born", "link")),
    ]
)
"""A request, by number in order of arrival.

It is sent, has passed the front end, is queued by the scheduler and first scheduled (`_schedule` alone knows
both), and gets its first and last token at these times. Of its prompt, `shared` tokens are those of others
too and `cached` were in the cache. Its first tokens are computed in step
`begun`, and its first own one comes in step `born`; `link` is the next request that leaves in the same step.
"""
BUCKET = np.dtype([(name, np.int64) for name in ("leaver", "leaving", "leaving_context")])
"""Leavers of a step: the first one, the number of decoders among them, and their context.

A ring has a bucket for each step modulo its length, a power of two.
"""
NOISE = np.dtype([(name, np.float64) for name in ("factor", "stall_s", "gauss")])
"""Noise of a step: the factor of its duration, a stall to add, a normal that drives the drift."""

REACHED, OUT_OF_NOISE, OUT_OF_KV, OUT_OF_ROOM = range(4)
"""Results of a loop: `until` is reached; more noise is due; the cache, or a column, may overflow."""


class EngineLimits(NamedTuple):
    """Sizes of an engine. `closed` is the number of requests of a closed loop on it alone, else 0.

    With `counted`, `shared` are the tokens that were found in the cache, and each request holds blocks for
    all of its own.
    """

    max_tokens: int
    max_seqs: int
    block: int
    blocks: int
    asynchronous: int
    closed: int
    counted: int


class EngineSeconds(NamedTuple):
    """Costs: `step` as `step_terms` wants them, the front end, and the noise of steps, if any."""

    step: tuple[float, ...]
    front_end_s: float
    latency_s: float
    drift_sd: float
    drift_memory_s: float
    noisy: int


class EngineArrays(NamedTuple):
    """Engines of one kind, as the compiled functions take them; engine `r` owns row `r` of every array.

    `ends_s` keeps the ends of the first steps; `noise` is that of the next steps of an engine that is alone.
    """

    limits: EngineLimits
    costs: EngineSeconds
    states: Any
    requests: Any
    ring: Any
    ends_s: Any
    noise: Any


_drifted, _free_again_s = inlined(drifted), inlined(free_again_s)
_step_terms, _total_s = inlined(step_terms), inlined(total_s)


@native
def advance(until_s: Any, engines: Any, r: Any) -> int:
    """Run engine `r` to `until_s`: every step that ends by then has ended, none has begun at that instant."""
    limits, costs, noise = engines.limits, engines.costs, engines.noise
    state, requests, ring, ends_s = engines.states[r], engines.requests[r], engines.ring[r], engines.ends_s[r]
    while True:
        if state.in_flight and state.next_tried:
            if state.end_s > until_s:
                return REACHED
            if state.ended < len(ends_s):
                ends_s[state.ended] = state.end_s
            end_step(limits, costs, state, requests, ring)
            continue
        if state.ahead and not state.in_flight:
            if state.now_s >= until_s:
                return REACHED
            took_s = state.ahead_s
            if costs.noisy:
                if state.drawn == len(noise):
                    return OUT_OF_NOISE
                took_s = _lengthened_s(costs, state, noise[state.drawn])
            begin_step(limits, state, took_s)
            continue
        if state.in_flight:  # asynchronous scheduling: the next step is chosen as this one begins
            state.next_tried = 1
        elif state.decoders == 0 and state.part < 0:
            if state.head == state.added:
                return REACHED
            start_s = max(state.now_s, requests[state.head].ready_s)
            if start_s >= until_s:
                return REACHED
            state.now_s = start_s
        elif state.now_s >= until_s:
            return REACHED
        if not _schedule(limits, costs, state, requests, ring):
            return OUT_OF_KV


@native
def submit(engines: Any, r: Any, now_s: Any, prompt: Any, output: Any, shared: Any) -> Any:
    """Give a request to engine `r` at `now_s`; returns its number there, or -1 without room."""
    state = engines.states[r]
    i = state.added
    if i == engines.requests.shape[1]:
        return -1
    request = engines.requests[r, i]
    request.prompt, request.output, request.shared = prompt, output, shared
    _enter(engines.costs, state, request, now_s)
    return i


@inlined
def _enter(costs: Any, state: Any, request: Any, now_s: Any) -> None:
    """The next request, whose tokens are known, passes the front end."""
    state.front_free_s = _free_again_s(now_s, state.front_free_s, costs.front_end_s)
    request.sent_s = now_s
    request.ready_s = state.front_free_s + costs.latency_s
    state.added += 1
    state.open += 1


@inlined
def _lengthened_s(costs: Any, state: Any, noise: Any) -> Any:
    """The duration of the step scheduled last, with its noise."""
    if costs.drift_sd > 0:
        gap_s = state.now_s - state.drifted_at_s
        state.drift = _drifted(state.drift, gap_s, costs.drift_sd, costs.drift_memory_s, noise.gauss)
        state.drifted_at_s = state.now_s
    state.drawn += 1
    return state.ahead_s * noise.factor * math.exp(state.drift) + noise.stall_s


@inlined
def begin_step(limits: Any, state: Any, took_s: Any) -> None:
    """Begin the step scheduled last."""
    own = max(state.context - state.borrowed + (state.part_done if state.part >= 0 else 0), 0)
    state.kv_token_seconds += took_s * (own + state.warm * limits.block if state.borrowed else own)
    state.busy_s += took_s
    state.end_s = state.now_s + took_s
    state.in_flight, state.in_flight_low, state.in_flight_high = 1, state.ahead_low, state.ahead_high
    state.ahead, state.next_tried = 0, 1 - limits.asynchronous


@inlined
def end_step(limits: Any, costs: Any, state: Any, requests: Any, ring: Any) -> None:
    """The tokens of the step that runs exist: who got the first one, and who leaves with the last."""
    state.now_s, state.in_flight = state.end_s, 0
    for i in range(state.in_flight_low, state.in_flight_high):
        requests[i].first_s = state.now_s
    bucket = ring[state.ended & (len(ring) - 1)]
    leaver = bucket.leaver
    while leaver >= 0:
        _leave(limits, costs, state, requests, leaver)
        leaver = requests[leaver].link
    bucket.leaver, bucket.leaving, bucket.leaving_context = -1, 0, 0
    state.ended += 1
    if limits.asynchronous and not state.ahead:
        state.now_s += IDLE_POLL_S


@inlined
def _leave(limits: Any, costs: Any, state: Any, requests: Any, i: Any) -> None:
    """Request `i` has its last token; in a closed loop it makes room for the next one."""
    request = requests[i]
    request.last_s = state.now_s
    state.running -= 1
    state.open -= 1
    state.reserved -= blocks_of(limits, request)
    if not limits.counted:
        state.reserved += request.cached // limits.block
        state.borrowed -= request.cached
    if state.added < limits.closed:
        _enter(costs, state, requests[state.added], state.now_s)


@inlined
def _schedule(limits: Any, costs: Any, state: Any, requests: Any, ring: Any) -> bool:
    """Choose the tokens of the next step, if there are any; False where the KV cache may overflow."""
    _queue(state, requests)
    decode_tokens, context_tokens, pairs = state.decoders, state.context, 0.0
    left = budget = limits.max_tokens - decode_tokens
    bucket = ring[state.steps & (len(ring) - 1)]
    state.context += decode_tokens - bucket.leaving_context
    state.decoders -= bucket.leaving
    low = high = state.head if state.part < 0 else state.part
    while left > 0:
        if state.part < 0:
            if not fits(limits, state, requests):
                break
            if not _admit(limits, state, requests[state.head]):
                return False
        request, done = requests[state.part], state.part_done
        new = min(request.prompt - done, left)
        context_tokens += done
        pairs += new * (done + new / 2)
        left -= new
        state.part_done = done + new
        if state.part_done == request.prompt:
            join(state, request, ring)
            high += 1
    prefill_tokens, sequences = budget - left, decode_tokens + high - low
    if decode_tokens + prefill_tokens:
        plan(costs, state, (decode_tokens, prefill_tokens, context_tokens, pairs, sequences), low, high)
    return True


@inlined
def _queue(state: Any, requests: Any) -> None:
    """The scheduler sees what has passed the front end since it last looked."""
    while state.queued < state.added and requests[state.queued].ready_s <= state.now_s:
        requests[state.queued].queued_s = state.now_s
        state.queued += 1


@inlined
def plan(costs: Any, state: Any, batch: Any, low: Any, high: Any) -> None:
    """The next step computes `batch`, as in `step_terms`; the prompts from `low` to before `high` end."""
    decode_tokens, prefill_tokens, context_tokens, pairs, sequences = batch
    terms = _step_terms(costs.step, decode_tokens, prefill_tokens, context_tokens, pairs, sequences)
    state.ahead_s = _total_s(terms)
    state.ahead, state.ahead_low, state.ahead_high = 1, low, high
    state.steps += 1
    state.decode_tokens += decode_tokens
    state.prefill_tokens += prefill_tokens
    state.context_tokens += context_tokens
    state.attention_pairs += pairs
    state.sequences += sequences


@inlined
def fits(limits: Any, state: Any, requests: Any) -> bool:
    """The next request, if any, is ready and finds a slot and, where those are `counted`, its blocks."""
    if state.head == state.added or state.running >= limits.max_seqs:
        return False
    request = requests[state.head]
    if request.ready_s > state.now_s:
        return False
    return not limits.counted or state.reserved + blocks_of(limits, request) <= limits.blocks


@inlined
def _admit(limits: Any, state: Any, request: Any) -> bool:
    """Begin the next request's prompt behind what of it is cached; False where the KV cache may overflow."""
    block, done = limits.block, request.shared
    state.reserved += blocks_of(limits, request)
    if not limits.counted:
        done = min(min(done // block, state.warm), (request.prompt - 1) // block) * block
        state.warm = max(state.warm, request.shared // block)
        state.reserved -= done // block
        state.borrowed += done
        if state.reserved + state.warm > limits.blocks:
            return False
    request.cached, request.begun, request.scheduled_s = done, state.steps, state.now_s
    state.part, state.part_done = state.head, done
    state.running += 1
    state.head += 1
    return True


@inlined
def join(state: Any, request: Any, ring: Any) -> None:
    """The prompt of `part` ends in the step being scheduled: its first token comes, and when its last."""
    bucket = ring[(state.steps + request.output - 1) & (len(ring) - 1)]
    request.born, request.link = state.steps, bucket.leaver
    bucket.leaver = state.part
    if request.output > 1:
        state.decoders += 1
        state.context += request.prompt
        bucket.leaving += 1
        bucket.leaving_context += request.prompt + request.output - 1
    state.part = -1


@inlined
def blocks_of(limits: Any, request: Any) -> Any:
    """KV blocks of a whole prompt and its answer."""
    return (request.prompt + request.output + limits.block - 1) // limits.block
