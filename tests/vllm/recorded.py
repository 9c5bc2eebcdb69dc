"""The engine model as tests compare it with vLLM's own scheduler: prompts, step times, a log of its steps."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from conf import load
from conf.specs.experiment import Constant, Layout, SimulatedEngine
from serve_apps.engine_model.cost.step_time import Batch, roofline
from serve_apps.engine_model.engine import steps
from serve_apps.engine_model.engine.engine import Engine, RequestState
from serve_apps.engine_model.engine.kinds import EngineKind
from tests.support.virtual.books import check_integrity, chosen
from tests.vllm.real_core import Log, Work

SPECS = load(["hardware=mi325x", "model=qwen3_235b_a22b_fp8", "engine=simulated", "layout=dp1_tp8_ep8"])
NONE = Constant(0.0, "ms per request", "test")
MODEL = replace(
    SPECS.model, step_time=replace(SPECS.model.step_time, front_end_ms=NONE, front_end_latency_ms=NONE)
)
"""Without a front end, which vLLM's core does not have either."""
LONGEST_SHARED = 1000


class Prompt(NamedTuple):
    """`family` prompts begin with the same `shared` tokens, whatever their length."""

    at_s: float
    input_tokens: int
    output_tokens: int
    shared: int = 0
    family: int = 0

    def hashes(self, block_size: int) -> tuple[int, ...]:
        """One for each whole block that the prompt shares."""
        return tuple(hash((self.family, index)) for index in range(self.shared // block_size))


def token_ids(prompts: Sequence[Prompt]) -> list[tuple[float, list[int], int]]:
    """Arrival, tokens and output of each prompt: every family has its own tokens, and so has every prompt."""
    draw = random.Random(7)
    families: dict[int, list[int]] = {}
    drawn = []
    for prompt in prompts:
        common = families.setdefault(prompt.family, [draw.randrange(1 << 40) for _ in range(LONGEST_SHARED)])
        own = [draw.randrange(1 << 40) for _ in range(prompt.input_tokens - prompt.shared)]
        drawn.append((prompt.at_s, common[: prompt.shared] + own, prompt.output_tokens))
    return drawn


def step_time(
    prompts: Sequence[Prompt], layout: Layout, loaded: int = 0
) -> Callable[[Sequence[Work], int], float]:
    """The engine model's step time for vLLM's work; the last `loaded` tokens of each prompt are decoded."""
    model = roofline(MODEL, SPECS.hardware, layout)

    def duration_s(work: Sequence[Work], emitting: int) -> float:
        batch = Batch(sequences=emitting)
        for name, computed, new in work:
            if new == 1 and computed >= prompts[int(name)].input_tokens - loaded:
                batch.decode_tokens += 1
                batch.context_tokens += computed
            else:
                batch.add_chunk(new, computed)
        return model.duration_s(batch)

    return duration_s


class RecordedEngine(Engine):
    """Records the begin of its steps, the tokens of each request in them, and every request that it got."""

    def __init__(self, limits: SimulatedEngine, layout: Layout) -> None:
        super().__init__(EngineKind.of(limits, MODEL, SPECS.hardware, layout))
        self.starts: list[float] = []
        self.steps: list[dict[int, int]] = []
        self.states: list[RequestState] = []

    def add(self, *args: Any) -> RequestState:
        self.states.append(super().add(*args))
        return self.states[-1]

    def begin_step(self, now_s: float) -> float | None:
        begun = steps.begin(self.arrays.address, 0, now_s)
        self._note()
        if not begun:
            return None
        self.starts.append(now_s)
        steps.begin_ahead(self.arrays.address, 0)
        self._note()
        return float(self.arrays.groups["end_s"][0])

    def _note(self) -> None:
        """Note the step that was scheduled last, if it is new."""
        number = self.total("scheduled")
        if number > len(self.steps):
            self.steps.append(chosen(self.arrays, number))
        check_integrity(self.arrays)

    def log(self) -> Log:
        """What happened, after the last request has ended."""
        log = Log()
        for start_s, tokens in zip(self.starts, self.steps, strict=True):
            named = {str(self.states[serial].request_id): new for serial, new in tokens.items()}
            log.steps.append((start_s, sorted(named.items())))
        for state in self.states:
            assert state.finished and state.first_token_s is not None and state.last_token_s is not None
            log.first_s[str(state.request_id)] = state.first_token_s
            log.last_s[str(state.request_id)] = state.last_token_s
            log.cached[str(state.request_id)] = state.cached_tokens
        assert self.kv_usage == 0
        return log


def assert_same(ours: Log, real: Log, side: str = "engine") -> None:
    """The same steps at the same times; the same first and last tokens, and tokens found at admission."""
    for number, (here, there) in enumerate(zip(ours.steps, real.steps, strict=False)):
        assert here[1] == there[1], f"{side}, step {number} at {there[0]} s"
        assert here[0] == pytest.approx(there[0], abs=1e-9), f"{side}, step {number}"
    assert len(ours.steps) == len(real.steps)
    assert ours.first_s == pytest.approx(real.first_s, abs=1e-9)
    assert ours.last_s == pytest.approx(real.last_s, abs=1e-9)
    assert ours.cached == real.cached
