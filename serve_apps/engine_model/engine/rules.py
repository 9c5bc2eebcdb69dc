"""vLLM V1's scheduling rules (docs/engine_model.md), compiled: which tokens the next step computes."""

from typing import Any

from serve_apps.engine_model.engine import decoders, kv, state
from serve_apps.engine_model.engine.native import NONE, append, inlined, insert_after, native, pop_first
from serve_apps.engine_model.engine.native import remove as unlink


@native
def schedule(arrays: Any, r: Any, now_s: Any) -> bool:
    """Choose the tokens of the next step; False where nothing can be computed."""
    engine = state.engine(arrays, r)
    engine.decode = engine.prefill = engine.context = engine.samples = 0
    engine.pairs = 0.0
    preemptions, last = engine.preemptions, engine.scheduled
    number = last + 1
    state.emits(arrays, r, number & 1).count = 0
    # Soon after a step with prefill none is computed, if others decode and none was left waiting (vLLM 0.33).
    soon = number - engine.prefill_step < engine.prefill_schedule_interval
    held = soon and not engine.backed_up and state.count(arrays, r, state.RUNNING) > engine.due
    if (held and state.count(arrays, r, state.PARTIAL)) or not _continue_all(arrays, r, number):
        _walk(arrays, r, number, held)
    if engine.preemptions == preemptions:
        if state.count(arrays, r, state.WAITING) or engine.loaded:
            _admit(arrays, r, number, now_s, held)
        if not held:
            engine.backed_up = 1 if state.count(arrays, r, state.WAITING) else 0
    if not engine.decode + engine.prefill:
        return False
    engine.scheduled = number
    engine.samples = state.emits(arrays, r, number & 1).count
    ending = state.queue(arrays, r, state.ENDING + (number & 1))
    bucket = decoders.ring_bucket(arrays, r, number)
    ending.head, ending.tail, ending.count = bucket.head, bucket.tail, bucket.count
    bucket.head, bucket.tail, bucket.count = NONE, NONE, 0
    i = ending.head
    while i != NONE:
        decoders.leave(arrays, r, i, last)
        i = state.link(arrays, i, state.ENDS).next
    return True


@native
def complete(arrays: Any, r: Any, at_s: Any) -> None:
    """The oldest scheduled step ends at `at_s`: its tokens exist; the finished are left in its queue
    `ENDING`."""
    engine = state.engine(arrays, r)
    step = engine.completed + 1
    engine.completed, engine.at_s = step, at_s
    engine.generation_tokens += state.emits(arrays, r, step & 1).count
    touched = state.queue(arrays, r, state.TOUCHED + (step & 1))
    while touched.count:
        request = state.request(arrays, pop_first(touched, state.links(arrays), state.TOUCHES))
        request.touched = 0
        if request.most:  # 0: aborted
            request.last_s = at_s
            if request.first_s != request.first_s:
                request.first_s = at_s
                engine.prompt_tokens += request.prompt
    ending = state.queue(arrays, r, state.ENDING + (step & 1))
    i = ending.head
    while i != NONE:
        after, request = state.link(arrays, i, state.ENDS).next, state.request(arrays, i)
        if request.most == request.output:
            _finish(arrays, r, i, at_s)
        else:  # aborted
            unlink(ending, state.links(arrays), state.ENDS, i)
        i = after


@native
def abort(arrays: Any, r: Any, i: Any) -> None:
    """Drop an open request and free its blocks; in the middle of a step it emits nothing more.

    Blocks for which KV is on its way stay until it is there.
    """
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    place = request.place
    engine.open -= 1
    if place != state.ARRIVING:
        engine.stalled = 0
    decoders.drop_emissions(arrays, r, i)
    decoders.put(arrays, r, i, state.KEPT if place == state.LOADING else state.NOWHERE)
    if place == state.RUNNING:
        _release(arrays, r, i)
    elif place == state.LOADING and request.loaded:
        request.loaded = 0
        engine.loaded -= 1
        transferred(arrays, r, i)
    request.most = decoders.emitted(engine, request)


@native
def transferred(arrays: Any, r: Any, i: Any) -> None:
    """A transfer to or from this request is known to be over: it may be computed, or its blocks go."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    if request.place == state.LOADING:
        engine.loaded += 1 - request.loaded
        request.loaded = 1
    elif request.place == state.KEPT:
        decoders.put(arrays, r, i, state.NOWHERE)
        kv.free(arrays, r, i, request.computed // engine.block_size)


@native
def next_emitting(arrays: Any, r: Any, i: Any) -> Any:
    """The request behind `i`, or the first of all, that gets a token when the oldest step completes.

    `NONE` after the last. Some run no longer: they were preempted while their token is computed.
    """
    step, place = state.engine(arrays, r).completed + 1, state.RUNNING
    if i != NONE:
        place, i = state.request(arrays, i).place, state.link(arrays, i, state.PLACES).next
    else:
        i = state.queue(arrays, r, place).head
    while i != NONE or place == state.RUNNING:
        if i == NONE:
            place, i = state.WAITING, state.queue(arrays, r, state.WAITING).head
        elif decoders.emits_in(state.request(arrays, i), step):
            return i
        else:
            i = state.link(arrays, i, state.PLACES).next
    return NONE


@native
def emitting(arrays: Any, r: Any, out: Any) -> Any:
    """Put the requests that get a token when the oldest step completes into `out`; returns their number."""
    count, i = 0, next_emitting(arrays, r, NONE)
    while i != NONE:
        out[count] = i
        count, i = count + 1, next_emitting(arrays, r, i)
    return count


@inlined
def _finish(arrays: Any, r: Any, i: Any, at_s: Any) -> None:
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    request.last_s = at_s
    engine.open -= 1
    running = request.place == state.RUNNING
    kept = running and request.kv == state.HELD
    decoders.put(arrays, r, i, state.KEPT if kept else state.NOWHERE)
    if kept:
        return
    decoders.set_partial(arrays, r, i, 0)
    if running:  # else preempted while its last token was computed
        kv.free(arrays, r, i, request.computed // engine.block_size)


@inlined
def _continue_all(arrays: Any, r: Any, number: Any) -> bool:
    """Schedule all decoders at once, then the prompt that the last step's budget has cut, if any.

    Returns False, and does nothing, where not all requests fit, so that order matters.
    """
    engine = state.engine(arrays, r)
    budget = engine.max_num_batched_tokens - engine.decoders
    cut = state.count(arrays, r, state.PARTIAL)
    if engine.long_prefill_token_threshold or budget < 0 or cut > 1:
        return False
    opened = state.needing(arrays, r, engine.scheduled % engine.block_size).count
    needed, new = opened, 0
    i = state.queue(arrays, r, state.PARTIAL).head
    if cut:
        request = state.request(arrays, i)
        new = min(decoders.missing(request), budget)
        needed += kv.blocks_for(engine, request.computed + new) - request.blocks
    if needed > engine.free:
        return False
    engine.decode = engine.decoders
    engine.context = engine.contexts + engine.scheduled * engine.decoders
    state.emits(arrays, r, number & 1).count = engine.decoders
    if opened:
        kv.take(arrays, r, opened)
    if cut and budget:
        decoders.compute(arrays, r, i, new, number)
    return True


@native
def _walk(arrays: Any, r: Any, number: Any, held: Any) -> None:
    """Schedule the missing tokens of one running request after the other, while the budget lasts."""
    engine = state.engine(arrays, r)
    budget, limit = engine.max_num_batched_tokens, decoders.long_prefill_limit(arrays, r)
    i = state.queue(arrays, r, state.RUNNING).head
    while i != NONE:
        request = state.request(arrays, i)
        new = min(1 if request.decoding else decoders.missing(request), min(limit, budget))
        waits = held and request.partial == state.DUE
        if decoders.scheduled(engine, request) != request.output and not waits:
            if new and not _make_room(arrays, r, i, new):
                _pause_from(arrays, r, i)
                return
            if not request.decoding:
                if new:
                    decoders.compute(arrays, r, i, new, number)
            elif new:
                engine.decode += 1
                engine.context += decoders.context(engine, request)
                kv.take(arrays, r, _blocks_lacking(engine, request, 1))
                state.emits(arrays, r, number & 1).count += 1
            else:
                _pause(arrays, r, i)
            budget -= new
        i = state.link(arrays, i, state.PLACES).next


@inlined
def _make_room(arrays: Any, r: Any, i: Any, new: Any) -> bool:
    """Free blocks for `new` tokens at the cost of the last running; False if that is request `i` itself.

    False also where a step in flight writes the blocks of the last, and the engine receives KV.
    """
    engine, request = state.engine(arrays, r), state.request(arrays, i)
    while _blocks_lacking(engine, request, new) > engine.free:
        last = state.queue(arrays, r, state.RUNNING).tail
        if engine.receives:
            victim = state.request(arrays, last)
            if (engine.scheduled if victim.decoding else victim.last_step) > engine.completed:
                return False
        _preempt(arrays, r, last)
        if last == i:
            return False
    return True


@inlined
def _pause_from(arrays: Any, r: Any, i: Any) -> None:
    """Compute nothing of a running request in this step, nor of those behind it."""
    if state.request(arrays, i).place != state.RUNNING:
        return  # preempted, as all behind it
    while i != NONE:
        if state.request(arrays, i).decoding:
            _pause(arrays, r, i)
        i = state.link(arrays, i, state.PLACES).next


@native
def _pause(arrays: Any, r: Any, i: Any) -> None:
    """Give a decoder no token in this step."""
    decoders.leave(arrays, r, i, state.engine(arrays, r).scheduled)
    decoders.set_partial(arrays, r, i, state.WHOLE)


@inlined
def _preempt(arrays: Any, r: Any, i: Any) -> None:
    """Return a request to the queue; its blocks keep their hashes, so that it may find them again."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    decoders.put(arrays, r, i, state.NOWHERE)
    known = decoders.hashed(engine, request)
    request.own_blocks = max(request.own_blocks, known)
    kv.name(arrays, r, i, known)
    _release(arrays, r, i)
    if request.kv == state.HELD:  # KV that is to be handed on is gone: tokens in flight count for nothing
        decoders.drop_emissions(arrays, r, i)
        request.most = decoders.emitted(engine, request)
    request.computed = 0
    request.place = state.WAITING
    insert_after(state.queue(arrays, r, state.WAITING), state.links(arrays), state.PLACES, NONE, i)
    engine.preemptions += 1


@native
def _release(arrays: Any, r: Any, i: Any) -> None:
    """Give back the blocks of a request that runs no longer."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    known = decoders.hashed(engine, request)
    if request.decoding:
        decoders.leave(arrays, r, i, engine.scheduled)
    decoders.set_partial(arrays, r, i, 0)
    kv.free(arrays, r, i, known)


@native
def _blocks_lacking(engine: Any, request: Any, new: Any) -> Any:
    has = decoders.context(engine, request) if request.decoding else request.computed
    blocks = kv.blocks_for(engine, has) if request.decoding else request.blocks
    return kv.blocks_for(engine, has + new) - blocks


@native
def _admit(arrays: Any, r: Any, number: Any, now_s: Any, held: Any) -> None:
    engine = state.engine(arrays, r)
    waiting, running = state.queue(arrays, r, state.WAITING), state.queue(arrays, r, state.RUNNING)
    limit = decoders.long_prefill_limit(arrays, r)
    budget = engine.max_num_batched_tokens - engine.decode - engine.prefill
    if engine.loaded:
        budget = _admit_loaded(arrays, r, budget, number, now_s)
    while waiting.count and budget and running.count < engine.max_num_seqs:
        i = waiting.head
        request = state.request(arrays, i)
        tokens = request.prompt + request.most
        hits = idle = 0
        if request.pieces or request.own_blocks:
            hits, idle = kv.find(arrays, r, i, (tokens - 1) // engine.block_size, False)
        needed, remote = kv.blocks_for(engine, tokens) - hits + idle, request.kv == state.REMOTE
        if remote:
            needed += _reserved_blocks(arrays, r)
        if needed > engine.free or (held and not remote and hits * engine.block_size < tokens - 1):
            return
        if hits:
            kv.find(arrays, r, i, hits, True)
        request.computed = hits * engine.block_size
        if remote:
            _load(arrays, r, i, hits)
            continue
        _start(arrays, r, i, now_s)
        if request.cached < 0:
            request.cached = request.computed
            _count_hits(engine, request, tokens)
        new = min(tokens - request.computed, min(limit, budget))
        decoders.compute(arrays, r, i, new, number)
        budget -= new


@native
def _start(arrays: Any, r: Any, i: Any, now_s: Any) -> None:
    """Give a request a slot."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    decoders.put(arrays, r, i, state.RUNNING)
    engine.admitted += 1
    request.order = engine.admitted
    request.begun_s = engine.begin_s
    if request.scheduled_s != request.scheduled_s:
        request.scheduled_s = now_s


@inlined
def _count_hits(engine: Any, request: Any, tokens: Any) -> None:
    if engine.enable_prefix_caching:
        engine.prefix_queries += tokens
        engine.prefix_hits += request.computed


@inlined
def _load(arrays: Any, r: Any, i: Any, hits: Any) -> None:
    """Take blocks for the whole prompt and wait for what is not cached."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    request.to_load = request.prompt - request.computed
    blocks = kv.blocks_for(engine, request.prompt)
    kv.take(arrays, r, blocks - hits)
    request.blocks = blocks
    _count_hits(engine, request, request.prompt)
    request.kv = state.OWN
    decoders.put(arrays, r, i, state.LOADING)
    append(state.queue(arrays, r, state.STARTED), state.links(arrays), state.MOVES, i)
    request.moving = 1


@inlined
def _admit_loaded(arrays: Any, r: Any, budget: Any, number: Any, now_s: Any) -> Any:
    """Compute the last token of the prompts whose KV is there; returns what is left of the budget."""
    engine = state.engine(arrays, r)
    i = state.queue(arrays, r, state.LOADING).head
    while i != NONE and budget and state.count(arrays, r, state.RUNNING) < engine.max_num_seqs:
        after, request = state.link(arrays, i, state.PLACES).next, state.request(arrays, i)
        if request.loaded:
            request.loaded = 0
            engine.loaded -= 1
            _start(arrays, r, i, now_s)
            request.cached = request.computed = request.own = request.prompt - 1
            decoders.compute(arrays, r, i, 1, number)
            budget -= 1
        i = after
    return budget


@inlined
def _reserved_blocks(arrays: Any, r: Any) -> Any:
    """Blocks that the prompts in computation still need, which a transfer must leave them."""
    i, blocks = state.queue(arrays, r, state.PARTIAL).head, 0
    while i != NONE:
        request = state.request(arrays, i)
        if request.partial == state.DUE:
            blocks += kv.blocks_for(state.engine(arrays, r), request.prompt + request.most) - request.blocks
        i = state.link(arrays, i, state.PARTIALS).next
    return blocks
