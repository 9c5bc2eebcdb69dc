"""Runs of requests on split engines, in one call: prompts on some engines, answers on those that get the KV.

Two stages, each compiled. No prompt waits for a decode engine, so the first stage is a service of its own
whose answers have one token; `remote` serves the second one. Refused, so that it goes block by block: caches
that may overflow on either side, and prompts that share several prefixes.

One rule of vLLM is left out: an idle prefill engine whose KV is still being fetched looks for work every
millisecond only (`BlockEngine._schedule`), so that its next prompt begins up to one earlier here.
"""

import heapq
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine
from serve_apps.engine_model.compiled import fast_engine, remote
from serve_apps.engine_model.compiled.fast_engine import (
    OVERFLOW,
    FastSpec,
    Floats,
    Ints,
    Times,
    UnsupportedByFastPath,
    Work,
    checked,
)
from serve_apps.engine_model.compiled.gaps import late_gap_s
from serve_apps.engine_model.compiled.loop import OUT_OF_ROOM, REACHED, EngineArrays
from serve_apps.engine_model.compiled.native import inlined, native
from serve_apps.engine_model.compiled.remote import LoadSeconds
from serve_apps.engine_model.cost.step_time import Batch
from serve_apps.engine_model.cost.transfer import TransferSeconds
from serve_apps.engine_model.scheduler.engine import IDLE_POLL_S
from serve_apps.engine_model.service import route_loop
from serve_apps.engine_model.service.balancer import Balance, choice
from serve_apps.engine_model.service.routed import Replicas, Requests, engines_after, in_enough_room
from serve_apps.engine_model.service.split_service import PREFILL_STREAM

PREFILL_BALANCE = Balance("pow2")
"""The one of two prefill engines, drawn at random, with fewer requests in flight, as Serve's handles do."""


@dataclass(frozen=True, slots=True)
class SplitSpec:
    """The engines of both sides of a split layout for the fast path, and the transfers between them."""

    prefill: FastSpec
    decode: FastSpec
    seconds: LoadSeconds
    prefill_per_node: int
    decode_per_node: int

    @classmethod
    def of(cls, spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout) -> "SplitSpec":
        """Raises as `FastSpec.of` does, and ValueError where the layout is not split."""
        spec, seconds = engine_of(spec, layout), TransferSeconds.of(model, layout)
        prefill = layout.prefill_side
        assert prefill is not None
        return cls(
            FastSpec.of(spec, model, hardware, prefill),
            FastSpec.of(spec, model, hardware, layout.decode_side),
            LoadSeconds(
                seconds.per_token_s,
                seconds.latency_s,
                seconds.last_share,
                int(layout.transfer_mode == "write"),
            ),
            prefill.replicas_per_node,
            layout.replicas_per_node,
        )

    def prefill_count(self, decode_count: int) -> int:
        """Prefill engines that so many decode engines come with."""
        return decode_count // self.decode_per_node * self.prefill_per_node


def engine_of(spec: SimulatedEngine, layout: Layout) -> SimulatedEngine:
    """The engine of both sides: MoRI-IO has no prefix cache on either."""
    return replace(spec, enable_prefix_caching=False) if layout.connector == "moriio" else spec


def serve_split(spec: SplitSpec, requests: Requests, replicas: Replicas = Replicas()) -> Times:  # noqa: B008
    """All requests to their end; `replicas` are the decode engines, among which its balancer chooses.

    Raises as `routed.serve_open`.
    """
    return _served(spec, requests, replicas, 0)[0]


def late_gaps_s(
    spec: SplitSpec, requests: Requests, replicas: Replicas, share: float
) -> tuple[Times, Floats]:
    """The same, and the quantile `share` of each request's gaps between tokens; nan of one token alone."""
    steps = serve_split(spec, requests, replicas).work.steps
    times, engines, place = _served(spec, requests, replicas, steps)
    gaps = np.full(len(place), np.nan)
    output = requests.asked[1]
    for j in np.flatnonzero(output > 1).tolist():
        r = times.replica[j]
        born = engines.requests[r, place[j]]["born"]
        gaps[j] = late_gap_s(engines.ends_s[r, born : born + output[j]], share)
    return times, gaps


def _served(
    spec: SplitSpec, requests: Requests, replicas: Replicas, steps: int
) -> tuple[Times, EngineArrays, Ints]:
    """Times, and the decode engines with the number of each request there; ends of `steps` steps are kept."""
    if requests.prefixes is not None or replicas.loss is not None:
        raise UnsupportedByFastPath("prompts of sessions on split engines need books of every block")
    prompt, output, shared = checked(spec.decode, requests.asked)
    sent_s, count = requests.sent_s, replicas.count
    computed = _computed(spec, Requests(sent_s, [prompt, np.ones_like(prompt), shared]), replicas)
    given_s = sent_s if spec.seconds.written else computed.end_s
    order = np.argsort(given_s, kind="stable")
    routed = choice(replicas.balance, count, replicas.seed, sent_s)
    taken, place = np.zeros(len(sent_s), np.int64), np.zeros(len(sent_s), np.int64)
    asked = prompt, output, shared, computed.begun_s, computed.end_s
    longest = int(output.max(initial=1))
    engines = remote.remote_arrays(spec.decode.arrays(0, 0, longest), spec.seconds)

    def serve(room: int) -> int:
        nonlocal engines
        arrays = spec.decode.arrays(count, room, longest)._replace(ends_s=np.zeros((count, steps)))
        engines = remote.remote_arrays(arrays, spec.seconds)
        balancer = route_loop.balancer_arrays(count, len(sent_s))
        return hand_over((taken, place), sent_s, (given_s, order), asked, routed, balancer, engines)  # type: ignore[no-any-return]

    in_enough_room(spec.decode, replicas.seed, len(sent_s) // count + 64 if count > 1 else len(sent_s), serve)
    released_s = engines.loads["here_s"][taken, place]
    if _may_overflow(spec.prefill, computed, prompt, released_s):
        raise UnsupportedByFastPath(OVERFLOW)
    seen = fast_engine.times(engines.engines.requests[taken, place], taken, engines.engines.states)
    seen = seen._replace(sent_s=sent_s, cached_tokens=computed.cached, prefill_work=computed.work)
    return seen, engines.engines, place


class Computed(NamedTuple):
    """Prompts on the prefill engines: where, when begun and done, what was cached of them, and the work."""

    engine: Ints
    begun_s: Floats
    end_s: Floats
    cached: Ints
    work: Work


def _computed(spec: SplitSpec, requests: Requests, replicas: Replicas) -> Computed:
    count, fast = spec.prefill_count(replicas.count), spec.prefill
    asked = checked(fast, requests.asked)
    routed = choice(PREFILL_BALANCE, count, replicas.seed + PREFILL_STREAM, requests.sent_s)
    # A step without the end of a prompt fills the budget.
    budget = fast.spec.max_num_batched_tokens
    steps = int((1 + asked[0] // budget).sum()) if spec.seconds.written else 0
    engines_of, place, engines = engines_after(
        fast, Requests(requests.sent_s, asked), routed, Replicas(count, seed=replicas.seed), steps
    )
    found = engines.requests[engines_of, place]
    begun_s = np.zeros_like(requests.sent_s)
    if spec.seconds.written:
        begins = np.zeros_like(engines.ends_s)
        for r in range(count):
            _begins(engines, begins[r], r)
        begun_s = begins[engines_of, found["begun"]]
    return Computed(
        engines_of,
        begun_s,
        found["first_s"].copy(),
        found["cached"].copy(),
        fast_engine.worked(engines.states),
    )


@native
def _begins(engines: Any, begins: Any, r: Any) -> None:
    """The begin of each step of a prefill engine, from the ends of all and the steps of its prompts."""
    ends_s, requests, state = engines.ends_s[r], engines.requests[r], engines.states[r]
    asynchronous = engines.limits.asynchronous
    i = 0
    for step in range(state.ended):
        while requests[i].born < step:
            i += 1
        ended_s = ends_s[step - 1] if step else -math.inf
        ready_s = requests[i].ready_s
        if requests[i].begun < step or (asynchronous and step and ready_s <= begins[step - 1]):
            begins[step] = ended_s
        else:
            begins[step] = max(ended_s + IDLE_POLL_S if asynchronous else ended_s, ready_s)


def _may_overflow(fast: FastSpec, computed: Computed, prompt: Ints, released_s: Floats) -> bool:
    """True if blocks that are held for transfers might delay a prompt on a prefill engine; rather too often.

    A prompt is taken to hold its blocks from the end before last of the prompts before its own, and two steps
    of the largest size longer than the transfer.
    """
    budget, longest = fast.spec.max_num_batched_tokens, int(prompt.max(initial=1))
    whole = Batch()
    whole.add_chunk(budget, longest)
    late_s = 2 * fast.roofline.duration_s(whole)
    blocks = (prompt + fast.spec.block_size) // fast.spec.block_size
    for r in range(int(computed.engine.max(initial=0)) + 1):
        mine = np.flatnonzero(computed.engine == r)
        ends_s, at = np.unique(computed.end_s[mine], return_inverse=True)
        before = np.concatenate([[-1], at[:-1]])[: len(mine)] - 2
        taken_s = np.where(before >= 0, ends_s[np.maximum(before, 0)], -np.inf) if len(mine) else ends_s
        changes = np.concatenate([taken_s, released_s[mine] + late_s])
        held = np.concatenate([blocks[mine], -blocks[mine]])
        if np.cumsum(held[np.argsort(changes, kind="stable")]).max(initial=0) > fast.blocks:
            return True
    return False


@native
def hand_over(found: Any, due_s: Any, given: Any, asked: Any, choice: Any, balancer: Any, decode: Any) -> int:
    """Choose a decode engine for every arrival at `due_s`, give it the request when it is due, and serve all.

    `given`: when each is, and the order of the requests by that. `asked`: prompt, output, shared, and when
    the prompt was begun and computed. `found` receives the engine of each and its number there. A request is
    open on its engine from its arrival on.
    """
    (taken, place), (given_s, order) = found, given
    prompts, outputs, shares, begun_s, computed_s = asked
    states = decode.engines.states
    apart = choice.mode == route_loop.GIVEN or len(states) == 1
    ahead, listed = np.zeros(len(states), np.int64), np.zeros(len(states), np.bool_)
    events = [(math.inf, route_loop.NONE)]  # when an engine's step ends, or just after one may begin
    arrival = 0
    for k in range(len(order)):
        j = order[k]
        while arrival < len(due_s) and due_s[arrival] <= given_s[j]:
            if not apart:
                status: int = _serve_until(due_s[arrival], events, listed, ahead, balancer, decode)
                if status != REACHED:
                    return status
            r = 0 if len(states) == 1 else route_loop.choose(arrival, choice, balancer)
            taken[arrival] = r
            ahead[r] += 1
            route_loop.recount(r, balancer.open[r] + 1, balancer)
            arrival += 1
        if not apart:
            status = _serve_until(given_s[j], events, listed, ahead, balancer, decode)
            if status != REACHED:
                return status
        r = taken[j]
        tokens = prompts[j], outputs[j], shares[j]
        i = remote.give(decode, r, given_s[j], tokens, begun_s[j], computed_s[j])
        if i < 0:
            return OUT_OF_ROOM
        place[j] = i
        ahead[r] -= 1
        if not apart and not listed[r]:
            heapq.heappush(events, (_next_event_s(given_s[j], decode, r), r))
            listed[r] = True
    if not apart:
        return _serve_until(math.inf, events, listed, ahead, balancer, decode)  # type: ignore[no-any-return]
    for r in range(len(states)):
        status = remote.advance(math.inf, decode, r)
        if status != REACHED:
            return status
    return REACHED


@inlined
def _serve_until(now_s: Any, events: Any, listed: Any, ahead: Any, balancer: Any, decode: Any) -> int:
    """Run the engines whose steps end, or may begin, by `now_s`, and count their open requests."""
    while events[0][0] <= now_s and events[0][1] != route_loop.NONE:
        at_s, r = heapq.heappop(events)
        status: int = remote.advance(at_s, decode, r)
        if status != REACHED:
            return status
        state = decode.engines.states[r]
        route_loop.recount(r, state.open + ahead[r], balancer)
        listed[r] = state.open > 0
        if listed[r]:
            heapq.heappush(events, (_next_event_s(at_s, decode, r), r))
    return REACHED


@inlined
def _next_event_s(now_s: Any, decode: Any, r: Any) -> Any:
    """The end of the step that runs on a busy engine, or just after the instant at which it may go on."""
    state = decode.engines.states[r]
    if state.in_flight:
        return state.end_s
    begins_s = max(now_s, state.now_s)
    if not state.ahead:
        begins_s = max(begins_s, remote.ready_s(decode, r))
    return np.nextafter(begins_s, math.inf)
