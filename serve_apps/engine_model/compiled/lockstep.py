"""Data-parallel ranks that step together, at O(ranks) per step, compiled; draws no noise.

A rank is an engine of `loop`: its rules choose what the rank computes. Here stand the step that all ranks
share and vLLM's choice of a rank; `test_compiled_lockstep` holds both to `LockstepEngine`. The share of a
rank's KV in use, which matters to that choice beyond a half, is counted by tokens, not by blocks.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine
from serve_apps.engine_model.compiled.fast_engine import FastSpec
from serve_apps.engine_model.compiled.loop import (
    OUT_OF_KV,
    REACHED,
    EngineArrays,
    _schedule,
    _step_terms,
    _total_s,
    begin_step,
    end_step,
)
from serve_apps.engine_model.compiled.native import inlined, native
from serve_apps.engine_model.cost.step_time import RanksTime, ranks_time
from serve_apps.engine_model.scheduler.engine import IDLE_POLL_S
from serve_apps.engine_model.scheduler.lockstep import KV_PENALTY, PUBLISH_S

GROUP = np.dtype(
    [(name, np.int64) for name in ("in_flight", "steps", "start")]
    + [(name, np.float64) for name in ("now_s", "began_s", "end_s", "busy_s", "looks")]
)
"""A replica: if a step runs, how many have begun, and the rank at which the next choice begins.

Then now, begin and end of the last step, busy seconds, and the multiples of `PUBLISH_S` that have passed.
"""
RANK = np.dtype(
    [(name, np.int64) for name in ("decode", "prefill", "waiting", "running", "sent")]
    + [("usage", np.float64)]
)
"""Tokens of the step scheduled last; what the rank last published, and requests sent to it since."""


class RanksArrays(NamedTuple):
    """Replicas of `width` ranks, for the compiled functions; row `g * width + k` of `ranks` is rank k of g.

    `shared` are the costs of the experts, as `step_terms` wants them, and `dummy_s` the own part of a rank
    without work.
    """

    width: int
    shared: tuple[float, ...]
    dummy_s: float
    groups: Any
    ranks: Any


@dataclass(frozen=True, slots=True)
class RanksSpec:
    """Replicas of data-parallel ranks for the compiled loop: one `rank`, and the `time` of a step of all."""

    rank: FastSpec
    time: RanksTime

    @classmethod
    def of(cls, spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout) -> "RanksSpec":
        """Raises as `FastSpec.of` and `ranks_time` do."""
        time = ranks_time(model, hardware, layout, spec.kernel_ratio)
        return cls(FastSpec.with_step(time.own, spec, model, hardware, layout), time)

    def arrays(self, groups: int) -> RanksArrays:
        """Replicas that have seen nothing."""
        dummy_s = _total_s(_step_terms(self.time.own.costs, 1, 0, 0, 0.0, 0))
        width = self.time.ranks
        state = np.zeros(groups, GROUP)
        return RanksArrays(width, self.time.shared.costs, dummy_s, state, np.zeros(groups * width, RANK))


@native
def advance_ranks(until_s: Any, lock: Any, engines: Any, g: Any) -> int:
    """Run replica `g` to `until_s`, as `loop.advance` runs an engine."""
    limits, costs, group = engines.limits, engines.costs, lock.groups[g]
    first = g * lock.width
    while True:
        if group.in_flight:
            if group.end_s > until_s:
                return REACHED
            publish(group.end_s, lock, engines, g)
            ahead = 0
            for r in range(first, first + lock.width):
                state = engines.states[r]
                if state.in_flight:
                    end_step(limits, costs, state, engines.requests[r], engines.ring[r])
                ahead += state.ahead
            group.now_s, group.in_flight = group.end_s, 0
            if limits.asynchronous and not ahead:
                group.now_s += IDLE_POLL_S
            continue
        start_s = max(group.now_s, _ready_s(first, lock, engines))
        if start_s >= until_s or start_s == math.inf:
            return REACHED
        publish(start_s, lock, engines, g)
        group.now_s, group.began_s = start_s, start_s
        slowest_s, decode, prefill = lock.dummy_s, 0, 0
        for r in range(first, first + lock.width):
            state, rank = engines.states[r], lock.ranks[r]
            state.now_s = start_s
            if not state.ahead and not _choose_work(rank, engines, r):
                return OUT_OF_KV
            if state.ahead:
                slowest_s = max(slowest_s, state.ahead_s)
                decode, prefill = decode + rank.decode, prefill + rank.prefill
            else:
                decode += 1
        took_s = slowest_s + _total_s(_step_terms(lock.shared, decode, prefill, 0, 0.0, 0))
        group.end_s, group.in_flight = start_s + took_s, 1
        group.steps += 1
        group.busy_s += took_s
        for r in range(first, first + lock.width):
            state = engines.states[r]
            if state.ahead:
                begin_step(limits, state, took_s)
                if limits.asynchronous and not _choose_work(lock.ranks[r], engines, r):
                    return OUT_OF_KV


@native
def _choose_work(rank: Any, engines: Any, r: Any) -> bool:
    """Choose the tokens of the rank's next step, if there are any; False where its cache may overflow."""
    state = engines.states[r]
    decode, prefill = state.decode_tokens, state.prefill_tokens
    fits = _schedule(engines.limits, engines.costs, state, engines.requests[r], engines.ring[r])
    rank.decode, rank.prefill = state.decode_tokens - decode, state.prefill_tokens - prefill
    return fits  # type: ignore[no-any-return]


@inlined
def _ready_s(first: Any, lock: Any, engines: Any) -> Any:
    """The time at which a rank has work: -inf where one has some already, inf where all are empty."""
    ready_s = math.inf
    for r in range(first, first + lock.width):
        state = engines.states[r]
        if state.ahead or state.decoders or state.part >= 0:
            ready_s = -math.inf
        elif state.head < state.added:
            ready_s = min(ready_s, engines.requests[r, state.head].ready_s)
    return ready_s


@native
def publish(now_s: Any, lock: Any, engines: Any, g: Any) -> None:
    """Publish the ranks' counts as they have been up to now, if `PUBLISH_S` is over (`RankBalancer`)."""
    group, limits = lock.groups[g], engines.limits
    looks = now_s // PUBLISH_S
    if looks <= group.looks:
        return
    group.looks = looks
    for r in range(g * lock.width, (g + 1) * lock.width):
        state, rank = engines.states[r], lock.ranks[r]
        rank.sent, rank.running, rank.waiting = 0, state.running, 0
        while (
            state.head + rank.waiting < state.added
            and engines.requests[r, state.head + rank.waiting].ready_s <= group.began_s
        ):
            rank.waiting += 1
        own = state.context - state.borrowed + (state.part_done if state.part >= 0 else 0)
        rank.usage = (own / limits.block + (state.warm if state.borrowed else 0)) / limits.blocks


@native
def choose_rank(now_s: Any, lock: Any, engines: Any, g: Any) -> Any:
    """The row of the rank of replica `g` that gets a request now (`RankBalancer.choose`)."""
    publish(now_s, lock, engines, g)
    group, first = lock.groups[g], g * lock.width
    found, least = -1, math.inf
    for i in range(lock.width):
        r = first + (group.start + i) % lock.width
        rank = lock.ranks[r]
        waiting = rank.waiting + rank.sent
        score = max(engines.states[r].open, waiting + rank.running)
        score = score + waiting * KV_PENALTY * max(0.0, rank.usage - 0.5)
        if score < least:
            found, least = r, score
    group.start = (group.start + 1) % lock.width
    lock.ranks[found].sent += 1
    return found


def engine_arrays(spec: RanksSpec, groups: int, room: int, longest: int, counted: bool) -> EngineArrays:
    """The ranks of all replicas as engines of `loop`, with room for requests of each.

    `longest` is the longest answer in tokens, and `counted` as `EngineLimits` has it.
    """
    return spec.rank.arrays(groups * spec.time.ranks, room, longest, counted)
