"""Engines as tests look at them: steps one by one, and a service that tells gaps."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from conf import load
from conf.specs.experiment import Constant, Experiment, SimulatedEngine
from serve_apps.engine_model import Engine, EngineKind
from serve_apps.engine_model.cost.step_time import Batch, RanksTime
from serve_apps.engine_model.service.service import late_gap_s
from tests.support.virtual.books import check_integrity
from tests.support.virtual.virtual_service import RequestProgress, VirtualService

QWEN = "qwen3_235b_a22b_fp8"


@cache
def specs(model: str = QWEN, layout: str = "dp1_tp8_ep8", hardware: str = "mi325x") -> Experiment:
    """A simulated engine on one layout of one accelerator; composed once for all tests."""
    return load([f"hardware={hardware}", f"model={model}", "engine=simulated", f"layout={layout}"])


def engine(seed: int = 0, front_end_ms: float = 0.0, **changes: Any) -> Engine:
    """The default engine with `changes`, and of its front end no more than `front_end_ms` of work."""
    asked = specs()
    work, none = (Constant(ms, "ms per request", "test") for ms in (front_end_ms, 0.0))
    step_time = replace(asked.model.step_time, front_end_ms=work, front_end_latency_ms=none)
    model = replace(asked.model, step_time=step_time)
    return Engine(EngineKind.of(SimulatedEngine(**changes), model, asked.hardware, asked.layout), seed)


def ranks_step_s(time: RanksTime, batches: Sequence[Batch | None]) -> float:
    """Seconds of a step; `batches` has one of each rank, or None for a rank without work."""
    work = [Batch(decode_tokens=1) if batch is None else batch for batch in batches]
    slowest = max(time.own.duration_s(batch) for batch in work)
    decode, prefill = sum(each.decode_tokens for each in work), sum(each.prefill_tokens for each in work)
    return slowest + time.shared.duration_s(Batch(decode, prefill))


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


def run_step(engine: Engine, now_s: float) -> Step | None:
    """Run one step from `now_s`; None if nothing can be scheduled now."""
    end_s = engine.begin_step(now_s)
    if end_s is None:
        return None
    emitting = engine.emitting()
    engine.end_step()
    return Step(now_s, end_s, [TokenEvent(it.request_id, it.emitted - 1, it.finished) for it in emitting])


def drain(served: Engine, now_s: float = 0.0) -> list[Step]:
    """Serve all that is there."""
    done = []
    while (now_s := max(now_s, served.ready_s())) < float("inf"):
        step = run_step(served, now_s)
        assert step is not None
        check_integrity(served.arrays)
        done.append(step)
        now_s = step.end_s
    return done


class GapService(VirtualService):
    """One engine that also tells the quantile `within` each answer's gaps, and those over a bound.

    On the clock of what watches it time runs `factor` times as fast.
    """

    def __init__(
        self, kind: EngineKind, seed: int, within: float, most_s: float, factor: float = 1.0
    ) -> None:
        super().__init__(kind, seed=seed, tokens=True)
        self._within, self._most_s, self._factor = within, most_s, factor

    def observe(self) -> list[RequestProgress]:
        numbers = dict(self._open)
        return [self._told(seen, numbers[seen.key]) for seen in super().observe()]

    def _told(self, seen: RequestProgress, number: int) -> RequestProgress:
        if not seen.finished:
            return seen
        request = self.service.arrays.requests[number]
        ends_s = self.service.arrays.tokens[request["token"] : request["token"] + request["output"]]
        over = int(np.count_nonzero(np.diff(ends_s) > self._factor * self._most_s))
        own_s = float(late_gap_s(ends_s, self._within)) / self._factor if len(ends_s) > 1 else None
        return seen._replace(own_itl_s=own_s, gaps=len(ends_s) - 1, gaps_over=over)
