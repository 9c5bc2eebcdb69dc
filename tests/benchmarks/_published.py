"""Published measurements of Qwen3-235B-A22B on this generation of GPUs, and the engine model's answers.

Every figure is the natural logarithm of what was measured, but for an attainment, which is a share. Files:

    config,request,ttft_s,itl_s                     each request of the 8 QPS experiment; itl_s is its p99 gap
    configuration,rate_qps,slo_attainment_pct       share of requests with TTFT < 1 s and p99 gap < 50 ms
    hardware,concurrency,backend,metric,value,unit  a closed loop of 10,000 + 1,000 tokens by backend
    configuration,quantity,value,unit               layouts of one node at 5600 + 140 tokens, 64 in flight
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from analysis.stats.map_fit import Floats
from conf import Experiment, load
from conf.constants import replaced
from conf.kernels import is_known
from conf.specs.engine import FITTED_BACKEND
from conf.specs.experiment import SimulatedEngine
from loadgen.predict.draws import LAYOUT_SCALE
from loadgen.traffic.processes import bench_arrivals_s
from serve_apps.engine_model.cost.architecture import weight_bytes_per_gpu
from serve_apps.engine_model.engine.gaps import LATE_GAP, late_gaps_s
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service import service
from serve_apps.engine_model.service.service import serve, serve_closed

FOLDER = Path(__file__).with_name("published")
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
LAYOUTS = {
    "tp8_ep8": "dp1_tp8_ep8",
    "2x_tp4_ep4": "dp2_tp4_ep4",
    "1xTP8": "dp1_tp8_ep8",
    "2xTP4": "dp2_tp4_ep4",
}
"""Ours by the names of the files; two TP4 take requests in turn."""
METRICS = ("output_throughput", "ttft", "tpot")
READING = {"output_throughput": 0.02, "ttft": 0.1, "tpot": 0.02}
"""sd (ln) of reading a bar; a mean TTFT also hangs on how many requests there were, which is unknown."""
HARDWARE = {"MI300X": "mi300x", "MI325X": "mi325x", "MI355X": "mi355x"}

Values = Mapping[str, float]
"""Constants of the step time by config key."""


@dataclass(frozen=True, slots=True)
class Team:
    """Step times of whoever measured over those of the constants, and the sd of its logarithm.

    `layout_ln_sd` is that of a layout which was not fitted with this team's figures.
    """

    scale: float
    ln_sd: float
    layout_ln_sd: float = 0.0


FIRST_TEAM = Team(1.0, 0.0)
"""The experiment of 8 QPS, whose steps the constants have."""
SECOND_TEAM = Team(0.92, 0.03)
"""The attention figure, as the joint fit finds it: 0.92, 95 % [0.86, 0.97]."""
ELSEWHERE = Team(0.96, 0.08, 0.036)
"""Other hardware: `deployment_scale` and `layout_scale` of conf/."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One published number: `value` in `unit`, and the sd of reading it (in ln, or of a share)."""

    label: str
    value: float
    unit: str
    reading: float

    @property
    def is_share(self) -> bool:
        return self.unit == "share"

    @property
    def scaled(self) -> float:
        """As it is compared: its logarithm, or itself where it is a share."""
        return self.value if self.is_share else math.log(self.value)

    def unscaled(self, scaled: float) -> float:
        """A number that is scaled so, in `unit`."""
        return min(1.0, max(0.0, scaled)) if self.is_share else math.exp(scaled)

    def error(self, scaled: float) -> str:
        """A prediction over this number less 1, or of a share the difference."""
        away = scaled - self.scaled
        return f"{100 * away:+.1f} points" if self.is_share else f"{100 * math.expm1(away):+.1f} %"


class Study(Protocol):
    """One experiment that was published; `predict` answers its figures in their order, scaled as they are."""

    @property
    def source(self) -> str: ...
    @property
    def experiment(self) -> Experiment: ...
    @property
    def team(self) -> Team: ...
    @property
    def figures(self) -> Sequence[Figure]: ...
    def predict(self, values: Values) -> Floats: ...


@cache
def _asked(words: tuple[str, ...]) -> Experiment:
    return load([*words])


def machine(experiment: Experiment, values: Values) -> EngineKind:
    """One replica with other constants."""
    asked = replaced(experiment, values)
    assert isinstance(asked.engine, SimulatedEngine)
    return EngineKind.of(asked.engine, asked.model, asked.hardware, asked.layout)


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
    """Requests of one configuration of the 8 QPS experiment, by number: TTFT and p99 gap in seconds."""

    config: str
    numbers: tuple[int, ...]
    rows: tuple[tuple[float, float], ...]
    source: str = SPLIT_SOURCE
    team: Team = FIRST_TEAM

    @property
    def experiment(self) -> Experiment:
        return _asked((*_SPLIT, f"layout={LAYOUTS[self.config]}"))

    @cached_property
    def figures(self) -> Sequence[Figure]:
        return [
            Figure(f"{self.config} request {number} {name}", row[column], "s", 0.0)
            for column, name in enumerate(("TTFT", "p99 gap"))
            for number, row in zip(self.numbers, self.rows, strict=True)
        ]

    def predict(self, values: Values) -> Floats:
        served = machine(self.experiment, values)
        replicas = self.experiment.layout.replicas_per_node
        seen = replayed(served, replicas, RATE_QPS)
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
        return _asked((*_SPLIT, f"layout={LAYOUTS[self.configuration]}"))

    @cached_property
    def figures(self) -> Sequence[Figure]:
        return [
            Figure(f"{self.configuration} attainment at {rate:g} QPS", share, "share", 0.01)
            for rate, share in zip(self.rates_qps, self.shares, strict=True)
        ]

    def predict(self, values: Values) -> Floats:
        served = machine(self.experiment, values)
        replicas = self.experiment.layout.replicas_per_node
        return np.array([attained(served, replicas, rate) for rate in self.rates_qps])


def attained(served: EngineKind, replicas: int, rate_qps: float) -> float:
    """The share of requests within both of the blog's bounds."""
    ttft_s, gap_s = replayed(served, replicas, rate_qps)
    return float(np.mean((ttft_s < TTFT_BOUND_S) & (gap_s < GAP_BOUND_S)))


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
        return _asked((*_ATTENTION, *chosen))

    @property
    def team(self) -> Team:
        return SECOND_TEAM if self.hardware == "MI300X" else ELSEWHERE

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
        return _asked(("cluster=mi325x_1n", f"layout={LAYOUTS[self.configuration]}"))

    @property
    def figures(self) -> Sequence[Figure]:
        return [Figure(f"{self.configuration} throughput over 1xTP8", self.value, "ratio", 0.03)]

    def predict(self, values: Values) -> Floats:
        """By Little's law the ratio of those in flight; the layout's own scale is that between both."""
        first = _asked(("cluster=mi325x_1n", f"layout={LAYOUTS['1xTP8']}"))
        life_s = _chat_life_s(first, {**values, LAYOUT_SCALE: 1.0}, 1.0)
        lives_s = [_chat_life_s(self.experiment, values, ratio) for ratio in CHAT_RATIOS]
        return np.log([np.interp(life_s, lives_s, CHAT_RATIOS)])


def _chat_life_s(experiment: Experiment, values: Values, ratio: float) -> float:
    """Mean latency with `ratio` times 64 in flight on a node; its replicas share the requests evenly."""
    replicas = experiment.layout.replicas_per_node
    columns = [np.full(CHAT_REQUESTS // replicas, tokens) for tokens in (CHAT_INPUT, CHAT_OUTPUT, 0)]
    seen = serve_closed(machine(experiment, values), round(ratio * CHAT_IN_FLIGHT / replicas), columns)
    return float(np.mean(seen.last_token_s - seen.sent_s))


@dataclass(frozen=True)
class Weights:
    """GB of weights on each GPU of a layout."""

    configuration: str
    value: float
    source: str = CHARACTER_SOURCE
    team: Team = FIRST_TEAM

    @property
    def experiment(self) -> Experiment:
        return _asked(("cluster=mi325x_1n", f"layout={LAYOUTS[self.configuration]}"))

    @property
    def figures(self) -> Sequence[Figure]:
        return [Figure(f"{self.configuration} weights per GPU", self.value, "GB", 0.02)]

    def predict(self, values: Values) -> Floats:
        asked = self.experiment
        return np.log([weight_bytes_per_gpu(asked.model, asked.layout.tensor_parallel) / 1e9])


def read(paths: Sequence[Path] = GIVEN) -> tuple[list[Study], list[str]]:
    """The studies of files by their columns, and what was skipped with the reason. Raises ValueError."""
    studies: list[Study] = []
    skipped: list[str] = []
    for path in paths:
        rows = _rows(path)
        columns = set(rows[0])
        if {"config", "request", "ttft_s", "itl_s"} <= columns:
            found = _requests(rows, skipped)
        elif {"configuration", "rate_qps", "slo_attainment_pct"} <= columns:
            found = _attainments(rows, skipped)
        elif {"hardware", "concurrency", "backend", "metric", "value", "unit"} <= columns:
            found = _closed_loops(rows, skipped)
        elif {"configuration", "quantity", "value", "unit"} <= columns:
            found = _layouts(rows, skipped)
        else:
            raise ValueError(f"{path}: its columns {', '.join(sorted(columns))} are none of the four formats")
        studies += found
    return studies, skipped


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    if not rows:
        raise ValueError(f"{path}: it has no rows")
    return rows


def _by(rows: Sequence[dict[str, str]], *columns: str) -> dict[tuple[str, ...], list[dict[str, str]]]:
    parts: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        parts.setdefault(tuple(row[column] for column in columns), []).append(row)
    return parts


def _known(
    rows: Sequence[dict[str, str]], column: str, skipped: list[str]
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The rows of each layout that the model plays; of others only the name is kept."""
    for (name,), part in _by(rows, column).items():
        if name in LAYOUTS:
            yield name, part
        else:
            skipped.append(f"{name}: {len(part)} rows of a shape that the model does not know yet")


def _requests(rows: Sequence[dict[str, str]], skipped: list[str]) -> list[Study]:
    found: list[Study] = []
    for name, part in _known(rows, "config", skipped):
        numbers = tuple(int(row["request"]) for row in part)
        if not set(numbers) <= set(range(COUNT)):
            raise ValueError(
                f"{name}: requests are numbered 0 to {COUNT - 1}, not {min(numbers)} to {max(numbers)}"
            )
        seen = tuple((float(row["ttft_s"]), float(row["itl_s"])) for row in part)
        found.append(Requests(name, numbers, seen))
    return found


def _attainments(rows: Sequence[dict[str, str]], skipped: list[str]) -> list[Study]:
    return [
        Attainment(
            name,
            tuple(float(row["rate_qps"]) for row in part),
            tuple(float(row["slo_attainment_pct"]) / 100 for row in part),
        )
        for name, part in _known(rows, "configuration", skipped)
    ]


def _layouts(rows: Sequence[dict[str, str]], skipped: list[str]) -> list[Study]:
    kinds = {"throughput over 1xTP8": Ratio, "weights per GPU": Weights}
    found: list[Study] = []
    for name, part in _known(rows, "configuration", skipped):
        for row in part:
            if row["quantity"] in kinds:
                found.append(kinds[row["quantity"]](name, float(row["value"])))
            else:
                skipped.append(f"{name} {row['quantity']}: no quantity that the model knows")
    return found


def _closed_loops(rows: Sequence[dict[str, str]], skipped: list[str]) -> list[Study]:
    found: list[Study] = []
    for (hardware, concurrency, backend), part in _by(rows, "hardware", "concurrency", "backend").items():
        named = VLLM_NAMES.get(backend, backend)
        if hardware not in HARDWARE or not is_known(named):
            skipped.append(
                f"{hardware} {backend} C={concurrency}: hardware or backend that the model does not know"
            )
            continue
        # Milliseconds in the file, seconds here.
        known = {row["metric"]: float(row["value"]) / (1e3 if row["unit"] == "ms" else 1) for row in part}
        asked = tuple((name, known[name]) for name in METRICS if name in known)
        others = sorted(set(known) - set(METRICS))
        skipped += [f"{hardware} {backend} C={concurrency} {name}: an unknown metric" for name in others]
        if asked:
            found.append(ClosedLoop(hardware, int(concurrency), asked, named))
    return found
