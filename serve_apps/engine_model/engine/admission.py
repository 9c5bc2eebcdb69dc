"""vLLM V1's admission of waiting requests to a step, compiled.

First come, first served, while token budget and request slots remain: a prompt is admitted only when the
whole of it fits the free blocks, and nobody overtakes one that does not fit. A prompt whose KV comes from
another engine takes all its blocks and waits beside the queue, without a slot; once its KV is known to be
there it comes before all that wait.
"""

from typing import Any

from serve_apps.engine_model.engine import kv, memory
from serve_apps.engine_model.engine.decoders import compute, long_prefill_limit, put
from serve_apps.engine_model.engine.lists import NONE, append
from serve_apps.engine_model.engine.native import inlined, native
from serve_apps.engine_model.engine.records import (
    DUE,
    LOADING,
    MOVES,
    OWN,
    PARTIAL,
    PARTIALS,
    PLACES,
    REMOTE,
    RUNNING,
    STARTED,
    WAITING,
)


@native
def admit(arrays: Any, r: Any, number: Any, now_s: Any, held: Any) -> None:
    engine, batch = memory.engine(arrays, r), memory.batch(arrays, r)
    waiting, running = memory.queue(arrays, r, WAITING), memory.queue(arrays, r, RUNNING)
    limit = long_prefill_limit(arrays, r)
    budget = engine.max_tokens - batch.decode - batch.prefill
    if engine.loaded:
        budget = _admit_loaded(arrays, r, budget, number, now_s)
    while waiting.count and budget and running.count < engine.max_seqs:
        i = waiting.head
        request = memory.request(arrays, i)
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
        if needed > engine.free or (held and found * engine.block < tokens - 1):
            return
        _start(arrays, r, i, number, now_s)
        if found:
            kv.hold(arrays, r, i, found)
        request.computed = found * engine.block
        if request.cached < 0:
            request.cached = request.computed
            _count_hits(engine, request, tokens)
        new = min(tokens - request.computed, min(limit, budget))
        compute(arrays, r, i, new, number)
        budget -= new


@native
def _start(arrays: Any, r: Any, i: Any, number: Any, now_s: Any) -> None:
    """Give a request a slot."""
    request, engine = memory.request(arrays, i), memory.engine(arrays, r)
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
    request, engine = memory.request(arrays, i), memory.engine(arrays, r)
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
    append(memory.queue(arrays, r, STARTED), memory.links(arrays), MOVES, i)
    request.moving = 1


@inlined
def _admit_loaded(arrays: Any, r: Any, budget: Any, number: Any, now_s: Any) -> Any:
    """Compute the last token of the prompts whose KV is there; returns what is left of the budget."""
    engine = memory.engine(arrays, r)
    i = memory.queue(arrays, r, LOADING).head
    while i != NONE and budget and memory.count(arrays, r, RUNNING) < engine.max_seqs:
        after, request = memory.link(arrays, i, PLACES).next, memory.request(arrays, i)
        if request.loaded:
            request.loaded = 0
            engine.loaded -= 1
            _start(arrays, r, i, number, now_s)
            request.cached = request.computed = request.own = request.prompt - 1
            compute(arrays, r, i, 1, number)
            budget -= 1
        i = after
    return budget


@inlined
def _reserved_blocks(arrays: Any, r: Any) -> Any:
    """Blocks that the prompts in computation still need, which a transfer must leave them."""
    i, blocks = memory.queue(arrays, r, PARTIAL).head, 0
    while i != NONE:
        request = memory.request(arrays, i)
        if request.partial == DUE:
            blocks += kv.blocks_for(memory.engine(arrays, r), request.prompt + request.most) - request.blocks
        i = memory.link(arrays, i, PARTIALS).next
    return blocks
