"""Rows of `model,...,metric,value,unit`: closed loops, bursts and single batches that anybody published.

InferenceX's rows, tables of one batch, offline runs and posts are all of this kind. A row's machine and load
are read from its words; what they leave open (the budget of a step) is the engine's default.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analysis.stats.map_fit import Floats
from conf import Experiment
from serve_apps.engine_model.service.balancer import Balance
from serve_apps.engine_model.service.service import Replicas, Requests, Times, serve
from tests.benchmarks.evidence.figures import Figure, Rows, Team, Values, loaded, service_kind

PER_SLOT = 10
"""Requests of a closed loop for each one in flight, where they are not stated (InferenceX's rule)."""
ALL_FP8 = "model.bf16_attention=false", "model.bf16_layers=0"
"""AMD's checkpoints, which Meta's leave attention and two layers in BF16; the rows fit better so."""
MODELS: Sequence[tuple[str, tuple[str, ...]]] = (
    (r"qwen3-vl-235b", ("model=qwen3_vl_235b_bf16",)),
    (r"qwen3-235b", ("model=qwen3_235b_a22b_fp8",)),
    (r"llama-?3\.1-405b.*fp8-kv", ("model=llama31_405b_fp8", *ALL_FP8)),
    (r"llama-?3\.1-405b", ("model=llama31_405b_fp8",)),
    (r"llama-?2-70b", ("model=llama2_70b_fp8",)),
    (r"deepseek-v3\.2", ("model=deepseek_v32_fp8", "model.step_time.expert_spread.value=1")),
    (r"deepseek-(r1|v3)", ("model=deepseek_r1_fp8",)),
    (r"kimi-k2", ("model=kimi_k25_int4", "model.step_time.expert_spread.value=1")),
)
"""Words of the models that have a card, by their names; prompts of these rows differ."""
GPUS = ("mi300x", "mi325x", "mi355x", "mi308x", "h100", "h200", "b200")
METRIC = re.compile(r"^(mean|median|p50|p90|p99)_(ttft|tpot|e2el?)$")
ALONE = re.compile(r"^(ttft|tpot)_(baseline|optimised)$")
"""Latency of a single request before and after a team's own changes."""
RATES = {
    "requests": "requests",
    "request_throughput": "requests",
    "output_throughput": "output",
    "output_tput_per_gpu": "output",
    "total_throughput": "total",
    "tput_per_gpu": "total",
    "e2e_batch": "makespan",
}
"""What a metric counts."""
UNITS = {"s": "s", "ms": "s", "tok/s": "tok/s", "tok/s/gpu": "tok/s", "req/s": "1/s", "1/s": "1/s"}
READING, COLD = 0.01, 0.3
"""sd (ln) of a figure by what the rows do not say; a loop's mean and p99 TTFT hang on its first requests."""
COLD_S, LATER_COLD_S = {"SGLang 2025-12": 0.8}, 2.2
"""What the first requests of InferenceX's loops wait for a cold service, by release, and with any other: by
the p99 of TTFT (`python -m tests.benchmarks.evidence.releases`)."""


class Unreadable(Exception):
    """Why a row has no answer, in a few words."""


@dataclass(frozen=True, slots=True)
class Load:
    """`count` requests of `prompt` + `output` tokens with `in_flight` at once; lengths from `least` of it.

    The first ones get their first token `cold_s` later.
    """

    prompt: int
    output: int
    in_flight: int
    count: int
    least: float = 1.0
    cold_s: float = 0.0

    def lengths(self) -> list[np.ndarray]:
        """Prompt, output and shared tokens of each request; uniform ones are drawn from seed 0."""
        rng = np.random.default_rng(0)
        columns = [
            rng.integers(max(1, round(self.least * tokens)), tokens + 1, self.count)
            for tokens in (self.prompt, self.output)
        ]
        return [*columns, np.zeros(self.count, np.int64)]


@dataclass(frozen=True)
class Loop:
    """Every figure of one load on one machine."""

    source: str
    words: tuple[str, ...]
    load: Load
    gpus: int
    known: tuple[tuple[str, str, float, str], ...]
    """Label, metric, value and unit of each figure."""
    team: Team | None = None

    @property
    def experiment(self) -> Experiment:
        return loaded(self.words)

    @cached_property
    def figures(self) -> Sequence[Figure]:
        return [
            Figure(label, value, unit, COLD if metric in ("p99_ttft", "mean_ttft") else READING)
            for label, metric, value, unit in self.known
        ]

    def predict(self, values: Values) -> Floats:
        kind, lengths = service_kind(self.experiment, values), self.load.lengths()
        replicas = Replicas(self.experiment.layout.replicas_per_node, Balance("leastconn"))
        times = serve(kind, Requests(np.zeros(self.load.count), lengths), replicas, self.load.in_flight)
        for column in (times.first_token_s, times.last_token_s):
            column[: self.load.in_flight] += self.load.cold_s
        return np.log([_metric(name, times, lengths, self.gpus) for _, name, _, _ in self.known])


def _metric(name: str, times: Times, lengths: Sequence[np.ndarray], gpus: int) -> float:
    makespan_s = float(times.last_token_s.max())
    what = RATES.get(name)
    if what:
        outputs = float(lengths[1].sum())
        total = {
            "makespan": makespan_s**2,
            "requests": len(lengths[0]),
            "output": outputs,
            "total": outputs + float(lengths[0].sum()),
        }[what]
        return total / makespan_s / (gpus if name.endswith("per_gpu") else 1)
    statistic, _, latency = name.partition("_")
    whole_s = times.last_token_s - times.sent_s
    ttft_s = times.first_token_s - times.sent_s
    tpot_s = (whole_s - ttft_s) / np.maximum(1, lengths[1] - 1)
    seen = {"ttft": ttft_s, "tpot": tpot_s}.get(latency, whole_s)
    if statistic == "mean":
        return float(seen.mean())
    return float(np.quantile(seen, 0.5 if statistic == "median" else int(statistic[1:]) / 100))


def loops(rows: Rows, skipped: list[str]) -> list[Loop]:
    """The studies of such rows, and in `skipped` one line for each reason why others have no answer."""
    parts: dict[tuple[str, tuple[str, ...], Load, int], list[tuple[str, str, float, str]]] = {}
    without: dict[str, list[str]] = {}
    for row in rows:
        try:
            key, known = _read(row)
        except Unreadable as why:
            without.setdefault(f"{_source(row)}: {why}", []).append(row["metric"])
            continue
        parts.setdefault(key, []).append(known)
    skipped += [
        f"{reason} ({len(metrics)} rows: {', '.join(dict.fromkeys(metrics))})"
        for reason, metrics in without.items()
    ]
    return [
        Loop(source, words, load, gpus, tuple(known)) for (source, words, load, gpus), known in parts.items()
    ]


def _read(
    row: Mapping[str, str],
) -> tuple[tuple[str, tuple[str, ...], Load, int], tuple[str, str, float, str]]:
    """A row's source, words, load and GPUs, and its figure. Raises Unreadable."""
    metric = _metric_name(row.get("metric", ""))
    unit = row.get("unit", "").lower()
    if unit not in UNITS or not re.fullmatch(r"[0-9.e+-]+", row.get("value", "")):
        raise Unreadable("no single number in seconds or a rate")
    notes = f"{row.get('notes', '')} {row.get('note', '')}".lower()
    for said in ("interpolated", "prefix cache was on", "no ignore_eos", "implied"):
        if said in notes or said in row["metric"]:
            raise Unreadable(f"the rows say '{said}', so that their load or value is not known")
    words, gpus = _machine(row)
    load, more = _load(row)
    value = float(row["value"]) / (1e3 if unit == "ms" else 1)
    when = re.search(r"run date (\S+)", notes)
    label = (
        f"{_gpu(row).upper()} {load.prompt}/{load.output} x {load.in_flight} {metric}"
        f"{' ' + when[1] if when else ''}"
    )
    return (_source(row), (*words, *more), load, gpus), (label, metric, value, UNITS[unit])


def _source(row: Mapping[str, str]) -> str:
    engine = re.sub(r"\s+", " ", row.get("engine", "")).strip()
    named = row.get("source") or "InferenceX"
    return f"{re.split(r'[ ,(]', named)[0]}, {row.get('model')}, {engine}"


def _metric_name(text: str) -> str:
    name = text.strip().lower().replace(" ", "_")
    if METRIC.match(name) or name in RATES:
        return name
    if alone := ALONE.match(name):
        return f"mean_{alone[1]}"
    raise Unreadable("no latency or rate of one load")


def _gpu(row: Mapping[str, str]) -> str:
    text = (row.get("gpu") or row.get("hardware") or "").lower()
    result = next((gpu for gpu in GPUS if gpu in text), None)
    if result is None:
        raise Unreadable(f"GPU {text or 'not named'} is not in conf/hardware")
    return result


def _machine(row: Mapping[str, str]) -> tuple[tuple[str, ...], int]:
    """Words of model, GPU, layout, precision and engine, and how many GPUs they are."""
    model, gpu = row.get("model", "").lower(), _gpu(row)
    words = next((words for pattern, words in MODELS if re.search(pattern, model)), None)
    if words is None:
        raise Unreadable(f"model {row.get('model')} has no card in conf/model")
    layout, gpus = _layout(row)
    precision = row.get("precision", "").lower()
    more = []
    if precision.startswith("bf16") and "fp8" in words[0]:
        if "/" in precision:
            raise Unreadable(f"precision {precision} is two of them")
        more.append("model.weights=bf16")
    more.append(f"model.kv_cache={'fp8' if 'fp8 kv' in precision or 'kv auto/fp8' in precision else 'bf16'}")
    return (*words, f"hardware={gpu}", *layout, *more, *_engine(row)), gpus


def _layout(row: Mapping[str, str]) -> tuple[tuple[str, ...], int]:
    text = (row.get("layout") or row.get("parallelism") or "").upper()
    width = re.search(r"TP ?(\d+)", text)
    if not width or "DP8" in text or "VS" in text:
        raise Unreadable(f"layout '{text}' is not read")
    tensor = int(width[1])
    experts = re.search(r"EP ?(\d+)", text)
    shared = bool(experts) and int(experts[1]) > 1 if experts else False
    gpus = int(row.get("n_gpus") or 8)
    words = (
        "cluster=mi325x_1n",
        "layout=dp1_tp1",
        f"layout.tensor_parallel={tensor}",
        f"layout.replicas_per_node={max(1, gpus // tensor)}",
        f"layout.expert_parallel={str(shared).lower()}",
    )
    return words, gpus


def _engine(row: Mapping[str, str]) -> tuple[str, ...]:
    """The engine's release, and its kernels where AITER is said to be off."""
    off = "aiter off" in f"{row.get('engine')} {row.get('note', '')} {row.get('notes', '')}".lower()
    kernels = "engine=simulated_triton" if off else "engine=simulated"
    return kernels, f"engine.version={_release(row)}", "engine.enable_prefix_caching=false"


def _release(row: Mapping[str, str]) -> str:
    """An engine with its version, or with the month of the run where no version is named."""
    text, notes = row.get("engine", ""), row.get("notes", "")
    version = re.search(r"\d+\.\d+(\.\d+)?", text) or re.search(r"(?<=run date )20\d\d-\d\d", notes)
    name = "SGLang" if "sglang" in text.lower() else "vLLM"
    return f"{name} {version[0] if version else 'of an unnamed version'}"


def _load(row: Mapping[str, str]) -> tuple[Load, tuple[str, ...]]:
    """The requests, and the words that limit a step where the row has them."""
    prompt, output = row.get("isl", ""), row.get("osl", "")
    if not (prompt.isdigit() and output.isdigit()):
        raise Unreadable(f"lengths '{prompt}/{output}' are no two numbers of tokens")
    least = 0.8 if ".8-1.0" in row.get("length_distribution", "") else 1.0
    text = f"{row.get('arrival', '')} {row.get('load_kind', '')}".lower()
    number = re.search(r"(?:concurrency|batch of|offline,) ?(\d+)", text)
    stated = row.get("load", "").strip("~")
    count = int(number[1]) if number else int(stated) if stated.isdigit() else 0
    if not count:
        raise Unreadable(f"load '{text.strip()}' has no number of requests")
    total = re.search(r"(\d+) requests", text)
    closed = "clos" in text or text.strip() == "concurrency"
    limits = {"max_num_seqs": r"max_num_seqs (\d+)", "max_num_batched_tokens": r"budget (\d+)"}
    words = tuple(
        f"engine.{name}={match[1]}" for name, pattern in limits.items() if (match := re.search(pattern, text))
    )
    requests = int(total[1]) if total else PER_SLOT * count if closed else count
    cold_s = COLD_S.get(_release(row), LATER_COLD_S) if "closed loop" in text else 0.0
    return Load(int(prompt), int(output), count, max(requests, count), least, cold_s), words
