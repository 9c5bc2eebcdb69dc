"""vLLM V1's scheduling rules (docs/engine_model.md), compiled: which tokens the next step computes."""

from typing import Any

from serve_apps.engine_model.engine import kv, state
from serve_apps.engine_model.engine.native import (
    NONE,
    append,
    inlined,
    insert_after,
    native,
    remove,
)


@native
def schedule(arrays: Any, r: Any, now_s: Any) -> bool:
    """Choose the tokens of the next step; False where nothing can be computed."""
    engine = state.engine(arrays, r)
    engine.decode = engine.prefill = engine.context = 0
    engine.pairs = 0.0
    preemptions, number = engine.preemptions, engine.scheduled + 1
    # Soon after a step with prefill none is computed, if others decode and none was left waiting (vLLM 0.33).
    soon = number - engine.prefill_step < engine.prefill_schedule_interval
    held = soon and not engine.backed_up and state.count(arrays, r, state.RUNNING) > engine.due
    _continue_running(arrays, r, number, held)
    if engine.preemptions == preemptions:
        if state.count(arrays, r, state.WAITING) or engine.loaded:
            _admit(arrays, r, number, now_s, held)
        if not held:
            engine.backed_up = 1 if state.count(arrays, r, state.WAITING) else 0
    if not engine.decode + engine.prefill:
        return False
    engine.scheduled, engine.samples = number, state.emits(arrays)[_emits_row(r, number), 0]
    return True


@native
def complete(arrays: Any, r: Any, at_s: Any) -> None:
    """The oldest scheduled step ends at `at_s`: its tokens exist; the finished are in the queue `FINISHED`.

    One that was preempted while its token was computed may finish too.
    """
    engine, tokens, emits = state.engine(arrays, r), state.tokens(arrays), state.emits(arrays)
    engine.completed += 1
    row, dropped = _emits_row(r, engine.completed), 0
    for place in range(1, emits[row, 0] + 1):
        i = emits[row, place]
        if i == NONE:
            dropped += 1
            continue
        request = state.request(arrays, i)
        if len(tokens):
            tokens[request.token + request.emitted] = at_s
        request.emitted += 1
        request.hashed = request.computed - (request.scheduled - request.emitted)
        request.last_s = at_s
        if request.emitted == 1:
            request.first_s = at_s
            engine.prompt_tokens += request.prompt
        if request.emitted == request.output:
            _finish(arrays, r, i)
    engine.generation_tokens += emits[row, 0] - dropped
    emits[row, 0] = 0


@inlined
def _emits_row(r: Any, step: Any) -> Any:
    """The row of `emits` of a step in flight."""
    return 2 * r + (step & 1)


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
    _drop_emissions(arrays, r, i)
    put(arrays, r, i, state.KEPT if place == state.LOADING else state.NOWHERE)
    if place == state.RUNNING:
        _release(arrays, r, i)
    elif place == state.LOADING and request.loaded:
        request.loaded = 0
        engine.loaded -= 1
        transferred(arrays, r, i)


@native
def transferred(arrays: Any, r: Any, i: Any) -> None:
    """A transfer to or from this request is known to be over: it may be computed, or its blocks go."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    if request.place == state.LOADING:
        engine.loaded += 1 - request.loaded
        request.loaded = 1
    elif request.place == state.KEPT:
        put(arrays, r, i, state.NOWHERE)
        kv.free(arrays, r, i, request.computed // engine.block_size)


@native
def emitting(arrays: Any, r: Any, out: Any) -> Any:
    """Put the requests that get a token when the oldest step completes into `out`; returns their number."""
    emits, count = state.emits(arrays), 0
    row = _emits_row(r, state.engine(arrays, r).completed + 1)
    for place in range(1, emits[row, 0] + 1):
        if emits[row, place] != NONE:
            out[count] = emits[row, place]
            count += 1
    return count


@native
def put(arrays: Any, r: Any, i: Any, place: Any) -> None:
    """Take a request from its place to the end of another one, or `NOWHERE`."""
    request = state.request(arrays, i)
    if request.place != state.NOWHERE:
        remove(state.queue(arrays, r, request.place), state.links(arrays), state.PLACES, i)
    request.place = place
    if place != state.NOWHERE:
        append(state.queue(arrays, r, place), state.links(arrays), state.PLACES, i)


@native
def _drop_emissions(arrays: Any, r: Any, i: Any) -> None:
    """The steps in flight emit nothing of this request."""
    request, emits = state.request(arrays, i), state.emits(arrays)
    for row in (_emits_row(r, 0), _emits_row(r, 1)):
        for place in range(1, emits[row, 0] + 1):
            if emits[row, place] == i:
                emits[row, place] = NONE
    request.scheduled = request.emitted


@inlined
def _finish(arrays: Any, r: Any, i: Any) -> None:
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    engine.open -= 1
    running = request.place == state.RUNNING
    kept = running and request.kv == state.HELD
    put(arrays, r, i, state.KEPT if kept else state.NOWHERE)
    append(state.queue(arrays, r, state.FINISHED), state.links(arrays), state.MOVES, i)
    if running and not kept:  # else preempted while its last token was computed
        kv.free(arrays, r, i, request.computed // engine.block_size)


@inlined
def _missing(request: Any) -> Any:
    """Tokens to compute before a request gets its next one."""
    return request.prompt + request.scheduled - request.computed


@native
def _continue_running(arrays: Any, r: Any, number: Any, held: Any) -> None:
    """Schedule the missing tokens of one running request after the other, while the budget lasts.

    Nearly all of them decode within their last block, which is done here for the speed of it.
    """
    engine, links = state.engine(arrays, r), state.links(arrays)
    budget, limit = engine.max_num_batched_tokens, _long_prefill_limit(arrays, r)
    emits, row, decode, context = state.emits(arrays), _emits_row(r, number), 0, 0
    i = state.queue(arrays, r, state.RUNNING).head
    while i != NONE and budget:
        request = state.request(arrays, i)
        in_block = request.computed < request.blocks * engine.block_size
        if request.scheduled == request.output or (held and request.due):
            pass
        elif in_block and not request.due and not request.own_blocks:
            request.last_step, request.new = number, 1
            decode += 1
            context += request.computed
            request.computed += 1
            request.hashed = min(request.computed, request.prompt + request.emitted)
            request.scheduled += 1
            emits[row, 0] += 1
            emits[row, emits[row, 0]] = i
            budget -= 1
        else:
            new = min(_missing(request), min(limit, budget))
            if not _make_room(arrays, r, i, new):
                break
            _compute(arrays, r, i, new, number)
            budget -= new
        i = links[i, state.PLACES].next
    engine.decode += decode
    engine.context += context


@inlined
def _compute(arrays: Any, r: Any, i: Any, new: Any, number: Any) -> None:
    """Compute `new` of the missing tokens, for which there are blocks."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    before, missing = request.computed, _missing(request)
    request.last_step, request.new = number, new
    engine.context += before
    if request.due or missing > 1:
        engine.prefill_step = number
    if new == 1 and before >= request.own:
        engine.decode += 1
    else:
        engine.prefill += new
        engine.pairs += new * (before + new / 2)
    kv.extend(arrays, r, i, before + new)
    request.computed = before + new
    request.hashed = min(request.computed, request.prompt + request.emitted)
    if request.due != (new < missing):
        _set_due(engine, request, new < missing)
    if new == missing:
        request.scheduled += 1
        emits, row = state.emits(arrays), _emits_row(r, number)
        emits[row, 0] += 1
        emits[row, emits[row, 0]] = i


@inlined
def _set_due(engine: Any, request: Any, due: Any) -> None:
    """A running request has known tokens to compute beyond those of the last step, or has not."""
    engine.due += due - request.due
    request.due = due


@native
def _long_prefill_limit(arrays: Any, r: Any) -> Any:
    """Tokens of one prompt per step; a request that is alone may have all."""
    engine, running = state.engine(arrays, r), state.count(arrays, r, state.RUNNING)
    alone = running + state.count(arrays, r, state.WAITING) + state.count(arrays, r, state.LOADING) <= 1
    limit = engine.long_prefill_token_threshold
    return engine.max_num_batched_tokens if alone or not limit else limit


@inlined
def _make_room(arrays: Any, r: Any, i: Any, new: Any) -> bool:
    """Free blocks for `new` tokens at the cost of the last running; False if that is request `i` itself.

    False also where a step in flight writes the blocks of the last, and the engine receives KV.
    """
    engine, request = state.engine(arrays, r), state.request(arrays, i)
    while request.computed + new > (request.blocks + engine.free) * engine.block_size:
        last = state.queue(arrays, r, state.RUNNING).tail
        if engine.receives and state.request(arrays, last).last_step > engine.completed:
            return False
        _preempt(arrays, r, last)
        if last == i:
            return False
    return True


@inlined
def _preempt(arrays: Any, r: Any, i: Any) -> None:
    """Return a request to the queue; its blocks keep their hashes, so that it may find them again."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    put(arrays, r, i, state.NOWHERE)
    known = request.hashed // engine.block_size
    request.own_blocks = max(request.own_blocks, known)
    kv.name(arrays, r, i, known)
    _release(arrays, r, i)
    if request.kv == state.HELD:  # KV that is to be handed on is gone: tokens in flight count for nothing
        _drop_emissions(arrays, r, i)
    request.computed = 0
    request.place = state.WAITING
    insert_after(state.queue(arrays, r, state.WAITING), state.links(arrays), state.PLACES, NONE, i)
    engine.preemptions += 1


@native
def _release(arrays: Any, r: Any, i: Any) -> None:
    """Give back the blocks of a request that runs no longer.

    A token in flight is unknown when the step after it is scheduled, so its block has no hash yet.
    """
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    _set_due(engine, request, False)
    kv.free(arrays, r, i, request.hashed // engine.block_size)


@native
def _admit(arrays: Any, r: Any, number: Any, now_s: Any, held: Any) -> None:
    engine = state.engine(arrays, r)
    waiting, running = state.queue(arrays, r, state.WAITING), state.queue(arrays, r, state.RUNNING)
    limit = _long_prefill_limit(arrays, r)
    budget = engine.max_num_batched_tokens - engine.decode - engine.prefill
    if engine.loaded:
        budget = _admit_loaded(arrays, r, budget, number, now_s)
    while waiting.count and budget and running.count < engine.max_num_seqs:
        i = waiting.head
        request = state.request(arrays, i)
        tokens = request.prompt + request.scheduled
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
        _compute(arrays, r, i, new, number)
        budget -= new


@native
def _start(arrays: Any, r: Any, i: Any, now_s: Any) -> None:
    """Give a request a slot."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    put(arrays, r, i, state.RUNNING)
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
    put(arrays, r, i, state.LOADING)
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
            _compute(arrays, r, i, 1, number)
            budget -= 1
        i = after
    return budget


@inlined
def _reserved_blocks(arrays: Any, r: Any) -> Any:
    """Blocks that the prompts in computation still need, which a transfer must leave them."""
    i, blocks = state.queue(arrays, r, state.RUNNING).head, 0
    while i != NONE:
        request = state.request(arrays, i)
        if request.due:
            blocks += (
                kv.blocks_for(state.engine(arrays, r), request.prompt + request.scheduled) - request.blocks
            )
        i = state.link(arrays, i, state.PLACES).next
    return blocks
