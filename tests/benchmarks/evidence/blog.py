"""Measurements of Qwen3-235B-A22B FP8 by three teams: a split node and whole engines, attention, layouts."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from analysis.stats.map_fit import Floats
from conf import Experiment
from conf.specs.engine import FITTED_BACKEND
from loadgen.predict.draws import LAYOUT_SCALE
from loadgen.traffic.traffic import bench_arrivals_s
from serve_apps.engine_model.cost.architecture import weight_bytes_on_gpu
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service import service
from serve_apps.engine_model.service.service import LATE_GAP, late_gaps_s, serve, serve_closed
from tests.benchmarks.evidence.figures import Figure, Team, Values, loaded, machine, service_kind

FOLDER = Path(__file__).parent.with_name("published")
REQUESTS = FOLDER / "mi300x_qwen3_235b_requests.csv"
ATTAINMENT = FOLDER / "mi300x_qwen3_235b_attainment.csv"
ATTENTION = FOLDER / "mi300x_rocm_attention.csv"
CHARACTER = FOLDER / "mi325x_character_ai.csv"
GIVEN = REQUESTS, ATTAINMENT, ATTENTION, CHARACTER
SPLIT_SOURCE = "vLLM blog 2026-04-07, vLLM 0.16.0rc1, 8x MI300X, random 2000/1000"
ATTENTION_SOURCE = "vLLM blog 2026-02-27, vLLM 0.14.0rc2, 8x MI300X, 10000/1000"
VLLM_NAMES = {"ROCM_AITER_UNIFIED": "ROCM_AITER_UNIFIED_ATTN"}
"""Attention backends of the figure that vLLM calls otherwise."""

CHARACTER_SOURCE = "DigitalOcean and Character.ai 2026-01-13, 8x MI325X, 5600/140, about 64 in flight"
COUNT, INPUT, OUTPUT, RATE_QPS = 100, 2000, 1000, 8.0
"""Requests, their tokens, and the rate of the file of requests (the blog's command)."""
TTFT_BOUND_S, GAP_BOUND_S = 1.0, 0.05
"""Within which a request attains its objective there."""
LONG_INPUT, LONG_OUTPUT = 10_000, 1_000
WAVES = 3.0
"""Requests for each one in flight behind the attention figure. They are not published; its TTFTs are met by
2.8 at 64 and 3.2 at 128 (fitted with all else)."""

_NODE = ("hardware=mi300x", "cluster=mi325x_1n", "model.kv_cache=bf16", "engine.enable_prefix_caching=false")
_SPLIT = (*_NODE, "engine.max_num_batched_tokens=8192", "engine.max_model_len=16384")
_ATTENTION = (
    "cluster=mi325x_1n",
    "layout=dp1_tp8_ep8",
    "model.kv_cache=bf16",
    "engine.enable_prefix_caching=false",
    "engine.max_num_batched_tokens=16384",
)
CHAT_INPUT, CHAT_OUTPUT, CHAT_IN_FLIGHT, CHAT_REQUESTS = 5600, 140, 64, 1280
CHAT_RATIOS = np.linspace(0.75, 2.25, 13)
"""Requests in flight over 64 among which the same latency is sought."""
_SPLIT_NAME = re.compile(r"\dp\d?d|disagg|mori|split|read|write")
"""What the name of a split node has: its shape, its connector, or the way of its KV."""
_WHOLE_NAMES = (
    (re.compile(r"^(1x_?)?tp8(_?ep8)?$"), "dp1_tp8_ep8"),
    (re.compile(r"^2x_?tp4(_?ep4)?$"), "dp2_tp4_ep4"),
)
METRICS = ("output_throughput", "ttft", "tpot")
READING = {"output_throughput": 0.02, "ttft": 0.1, "tpot": 0.02}
"""sd (ln) of reading a bar; a mean TTFT also hangs on how many requests there were, which is unknown."""
HARDWARE = {"MI300X": "mi300x", "MI325X": "mi325x", "MI355X": "mi355x"}

FIRST_TEAM = Team(1.0, 0.0)
"""The experiment of 8 QPS, whose steps the constants have."""
SECOND_TEAM = Team(0.92, 0.03)
"""The attention figure, as the joint fit finds it: 0.92, 95 % [0.86, 0.97]."""
ELSEWHERE = Team(0.96, 0.08, 0.036)
"""A team that nobody fitted: `deployment_scale` and `layout_scale` of conf/."""


def layout_words(name: str) -> tuple[str, ...] | None:
    """The words of a configuration by its name in a file; None for one that the model does not know.

    Two TP4 take requests in turn; the split node has one prefill and one decode engine of four GPUs.
    """
    plain = name.strip().lower().replace("-", "_").replace("/", "_").replace(" ", "_")
    if _SPLIT_NAME.search(plain):
        return "layout=1p1d_tp4_ep4", f"layout.transfer_mode={'write' if 'write' in plain else 'read'}"
    return next(((f"layout={layout}",) for pattern, layout in _WHOLE_NAMES if pattern.match(plain)), None)


def _node(name: str) -> Experiment:
    """The blog's node in a configuration; a split one has the budget of its layout's file."""
    words = layout_words(name)
    assert words is not None
    return loaded((*_SPLIT, *words))


def replayed(served: EngineKind, replicas: int, rate_qps: float) -> tuple[Floats, Floats]:
    """TTFT and p99 gap (s) of each request of the blog's experiment at a rate, over replicas in turn."""
    sent_s = bench_arrivals_s(COUNT, rate_qps)
    ttft_s, gap_s = np.empty(COUNT), np.empty(COUNT)
    for replica in range(replicas):
        mine = np.arange(replica, COUNT, replicas)
        ttft_s[mine], gap_s[mine] = _alone(served, sent_s[mine])
    return ttft_s, gap_s


def _alone(served: EngineKind, sent_s: Floats) -> tuple[Floats, Floats]:
    count = len(sent_s)
    columns = [np.full(count, tokens) for tokens in (INPUT, OUTPUT, 0)]
    seen = serve(served, service.Requests(sent_s, columns), tokens=True)
    return seen.first_token_s - sent_s, late_gaps_s(seen.token_s, columns[1], LATE_GAP)


@dataclass(frozen=True)
class Requests:
    """Requests of one configuration at one rate, by number: TTFT and p99 gap in seconds."""

    config: str
    numbers: tuple[int, ...]
    rows: tuple[tuple[float, float], ...]
    rate_qps: float = RATE_QPS
    source: str = SPLIT_SOURCE
    team: Team = FIRST_TEAM

    @property
    def experiment(self) -> Experiment:
        return _node(self.config)

    @cached_property
    def figures(self) -> Sequence[Figure]:
        return [
            Figure(f"{self.config} request {number} {name}", row[column], "s", 0.0)
            for column, name in enumerate(("TTFT", "p99 gap"))
            for number, row in zip(self.numbers, self.rows, strict=True)
        ]

    def predict(self, values: Values) -> Floats:
        served = service_kind(self.experiment, values)
        replicas = self.experiment.layout.replicas_per_node
        seen = replayed(served, replicas, self.rate_qps)
        return np.log(np.concatenate([each[list(self.numbers)] for each in seen]))

    def quantiles(self, column: int, seen: Floats) -> tuple[Floats, Floats]:
        """ln of the sorted figures of TTFT (0) or p99 gap (1): published, and `seen` as `predict` says it."""
        count = len(self.rows)
        published = np.log(np.sort([row[column] for row in self.rows]))
        return published, np.sort(seen[column * count : (column + 1) * count])


@dataclass(frozen=True)
class Attainment:
    """The share of requests within both bounds at several rates, of one configuration."""

    configuration: str
    rates_qps: tuple[float, ...]
    shares: tuple[float, ...]
    source: str = SPLIT_SOURCE
    team: Team = FIRST_TEAM

    @property
    def experiment(self) -> Experiment:
        return _node(self.configuration)

    @cached_property
    def figures(self) -> Sequence[Figure]:
        return [
            Figure(f"{self.configuration} attainment at {rate:g} QPS", share, "share", 0.01)
            for rate, share in zip(self.rates_qps, self.shares, strict=True)
        ]

    def predict(self, values: Values) -> Floats:
        served = service_kind(self.experiment, values)
        replicas = self.experiment.layout.replicas_per_node
        return np.array([attained(served, replicas, rate) for rate in self.rates_qps])


def attained(served: EngineKind, replicas: int, rate_qps: float) -> float:
    """The share of requests within both of the blog's bounds."""
    ttft_s, gap_s = replayed(served, replicas, rate_qps)
    return float(np.mean((ttft_s < TTFT_BOUND_S) & (gap_s < GAP_BOUND_S)))


@dataclass(frozen=True)
class Statistics:
    """Quantiles and means of TTFT and p99 gap (s) of one configuration at one rate."""

    configuration: str
    rate_qps: float
    known: tuple[tuple[str, float], ...]
    source: str = SPLIT_SOURCE
    team: Team = FIRST_TEAM

    @property
    def experiment(self) -> Experiment:
        return _node(self.configuration)

    @cached_property
    def figures(self) -> Sequence[Figure]:
        at = f"at {self.rate_qps:g} QPS"
        return [Figure(f"{self.configuration} {at} {name}", value, "s", 0.0) for name, value in self.known]

    def predict(self, values: Values) -> Floats:
        served = service_kind(self.experiment, values)
        ttft_s, gap_s = replayed(served, self.experiment.layout.replicas_per_node, self.rate_qps)
        seen = (_statistic(name, ttft_s if "ttft" in name else gap_s) for name, _ in self.known)
        return np.log(list(seen))


STATISTIC = re.compile(r"^(mean|median|p\d\d?)_(ttft|gap|itl)(_s)?$")
"""Names of the metrics of `Statistics`; `itl` is a request's own p99 gap here."""


def _statistic(name: str, values_s: Floats) -> float:
    kind = name.partition("_")[0]
    if kind == "mean":
        return float(values_s.mean())
    return float(np.quantile(values_s, 0.5 if kind == "median" else int(kind[1:]) / 100))


@dataclass(frozen=True)
class ClosedLoop:
    """Throughput (tok/s), mean TTFT and mean TPOT (s) of one closed loop of long prompts."""

    hardware: str
    concurrency: int
    known: tuple[tuple[str, float], ...]
    backend: str = FITTED_BACKEND
    waves: float = WAVES
    source: str = ATTENTION_SOURCE

    @property
    def experiment(self) -> Experiment:
        chosen = f"hardware={HARDWARE[self.hardware]}", f"engine.attention_backend={self.backend}"
        return loaded((*_ATTENTION, *chosen))

    @property
    def team(self) -> Team | None:
        return SECOND_TEAM if self.hardware == "MI300X" else None

    @cached_property
    def figures(self) -> Sequence[Figure]:
        units = {"output_throughput": "tok/s", "ttft": "s", "tpot": "s"}
        return [
            Figure(
                f"{self.hardware} {self.backend} C={self.concurrency} {name}",
                value,
                units[name],
                READING[name],
            )
            for name, value in self.known
        ]

    def predict(self, values: Values) -> Floats:
        served, count = machine(self.experiment, values), round(self.waves * self.concurrency)
        columns = [np.full(count, tokens) for tokens in (LONG_INPUT, LONG_OUTPUT, 0)]
        seen = serve_closed(served, self.concurrency, columns)
        all_s = {
            "output_throughput": count * LONG_OUTPUT / float(seen.last_token_s.max()),
            "ttft": float(np.mean(seen.first_token_s - seen.sent_s)),
            "tpot": float(np.mean(seen.last_token_s - seen.first_token_s)) / (LONG_OUTPUT - 1),
        }
        return np.log([all_s[name] for name, _ in self.known])


@dataclass(frozen=True)
class Ratio:
    """Throughput of a layout over that of one TP8/EP8 with 64 in flight, at the same mean latency."""

    configuration: str
    value: float
    source: str = CHARACTER_SOURCE
    team: Team = Team(ELSEWHERE.scale, ELSEWHERE.ln_sd, math.sqrt(2) * ELSEWHERE.layout_ln_sd)

    @property
    def experiment(self) -> Experiment:
        return _chat_node(self.configuration)

    @property
    def figures(self) -> Sequence[Figure]:
        return [Figure(f"{self.configuration} throughput over 1xTP8", self.value, "ratio", 0.03)]

    def predict(self, values: Values) -> Floats:
        """By Little's law the ratio of those in flight; the layout's own scale is that between both."""
        first = _chat_node("1xTP8")
        life_s = _chat_life_s(first, {**values, LAYOUT_SCALE: 1.0}, 1.0)
        lives_s = [_chat_life_s(self.experiment, values, ratio) for ratio in CHAT_RATIOS]
        return np.log([np.interp(life_s, lives_s, CHAT_RATIOS)])


def _chat_node(name: str) -> Experiment:
    words = layout_words(name)
    assert words is not None
    return loaded(("cluster=mi325x_1n", *words))


def _chat_life_s(experiment: Experiment, values: Values, ratio: float) -> float:
    """Mean latency with `ratio` times 64 in flight on a node; its replicas share the requests evenly."""
    replicas = experiment.layout.replicas_per_node
    columns = [np.full(CHAT_REQUESTS // replicas, tokens) for tokens in (CHAT_INPUT, CHAT_OUTPUT, 0)]
    served = serve_closed(machine(experiment, values), round(ratio * CHAT_IN_FLIGHT / replicas), columns)
    return float(np.mean(served.last_token_s - served.sent_s))


@dataclass(frozen=True)
class Weights:
    """GB of weights on each GPU of a layout."""

    configuration: str
    value: float
    source: str = CHARACTER_SOURCE
    team: Team = FIRST_TEAM

    @property
    def experiment(self) -> Experiment:
        return _chat_node(self.configuration)

    @property
    def figures(self) -> Sequence[Figure]:
        return [Figure(f"{self.configuration} weights per GPU", self.value, "GB", 0.02)]

    def predict(self, values: Values) -> Floats:
        experiment = self.experiment
        return np.log([weight_bytes_on_gpu(experiment.model, experiment.layout) / 1e9])
