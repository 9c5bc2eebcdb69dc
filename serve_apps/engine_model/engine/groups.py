"""Replicas, compiled: one engine, or data-parallel ranks that step together, and the duration of their steps.

vLLM's DPEngineCoreProc makes every rank compute in every step, because the experts of a layer are spread over
the GPUs of all. Here stand the step that all ranks share and vLLM's choice of a rank for a new request, by
one front end that sees all requests: a rank counts the larger of the requests in flight there and of those
that it last published; those it has waiting count more where its KV is over half full. Ties go round. What is
published are the counts of the last step that began or ended before each multiple of `PUBLISH_S`; when
exactly vLLM's coordinator sends (it waits 50 ms for stragglers) is left out. After the last request vLLM's
ranks go on for up to `dp_sync_interval` steps; that a request may then wait for the end of one is left out
too.
"""

import math
from typing import Any

from numba.np.unsafe.ndarray import to_fixed_tuple

from serve_apps.engine_model.cost.noise import drifted
from serve_apps.engine_model.cost.step_time import step_terms, total_s
from serve_apps.engine_model.engine import memory, steps
from serve_apps.engine_model.engine.native import inlined, native
from serve_apps.engine_model.engine.records import RUNNING, WAITING

PUBLISH_S = 0.1
"""Interval at which the ranks' counts reach the balancer (vLLM v1/engine/coordinator.py,
min_stats_update_interval_ms)."""
KV_PENALTY = 6.0
"""Weight of a waiting request per share of KV in use beyond a half (vLLM v1/engine/core_client.py,
DPLBAsyncMPClient.get_core_engine_for_request)."""
SHARED = 2
"""The place of the costs of shared experts in `Arrays.costs`."""
COSTS = 15
"""Costs of a step (`cost.step_time.Roofline`)."""

_drifted, _step_terms, _total_s = native(drifted), native(step_terms), native(total_s)


@native
def due_s(arrays: Any, g: Any) -> Any:
    """The end of the step that runs, or else the earliest time at which one may begin."""
    group = memory.group(arrays, g)
    if group.in_flight:
        return group.end_s
    ready_s = math.inf
    for r in range(group.first, group.first + group.width):
        ready_s = min(ready_s, steps.ready_s(arrays, r))
    return max(group.free_s, ready_s)


@native
def lacks_noise(arrays: Any, g: Any) -> bool:
    """The noise of the group's next step is not drawn yet."""
    return memory.service(arrays, 0).noisy and memory.group(arrays, g).drawn == memory.noise(arrays).shape[1]  # type: ignore[no-any-return]


@native
def begin(arrays: Any, g: Any, now_s: Any) -> bool:
    """Start a step of all ranks; False without work. A rank without work takes part all the same."""
    group = memory.group(arrays, g)
    ranks = range(group.first, group.first + group.width)
    if group.width > 1:
        publish(arrays, g, now_s)
    works, slowest_s, decode, prefill = 0, 0.0, 0, 0
    for r in ranks:
        engine, batch = memory.engine(arrays, r), memory.batch(arrays, r)
        engine.stepping = 1 if steps.choose(arrays, r, now_s) else 0
        if not engine.stepping:
            batch.decode, batch.prefill, batch.context, batch.sequences, batch.pairs = 1, 0, 0, 0, 0.0
        works += engine.stepping
        costs = to_fixed_tuple(memory.costs(arrays)[engine.kind], COSTS)
        work = batch.decode, batch.prefill, batch.context, batch.pairs, batch.sequences
        slowest_s = max(slowest_s, _total_s(_step_terms(costs, *work)))
        decode, prefill = decode + batch.decode, prefill + batch.prefill
    group.began_s = now_s
    if not works:
        return False
    if group.width > 1:
        slowest_s += _total_s(
            _step_terms(to_fixed_tuple(memory.costs(arrays)[SHARED], COSTS), decode, prefill, 0, 0.0, 0)
        )
    took_s = _lengthened_s(arrays, g, slowest_s, now_s)
    group.end_s, group.in_flight = now_s + took_s, 1
    group.steps += 1
    group.busy_s += took_s
    for r in ranks:
        if memory.engine(arrays, r).stepping:
            _add_up(arrays, r, took_s)
    return True


@native
def begin_ahead(arrays: Any, g: Any) -> None:
    """With asynchronous scheduling, choose the work of the step after the one that just began."""
    group = memory.group(arrays, g)
    for r in range(group.first, group.first + group.width):
        if memory.engine(arrays, r).stepping:
            steps.choose_ahead(arrays, r, group.began_s)


@native
def end(arrays: Any, g: Any) -> None:
    """The tokens of the step that runs exist."""
    group, ahead = memory.group(arrays, g), 0
    ranks = range(group.first, group.first + group.width)
    if group.width > 1:
        publish(arrays, g, group.end_s)
    group.free_s, group.in_flight = group.end_s, 0
    for r in ranks:
        if memory.engine(arrays, r).stepping:
            steps.end(arrays, r, group.end_s)
            ahead += memory.engine(arrays, r).ahead
    if ahead and group.width > 1:  # a rank whose peers are busy looks for work in the next step
        for r in ranks:
            memory.engine(arrays, r).idle_until_s = -math.inf


@native
def publish(arrays: Any, g: Any, now_s: Any) -> None:
    """Publish the ranks' counts as they have been up to now, if `PUBLISH_S` is over."""
    group = memory.group(arrays, g)
    if now_s // PUBLISH_S <= group.looks:
        return
    group.looks = now_s // PUBLISH_S
    for r in range(group.first, group.first + group.width):
        engine = memory.engine(arrays, r)
        engine.told_waiting = memory.count(arrays, r, WAITING)
        engine.told_running = memory.count(arrays, r, RUNNING)
        engine.told_usage, engine.sent_since = 1 - engine.free / engine.blocks, 0


@native
def choose_rank(arrays: Any, g: Any, now_s: Any) -> Any:
    """The engine of replica `g` that gets a request now."""
    group = memory.group(arrays, g)
    if group.width == 1:
        return group.first
    publish(arrays, g, now_s)
    found, least = group.first, math.inf
    for k in range(group.width):
        r = group.first + (group.start + k) % group.width
        engine = memory.engine(arrays, r)
        waiting = engine.told_waiting + engine.sent_since
        score = float(max(engine.open, waiting + engine.told_running))
        score += waiting * KV_PENALTY * max(0.0, engine.told_usage - 0.5)
        if score < least:
            found, least = r, score
    group.start = (group.start + 1) % group.width
    memory.engine(arrays, found).sent_since += 1
    return found


@inlined
def _lengthened_s(arrays: Any, g: Any, duration_s: Any, now_s: Any) -> Any:
    """The duration of a step that begins at `now_s`, with its noise."""
    group, seconds = memory.group(arrays, g), memory.service(arrays, 0)
    if not seconds.noisy:
        return duration_s
    factor, stall_s, gauss = memory.noise(arrays)[g, group.drawn]
    gap_s, group.drifted_at_s = now_s - group.drifted_at_s, now_s
    group.drawn += 1
    if seconds.drift_sd > 0:
        group.drift = _drifted(group.drift, gap_s, seconds.drift_sd, seconds.drift_memory_s, gauss)
    return duration_s * factor * math.exp(group.drift) + stall_s


@inlined
def _add_up(arrays: Any, r: Any, took_s: Any) -> None:
    """Add the step that begins to the sums."""
    engine, batch = memory.engine(arrays, r), memory.batch(arrays, r)
    engine.decode_sum += batch.decode
    engine.prefill_sum += batch.prefill
    engine.context_sum += batch.context
    engine.pair_sum += batch.pairs
    engine.sequence_sum += batch.sequences
    engine.kv_token_seconds += took_s * engine.block * (engine.blocks - engine.free)
