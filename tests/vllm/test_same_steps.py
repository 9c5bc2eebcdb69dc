"""`serve_apps.engine_model.engine` against vLLM's own scheduler, on a virtual clock.

Both get the same arrivals and step times. Demanded equal are the start of every step, the tokens of every
request in it, all first and last token times and the cached tokens found at admission.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import vllm
from packaging.version import Version

from conf.specs.experiment import SimulatedEngine
from serve_apps.engine_model.engine.kinds import EngineKind
from tests.vllm.real_core import run_real
from tests.vllm.recorded import MODEL, SPECS, Prompt, assert_same, recorded, step_time, token_ids

pytestmark = pytest.mark.vllm


def poisson(count: int, rate_qps: float, seed: int) -> list[float]:
    draw, now_s, times = random.Random(seed), 0.0, []
    for _ in range(count):
        now_s += draw.expovariate(rate_qps)
        times.append(now_s)
    return times


def mixed() -> list[Prompt]:
    draw = random.Random(2)
    return [Prompt(at_s, draw.randint(1, 900), draw.randint(1, 120)) for at_s in poisson(80, 60.0, 3)]


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


def lone() -> list[Prompt]:
    """Short requests that often meet an idle engine; some come while its core sleeps."""
    draw = random.Random(6)
    return [Prompt(at_s, draw.randint(1, 100), draw.randint(1, 2)) for at_s in poisson(200, 30.0, 8)]


limited = partial(SimulatedEngine, num_gpu_blocks=100_000)
WORKLOADS: dict[str, tuple[list[Prompt], SimulatedEngine]] = {
    "few sequences": (mixed(), limited(max_num_batched_tokens=512, max_num_seqs=7)),
    "more decoders than budget": (burst(), limited(max_num_batched_tokens=24, max_num_seqs=64)),
    "long prompts cut": (burst(), limited(max_num_batched_tokens=256, long_prefill_token_threshold=100)),
    "often alone": (lone(), limited(max_num_batched_tokens=256, long_prefill_token_threshold=40)),
    "shared prefixes": (prefixed(), limited(max_num_batched_tokens=1024)),
    "tight": (mixed(), limited(num_gpu_blocks=150, max_num_batched_tokens=1024)),
    "tight, shared prefixes": (prefixed(), limited(num_gpu_blocks=130, max_num_batched_tokens=512)),
    "tight, shared prefixes, blocks of 1": (
        prefixed(50),
        limited(num_gpu_blocks=2000, max_num_batched_tokens=512, block_size=1),
    ),
    "tight, more decoders than budget": (
        chat(),
        limited(num_gpu_blocks=68, max_num_batched_tokens=24, max_num_seqs=64),
    ),
    "prefills held back": (mixed(), limited(max_num_batched_tokens=256, prefill_schedule_interval=5)),
    "tight, prefills held back": (
        prefixed(),
        limited(num_gpu_blocks=200, max_num_batched_tokens=512, prefill_schedule_interval=4),
    ),
}
if Version(vllm.__version__) < Version("0.32"):
    del WORKLOADS["often alone"]  # vLLM 0.29 cuts the long prompt of a lone request; the model does not
if Version(vllm.__version__).release < (0, 33):
    del WORKLOADS["prefills held back"], WORKLOADS["tight, prefills held back"]
PREEMPTING = [name for name in WORKLOADS if name.startswith("tight")]
FIRST = {
    "few sequences-cache-sync",
    "long prompts cut-cache-async",
    "often alone-no-cache-async",
    "shared prefixes-cache-async",
    "tight-no-cache-sync",
    "tight, shared prefixes-cache-sync",
    "tight, shared prefixes, blocks of 1-cache-async",
    "tight, more decoders than budget-no-cache-async",
    "prefills held back-cache-async",
    "tight, prefills held back-cache-async",
}
"""Cases of `.ci/run`. Of 42 faults planted in the scheduler they catch all 35 that any case catches."""


def cases() -> Iterator[Any]:
    for name, caching, asynchronous in product(WORKLOADS, (False, True), (False, True)):
        case = f"{name}-{'cache' if caching else 'no-cache'}-{'async' if asynchronous else 'sync'}"
        later = () if case in FIRST else pytest.mark.slow
        yield pytest.param(name, caching, asynchronous, id=case, marks=later)


@pytest.mark.parametrize(("name", "caching", "asynchronous"), cases())
def test_the_same_steps_as_vllm(name: str, caching: bool, asynchronous: bool, tmp_path: Path) -> None:
    prompts, limits = WORKLOADS[name]
    limits = replace(limits, enable_prefix_caching=caching, async_scheduling=asynchronous)
    (ours,), service = recorded(EngineKind.of(limits, MODEL, SPECS.hardware, SPECS.layout), prompts)
    real = run_real(token_ids(prompts), limits, step_time(prompts, SPECS.layout), tmp_path)
    assert_same(ours, real)
    assert bool(service.arrays.engines["preemptions"].sum()) == (name in PREEMPTING)
