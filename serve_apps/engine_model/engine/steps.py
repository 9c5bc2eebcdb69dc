"""One engine's core loop, compiled: front end, steps scheduled ahead, transfers of KV, the sleep of an idle
core.

vLLM's engine/core.py: with asynchronous scheduling the tokens of a step are chosen when the one before it
begins (EngineCore.step_with_batch_queue). Workers look for ended transfers when they are handed a step, and
the scheduler learns it from that step's output. An empty step has its output at once; with asynchronous
scheduling it is read after the one behind it was chosen. While a transfer is awaited the core goes on with
empty steps, a sleep apart.
"""

import math
from typing import Any

from serve_apps.engine_model.engine import memory, rules
from serve_apps.engine_model.engine.decoders import emits_in, put
from serve_apps.engine_model.engine.lists import NONE, append, insert_after, pop_first
from serve_apps.engine_model.engine.lists import remove as unlink
from serve_apps.engine_model.engine.native import inlined, native
from serve_apps.engine_model.engine.records import (
    ARRIVING,
    ENDED,
    ENDING,
    ENDS,
    KEPT,
    LOADING,
    MOVES,
    NOWHERE,
    OWN,
    PLACES,
    REMOTE,
    RUNNING,
    SEEN,
    STARTED,
    UNREAD,
    WAITING,
)

IDLE_POLL_S = 1e-3
"""Sleep of vLLM's core when a step has nothing to compute (engine/core.py, _process_engine_step)."""


def free_again_s(now_s: float, free_s: float, work_s: float) -> float:
    """End of the serial front end's work on a request that comes at `now_s`, while it is busy until
    `free_s`."""
    return max(now_s, free_s) + work_s


_free_again_s = native(free_again_s)


@native
def add(arrays: Any, r: Any, i: Any, now_s: Any, more_s: Any) -> None:
    """Request `i` passes the front end, with `more_s` of work for its images; then it waits in turn."""
    request, engine = memory.request(arrays, i), memory.engine(arrays, r)
    engine.front_free_s = _free_again_s(now_s, engine.front_free_s, engine.front_end_s + more_s)
    request.ready_s = engine.front_free_s + engine.latency_s
    request.engine = r
    request.own = request.prompt
    engine.open += 1
    if request.kv != OWN:
        engine.moves = 1
    put(arrays, r, i, ARRIVING)


@native
def abort(arrays: Any, r: Any, i: Any) -> None:
    """Drop an open request and free its blocks; those for which KV is on its way stay until it is there."""
    engine, request = memory.engine(arrays, r), memory.request(arrays, i)
    engine.open -= 1
    if request.place == ARRIVING:
        put(arrays, r, i, NOWHERE)
    else:
        rules.abort(arrays, r, i)
        engine.stalled = 0


@native
def choose(arrays: Any, r: Any, now_s: Any) -> bool:
    """Choose the work of the step that begins now; its figures are in `batches`. False without any.

    The work of an engine with a step ahead was chosen before; its figures come from the caller.
    """
    engine = memory.engine(arrays, r)
    if engine.stalled and now_s < _next_look_s(arrays, r):
        return False
    arriving = memory.queue(arrays, r, ARRIVING)
    while arriving.count:
        i, request = arriving.head, memory.request(arrays, arriving.head)
        if request.ready_s > now_s:
            break
        request.queued_s = now_s
        engine.receives |= 1 if request.kv == REMOTE else 0
        put(arrays, r, i, WAITING)
    if not engine.ahead:
        engine.ahead_first = NONE
        if now_s < engine.idle_until_s or not _schedule(arrays, r, now_s):
            return False
    _note_begin(arrays, r, now_s)
    engine.ahead = 0
    return True


@native
def choose_ahead(arrays: Any, r: Any, now_s: Any) -> None:
    """With asynchronous scheduling, choose the work of the step after the one that begins now."""
    engine = memory.engine(arrays, r)
    if engine.asynchronous:
        engine.ahead_first = NONE
        engine.ahead = 1 if _schedule(arrays, r, now_s) else 0


@native
def end(arrays: Any, r: Any, at_s: Any) -> None:
    """The tokens of the step begun last exist; the finished requests are in the queue `ENDING` of that
    step."""
    engine = memory.engine(arrays, r)
    if len(memory.tokens(arrays)):
        _note_tokens(arrays, r, at_s)
    rules.complete(arrays, r, at_s)
    if engine.moves:
        engine.stalled = 0
        _learn(arrays, r, memory.queue(arrays, r, SEEN + (engine.completed & 1)))
    if engine.asynchronous and not engine.ahead:
        engine.idle_until_s = at_s + IDLE_POLL_S


@native
def pop_finished(arrays: Any, r: Any) -> Any:
    """The next request that finished in the step that ended last; `NONE` after the last."""
    queue = memory.queue(arrays, r, ENDING + (memory.engine(arrays, r).completed & 1))
    return pop_first(queue, memory.links(arrays), ENDS) if queue.count else NONE


@native
def pop_started(arrays: Any, r: Any) -> Any:
    """The next request that took blocks for the KV of another engine; `NONE` after the last."""
    queue = memory.queue(arrays, r, STARTED)
    if not queue.count:
        return NONE
    i = pop_first(queue, memory.links(arrays), MOVES)
    memory.request(arrays, i).moving = 0
    return i


@native
def transfer_ends(arrays: Any, r: Any, i: Any, at_s: Any) -> None:
    """The transfer to or from a request ends at `at_s`, which may lie ahead."""
    request, queue, links = memory.request(arrays, i), memory.queue(arrays, r, ENDED), memory.links(arrays)
    if request.moving:
        unlink(memory.queue(arrays, r, STARTED), links, MOVES, i)
    request.moving, request.moved_s = 1, at_s
    before = queue.tail
    while before != NONE and memory.request(arrays, before).moved_s > at_s:
        before = links[before, MOVES].previous
    insert_after(queue, links, MOVES, before, i)


@native
def ready_s(arrays: Any, r: Any) -> Any:
    """Earliest time a step has work: -inf when it is there already, inf when the engine is empty."""
    engine = memory.engine(arrays, r)
    if engine.ahead:
        return -math.inf
    if engine.stalled:
        return _next_look_s(arrays, r)
    if memory.count(arrays, r, RUNNING) or memory.count(arrays, r, WAITING) or _awaiting(arrays, r):
        return engine.idle_until_s
    arriving = memory.queue(arrays, r, ARRIVING)
    if arriving.count:
        return max(memory.request(arrays, arriving.head).ready_s, engine.idle_until_s)
    return math.inf


@native
def _schedule(arrays: Any, r: Any, now_s: Any) -> bool:
    """Choose the next step; of an engine that sends or receives KV also empty ones."""
    engine = memory.engine(arrays, r)
    if not engine.moves:
        return rules.schedule(arrays, r, now_s)  # type: ignore[no-any-return]
    preemptions, unread = engine.preemptions, memory.queue(arrays, r, UNREAD)
    works, ended = rules.schedule(arrays, r, now_s), memory.queue(arrays, r, ENDED)
    learned = unread.count > 0
    _learn(arrays, r, unread)
    target = memory.queue(arrays, r, SEEN + (engine.scheduled & 1)) if works else unread
    while ended.count and memory.request(arrays, ended.head).moved_s <= now_s:
        append(target, memory.links(arrays), MOVES, pop_first(ended, memory.links(arrays), MOVES))
    if not works and not engine.asynchronous:
        learned = unread.count > 0
        _learn(arrays, r, unread)
    engine.stalled = 0
    open_requests = memory.count(arrays, r, WAITING) + memory.count(arrays, r, RUNNING)
    if not works and (open_requests or _awaiting(arrays, r)):
        engine.idle_until_s = now_s + IDLE_POLL_S
        idle = not learned and not unread.count and engine.preemptions == preemptions
        engine.stalled = 1 if idle else 0
    return works  # type: ignore[no-any-return]


@native
def _learn(arrays: Any, r: Any, queue: Any) -> None:
    while queue.count:
        i = pop_first(queue, memory.links(arrays), MOVES)
        memory.request(arrays, i).moving = 0
        rules.transferred(arrays, r, i)


@inlined
def _awaiting(arrays: Any, r: Any) -> bool:
    """True if blocks are held for a transfer."""
    return memory.count(arrays, r, LOADING) + memory.count(arrays, r, KEPT) > 0  # type: ignore[no-any-return]


@native
def _next_look_s(arrays: Any, r: Any) -> Any:
    """The first look of an idle core at which something will have happened."""
    engine, due_s = memory.engine(arrays, r), math.inf
    arriving, ended = memory.queue(arrays, r, ARRIVING), memory.queue(arrays, r, ENDED)
    if arriving.count:
        due_s = memory.request(arrays, arriving.head).ready_s
    if ended.count:
        due_s = min(due_s, memory.request(arrays, ended.head).moved_s)
    if due_s == math.inf:
        return due_s
    sleeps = math.ceil(max(0.0, due_s - engine.idle_until_s) / IDLE_POLL_S)
    return engine.idle_until_s + sleeps * IDLE_POLL_S


@inlined
def _note_begin(arrays: Any, r: Any, now_s: Any) -> None:
    """The step that begins computes those that it admitted from now on."""
    i = memory.engine(arrays, r).ahead_first
    while i != NONE:
        if memory.request(arrays, i).first_step == memory.engine(arrays, r).completed + 1:
            memory.request(arrays, i).begun_s = now_s
        i = memory.link(arrays, i, PLACES).next


@inlined
def _note_tokens(arrays: Any, r: Any, at_s: Any) -> None:
    """Keep the time of every token of the step that ends."""
    engine = memory.engine(arrays, r)
    step = engine.completed + 1
    for queue in (RUNNING, WAITING):
        i = memory.queue(arrays, r, queue).head
        while i != NONE:
            request = memory.request(arrays, i)
            if emits_in(request, step):
                memory.tokens(arrays)[request.token + request.ahead + step - 1] = at_s
            i = memory.link(arrays, i, PLACES).next
