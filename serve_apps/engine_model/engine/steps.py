"""A replica's core loop, compiled, as vLLM's engine/core.py has it: front end, steps scheduled ahead,
transfers of KV, an idle core's sleep, and data-parallel ranks that step together."""

import math
from typing import Any

from numba.np.unsafe.ndarray import to_fixed_tuple

from serve_apps.engine_model.cost.step_time import step_terms, total_s
from serve_apps.engine_model.engine import rules, state
from serve_apps.engine_model.engine.native import NONE, append, inlined, insert_after, native, pop_first
from serve_apps.engine_model.engine.native import remove as unlink

IDLE_POLL_S = 1e-3
"""Sleep of vLLM's core when a step has nothing to compute (engine/core.py, _process_engine_step)."""


@native
def add(arrays: Any, r: Any, i: Any, now_s: Any, more_s: Any) -> None:
    """Request `i` passes the front end, with `more_s` of work for its images; then it waits in turn."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    engine.front_free_s = max(now_s, engine.front_free_s) + (engine.front_end_s + more_s)
    request.ready_s = engine.front_free_s + engine.latency_s
    request.engine = r
    request.own = request.prompt
    engine.open += 1
    if request.kv != state.OWN:
        engine.moves = 1
    rules.put(arrays, r, i, state.ARRIVING)


@native
def _choose(arrays: Any, r: Any, now_s: Any) -> bool:
    """Choose the work of the step that begins now; False without any.

    The work of an engine with a step ahead was chosen before; its figures are in the engine's record.
    """
    engine = state.engine(arrays, r)
    if engine.stalled and now_s < _next_look_s(arrays, r):
        return False
    arriving = state.queue(arrays, r, state.ARRIVING)
    while arriving.count:
        i, request = arriving.head, state.request(arrays, arriving.head)
        if request.ready_s > now_s:
            break
        request.queued_s = now_s
        engine.receives |= 1 if request.kv == state.REMOTE else 0
        rules.put(arrays, r, i, state.WAITING)
    if not engine.ahead:
        engine.begin_s = now_s
        if now_s < engine.idle_until_s or not _schedule(arrays, r, now_s):
            return False
    engine.ahead = 0
    return True


@native
def pop_finished(arrays: Any, r: Any) -> Any:
    """The next request that finished in the step that ended last; `NONE` after the last."""
    return pop_first(state.queue(arrays, r, state.FINISHED), state.links(arrays), state.MOVES)


@native
def pop_started(arrays: Any, r: Any) -> Any:
    """The next request that took blocks for the KV of another engine; `NONE` after the last."""
    i = pop_first(state.queue(arrays, r, state.STARTED), state.links(arrays), state.MOVES)
    if i != NONE:
        state.request(arrays, i).moving = 0
    return i


@native
def transfer_ends(arrays: Any, r: Any, i: Any, at_s: Any) -> None:
    """The transfer to or from a request ends at `at_s`, which may lie ahead."""
    request, queue, links = state.request(arrays, i), state.queue(arrays, r, state.ENDED), state.links(arrays)
    if request.moving:
        unlink(state.queue(arrays, r, state.STARTED), links, state.MOVES, i)
    request.moving, request.moved_s = 1, at_s
    before = queue.tail
    while before != NONE and state.request(arrays, before).moved_s > at_s:
        before = links[before, state.MOVES].previous
    insert_after(queue, links, state.MOVES, before, i)


@native
def ready_s(arrays: Any, r: Any) -> Any:
    """Earliest time a step has work: -inf when it is there already, inf when the engine is empty."""
    engine = state.engine(arrays, r)
    if engine.ahead:
        return -math.inf
    if engine.stalled:
        return _next_look_s(arrays, r)
    if state.count(arrays, r, state.RUNNING) or state.count(arrays, r, state.WAITING) or _awaiting(arrays, r):
        return engine.idle_until_s
    arriving = state.queue(arrays, r, state.ARRIVING)
    if arriving.count:
        return max(state.request(arrays, arriving.head).ready_s, engine.idle_until_s)
    return math.inf


@native
def _schedule(arrays: Any, r: Any, now_s: Any) -> bool:
    """Choose the next step; of an engine that sends or receives KV also empty ones.

    Workers look for ended transfers when they are handed a step. An empty step has its output at once; with
    asynchronous scheduling it is read after the one behind it was chosen.
    """
    engine = state.engine(arrays, r)
    if not engine.moves:
        return rules.schedule(arrays, r, now_s)  # type: ignore[no-any-return]
    preemptions, unread = engine.preemptions, state.queue(arrays, r, state.UNREAD)
    works, ended = rules.schedule(arrays, r, now_s), state.queue(arrays, r, state.ENDED)
    learned = unread.count > 0
    _learn(arrays, r, unread)
    target = state.queue(arrays, r, state.SEEN + (engine.scheduled & 1)) if works else unread
    while ended.count and state.request(arrays, ended.head).moved_s <= now_s:
        append(target, state.links(arrays), state.MOVES, pop_first(ended, state.links(arrays), state.MOVES))
    if not works and not engine.async_scheduling:
        learned = unread.count > 0
        _learn(arrays, r, unread)
    engine.stalled = 0
    open_requests = state.count(arrays, r, state.WAITING) + state.count(arrays, r, state.RUNNING)
    if not works and (open_requests or _awaiting(arrays, r)):
        engine.idle_until_s = now_s + IDLE_POLL_S
        idle = not learned and not unread.count and engine.preemptions == preemptions
        engine.stalled = 1 if idle else 0
    return works  # type: ignore[no-any-return]


@native
def _learn(arrays: Any, r: Any, queue: Any) -> None:
    while queue.count:
        i = pop_first(queue, state.links(arrays), state.MOVES)
        state.request(arrays, i).moving = 0
        rules.transferred(arrays, r, i)


@inlined
def _awaiting(arrays: Any, r: Any) -> bool:
    """True if blocks are held for a transfer."""
    return state.count(arrays, r, state.LOADING) + state.count(arrays, r, state.KEPT) > 0  # type: ignore[no-any-return]


@native
def _next_look_s(arrays: Any, r: Any) -> Any:
    """The first look of an idle core at which something will have happened."""
    engine, due_s = state.engine(arrays, r), math.inf
    arriving, ended = state.queue(arrays, r, state.ARRIVING), state.queue(arrays, r, state.ENDED)
    if arriving.count:
        due_s = state.request(arrays, arriving.head).ready_s
    if ended.count:
        due_s = min(due_s, state.request(arrays, ended.head).moved_s)
    if due_s == math.inf:
        return due_s
    sleeps = math.ceil(max(0.0, due_s - engine.idle_until_s) / IDLE_POLL_S)
    return engine.idle_until_s + sleeps * IDLE_POLL_S


PUBLISH_S = 0.1
"""Interval at which the ranks' counts reach the balancer (vLLM v1/engine/coordinator.py,
min_stats_update_interval_ms). When exactly it sends, after 50 ms for stragglers, is left out."""
KV_PENALTY = 6.0
"""Weight of a waiting request per share of KV in use beyond a half (vLLM v1/engine/core_client.py,
DPLBAsyncMPClient.get_core_engine_for_request)."""
SHARED = 2
"""The place of the costs of shared experts in `Arrays.costs`."""
COSTS = 15
"""Costs of a step (`cost.step_time.Roofline`)."""

_step_terms, _total_s = native(step_terms), native(total_s)


@native
def due_s(arrays: Any, g: Any) -> Any:
    """The end of the step that runs, or else the earliest time at which one may begin."""
    group = state.group(arrays, g)
    if group.in_flight:
        return group.end_s
    earliest_s = math.inf
    for r in range(group.first, group.first + group.width):
        earliest_s = min(earliest_s, ready_s(arrays, r))
    return max(group.free_s, earliest_s)


@native
def lacks_noise(arrays: Any, g: Any) -> bool:
    """The noise of the group's next step is not drawn yet."""
    return state.service(arrays, 0).noisy and state.group(arrays, g).drawn == state.noise(arrays).shape[1]  # type: ignore[no-any-return]


@native
def begin(arrays: Any, g: Any, now_s: Any) -> bool:
    """Start a step of all ranks; False without work. A rank without work takes part all the same."""
    group = state.group(arrays, g)
    ranks = range(group.first, group.first + group.width)
    if group.width > 1:
        publish(arrays, g, now_s)
    works, slowest_s, decode, prefill = 0, 0.0, 0, 0
    for r in ranks:
        engine = state.engine(arrays, r)
        engine.stepping = 1 if _choose(arrays, r, now_s) else 0
        if not engine.stepping:
            engine.decode, engine.prefill, engine.context, engine.samples, engine.pairs = 1, 0, 0, 0, 0.0
        works += engine.stepping
        costs = to_fixed_tuple(state.costs(arrays)[engine.kind], COSTS)
        work = engine.decode, engine.prefill, engine.context, engine.pairs, engine.samples
        slowest_s = max(slowest_s, _total_s(_step_terms(costs, *work)))
        decode, prefill = decode + engine.decode, prefill + engine.prefill
    group.began_s = now_s
    if not works:
        return False
    if group.width > 1:
        slowest_s += _total_s(
            _step_terms(to_fixed_tuple(state.costs(arrays)[SHARED], COSTS), decode, prefill, 0, 0.0, 0)
        )
    took_s = _lengthened_s(arrays, g, slowest_s, now_s)
    group.end_s, group.in_flight = now_s + took_s, 1
    group.steps += 1
    group.busy_s += took_s
    for r in ranks:
        engine = state.engine(arrays, r)
        if engine.stepping:
            engine.decode_tokens += engine.decode
            engine.prefill_tokens += engine.prefill
            engine.context_tokens += engine.context
            engine.attention_pairs += engine.pairs
            engine.sequences += engine.samples
            engine.kv_token_seconds += took_s * engine.block_size * (engine.blocks - engine.free)
    return True


@native
def begin_ahead(arrays: Any, g: Any) -> None:
    """With asynchronous scheduling, choose the work of the step after the one that just began."""
    group = state.group(arrays, g)
    for r in range(group.first, group.first + group.width):
        engine = state.engine(arrays, r)
        if engine.stepping and engine.async_scheduling:
            engine.begin_s = group.end_s
            engine.ahead = 1 if _schedule(arrays, r, group.began_s) else 0


@native
def end(arrays: Any, g: Any) -> None:
    """The tokens of the step that runs exist; its finished requests are in the queues `FINISHED`."""
    group, ahead = state.group(arrays, g), 0
    ranks = range(group.first, group.first + group.width)
    if group.width > 1:
        publish(arrays, g, group.end_s)
    group.free_s, group.in_flight = group.end_s, 0
    for r in ranks:
        engine = state.engine(arrays, r)
        if not engine.stepping:
            continue
        rules.complete(arrays, r, group.end_s)
        if engine.moves:
            engine.stalled = 0
            _learn(arrays, r, state.queue(arrays, r, state.SEEN + (engine.completed & 1)))
        if engine.async_scheduling and not engine.ahead:
            engine.idle_until_s = group.end_s + IDLE_POLL_S
        ahead += engine.ahead
    if ahead and group.width > 1:  # a rank whose peers are busy looks for work in the next step
        for r in ranks:
            state.engine(arrays, r).idle_until_s = -math.inf


@native
def publish(arrays: Any, g: Any, now_s: Any) -> None:
    """Publish the ranks' counts as they have been up to now, if `PUBLISH_S` is over."""
    group = state.group(arrays, g)
    if now_s // PUBLISH_S <= group.looks:
        return
    group.looks = now_s // PUBLISH_S
    for r in range(group.first, group.first + group.width):
        engine = state.engine(arrays, r)
        engine.told_waiting = state.count(arrays, r, state.WAITING)
        engine.told_running = state.count(arrays, r, state.RUNNING)
        engine.told_usage, engine.sent_since = 1 - engine.free / engine.blocks, 0


@native
def choose_rank(arrays: Any, g: Any, now_s: Any) -> Any:
    """The engine of replica `g` that gets a request now, as vLLM's one front end chooses it.

    Ties go round. Left out: after the last request vLLM's ranks go on for up to `dp_sync_interval` steps, for
    the end of which a request may wait.
    """
    group = state.group(arrays, g)
    if group.width == 1:
        return group.first
    publish(arrays, g, now_s)
    rank, least = group.first, math.inf
    for k in range(group.width):
        r = group.first + (group.start + k) % group.width
        engine = state.engine(arrays, r)
        waiting = engine.told_waiting + engine.sent_since
        score = float(max(engine.open, waiting + engine.told_running))
        score += waiting * KV_PENALTY * max(0.0, engine.told_usage - 0.5)
        if score < least:
            rank, least = r, score
    group.start = (group.start + 1) % group.width
    state.engine(arrays, rank).sent_since += 1
    return rank


@inlined
def _lengthened_s(arrays: Any, g: Any, duration_s: Any, now_s: Any) -> Any:
    """The duration of a step that begins at `now_s`, with its noise."""
    group, seconds = state.group(arrays, g), state.service(arrays, 0)
    if not seconds.noisy:
        return duration_s
    factor, stall_s, gauss = state.noise(arrays)[g, group.drawn]
    gap_s, group.drifted_at_s = now_s - group.drifted_at_s, now_s
    group.drawn += 1
    if seconds.drift_sd > 0:  # a stationary AR(1) process (Ornstein and Uhlenbeck)
        kept = math.exp(-max(0.0, gap_s) / seconds.drift_memory_s)
        group.drift = kept * group.drift + seconds.drift_sd * math.sqrt(1 - kept * kept) * gauss
    return duration_s * factor * math.exp(group.drift) + stall_s
