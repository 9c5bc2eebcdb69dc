"""MLPerf Inference's rows of Llama-2-70B: Poisson arrivals under p99 bounds, and all requests at once.

The served lengths come from a file of pairs (input_length, output_length) beside the rows. Its outputs are
those of the reference data; served ones are longer, to the published mean.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from analysis.stats.map_fit import Floats
from conf import Experiment
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service.service import Requests, serve
from tests.benchmarks.evidence.figures import Figure, Rows, Team, Values, by, loaded, machine, rows_of

ENGINES = 8
"""One GPU each."""
RUN_S = 600.0
"""Length of a run with arrivals; its rate counts until the last answer, as MLPerf's does."""
LONGER, MOST_OUTPUT = 1.38, 1024
"""Served outputs over the reference's, and their limit, for the published mean near 301."""
VERSIONS = {"5.1": "vLLM 0.9"}
"""vLLM of a round, where that is known."""
MODELS = {"llama2-70b-99": ("model=llama2_70b_fp8", "layout=dp8_tp1")}
RATES_QPS = np.exp(np.linspace(np.log(0.3), np.log(2.2), 12))
"""Rates among which a latency is sought, over the published one."""
WORDS = ("cluster=mi325x_1n", "engine.enable_prefix_caching=false", "engine.max_model_len=4096")
READING = 0.02
"""sd (ln) of a rate by what a team chose that the rows do not say (2 to 3 % between teams of one release)."""


@dataclass(frozen=True)
class Submission:
    """The rates of one GPU, release and scenario, by team, each with the time per token that was measured."""

    release: str
    gpu: str
    scenario: str
    rows: tuple[tuple[str, float, str, float], ...]
    """Team, samples/s, and which quantile of the time per token (s) is known, with its value."""
    lengths: tuple[tuple[int, int], ...]
    team: Team | None = None

    @property
    def source(self) -> str:
        return f"MLPerf Inference {self.release}, Llama-2-70B"

    @property
    def experiment(self) -> Experiment:
        words = (*WORDS, *MODELS["llama2-70b-99"], f"hardware={self.gpu.lower()}")
        version = VERSIONS.get(self.release, f"vLLM of MLPerf Inference {self.release}")
        return loaded((*words, f"engine.version={version}"))

    @cached_property
    def figures(self) -> Sequence[Figure]:
        return [
            Figure(f"{self.gpu} {self.scenario}, {team}", rate, "1/s", READING)
            for team, rate, *_ in self.rows
        ]

    @cached_property
    def asked(self) -> list[np.ndarray]:
        """Prompt, output and shared tokens of the requests of one engine."""
        at = np.random.default_rng(0).permutation(len(self.lengths))[: len(self.lengths) // ENGINES]
        prompt, output = np.array(self.lengths)[at].T
        output = np.clip(np.rint(LONGER * output), 1, MOST_OUTPUT).astype(np.int64)
        return [prompt, output, np.zeros(len(at), np.int64)]

    def predict(self, values: Values) -> Floats:
        """ln of requests/s of a node: where the time per token is the measured one, or all at once."""
        kind = machine(self.experiment, values)
        if self.scenario == "Offline":
            times = serve(kind, Requests(np.zeros(len(self.asked[0])), self.asked))
            # The last requests decode alone, which weighs less in the six times longer run of a submission.
            half = np.quantile(times.last_token_s, (0.1, 0.8))
            rate = 0.7 * len(self.asked[0]) / (half[1] - half[0])
            return np.log([ENGINES * rate] * len(self.rows))
        rates = RATES_QPS * float(np.median([rate for _, rate, *_ in self.rows])) / ENGINES
        names = {name for _, _, name, _ in self.rows}
        served = [_served(kind, self.asked, rate) for rate in rates]
        known = {
            name: np.log(np.maximum.accumulate([_quantile(each, name) for _, each in served]))
            for name in names
        }
        ln_rates = np.log([ENGINES * done for done, _ in served])
        return np.array(
            [np.interp(np.log(seconds), known[name], ln_rates) for _, _, name, seconds in self.rows]
        )


def _served(kind: EngineKind, asked: list[np.ndarray], rate_qps: float) -> tuple[float, Floats]:
    """Requests/s until the last answer, and the time per output token (s) of each request of a run."""
    count = round(RUN_S * rate_qps)
    columns = [np.resize(column, count) for column in asked]
    sent_s = np.cumsum(np.random.default_rng(1).exponential(1 / rate_qps, count))
    times = serve(kind, Requests(sent_s, columns))
    several = columns[1] > 1
    spent = (times.last_token_s - times.first_token_s)[several]
    return count / float(times.last_token_s.max()), np.asarray(spent / (columns[1][several] - 1))


def _quantile(seconds: Floats, name: str) -> float:
    return float(seconds.mean() if name == "mean" else np.quantile(seconds, int(name[1:]) / 100))


def submissions(rows: Rows, pairs: Path | None, skipped: list[str]) -> list[Submission]:
    """The studies of the rows, with the lengths of the file `pairs`; why others have none, in `skipped`."""
    items: list[Submission] = []
    lengths = _lengths(pairs) if pairs else ()
    without: Counter[str] = Counter()
    for (repo, gpu, scenario, model), part in by(rows, "repo", "gpu", "scenario", "model").items():
        known, why = _rows(part), _refused(gpu, scenario, model, bool(lengths))
        if not why and len(known) < len(part):
            without[f"{repo}: systems of several GPUs"] += len(part) - len(known)
        if why:
            without[f"{repo} {model}: {why}"] += len(part)
        elif known:
            items.append(Submission(repo.rpartition("_v")[2], gpu, scenario, known, lengths))
    skipped += [f"{reason} ({count} rows)" for reason, count in without.items()]
    return items


def _refused(gpu: str, scenario: str, model: str, has_lengths: bool) -> str:
    """Why such rows have no answer; empty if they have one."""
    if model == "llama2-70b-99.9":
        return "the same runs as llama2-70b-99, which count once"
    if model not in MODELS:
        return f"model {model} has no card with lengths of requests"
    if gpu.lower() not in ("mi300x", "mi325x", "mi355x", "h100", "h200", "b200"):
        return "an unknown GPU"
    if scenario not in ("Server", "Interactive", "Offline"):
        return "no scenario that the model plays"
    return "" if has_lengths else "give the file of length pairs (input_length,output_length) too"


def _rows(part: Rows) -> tuple[tuple[str, float, str, float], ...]:
    """Team, rate and time per token of the rows of one kind of GPU; without a time its p99 bound."""
    items = []
    for row in part:
        if len(set(re.findall(r"MI\d+X|H\d00|B\d00", row["system"])) - {row["gpu"]}):
            continue
        kinds = {"mean": row["tpot_mean"], "p99": row["tpot_p99"] or row["tpot_bound_ms"]}
        name = "mean" if kinds["mean"] else "p99"
        items.append((row["submitter"], float(row["samples_s"]), name, float(kinds[name] or 0) / 1e3))
    return tuple(items)


def _lengths(path: Path) -> tuple[tuple[int, int], ...]:
    return tuple((int(row["input_length"]), int(row["output_length"])) for row in rows_of(path))
