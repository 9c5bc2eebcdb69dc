"""How much slower other attention backends are than the one of the fit, by a published figure of them.

  python -m tests.benchmarks.backends     published, fitted and error of every bar; a table for conf/kernels

The bars are four backends' throughput, TPOT and TTFT at 64 and at 128 requests in flight. Only the ratio of a
backend to ROCM_AITER_FA is fitted, so that how well the model meets the latter drops out: of each concurrency
alone the two ratios (KV reads, prefill's attention) that meet throughput and TTFT; TPOT checks them.
Two concurrencies give two values, the ends of the interval, and their geometric mean. The number of requests
is not published: `WAVES` for each in flight, in a closed loop, meets its TTFTs.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from conf import load
from conf.kernels import BACKENDS
from conf.specs.engine import FITTED_BACKEND
from conf.specs.experiment import Constant, KernelRatio, SimulatedEngine
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service.service import serve_closed
from tests.benchmarks.evidence.blog import ATTENTION, LONG_INPUT, LONG_OUTPUT, VLLM_NAMES, WAVES

WORDS = (
    "hardware=mi300x",
    "model=qwen3_235b_a22b_fp8",
    "model.kv_cache=bf16",
    "layout=dp1_tp8_ep8",
    "engine.max_num_batched_tokens=16384",
    "engine.enable_prefix_caching=false",
)
"""Its KV is bf16: no flag asks for another."""
CONCURRENCIES = (64, 128)
METRICS = ("output_throughput", "tpot", "ttft")
LEAST, MOST, HALVINGS = 0.05, 200.0, 20
"""Between these a ratio is sought, to a hundred-thousandth of it."""

Published = Mapping[tuple[str, int, str], tuple[float, float]]
"""Value and reading error of a bar by backend, concurrency and metric."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Time over that of ROCM_AITER_FA: lowest, geometric mean and highest of what the concurrencies say."""

    kv_read: tuple[float, float, float]
    attention: tuple[float, float, float]


@cache
def published(path: Path = ATTENTION) -> Published:
    """Every bar of the figure, backends by vLLM's names."""
    with path.open() as file:
        lines = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return {
        (VLLM_NAMES.get(line["backend"], line["backend"]), int(line["concurrency"]), line["metric"]): (
            float(line["value"]),
            float(line["unit_per_pixel"]),
        )
        for line in lines
    }


@cache
def machine() -> EngineKind:
    """The engine of the figure with the constants of conf/."""
    experiment = load(WORDS)
    assert isinstance(experiment.engine, SimulatedEngine)
    return EngineKind.of(experiment.engine, experiment.model, experiment.hardware, experiment.layout)


def told(concurrency: int, kv_read: float = 1.0, attention: float = 1.0) -> dict[str, float]:
    """What the engine model says of the bars: tok/s, and ms."""
    one, read, prefill = (Constant(value, "ratio", "tried") for value in (1.0, kv_read, attention))
    served = replace(machine(), costs=machine().costs.with_kernels(KernelRatio(one, read, prefill)))
    count = round(WAVES * concurrency)
    words = [np.full(count, tokens) for tokens in (LONG_INPUT, LONG_OUTPUT, 0)]
    seen = serve_closed(served, concurrency, words)
    first_s, last_s = seen.first_token_s - seen.sent_s, seen.last_token_s - seen.first_token_s
    return {
        "output_throughput": LONG_OUTPUT * count / float(seen.last_token_s.max()),
        "tpot": 1e3 * float(last_s.mean()) / (LONG_OUTPUT - 1),
        "ttft": 1e3 * float(first_s.mean()),
    }


def over_fitted(backend: str, concurrency: int, metric: str) -> float:
    """A published bar over that of ROCM_AITER_FA."""
    bars = published()
    return bars[backend, concurrency, metric][0] / bars[FITTED_BACKEND, concurrency, metric][0]


def alone(backend: str, concurrency: int) -> tuple[float, float]:
    """The ratios of KV reads and of prefill's attention that meet throughput and TTFT of one concurrency."""
    base = told(concurrency)
    speed, ttft = (over_fitted(backend, concurrency, metric) for metric in ("output_throughput", "ttft"))

    def kv_read(attention: float) -> float:
        return _root(
            lambda ratio: (
                told(concurrency, ratio, attention)["output_throughput"] < speed * base["output_throughput"]
            )
        )

    def late(attention: float) -> bool:
        return told(concurrency, kv_read(attention), attention)["ttft"] > ttft * base["ttft"]

    attention = _root(late)
    return kv_read(attention), attention


def _root(over: Callable[[float], bool]) -> float:
    """The least ratio that is over, by halving its logarithm."""
    low, high = math.log(LEAST), math.log(MOST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if over(math.exp(middle)) else (middle, high)
    return math.exp((low + high) / 2)


@cache
def fitted(backend: str) -> Fitted:
    """What both concurrencies say of a backend."""
    reads, attentions = zip(*(alone(backend, concurrency) for concurrency in CONCURRENCIES), strict=True)
    return Fitted(_ends(reads), _ends(attentions))


def _ends(values: tuple[float, ...]) -> tuple[float, float, float]:
    return min(values), math.exp(float(np.mean(np.log(values)))), max(values)


def lines(backend: str, kv_read: float, attention: float) -> Iterator[str]:
    """Every bar of a backend over ROCM_AITER_FA: published, ours, error, and how well it can be read."""
    bars = published()
    for concurrency in CONCURRENCIES:
        base, ours = told(concurrency), told(concurrency, kv_read, attention)
        for metric in METRICS:
            seen, result = over_fitted(backend, concurrency, metric), ours[metric] / base[metric]
            value, pixel = bars[backend, concurrency, metric]
            yield (
                f"{backend:<24} {concurrency:>4} {metric:<18} {seen:>9.3f} {result:>8.3f} "
                f"{100 * (result / seen - 1):>+7.1f} % {100 * pixel / value:>8.1f} %"
            )


def main() -> None:
    head = f"{'backend':<24} {'C':>4} {'over ROCM_AITER_FA':<18} {'published':>9} {'fitted':>8}"
    print(f"{head} {'error':>9} {'a pixel':>10}")
    for backend in BACKENDS:
        at = fitted(backend)
        for line in lines(backend, at.kv_read[1], at.attention[1]):
            print(line)
    print(
        "\nfor backends in conf/kernels.yaml (lowest, value, highest of KV reads and of prefill's attention):"
    )
    for backend in BACKENDS:
        at = fitted(backend)
        ends = (f"({', '.join(f'{value:.3g}' for value in part)})" for part in (at.kv_read, at.attention))
        print(f'    "{backend}": ({", ".join(ends)}),')
    print("\nROCM_AITER_FA itself, published and by the constants of conf/ (not fitted here):")
    for concurrency in CONCURRENCIES:
        for metric, ours in told(concurrency).items():
            value, _ = published()[FITTED_BACKEND, concurrency, metric]
            error = 100 * (ours / value - 1)
            figures = f"{value:>9.1f} {ours:>8.1f} {error:>+7.1f} %"
            print(f"{FITTED_BACKEND:<24} {concurrency:>4} {metric:<18} {figures}")


if __name__ == "__main__":
    main()
