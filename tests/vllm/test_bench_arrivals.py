"""`loadgen.traffic.traffic`: arrivals of `vllm bench serve`, held to those of the installed vLLM."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from vllm.benchmarks import serve

from loadgen.traffic.traffic import bench_arrivals_s
from tests.support.words.vllm_bench_times import GIVEN

pytestmark = pytest.mark.vllm


class Clock:
    """A clock that only sleeps move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


async def _sent_s(clock: Clock, requests: int, rate: float, burstiness: float) -> list[float]:
    planned = list(range(requests))
    return [clock.time() async for _ in serve.get_request(planned, rate, burstiness)]


@pytest.mark.parametrize("question", [*GIVEN, (100, 8.0, 0, 1.0)])
def test_the_tool_sends_when_we_say(
    question: tuple[int, float, int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, rate, seed, burstiness = question
    clock = Clock()
    monkeypatch.setattr(serve, "time", clock)
    monkeypatch.setattr(serve, "asyncio", SimpleNamespace(sleep=clock.sleep))
    np.random.seed(seed)  # noqa: NPY002  # as the tool does
    sent_s = asyncio.run(_sent_s(clock, requests, rate, burstiness))
    np.testing.assert_allclose(bench_arrivals_s(*question), sent_s, rtol=1e-9)
