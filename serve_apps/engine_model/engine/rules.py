"""vLLM V1's scheduling rules, compiled: which tokens the next step computes.

The rules (docs/engine_model.md): running requests first, in order; then waiting ones (`admission`); when a
running request lacks a block, the last running one is preempted and recomputed later. On an engine that
receives KV no block is freed under a step that may still write it: nobody is preempted whose tokens are being
computed.
"""

from typing import Any

from serve_apps.engine_model.engine import admission, kv, memory
from serve_apps.engine_model.engine.decoders import (
    compute,
    context,
    drop_emissions,
    emits_in,
    emitted,
    hashed,
    leave,
    long_prefill_limit,
    missing,
    partials,
    put,
    ring_bucket,
    scheduled,
    set_partial,
)
from serve_apps.engine_model.engine.lists import NONE, insert_after, move_all, pop_first
from serve_apps.engine_model.engine.lists import remove as unlink
from serve_apps.engine_model.engine.native import inlined, native
from serve_apps.engine_model.engine.records import (
    DUE,
    ENDING,
    ENDS,
    HELD,
    KEPT,
    LOADING,
    NOWHERE,
    PARTIAL,
    PARTIALS,
    PLACES,
    RUNNING,
    TOUCHED,
    TOUCHES,
    WAITING,
    WHOLE,
)


@native
def schedule(arrays: Any, r: Any, now_s: Any) -> bool:
    """Choose the tokens of the next step, in `batches`; False where nothing can be computed."""
    engine, batch = memory.engine(arrays, r), memory.batch(arrays, r)
    batch.decode = batch.prefill = batch.context = batch.sequences = 0
    batch.pairs = 0.0
    preemptions, last = engine.preemptions, engine.scheduled
    number = last + 1
    memory.emits(arrays, r, number & 1).count = 0
    held = engine.interval > 1 and _holds_prefills(arrays, r, number)
    if (held and partials(arrays, r)) or not _continue_all(arrays, r, number):
        _walk(arrays, r, number, held)
    if engine.preemptions == preemptions:
        if memory.count(arrays, r, WAITING) or engine.loaded:
            admission.admit(arrays, r, number, now_s, held)
        if not held:
            engine.backed_up = 1 if memory.count(arrays, r, WAITING) else 0
    if not batch.decode + batch.prefill:
        return False
    engine.scheduled = number
    batch.sequences = memory.emits(arrays, r, number & 1).count
    ending = memory.queue(arrays, r, ENDING + (number & 1))
    move_all(ring_bucket(arrays, r, number), ending)
    i = ending.head
    while i != NONE:
        leave(arrays, r, i, last)
        i = memory.link(arrays, i, ENDS).next
    return True


@native
def complete(arrays: Any, r: Any, at_s: Any) -> None:
    """The oldest scheduled step ends at `at_s`: its tokens exist; the finished are left in its queue
    `ENDING`."""
    engine = memory.engine(arrays, r)
    step = engine.completed + 1
    engine.completed, engine.at_s = step, at_s
    engine.generation_tokens += memory.emits(arrays, r, step & 1).count
    touched = memory.queue(arrays, r, TOUCHED + (step & 1))
    while touched.count:
        request = memory.request(arrays, pop_first(touched, memory.links(arrays), TOUCHES))
        request.touched = 0
        if request.most:  # 0: aborted
            request.last_s = at_s
            if request.first_s != request.first_s:
                request.first_s = at_s
                engine.prompt_tokens += request.prompt
    ending = memory.queue(arrays, r, ENDING + (step & 1))
    i = ending.head
    while i != NONE:
        after, request = memory.link(arrays, i, ENDS).next, memory.request(arrays, i)
        if request.most == request.output:
            _finish(arrays, r, i, at_s)
        else:  # aborted
            unlink(ending, memory.links(arrays), ENDS, i)
        i = after


@native
def abort(arrays: Any, r: Any, i: Any) -> None:
    """Forget a running or waiting request; in the middle of a step it emits nothing more.

    Blocks that a transfer still writes are kept until it ends.
    """
    request, engine = memory.request(arrays, i), memory.engine(arrays, r)
    drop_emissions(arrays, r, i)
    place = request.place
    put(arrays, r, i, KEPT if place == LOADING else NOWHERE)
    if place == RUNNING:
        _release(arrays, r, i)
    elif place == LOADING and request.loaded:
        request.loaded = 0
        engine.loaded -= 1
        transferred(arrays, r, i)
    request.most = emitted(engine, request)


@native
def transferred(arrays: Any, r: Any, i: Any) -> None:
    """A transfer to or from this request is known to be over: it may be computed, or its blocks go."""
    request, engine = memory.request(arrays, i), memory.engine(arrays, r)
    if request.place == LOADING:
        engine.loaded += 1 - request.loaded
        request.loaded = 1
    elif request.place == KEPT:
        put(arrays, r, i, NOWHERE)
        kv.free(arrays, r, i, request.computed // engine.block)


@native
def emitting(arrays: Any, r: Any, out: Any) -> Any:
    """The requests that get a token when the oldest scheduled step completes; returns their number."""
    step, count = memory.engine(arrays, r).completed + 1, 0
    i = memory.queue(arrays, r, RUNNING).head
    while i != NONE:
        if emits_in(memory.request(arrays, i), step):
            out[count] = i
            count += 1
        i = memory.link(arrays, i, PLACES).next
    for queue, family in ((TOUCHED, TOUCHES), (ENDING, ENDS)):
        i = memory.queue(arrays, r, queue + (step & 1)).head
        while i != NONE:
            request = memory.request(arrays, i)
            if request.place != RUNNING and emits_in(request, step):
                twice = family == ENDS and request.touched
                if not twice:
                    out[count] = i
                    count += 1
            i = memory.link(arrays, i, family).next
    return count


@inlined
def _finish(arrays: Any, r: Any, i: Any, at_s: Any) -> None:
    request, engine = memory.request(arrays, i), memory.engine(arrays, r)
    request.last_s = at_s
    engine.open -= 1
    running = request.place == RUNNING
    if running and request.kv == HELD:
        put(arrays, r, i, KEPT)
        return
    put(arrays, r, i, NOWHERE)
    set_partial(arrays, r, i, 0)
    if running:  # else preempted while its last token was computed
        kv.free(arrays, r, i, request.computed // engine.block)


@inlined
def _continue_all(arrays: Any, r: Any, number: Any) -> bool:
    """Schedule all decoders at once, then the prompt that the last step's budget has cut, if any.

    Returns False, and does nothing, where not all requests fit, so that order matters.
    """
    engine, batch = memory.engine(arrays, r), memory.batch(arrays, r)
    budget = engine.max_tokens - engine.decoders
    cut = partials(arrays, r)
    if engine.long_prefill or budget < 0 or cut > 1:
        return False
    opened = memory.needing(arrays, r, engine.scheduled % engine.block).count
    needed, new = opened, 0
    i = memory.queue(arrays, r, PARTIAL).head
    if cut:
        request = memory.request(arrays, i)
        new = min(missing(request), budget)
        needed += kv.blocks_for(engine, request.computed + new) - request.blocks
    if needed > engine.free:
        return False
    batch.decode = engine.decoders
    batch.context = engine.contexts + engine.scheduled * engine.decoders
    memory.emits(arrays, r, number & 1).count = engine.decoders
    if opened:
        kv.take(arrays, r, opened)
    if cut and budget:
        compute(arrays, r, i, new, number)
    return True


@native
def _holds_prefills(arrays: Any, r: Any, number: Any) -> bool:
    """Step `number` comes too soon after one with prefill, and there is something to decode (vLLM 0.33).

    Where the last pass could not admit all, nothing is held back.
    """
    engine, i, due = memory.engine(arrays, r), memory.queue(arrays, r, PARTIAL).head, 0
    if engine.backed_up or number - engine.prefill_step >= engine.interval:
        return False
    while i != NONE:
        due += 1 if memory.request(arrays, i).partial == DUE else 0
        i = memory.link(arrays, i, PARTIALS).next
    return memory.count(arrays, r, RUNNING) > due  # type: ignore[no-any-return]


@native
def _walk(arrays: Any, r: Any, number: Any, held: Any) -> None:
    """Schedule the missing tokens of one running request after the other, while the budget lasts."""
    engine, batch = memory.engine(arrays, r), memory.batch(arrays, r)
    budget, limit = engine.max_tokens, long_prefill_limit(arrays, r)
    i = memory.queue(arrays, r, RUNNING).head
    while i != NONE:
        request = memory.request(arrays, i)
        new = min(1 if request.decoding else missing(request), min(limit, budget))
        if scheduled(engine, request) != request.output and not (held and request.partial == DUE):
            if new and not _make_room(arrays, r, i, new):
                _pause_from(arrays, r, i)
                return
            if not request.decoding:
                if new:
                    compute(arrays, r, i, new, number)
            elif new:
                batch.decode += 1
                batch.context += context(engine, request)
                kv.take(arrays, r, _blocks_lacking(engine, request, 1))
                memory.emits(arrays, r, number & 1).count += 1
            else:
                _pause(arrays, r, i)
            budget -= new
        i = memory.link(arrays, i, PLACES).next


@inlined
def _make_room(arrays: Any, r: Any, i: Any, new: Any) -> bool:
    """Free blocks for `new` tokens at the cost of the last running; False if that is request `i` itself.

    False also where a step in flight writes the blocks of the last, and the engine receives KV.
    """
    engine, request = memory.engine(arrays, r), memory.request(arrays, i)
    while _blocks_lacking(engine, request, new) > engine.free:
        last = memory.queue(arrays, r, RUNNING).tail
        if engine.receives:
            it = memory.request(arrays, last)
            if (engine.scheduled if it.decoding else it.last_step) > engine.completed:
                return False
        _preempt(arrays, r, last)
        if last == i:
            return False
    return True


@inlined
def _pause_from(arrays: Any, r: Any, i: Any) -> None:
    """Compute nothing of a running request in this step, nor of those behind it."""
    if memory.request(arrays, i).place != RUNNING:
        return  # preempted, as all behind it
    while i != NONE:
        if memory.request(arrays, i).decoding:
            _pause(arrays, r, i)
        i = memory.link(arrays, i, PLACES).next


@native
def _pause(arrays: Any, r: Any, i: Any) -> None:
    """Give a decoder no token in this step."""
    leave(arrays, r, i, memory.engine(arrays, r).scheduled)
    set_partial(arrays, r, i, WHOLE)


@inlined
def _preempt(arrays: Any, r: Any, i: Any) -> None:
    """Return a request to the queue; its blocks keep their hashes, so that it may find them again."""
    request, engine = memory.request(arrays, i), memory.engine(arrays, r)
    put(arrays, r, i, NOWHERE)
    kv.name_all(arrays, r, i, hashed(engine, request))
    _release(arrays, r, i)
    if request.kv == HELD:  # KV that is to be handed on is gone: tokens in flight count for nothing
        drop_emissions(arrays, r, i)
        request.most = emitted(engine, request)
    request.computed = 0
    request.place = WAITING
    insert_after(memory.queue(arrays, r, WAITING), memory.links(arrays), PLACES, NONE, i)
    engine.preemptions += 1


@native
def _release(arrays: Any, r: Any, i: Any) -> None:
    """Give back the blocks of a request that runs no longer."""
    request, engine = memory.request(arrays, i), memory.engine(arrays, r)
    known = hashed(engine, request)
    if request.decoding:
        leave(arrays, r, i, engine.scheduled)
    set_partial(arrays, r, i, 0)
    kv.free(arrays, r, i, known)


@native
def _blocks_lacking(engine: Any, request: Any, new: Any) -> Any:
    has = context(engine, request) if request.decoding else request.computed
    blocks = kv.blocks_for(engine, has) if request.decoding else request.blocks
    return kv.blocks_for(engine, has + new) - blocks
