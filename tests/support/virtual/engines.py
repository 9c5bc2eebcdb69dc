"""Engines as tests look at them: steps one by one, books of every block, a compiled one as a replica."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np

from conf import load
from conf.specs.experiment import Constant, Experiment, SimulatedEngine
from serve_apps.engine_model import BlockEngine
from serve_apps.engine_model.compiled import loop
from serve_apps.engine_model.compiled.fast_engine import (
    SEVERAL_LENGTHS,
    FastEngine,
    UnsupportedByFastPath,
    checked,
)
from serve_apps.engine_model.compiled.gaps import late_gap_s
from serve_apps.engine_model.scheduler.kv_cache import Chain as Hashes
from serve_apps.engine_model.scheduler.kv_cache import Holding, KvCache
from serve_apps.engine_model.scheduler.request import RequestState
from serve_apps.engine_model.scheduler.scheduler import Scheduler
from serve_apps.engine_model.service.virtual_service import VirtualService

QWEN = "qwen3_235b_a22b_fp8"


@cache
def specs(model: str = QWEN, layout: str = "dp1_tp8_ep8", hardware: str = "mi325x") -> Experiment:
    """A simulated engine on one layout of one accelerator; composed once for all tests."""
    return load([f"hardware={hardware}", f"model={model}", "engine=simulated", f"layout={layout}"])


def engine(seed: int = 0, front_end_ms: float = 0.0, **changes: Any) -> BlockEngine:
    """The default engine with `changes`, and of its front end no more than `front_end_ms` of work."""
    asked = specs()
    work, none = (Constant(ms, "ms per request", "test") for ms in (front_end_ms, 0.0))
    step_time = replace(asked.model.step_time, front_end_ms=work, front_end_latency_ms=none)
    model = replace(asked.model, step_time=step_time)
    return BlockEngine(SimulatedEngine(**changes), model, asked.hardware, asked.layout, seed)


class TokenEvent(NamedTuple):
    """Output token `number` (from 0) of a request; `finished` marks the last one."""

    request_id: int
    number: int
    finished: bool


class Step(NamedTuple):
    """One step of an engine; its `events` are due at `end_s`."""

    start_s: float
    end_s: float
    events: list[TokenEvent]


def run_step(engine: BlockEngine, now_s: float) -> Step | None:
    """Run one step from `now_s`; None if nothing can be scheduled now."""
    end_s = engine.begin_step(now_s)
    if end_s is None:
        return None
    emitting = engine.emitting()
    engine.end_step()
    return Step(now_s, end_s, [TokenEvent(it.request_id, it.emitted - 1, it.finished) for it in emitting])


def drain(served: BlockEngine, now_s: float = 0.0) -> list[Step]:
    """Serve all that is there."""
    done = []
    while (now_s := max(now_s, served.ready_s())) < float("inf"):
        step = run_step(served, now_s)
        assert step is not None
        check_integrity(served.scheduler)
        done.append(step)
        now_s = step.end_s
    return done


def scheduler(
    blocks: int = 1000, budget: int = 100, seqs: int = 100, block_size: int = 4, caching: bool = False
) -> Scheduler:
    return Scheduler(KvCache(blocks, block_size, caching), budget, seqs)


def ids(requests: Iterable[RequestState]) -> list[int]:
    return [each.request_id for each in requests]


def one_step(rules: Scheduler) -> tuple[int, int, list[int]]:
    """Prefill tokens, decode tokens and who emits, of the next step."""
    batch = rules.schedule()
    assert batch is not None
    emitting = ids(rules.emitting())
    rules.complete(0.0)
    check_integrity(rules)
    return batch.prefill_tokens, batch.decode_tokens, emitting


def check_integrity(scheduler: Scheduler) -> None:
    """Every KV block is accounted for."""
    for request in scheduler.running:
        request._held.blocks = scheduler._blocks(request)
    holding = chain(scheduler.running, scheduler.loading, scheduler.kept)
    check_blocks(scheduler.kv, [request._held for request in holding])


def check_blocks(kv: KvCache, holdings: Sequence[Holding]) -> None:
    """Every block is either free or held by one of `holdings`."""
    assert kv._blank >= 0 and kv._blank + sum(map(len, kv._idle)) == kv.free_blocks
    held = sum(len(run) for run in {run for holding in holdings for run in holding.runs})
    held += sum(holding.blocks - holding.named for holding in holdings)
    assert held + kv.free_blocks == kv.blocks


class FastReplica(FastEngine):
    """The compiled engine with requests that come one by one, for a `VirtualService`."""

    def add(
        self, at_s: float, input_tokens: int, output_tokens: int, shared_tokens: int = 0, chain: Hashes = ()
    ) -> int:
        """A request that arrives at `at_s`, not before the last one; returns its number, counted from 0."""
        assert not chain
        number, held = int(self._state["added"]), self._arrays.requests.shape[1]
        checked(self._spec, [np.array([each]) for each in (input_tokens, output_tokens, shared_tokens)])
        if number and shared_tokens != self._arrays.requests["shared"][0, 0]:
            raise UnsupportedByFastPath(SEVERAL_LENGTHS)
        if number == held:
            more = np.zeros((1, held + 1), loop.REQUEST)
            requests = np.concatenate([self._arrays.requests, more], axis=1)
            self._arrays = self._arrays._replace(requests=requests)
        loop.submit(self._arrays, 0, at_s, input_tokens, output_tokens, shared_tokens)
        return number

    @property
    def open_requests(self) -> int:
        return int(self._state["open"])

    def seen(self, number: int) -> tuple[Any, ...]:
        """First and last token so far (s), how many there are, and whether they are all (see `Stepped`)."""
        request = self._arrays.requests[0, number]
        first_s, last_s = float(request["first_s"]), float(request["last_s"])
        if not first_s:
            return None, None, 0, False
        if last_s:
            queue_s = float(request["scheduled_s"] - request["queued_s"])
            return first_s, last_s, int(request["output"]), True, -1, queue_s
        # While a decoder is open steps follow each other: the last one ended when the next began.
        return first_s, float(self._state["now_s"]), int(self._state["ended"] - request["born"]), False

    def own_itl_s(self, number: int, within: float) -> float | None:
        """The quantile `within` the gaps of a request that has ended; None of one token."""
        ends_s = self.token_times(number)
        return float(late_gap_s(ends_s, within)) if len(ends_s) > 1 else None

    def gaps_over(self, number: int, most_s: float) -> tuple[int, int]:
        """The gaps of a request that has ended, and those of them over `most_s`."""
        gaps_s = np.diff(self.token_times(number))
        return len(gaps_s), int(np.count_nonzero(gaps_s > most_s))


class GapProgress(NamedTuple):
    """A request as `RequestProgress` has it, with a quantile of its own gaps once it has ended."""

    key: int
    replica: int
    first_token_s: float | None
    last_token_s: float | None
    tokens: int
    finished: bool
    own_itl_s: float | None
    gaps: int | None
    gaps_over: int | None


class GapService(VirtualService):
    """One compiled engine that also tells the quantile `within` each answer's gaps, and those over a bound.

    On the clock of what watches it time runs `factor` times as fast.
    """

    def __init__(self, replica: FastReplica, within: float, most_s: float, factor: float = 1.0) -> None:
        super().__init__([cast(Any, replica)])
        self._replica, self._within, self._most_s, self._factor = replica, within, most_s, factor

    def observe(self) -> list[Any]:
        numbers = {key: number for key, (_, number) in self._open.items()}
        return [
            GapProgress(*seen[:6], *(self._own(numbers[seen.key]) if seen.finished else (None,) * 3))
            for seen in super().observe()
        ]

    def _own(self, number: int) -> tuple[float | None, int, int]:
        own_s = self._replica.own_itl_s(number, self._within)
        gaps = self._replica.gaps_over(number, self._factor * self._most_s)
        return None if own_s is None else own_s / self._factor, *gaps
