"""Requests as the steps move them on: what exists of their answers, and how they join and leave the
decoders."""

from typing import Any

from serve_apps.engine_model.engine import kv, memory
from serve_apps.engine_model.engine.lists import NONE, append, insert_after, remove
from serve_apps.engine_model.engine.native import inlined, native
from serve_apps.engine_model.engine.records import (
    DUE,
    ENDS,
    LOADING,
    NOWHERE,
    PARTIAL,
    PARTIALS,
    PLACES,
    RUNNING,
    TOUCHED,
    TOUCHES,
    WAITING,
)


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
    return (computed - (1 if unknown else 0)) // engine.block


@native
def join(arrays: Any, r: Any, i: Any, step: Any) -> None:
    """The request's next token is computed in `step`, and one more in each that follows."""
    request = memory.request(arrays, i)
    request.joined = request.most
    request.ahead = request.most + 1 - step
    request.most = request.output
    request.decoding = 1
    _touch(arrays, r, i, step)
    memory.emits(arrays, r, step & 1).count += 1
    _count(arrays, r, request, 1)
    ending, links = _ending(arrays, r, request), memory.links(arrays)
    before = ending.tail  # those that end in one step are freed in the order of their admission
    while before != NONE and memory.request(arrays, before).order > request.order:
        before = links[before, ENDS].previous
    insert_after(ending, links, ENDS, before, i)


@native
def leave(arrays: Any, r: Any, i: Any, last_in_flight: Any) -> None:
    """The request gets no token beyond those already scheduled."""
    request, engine = memory.request(arrays, i), memory.engine(arrays, r)
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
        remove(_ending(arrays, r, request), memory.links(arrays), ENDS, i)


@native
def drop_emissions(arrays: Any, r: Any, i: Any) -> None:
    """The steps in flight emit nothing of this request."""
    request, engine = memory.request(arrays, i), memory.engine(arrays, r)
    for step in range(engine.completed + 1, engine.scheduled + 1):
        if emits_in(request, step):
            memory.emits(arrays, r, step & 1).count -= 1


@native
def set_partial(arrays: Any, r: Any, i: Any, kind: Any) -> None:
    """The request runs without decoding (`records.WHOLE`, `DUE`), or else does not (0)."""
    request, queue = memory.request(arrays, i), memory.queue(arrays, r, PARTIAL)
    if kind and not request.partial:
        append(queue, memory.links(arrays), PARTIALS, i)
    elif request.partial and not kind:
        remove(queue, memory.links(arrays), PARTIALS, i)
    request.partial = kind


@inlined
def partials(arrays: Any, r: Any) -> Any:
    return memory.count(arrays, r, PARTIAL)


@inlined
def _touch(arrays: Any, r: Any, i: Any, step: Any) -> None:
    """The request's times change when `step` is complete."""
    if not memory.request(arrays, i).touched:
        memory.request(arrays, i).touched = 1
        append(memory.queue(arrays, r, TOUCHED + (step & 1)), memory.links(arrays), TOUCHES, i)


@inlined
def _ending(arrays: Any, r: Any, request: Any) -> Any:
    """The decoders that end in the same step."""
    return ring_bucket(arrays, r, request.output - request.ahead)


@inlined
def ring_bucket(arrays: Any, r: Any, step: Any) -> Any:
    """The decoders that end in a step that is not scheduled yet."""
    return memory.bucket(arrays, r, step & (memory.ring(arrays).shape[1] - 1))


@native
def _count(arrays: Any, r: Any, request: Any, one: Any) -> None:
    engine = memory.engine(arrays, r)
    base = request.prompt + request.ahead - 1
    engine.decoders += one
    engine.contexts += one * base
    memory.needing(arrays, r, -base % engine.block).count += one


@native
def put(arrays: Any, r: Any, i: Any, place: Any) -> None:
    """Take a request from its place to the end of another one, or `NOWHERE`."""
    request = memory.request(arrays, i)
    if request.place != NOWHERE:
        remove(memory.queue(arrays, r, request.place), memory.links(arrays), PLACES, i)
    request.place = place
    if place != NOWHERE:
        append(memory.queue(arrays, r, place), memory.links(arrays), PLACES, i)


@native
def compute(arrays: Any, r: Any, i: Any, new: Any, number: Any) -> None:
    """Compute `new` of the missing tokens, for which there are blocks."""
    request, batch, engine = memory.request(arrays, i), memory.batch(arrays, r), memory.engine(arrays, r)
    before = request.computed
    request.last_step, request.new = number, new
    batch.context += before
    if request.partial == DUE or (not request.partial and before < request.prompt + request.most - 1):
        engine.prefill_step = number
    if new == 1 and before >= request.own:
        batch.decode += 1
    else:
        batch.prefill += new
        batch.pairs += new * (before + new / 2)
    request.computed = before + new
    kv.extend(arrays, r, i, before + new)
    if request.computed < request.prompt + request.most:
        set_partial(arrays, r, i, DUE)
        return
    set_partial(arrays, r, i, 0)
    join(arrays, r, i, number)


@native
def long_prefill_limit(arrays: Any, r: Any) -> Any:
    """Tokens of one prompt per step; a request that is alone may have all."""
    engine, open_requests = memory.engine(arrays, r), 0
    for place in (RUNNING, WAITING, LOADING):
        open_requests += memory.count(arrays, r, place)
    alone = open_requests <= 1
    return engine.max_tokens if alone or not engine.long_prefill else engine.long_prefill
