"""A split service of the engine model against vLLM's own schedulers with a connector, on a virtual clock.

Demanded equal are the start of every step of both engines, the tokens of every request in it, all first
and last token times, and the tokens that had their KV when a request was first computed.
"""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from conf import load
from conf.specs.experiment import Constant, Layout, SimulatedEngine
from conf.specs.layout import PrefillEngines, TransferTime
from serve_apps.engine_model.cost.step_time import Batch, roofline
from serve_apps.engine_model.cost.transfer import KvLink, TransferSeconds
from serve_apps.engine_model.scheduler.engine import BlockEngine
from serve_apps.engine_model.scheduler.request import RequestState
from serve_apps.engine_model.service.split_service import SplitService
from serve_apps.engine_model.service.virtual_service import SessionPrompt
from tests.vllm.moving_kv import Duration, run_pair
from tests.vllm.real_core import Limits, Log
from tests.vllm.recorded import Recorded

pytestmark = pytest.mark.vllm

SPECS = load(["hardware=mi325x", "model=qwen3_235b_a22b_fp8", "engine=simulated", "layout=dp1_tp8_ep8"])
NONE = Constant(0.0, "ms per request", "test")
MODEL = replace(
    SPECS.model, step_time=replace(SPECS.model.step_time, front_end_ms=NONE, front_end_latency_ms=NONE)
)


@dataclass(frozen=True)
class Prompt:
    """It begins with the same `shared` tokens as others of its `family`."""

    at_s: float
    input_tokens: int
    output_tokens: int
    shared: int = 0
    family: int = 0


@dataclass(frozen=True)
class Case:
    prompts: list[Prompt]
    limits: tuple[Limits, Limits]
    layout: Layout

    @property
    def link(self) -> KvLink:
        return KvLink(TransferSeconds.of(MODEL, self.layout))

    @property
    def writes(self) -> bool:
        return self.layout.transfer_mode == "write"


class Watched(BlockEngine):
    """Knows when its steps began, and every request that it got."""

    def __init__(self, limits: Limits, layout: Layout) -> None:
        spec = SimulatedEngine(
            num_gpu_blocks=limits.blocks,
            block_size=limits.block_size,
            max_num_batched_tokens=limits.budget,
            max_num_seqs=limits.seqs,
            enable_prefix_caching=limits.caching,
            async_scheduling=limits.asynchronous,
            long_prefill_token_threshold=limits.long_prefill,
        )
        super().__init__(spec, MODEL, SPECS.hardware, layout)
        self.starts: list[float] = []
        self.states: list[RequestState] = []
        self.scheduler.__class__ = Recorded
        self.scheduler.steps = []  # type: ignore[attr-defined]

    def add(self, *args: Any) -> RequestState:
        self.states.append(super().add(*args))
        return self.states[-1]

    def begin_step(self, now_s: float) -> float | None:
        end_s = super().begin_step(now_s)
        if end_s is not None:
            self.starts.append(now_s)
        return end_s

    def log(self) -> Log:
        log = Log()
        for start_s, chosen in zip(self.starts, self.scheduler.steps, strict=True):  # type: ignore[attr-defined]
            log.steps.append((start_s, sorted((str(name), new) for name, new in chosen.items())))
        for state in self.states:
            assert state.finished and state.first_token_s is not None and state.last_token_s is not None
            log.first_s[str(state.request_id)] = state.first_token_s
            log.last_s[str(state.request_id)] = state.last_token_s
            log.cached[str(state.request_id)] = state.cached_tokens
        assert self.kv_usage == 0
        return log


def run_ours(case: Case) -> tuple[Watched, Watched]:
    sides = [
        Watched(limits, side) for limits, side in zip(case.limits, [case.layout.decode_side] * 2, strict=True)
    ]
    service = SplitService([sides[0]], [sides[1]], case.layout, MODEL)
    for number, prompt in enumerate(case.prompts):
        chain = tuple(
            hash((prompt.family, index)) for index in range(prompt.shared // case.limits[0].block_size)
        )
        lengths = prompt.input_tokens, prompt.output_tokens
        service.submit(number, prompt.at_s, *lengths, begins=SessionPrompt(-1, chain))
    service.advance(1e6)
    return sides[0], sides[1]


def token_ids(prompts: list[Prompt]) -> list[tuple[float, list[int], int]]:
    """Every family has tokens of its own, and every prompt beyond what it shares."""
    draw = random.Random(7)
    families: dict[int, list[int]] = {}
    drawn = []
    for prompt in prompts:
        common = families.setdefault(prompt.family, [draw.randrange(1 << 40) for _ in range(1000)])
        own = [draw.randrange(1 << 40) for _ in range(prompt.input_tokens - prompt.shared)]
        drawn.append((prompt.at_s, common[: prompt.shared] + own, prompt.output_tokens))
    return drawn


def duration(case: Case, loaded: int) -> Duration:
    """The engine model's step time for vLLM's work; of each prompt `loaded` tokens are decoded."""
    model = roofline(MODEL, SPECS.hardware, case.layout.decode_side)

    def duration_s(work: Any, emitting: int) -> float:
        batch = Batch(sequences=emitting)
        name: str
        for name, computed, new in work:
            if new == 1 and computed >= case.prompts[int(name)].input_tokens - loaded:
                batch.decode_tokens += 1
                batch.context_tokens += computed
            else:
                batch.add_chunk(new, computed)
        return model.duration_s(batch)

    return duration_s


def run_real(case: Case, folder: Path) -> tuple[Log, Log]:
    durations = duration(case, 0), duration(case, 1)
    return run_pair(token_ids(case.prompts), case.limits, durations, case.link, case.writes, folder)


def same(ours: Log, real: Log, side: str) -> None:
    for number, (here, there) in enumerate(zip(ours.steps, real.steps, strict=False)):
        assert here[1] == there[1], f"{side}, step {number} at {there[0]} s"
        assert here[0] == pytest.approx(there[0], abs=1e-9), f"{side}, step {number}"
    assert len(ours.steps) == len(real.steps)
    assert ours.first_s == pytest.approx(real.first_s, abs=1e-9)
    assert ours.last_s == pytest.approx(real.last_s, abs=1e-9)
    assert ours.cached == real.cached


def drawn(seed: int, writes: bool, asynchronous: bool, caching: bool) -> Case:
    """A small workload and small engines; half of them have few more blocks than a request needs."""
    draw = random.Random(seed)
    block = draw.choice((1, 4, 16))
    prompts, now_s = [], 0.0
    longest = draw.choice((60, 300, 900))
    for _ in range(draw.randint(5, 40)):
        now_s += draw.expovariate(draw.choice((5.0, 40.0, 400.0)))
        shared = draw.choice((0, 0, 16, 48, longest // 2))
        own = draw.choice((1, 16, draw.randint(1, longest)))
        prompts.append(Prompt(now_s, shared + own, draw.randint(1, 60), shared, draw.randrange(2)))
    most = max(-(-(each.input_tokens + each.output_tokens) // block) for each in prompts)
    limits = [
        Limits(
            blocks=most + draw.randint(0, most) if draw.random() < 0.5 else 20 * most,
            block_size=block,
            budget=draw.choice((24, 64, 256, 1024)),
            seqs=draw.choice((2, 5, 64)),
            caching=caching,
            asynchronous=asynchronous,
            long_prefill=draw.choice((0, 0, 50)),
        )
        for _ in range(2)
    ]
    time = TransferTime(
        Constant(10 ** draw.uniform(7.5, 10.5), "bytes per second", "test"),
        Constant(draw.uniform(0.1, 20.0), "ms per prompt", "test"),
    )
    layout = replace(
        SPECS.layout,
        prefill=PrefillEngines(1, SPECS.layout.tensor_parallel),
        transfer=time,
        transfer_mode="write" if writes else "read",
    )
    return Case(prompts, (limits[0], limits[1]), layout)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("caching", [False, True], ids=["no-cache", "cache"])
@pytest.mark.parametrize("writes", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("seed", [1, 4, 17, 43, 49])  # tight caches: both sides preempt in some of them
def test_the_same_steps_on_both_engines(
    seed: int, writes: bool, caching: bool, asynchronous: bool, tmp_path: Path
) -> None:
    case = drawn(seed, writes, asynchronous, caching)
    ours, real = run_ours(case), run_real(case, tmp_path)
    for engine, there, side in zip(ours, real, ("prefill", "decode"), strict=True):
        same(engine.log(), there, side)
