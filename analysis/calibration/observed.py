"""Evidence of a recorded run on the engine that served it: requests, and a few figures of their latencies."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.results.runs import RECORDED, RunError, load_run
from analysis.rows import metrics, records
from analysis.stats.map_fit import Floats
from conf import Experiment

NS = 1e9
FAILED_MOST = 0.01
LEAST_REQUESTS = 5
MEDIAN, P90 = 1.25, 1.71
"""Standard errors of a normal sample's quantiles over that of its mean."""


@dataclass(frozen=True, slots=True)
class RecordedLoad:
    """Requests of one run in the order they were due; `concurrency` 0 is an open loop, sent at `due_s`."""

    concurrency: int
    due_s: Floats
    input_tokens: Any
    output_tokens: Any
    shared_tokens: Any


@dataclass(frozen=True, slots=True)
class Served:
    """Times (s) at which each request of a load was sent and got its first and its last token."""

    sent_s: Floats
    first_token_s: Floats
    last_token_s: Floats


Serve = Callable[[Experiment, RecordedLoad], Served]
"""The engine model on the machine of an experiment. Raises ValueError for what it cannot serve."""


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """The load of one run and the figures that were measured.

    `measured` are ln of the `figures` of the `counted` rows, `noise` their sampling errors.
    """

    path: Path
    experiment: Experiment
    load: RecordedLoad
    counted: Any
    figures: tuple[str, ...]
    measured: Floats
    noise: Floats

    @property
    def name(self) -> str:
        held = f"{self.load.concurrency} in flight" if self.load.concurrency else "open loop"
        return f"{self.path.name} ({self.experiment.workload.name}, {held})"

    def predict(self, serve: Serve, machine: Experiment) -> Floats:
        """ln of the figures, had this been the machine."""
        figures = _compared(serve(machine, self.load), self.load, self.counted)
        logs: Floats = np.log([value for value, _ in figures.values()])
        return logs


def observe(path: Path, load_experiment: Callable[[Path], Experiment]) -> Observed:
    """Read a probe; `load_experiment` makes a simulated experiment from its config.yaml.

    Raises RunError for a run that did not end, that failed, or that is no single load.
    """
    run = load_run(path)
    verdict = run.verdict
    if verdict is None or run.manifest.get("verb") != "probe":
        raise RunError(f"{path} is not a probe that ended; calibrate takes those of python -m loadgen probe")
    if verdict.exit_code not in RECORDED or not verdict.valid:
        why = verdict.reason or f"exit {verdict.exit_code}"
        raise RunError(f"{path} is no valid measurement ({why}); leave it out or measure it again")
    experiment, rows = load_experiment(path / "config.yaml"), run.requests()
    if experiment.workload.session_hit:
        raise RunError(
            f"{path}: the engine model knows nothing of what its sessions share (workload.session_hit="
            f"{experiment.workload.session_hit:g}); leave it out or measure it with 0"
        )
    rows = rows.filter(pa.array(metrics.numbers(rows, "window_index") >= 0))
    in_window = metrics.word_in(rows, "phase", "window")
    answered = metrics.status_in(rows, records.OK)
    failed = int(np.count_nonzero(~answered))
    usable = int(np.count_nonzero(in_window & answered))
    if failed > FAILED_MOST * len(answered) or usable < LEAST_REQUESTS:
        raise RunError(
            f"{path}: {failed} of {len(answered)} requests failed and {usable} count; a calibration needs "
            f"{LEAST_REQUESTS} and at most {FAILED_MOST:.0%} failed"
        )
    rows, counted = rows.filter(pa.array(answered)), in_window[answered]
    _refuse_whole(path, rows)
    load = _load(rows, experiment.concurrency or 0)
    served = Served(load.due_s, load.due_s + metrics.ttft(rows) / 1e3, load.due_s + metrics.e2e(rows) / 1e3)
    figures = _compared(served, load, counted)
    measured, noise = zip(*figures.values(), strict=True)
    return Observed(
        path, experiment, load, counted, tuple(figures), np.log(np.array(measured)), np.array(noise)
    )


def _refuse_whole(path: Path, rows: pa.Table) -> None:
    """Raise RunError for answers that were not streamed: they have no time per token."""
    several = metrics.numbers(rows, "output_tokens") > 1
    whole = int(np.count_nonzero(several & (metrics.e2e(rows) <= metrics.ttft(rows))))
    if whole > FAILED_MOST * rows.num_rows:
        raise RunError(
            f"{path}: {whole} of {rows.num_rows} answers came in one piece, so that they have no time per "
            "token; serve without buffering and measure it again"
        )


def _load(rows: pa.Table, concurrency: int) -> RecordedLoad:
    tokens = {
        name: np.nan_to_num(metrics.numbers(rows, name)).astype(np.int64)
        for name in ("requested_input_tokens", "requested_output_tokens", "shared_tokens")
    }
    return RecordedLoad(concurrency, metrics.numbers(rows, "due_ns") / NS, *tokens.values())


def _compared(served: Served, load: RecordedLoad, counted: Any) -> dict[str, tuple[float, float]]:
    """The compared figures, each with its sampling error (ln) for independent requests.

    They are means and the rate of a closed loop, whose requests fall into step with each other, in groups,
    so that its quantiles jump; quantiles of an open one. TPOT is among them if all answers have one.
    """
    times = served.sent_s, served.first_token_s, served.last_token_s
    sent, first, last = (column[counted] for column in times)
    latencies, gaps = {"TTFT": first - sent}, load.output_tokens[counted] - 1
    if (gaps > 0).all():
        latencies["TPOT"] = (last - first) / gaps
    if load.concurrency:
        rate = len(sent) / float(last.max() - sent.min())
        means = {f"mean {name}": (values.mean(), _error(values)) for name, values in latencies.items()}
        return means | {"requests/s": (rate, _error(last - sent))}
    return {
        f"p{100 * share:g} {name}": (float(np.quantile(values, share)), factor * _error(values))
        for name, values in latencies.items()
        for share, factor in ((0.5, MEDIAN), (0.9, P90))
    }


def _error(values: Floats) -> float:
    """Standard error of the mean, over the mean."""
    return float(values.std() / values.mean() / math.sqrt(len(values)))
