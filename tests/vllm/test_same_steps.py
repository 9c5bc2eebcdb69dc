"""The engine model against vLLM's own scheduler: the same steps, the same times, on a virtual clock.

Both get the same arrivals and the same step times. Demanded equal are the start of every step, the
tokens of every request in it, all first and last token times and the cached tokens found at admission.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from conf import load
from conf.specs.experiment import Constant, SimulatedEngine
from serve_apps.engine_model.cost.step_time import Batch, roofline
from serve_apps.engine_model.scheduler.engine import BlockEngine, GenerateRequest
from tests.vllm.real_core import Limits, Log, Work, run_real
from tests.vllm.recorded import Recorded

pytestmark = pytest.mark.vllm

SPECS = load(["hardware=mi325x", "model=qwen3_235b_a22b_fp8", "engine=simulated", "layout=dp1_tp8_ep8"])
NONE = Constant(0.0, "ms per request", "test")
NO_FRONT_END = replace(
    SPECS.model, step_time=replace(SPECS.model.step_time, front_end_ms=NONE, front_end_latency_ms=NONE)
)


class Prompt(NamedTuple):
    """`family` prompts begin with the same `shared` tokens, whatever their length."""

    at_s: float
    input_tokens: int
    output_tokens: int
    shared: int = 0
    family: int = 0


def step_time(prompts: Sequence[Prompt]) -> Callable[[Sequence[Work], int], float]:
    """The engine model's step time for vLLM's choice of work."""
    model = roofline(NO_FRONT_END, SPECS.hardware, SPECS.layout)

    def duration_s(work: Sequence[Work], emitting: int) -> float:
        batch = Batch(sequences=emitting)
        for name, computed, new in work:
            if new == 1 and computed >= prompts[int(name)].input_tokens:
                batch.decode_tokens += 1
                batch.context_tokens += computed
            else:
                batch.add_chunk(new, computed)
        return model.duration_s(batch)

    return duration_s


def run_ours(prompts: Sequence[Prompt], limits: Limits) -> tuple[Log, int]:
    """The engine model's log of the same arrivals, and its number of preemptions."""
    spec = SimulatedEngine(
        num_gpu_blocks=limits.blocks,
        block_size=limits.block_size,
        max_num_batched_tokens=limits.budget,
        max_num_seqs=limits.seqs,
        enable_prefix_caching=limits.caching,
        async_scheduling=limits.asynchronous,
        long_prefill_token_threshold=limits.long_prefill,
    )
    engine = BlockEngine(spec, NO_FRONT_END, SPECS.hardware, SPECS.layout)
    recorded = engine.scheduler
    recorded.__class__ = Recorded
    assert isinstance(recorded, Recorded)
    recorded.steps = []
    states, starts, now_s, log = [], [], 0.0, Log()
    for number, prompt in enumerate(prompts):
        hashes = tuple(hash((prompt.family, index)) for index in range(prompt.shared // limits.block_size))
        request = GenerateRequest(number, prompt.input_tokens, prompt.output_tokens, hashes)
        states.append(engine.add(request, prompt.at_s))
    while (now_s := max(now_s, engine.ready_s())) < float("inf"):
        end_s = engine.begin_step(now_s)
        if end_s is not None:
            starts.append(now_s)
            engine.end_step()
            now_s = end_s
    for start_s, chosen in zip(starts, recorded.steps, strict=True):
        log.steps.append((start_s, sorted((str(name), new) for name, new in chosen.items())))
    for state in states:
        assert state.finished and state.first_token_s is not None and state.last_token_s is not None
        log.first_s[str(state.request_id)] = state.first_token_s
        log.last_s[str(state.request_id)] = state.last_token_s
        log.cached[str(state.request_id)] = state.cached_tokens
    assert engine.kv_usage == 0
    return log, engine.scheduler.preemptions


def token_ids(prompts: Sequence[Prompt]) -> list[tuple[float, list[int], int]]:
    """Every family has tokens of its own, and every prompt beyond what it shares."""
    draw = random.Random(7)
    families: dict[int, list[int]] = {}
    drawn = []
    for prompt in prompts:
        common = families.setdefault(prompt.family, [])
        while len(common) < prompt.shared:
            common.append(draw.randrange(1 << 40))
        own = [draw.randrange(1 << 40) for _ in range(prompt.input_tokens - prompt.shared)]
        drawn.append((prompt.at_s, common[: prompt.shared] + own, prompt.output_tokens))
    return drawn


def poisson(count: int, rate_qps: float, seed: int) -> list[float]:
    draw, now_s, times = random.Random(seed), 0.0, []
    for _ in range(count):
        now_s += draw.expovariate(rate_qps)
        times.append(now_s)
    return times


def plain() -> list[Prompt]:
    return [Prompt(at_s, 5600, 140) for at_s in poisson(40, 5.0, 1)]


def mixed(count: int = 80, longest: int = 900) -> list[Prompt]:
    draw = random.Random(2)
    return [Prompt(at_s, draw.randint(1, longest), draw.randint(1, 120)) for at_s in poisson(count, 60.0, 3)]


def prefixed(count: int = 80) -> list[Prompt]:
    """Three families; some prompts are the family's prefix and nothing else, down to the block."""
    draw, prompts = random.Random(4), []
    for at_s in poisson(count, 30.0, 5):
        shared = draw.choice((0, 64, 200, 512, 512, 800))
        own = draw.choice((0, 1, 16, 100, 300)) if shared else draw.randint(1, 400)
        prompts.append(Prompt(at_s, shared + own, draw.randint(1, 90), shared, draw.randrange(3)))
    return prompts


def burst() -> list[Prompt]:
    return [Prompt(0.0, 300 + 7 * number, 40 + number % 9) for number in range(60)]


def chat() -> list[Prompt]:
    return [Prompt(0.0, 20 + number % 7, 60 + number % 9) for number in range(60)]


WORKLOADS: dict[str, tuple[list[Prompt], Limits]] = {
    "plain 5600/140": (plain(), Limits()),
    "mixed lengths": (mixed(), Limits(budget=1024)),
    "few sequences": (mixed(), Limits(budget=512, seqs=7)),
    "more decoders than budget": (burst(), Limits(budget=24, seqs=64)),
    "long prompts cut": (burst(), Limits(budget=256, long_prefill=100)),
    "shared prefixes": (prefixed(), Limits(budget=1024)),
    "tight": (mixed(), Limits(blocks=150, budget=1024)),
    "tight, shared prefixes": (prefixed(), Limits(blocks=130, budget=512)),
    "tight, shared prefixes, block of one token": (
        prefixed(50),
        Limits(blocks=2000, budget=512, block_size=1),
    ),
    "tight, more decoders than budget": (chat(), Limits(blocks=68, budget=24, seqs=64)),
}
PREEMPTING = [name for name in WORKLOADS if name.startswith("tight")]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("caching", [False, True], ids=["no-cache", "cache"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_steps_as_vllm(name: str, caching: bool, asynchronous: bool, tmp_path: Path) -> None:
    prompts, limits = WORKLOADS[name]
    limits = replace(limits, caching=caching, asynchronous=asynchronous)
    ours, preemptions = run_ours(prompts, limits)
    real = run_real(token_ids(prompts), limits, step_time(prompts), tmp_path)
    for number, (here, there) in enumerate(zip(ours.steps, real.steps, strict=False)):
        assert here[1] == there[1], f"step {number} at {there[0]} s"
        assert here[0] == pytest.approx(there[0], abs=1e-9), f"step {number}"
    assert len(ours.steps) == len(real.steps)
    assert ours.first_s == pytest.approx(real.first_s, abs=1e-9)
    assert ours.last_s == pytest.approx(real.last_s, abs=1e-9)
    assert ours.cached == real.cached
    assert (preemptions > 0) == (name in PREEMPTING)
