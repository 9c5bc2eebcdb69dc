"""vLLM V1's scheduling rules, compiled: which tokens the next step computes.

The rules (docs/engine_model.md): running requests first, in order; then waiting ones, first come first
served, while token budget and request slots remain; a prompt is admitted only when the whole of it fits the
free blocks, and nobody overtakes one that does not fit; when a running request lacks a block, the last
running one is preempted and recomputed later.

A prompt whose KV comes from another engine takes all its blocks and waits beside the queue, without a slot;
once its KV is known to be there it comes before all that wait. On an engine that receives KV no block is
freed under a step that may still write it: nobody is preempted whose tokens are being computed.
"""

from typing import Any

from serve_apps.engine_model.engine import kv, memory
from serve_apps.engine_model.engine.decoders import (
    context,
    drop_emissions,
    emits_in,
    emitted,
    hashed,
    join,
    leave,
    missing,
    partials,
    scheduled,
    set_partial,
)
from serve_apps.engine_model.engine.lists import (
    COUNT,
    HEAD,
    NEXT,
    NONE,
    TAIL,
    append,
    move_all,
    pop_first,
    prepend,
)
from serve_apps.engine_model.engine.lists import remove as unlink
from serve_apps.engine_model.engine.native import inlined, native
from serve_apps.engine_model.engine.records import (
    DUE,
    ENDING,
    ENDS,
    HELD,
    KEPT,
    LOADING,
    MOVES,
    NOWHERE,
    OWN,
    PARTIAL,
    PARTIALS,
    PLACES,
    REMOTE,
    RUNNING,
    STARTED,
    TOUCHED,
    TOUCHES,
    WAITING,
    WHOLE,
)


@native
def put(arrays: Any, r: Any, i: Any, place: Any) -> None:
    """Take a request from its place to the end of another one, or `NOWHERE`."""
    request = memory.requests(arrays)[i]
    if request.place != NOWHERE:
        unlink(memory.queues(arrays)[r, request.place], memory.links(arrays)[PLACES], i)
    request.place = place
    if place != NOWHERE:
        append(memory.queues(arrays)[r, place], memory.links(arrays)[PLACES], i)


@native
def schedule(arrays: Any, r: Any, now_s: Any) -> bool:
    """Choose the tokens of the next step, in `batches`; False where nothing can be computed."""
    engine, batch, queues = memory.engines(arrays)[r], memory.batches(arrays)[r], memory.queues(arrays)[r]
    batch.decode = batch.prefill = batch.context = batch.sequences = 0
    batch.pairs = 0.0
    preemptions, last = engine.preemptions, engine.scheduled
    number = last + 1
    memory.emits(arrays)[r, number & 1] = 0
    if not _continue_all(arrays, r, number):
        _walk(arrays, r, number)
    if (queues[WAITING, COUNT] or engine.loaded) and engine.preemptions == preemptions:
        _admit(arrays, r, number, now_s)
    if not batch.decode + batch.prefill:
        return False
    engine.scheduled = number
    batch.sequences = memory.emits(arrays)[r, number & 1]
    ending = queues[ENDING + (number & 1)]
    move_all(memory.ring(arrays)[r, number & (memory.ring(arrays).shape[1] - 1)], ending)
    i = ending[HEAD]
    while i != NONE:
        leave(arrays, r, i, last)
        i = memory.links(arrays)[ENDS, i, NEXT]
    return True


@native
def complete(arrays: Any, r: Any, at_s: Any) -> None:
    """The oldest scheduled step ends at `at_s`: its tokens exist; the finished are left in its queue
    `ENDING`."""
    engine, queues = memory.engines(arrays)[r], memory.queues(arrays)[r]
    step = engine.completed + 1
    engine.completed, engine.at_s = step, at_s
    engine.generation_tokens += memory.emits(arrays)[r, step & 1]
    touched = queues[TOUCHED + (step & 1)]
    while touched[COUNT]:
        request = memory.requests(arrays)[pop_first(touched, memory.links(arrays)[TOUCHES])]
        request.touched = 0
        if request.most:  # 0: aborted
            request.last_s = at_s
            if request.first_s != request.first_s:
                request.first_s = at_s
                engine.prompt_tokens += request.prompt
    ending, i = queues[ENDING + (step & 1)], queues[ENDING + (step & 1), HEAD]
    while i != NONE:
        after, request = memory.links(arrays)[ENDS, i, NEXT], memory.requests(arrays)[i]
        if request.most == request.output:
            _finish(arrays, r, i, at_s)
        else:  # aborted
            unlink(ending, memory.links(arrays)[ENDS], i)
        i = after


@native
def abort(arrays: Any, r: Any, i: Any) -> None:
    """Forget a running or waiting request; in the middle of a step it emits nothing more.

    Blocks that a transfer still writes are kept until it ends.
    """
    request, engine = memory.requests(arrays)[i], memory.engines(arrays)[r]
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
    request, engine = memory.requests(arrays)[i], memory.engines(arrays)[r]
    if request.place == LOADING:
        engine.loaded += 1 - request.loaded
        request.loaded = 1
    elif request.place == KEPT:
        put(arrays, r, i, NOWHERE)
        kv.free(arrays, r, i, request.computed // engine.block)


@native
def emitting(arrays: Any, r: Any, out: Any) -> Any:
    """The requests that get a token when the oldest scheduled step completes; returns their number."""
    step, count, queues = memory.engines(arrays)[r].completed + 1, 0, memory.queues(arrays)[r]
    i = queues[RUNNING, HEAD]
    while i != NONE:
        if emits_in(memory.requests(arrays)[i], step):
            out[count] = i
            count += 1
        i = memory.links(arrays)[PLACES, i, NEXT]
    for queue, family in ((TOUCHED, TOUCHES), (ENDING, ENDS)):
        i = queues[queue + (step & 1), HEAD]
        while i != NONE:
            request = memory.requests(arrays)[i]
            if request.place != RUNNING and emits_in(request, step):
                twice = family == ENDS and request.touched
                if not twice:
                    out[count] = i
                    count += 1
            i = memory.links(arrays)[family, i, NEXT]
    return count


@inlined
def _finish(arrays: Any, r: Any, i: Any, at_s: Any) -> None:
    request, engine = memory.requests(arrays)[i], memory.engines(arrays)[r]
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
    engine, batch = memory.engines(arrays)[r], memory.batches(arrays)[r]
    budget = engine.max_tokens - engine.decoders
    cut = partials(arrays, r)
    if engine.long_prefill or budget < 0 or cut > 1:
        return False
    opened = memory.needing(arrays)[r, engine.scheduled % engine.block]
    needed, new = opened, 0
    i = memory.queues(arrays)[r, PARTIAL, HEAD]
    if cut:
        request = memory.requests(arrays)[i]
        new = min(missing(request), budget)
        needed += kv.blocks_for(engine, request.computed + new) - request.blocks
    if needed > engine.free:
        return False
    batch.decode = engine.decoders
    batch.context = engine.contexts + engine.scheduled * engine.decoders
    memory.emits(arrays)[r, number & 1] = engine.decoders
    if opened:
        kv.take(arrays, r, opened)
    if cut and budget:
        _compute(arrays, r, i, new, number)
    return True


@inlined
def _walk(arrays: Any, r: Any, number: Any) -> None:
    """Schedule the missing tokens of one running request after the other, while the budget lasts."""
    engine, batch = memory.engines(arrays)[r], memory.batches(arrays)[r]
    budget, limit = engine.max_tokens, _long_prefill_limit(arrays, r)
    i = memory.queues(arrays)[r, RUNNING, HEAD]
    while i != NONE:
        request = memory.requests(arrays)[i]
        new = min(1 if request.decoding else missing(request), min(limit, budget))
        if scheduled(engine, request) != request.output:
            if new and not _make_room(arrays, r, i, new):
                _pause_from(arrays, r, i)
                return
            if not request.decoding:
                if new:
                    _compute(arrays, r, i, new, number)
            elif new:
                batch.decode += 1
                batch.context += context(engine, request)
                kv.take(arrays, r, _blocks_lacking(engine, request, 1))
                memory.emits(arrays)[r, number & 1] += 1
            else:
                _pause(arrays, r, i)
            budget -= new
        i = memory.links(arrays)[PLACES, i, NEXT]


@inlined
def _make_room(arrays: Any, r: Any, i: Any, new: Any) -> bool:
    """Free blocks for `new` tokens at the cost of the last running; False if that is request `i` itself.

    False also where a step in flight writes the blocks of the last, and the engine receives KV.
    """
    engine, request = memory.engines(arrays)[r], memory.requests(arrays)[i]
    while _blocks_lacking(engine, request, new) > engine.free:
        last = memory.queues(arrays)[r, RUNNING, TAIL]
        if engine.receives:
            it = memory.requests(arrays)[last]
            if (engine.scheduled if it.decoding else it.last_step) > engine.completed:
                return False
        _preempt(arrays, r, last)
        if last == i:
            return False
    return True


@inlined
def _pause_from(arrays: Any, r: Any, i: Any) -> None:
    """Compute nothing of a running request in this step, nor of those behind it."""
    if memory.requests(arrays)[i].place != RUNNING:
        return  # preempted, as all behind it
    while i != NONE:
        if memory.requests(arrays)[i].decoding:
            _pause(arrays, r, i)
        i = memory.links(arrays)[PLACES, i, NEXT]


@native
def _pause(arrays: Any, r: Any, i: Any) -> None:
    """Give a decoder no token in this step."""
    leave(arrays, r, i, memory.engines(arrays)[r].scheduled)
    set_partial(arrays, r, i, WHOLE)


@inlined
def _preempt(arrays: Any, r: Any, i: Any) -> None:
    """Return a request to the queue; its blocks keep their hashes, so that it may find them again."""
    request, engine = memory.requests(arrays)[i], memory.engines(arrays)[r]
    put(arrays, r, i, NOWHERE)
    kv.name_all(arrays, r, i, hashed(engine, request))
    _release(arrays, r, i)
    if request.kv == HELD:  # KV that is to be handed on is gone: tokens in flight count for nothing
        drop_emissions(arrays, r, i)
        request.most = emitted(engine, request)
    request.computed = 0
    request.place = WAITING
    prepend(memory.queues(arrays)[r, WAITING], memory.links(arrays)[PLACES], i)
    engine.preemptions += 1


@native
def _release(arrays: Any, r: Any, i: Any) -> None:
    """Give back the blocks of a request that runs no longer."""
    request, engine = memory.requests(arrays)[i], memory.engines(arrays)[r]
    known = hashed(engine, request)
    if request.decoding:
        leave(arrays, r, i, engine.scheduled)
    set_partial(arrays, r, i, 0)
    kv.free(arrays, r, i, known)


@inlined
def _admit(arrays: Any, r: Any, number: Any, now_s: Any) -> None:
    engine, batch, queues = memory.engines(arrays)[r], memory.batches(arrays)[r], memory.queues(arrays)[r]
    limit = _long_prefill_limit(arrays, r)
    budget = engine.max_tokens - batch.decode - batch.prefill
    if engine.loaded:
        budget = _admit_loaded(arrays, r, budget, number, now_s)
    while queues[WAITING, COUNT] and budget and queues[RUNNING, COUNT] < engine.max_seqs:
        i = queues[WAITING, HEAD]
        request = memory.requests(arrays)[i]
        tokens = request.prompt + request.most
        found = idle = 0
        if request.pieces or request.own_blocks:
            found, idle = kv.find(arrays, r, i, (tokens - 1) // engine.block)
        needed = kv.blocks_for(engine, tokens) - found + idle
        if request.kv == REMOTE:
            if needed + _reserved_blocks(arrays, r) > engine.free:
                return
            _load(arrays, r, i, found)
            continue
        if needed > engine.free:
            return
        _start(arrays, r, i, number, now_s)
        if found:
            kv.hold(arrays, r, i, found)
        request.computed = found * engine.block
        if request.cached < 0:
            request.cached = request.computed
            _count_hits(engine, request, tokens)
        new = min(tokens - request.computed, min(limit, budget))
        _compute(arrays, r, i, new, number)
        budget -= new


@native
def _start(arrays: Any, r: Any, i: Any, number: Any, now_s: Any) -> None:
    """Give a request a slot."""
    request, engine = memory.requests(arrays)[i], memory.engines(arrays)[r]
    put(arrays, r, i, RUNNING)
    engine.admitted += 1
    request.order = engine.admitted
    request.first_step = number
    if request.scheduled_s != request.scheduled_s:
        request.scheduled_s = now_s
    if engine.ahead_first == NONE:
        engine.ahead_first = i


@inlined
def _count_hits(engine: Any, request: Any, tokens: Any) -> None:
    if engine.caching:
        engine.prefix_queries += tokens
        engine.prefix_hits += request.computed


@inlined
def _load(arrays: Any, r: Any, i: Any, found: Any) -> None:
    """Take blocks for the whole prompt and wait for what is not cached."""
    request, engine = memory.requests(arrays)[i], memory.engines(arrays)[r]
    if found:
        kv.hold(arrays, r, i, found)
    request.computed = found * engine.block
    request.to_load = request.prompt - request.computed
    blocks = kv.blocks_for(engine, request.prompt)
    kv.take(arrays, r, blocks - found)
    request.blocks = blocks
    _count_hits(engine, request, request.prompt)
    request.kv = OWN
    put(arrays, r, i, LOADING)
    append(memory.queues(arrays)[r, STARTED], memory.links(arrays)[MOVES], i)
    request.moving = 1


@inlined
def _admit_loaded(arrays: Any, r: Any, budget: Any, number: Any, now_s: Any) -> Any:
    """Compute the last token of the prompts whose KV is there; returns what is left of the budget."""
    engine, queues = memory.engines(arrays)[r], memory.queues(arrays)[r]
    i = queues[LOADING, HEAD]
    while i != NONE and budget and queues[RUNNING, COUNT] < engine.max_seqs:
        after, request = memory.links(arrays)[PLACES, i, NEXT], memory.requests(arrays)[i]
        if request.loaded:
            request.loaded = 0
            engine.loaded -= 1
            _start(arrays, r, i, number, now_s)
            request.cached = request.computed = request.own = request.prompt - 1
            _compute(arrays, r, i, 1, number)
            budget -= 1
        i = after
    return budget


@inlined
def _reserved_blocks(arrays: Any, r: Any) -> Any:
    """Blocks that the prompts in computation still need, which a transfer must leave them."""
    i, blocks = memory.queues(arrays)[r, PARTIAL, HEAD], 0
    while i != NONE:
        request = memory.requests(arrays)[i]
        if request.partial == DUE:
            blocks += kv.blocks_for(memory.engines(arrays)[r], request.prompt + request.most) - request.blocks
        i = memory.links(arrays)[PARTIALS, i, NEXT]
    return blocks


@native
def _compute(arrays: Any, r: Any, i: Any, new: Any, number: Any) -> None:
    """Compute `new` of the missing tokens, for which there are blocks."""
    request, batch = memory.requests(arrays)[i], memory.batches(arrays)[r]
    before = request.computed
    request.last_step, request.new = number, new
    batch.context += before
    if new == 1 and before >= request.own:
        batch.decode += 1
    else:
        batch.prefill += new
        batch.pairs += new * (before + new / 2)
    request.computed = before + new
    kv.extend(arrays, r, i, request.computed)
    if request.computed < request.prompt + request.most:
        set_partial(arrays, r, i, DUE)
        return
    set_partial(arrays, r, i, 0)
    join(arrays, r, i, number)


@native
def _blocks_lacking(engine: Any, request: Any, new: Any) -> Any:
    has = context(engine, request) if request.decoding else request.computed
    blocks = kv.blocks_for(engine, has) if request.decoding else request.blocks
    return kv.blocks_for(engine, has + new) - blocks


@native
def _long_prefill_limit(arrays: Any, r: Any) -> Any:
    """Tokens of one prompt per step; a request that is alone may have all."""
    engine, queues = memory.engines(arrays)[r], memory.queues(arrays)[r]
    alone = queues[RUNNING, COUNT] + queues[WAITING, COUNT] + queues[LOADING, COUNT] <= 1
    return engine.max_tokens if alone or not engine.long_prefill else engine.long_prefill
