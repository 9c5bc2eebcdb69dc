"""Requests as the steps move them on: what exists of their answers, and how they join and leave the
decoders."""

from typing import Any

from serve_apps.engine_model.engine import kv, state
from serve_apps.engine_model.engine.native import NONE, append, inlined, insert_after, native, remove


@inlined
def emitted(engine: Any, request: Any) -> Any:
    """Output tokens that exist."""
    return max(request.joined, min(request.most, request.ahead + engine.completed))


@inlined
def scheduled(engine: Any, request: Any) -> Any:
    """Output tokens that exist or are being computed."""
    return request.ahead + engine.scheduled if request.decoding else request.most


@inlined
def context(engine: Any, request: Any) -> Any:
    """Tokens of a decoder that have their KV, those of the steps in flight included."""
    return request.prompt + scheduled(engine, request) - 1


@inlined
def missing(request: Any) -> Any:
    """Tokens to compute before a request that does not decode gets its next one."""
    return request.prompt + request.most - request.computed


@inlined
def emits_in(request: Any, step: Any) -> bool:
    return request.joined < request.ahead + step <= request.most  # type: ignore[no-any-return]


@native
def hashed(engine: Any, request: Any) -> Any:
    """Full blocks that vLLM has hashed: all of known tokens, a step later where they are still computed.

    A token in flight is unknown when the step after it is scheduled, so its block is hashed only then.
    """
    computed = context(engine, request) if request.decoding else request.computed
    known = scheduled(engine, request)
    unknown = known > emitted(engine, request) and known > request.joined + 1
    return (computed - (1 if unknown else 0)) // engine.block_size


@native
def join(arrays: Any, r: Any, i: Any, step: Any) -> None:
    """The request's next token is computed in `step`, and one more in each that follows."""
    request = state.request(arrays, i)
    request.joined = request.most
    request.ahead = request.most + 1 - step
    request.most = request.output
    request.decoding = 1
    _touch(arrays, r, i, step)
    state.emits(arrays, r, step & 1).count += 1
    _count(arrays, r, request, 1)
    ending, links = ring_bucket(arrays, r, request.output - request.ahead), state.links(arrays)
    before = ending.tail  # those that end in one step are freed in the order of their admission
    while before != NONE and state.request(arrays, before).order > request.order:
        before = links[before, state.ENDS].previous
    insert_after(ending, links, state.ENDS, before, i)


@native
def leave(arrays: Any, r: Any, i: Any, last_in_flight: Any) -> None:
    """The request gets no token beyond those already scheduled."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    if request.ahead + engine.completed > request.joined:
        request.last_s = engine.at_s
    request.most = request.ahead + engine.scheduled
    request.decoding = 0
    if request.last_step != engine.scheduled:
        request.last_step, request.new = engine.scheduled, 1
    request.computed = request.prompt + request.most - 1
    request.blocks = kv.blocks_for(engine, request.computed)
    if last_in_flight > engine.completed and emits_in(request, last_in_flight):
        _touch(arrays, r, i, last_in_flight)
    _count(arrays, r, request, -1)
    if request.most < request.output:
        ending = ring_bucket(arrays, r, request.output - request.ahead)
        remove(ending, state.links(arrays), state.ENDS, i)


@native
def drop_emissions(arrays: Any, r: Any, i: Any) -> None:
    """The steps in flight emit nothing of this request."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    for step in range(engine.completed + 1, engine.scheduled + 1):
        if emits_in(request, step):
            state.emits(arrays, r, step & 1).count -= 1


@native
def set_partial(arrays: Any, r: Any, i: Any, kind: Any) -> None:
    """The request runs without decoding (`state.WHOLE`, `DUE`), or else does not (0)."""
    request, queue = state.request(arrays, i), state.queue(arrays, r, state.PARTIAL)
    state.engine(arrays, r).due += (kind == state.DUE) - (request.partial == state.DUE)
    if kind and not request.partial:
        append(queue, state.links(arrays), state.PARTIALS, i)
    elif request.partial and not kind:
        remove(queue, state.links(arrays), state.PARTIALS, i)
    request.partial = kind


@inlined
def _touch(arrays: Any, r: Any, i: Any, step: Any) -> None:
    """The request's times change when `step` is complete."""
    if not state.request(arrays, i).touched:
        state.request(arrays, i).touched = 1
        append(state.queue(arrays, r, state.TOUCHED + (step & 1)), state.links(arrays), state.TOUCHES, i)


@inlined
def ring_bucket(arrays: Any, r: Any, step: Any) -> Any:
    """The decoders that end in a step that is not scheduled yet."""
    return state.bucket(arrays, r, step & (state.ring(arrays).shape[1] - 1))


@native
def _count(arrays: Any, r: Any, request: Any, step: Any) -> None:
    engine = state.engine(arrays, r)
    base = request.prompt + request.ahead - 1
    engine.decoders += step
    engine.contexts += step * base
    state.needing(arrays, r, -base % engine.block_size).count += step


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
def compute(arrays: Any, r: Any, i: Any, new: Any, number: Any) -> None:
    """Compute `new` of the missing tokens, for which there are blocks."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    before = request.computed
    request.last_step, request.new = number, new
    engine.context += before
    if request.partial == state.DUE or (not request.partial and before < request.prompt + request.most - 1):
        engine.prefill_step = number
    if new == 1 and before >= request.own:
        engine.decode += 1
    else:
        engine.prefill += new
        engine.pairs += new * (before + new / 2)
    request.computed = before + new
    kv.extend(arrays, r, i, before + new)
    if request.computed < request.prompt + request.most:
        set_partial(arrays, r, i, state.DUE)
        return
    set_partial(arrays, r, i, 0)
    join(arrays, r, i, number)


@native
def long_prefill_limit(arrays: Any, r: Any) -> Any:
    """Tokens of one prompt per step; a request that is alone may have all."""
    engine, running = state.engine(arrays, r), state.count(arrays, r, state.RUNNING)
    alone = running + state.count(arrays, r, state.WAITING) + state.count(arrays, r, state.LOADING) <= 1
    limit = engine.long_prefill_token_threshold
    return engine.max_num_batched_tokens if alone or not limit else limit
