"""The engine model as tests compare it with vLLM's own scheduler: prompts, step times, a log of its steps."""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from conf import load
from conf.constants import replaced
from conf.specs.experiment import Layout
from serve_apps.engine_model.cost.step_time import Batch, roofline
from serve_apps.engine_model.engine import steps
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service import loop
from serve_apps.engine_model.service.balancer import Balance, choice
from serve_apps.engine_model.service.service import Replicas, Service
from tests.support.virtual.books import check_integrity, chosen
from tests.vllm.real_core import Log, Work

SPECS = load(["hardware=mi325x", "model=qwen3_235b_a22b_fp8", "engine=simulated", "layout=dp1_tp8_ep8"])
FRONT_END = "model.step_time.front_end_ms", "model.step_time.front_end_latency_ms"
MODEL = replaced(SPECS, dict.fromkeys(FRONT_END, 0.0)).model
"""Without a front end, which vLLM's core does not have either."""
LONGEST_SHARED = 1000


class Prompt(NamedTuple):
    """`family` prompts begin with the same `shared` tokens, whatever their length."""

    at_s: float
    input_tokens: int
    output_tokens: int
    shared: int = 0
    family: int = 0


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


def recorded(kind: EngineKind, prompts: Sequence[Prompt]) -> tuple[list[Log], Service]:
    """The log of each engine, and the service that served; the compiled loop serves as this one does."""
    inputs, outputs, shared, families = (np.array(column) for column in list(zip(*prompts, strict=True))[1:])
    due_s = np.array([prompt.at_s for prompt in prompts])
    services = [Service(kind, Replicas(), len(due_s), 1000, 1 << 16) for _ in range(2)]
    for service, until_s in zip(services, (-1.0, 1e6), strict=True):
        service.append(inputs, outputs, families[None], shared[None])
        service.send(np.arange(len(due_s)), due_s, choice(Balance(), 1, 0, due_s), until_s)
    stepped, whole = services
    logs = RecordedService(stepped).run(due_s)
    for name in ("first_s", "last_s", "cached"):
        assert (stepped.arrays.requests[name] == whole.arrays.requests[name]).all()
    return logs, stepped


class RecordedService:
    """The loop of a service, of one engine or of a decode and a prefill one, step by step."""

    def __init__(self, service: Service) -> None:
        self._arrays, self._count, self._each = service.arrays, service.count, service.rows_each
        self._logs = [Log() for _ in range(self._each)]
        self._steps: list[list[dict[int, int]]] = [[] for _ in self._logs]

    def run(self, due_s: Any) -> list[Log]:
        """All requests to their end; the log of each engine."""
        arrays, address = self._arrays, self._arrays.address
        while True:
            g, arrived = int(arrays.heap[0]), int(arrays.service["arrived"][0])
            group = arrays.groups[g]
            arrival_s = due_s[arrived] if arrived < self._count else float("inf")
            if group["due_s"] > arrival_s or (not group["in_flight"] and group["due_s"] == arrival_s < 1e9):
                loop.send(address, arrival_s)
            elif group["due_s"] == float("inf"):
                assert (arrays.engines["free"] == arrays.engines["blocks"]).all(), "KV outlasts its request"
                return [self._ended(g) for g in range(self._each)]
            else:
                self._serve(g, float(group["due_s"]), bool(group["in_flight"]))

    def _serve(self, g: int, at_s: float, ends: bool) -> None:
        address = self._arrays.address
        if ends:
            steps.end(address, g)
            loop.finish(address, g)
        else:
            begun = steps.begin(address, g, at_s)
            self._note(g)
            if begun:
                self._logs[g].steps.append((at_s, []))
                steps.begin_ahead(address, g)
                self._note(g)
            loop.start(address, g)
        loop.refresh(address, g)

    def _note(self, g: int) -> None:
        number = int(self._arrays.engines["scheduled"][g])
        if number > len(self._steps[g]):
            self._steps[g].append(chosen(self._arrays, number, g))
        check_integrity(self._arrays, g)

    def _ended(self, g: int) -> Log:
        log = self._logs[g]
        for (_, work), tokens in zip(log.steps, self._steps[g], strict=True):
            work += sorted((str(serial // self._each), new) for serial, new in tokens.items())
        for number, request in enumerate(self._arrays.requests[g :: self._each][: self._count]):
            for column in ("first_s", "last_s", "cached"):
                getattr(log, column)[str(number)] = request[column].item()
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
