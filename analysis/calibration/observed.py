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
CLOSED = ("mean TTFT", "mean TPOT", "requests/s")
OPEN = ("p50 TTFT", "p90 TTFT", "p50 TPOT", "p90 TPOT")


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
        return _figures(serve(machine, self.load), self.load, self.counted)


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
    closed = bool(load.concurrency)
    named = [name for name in (CLOSED if closed else OPEN) if "TPOT" not in name or _several(load, counted)]
    figures = _figures(served, load, counted), _noise(served, load, counted)
    return Observed(path, experiment, load, counted, tuple(named), *figures)


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


def _several(load: RecordedLoad, counted: Any) -> bool:
    return bool((load.output_tokens[counted] > 1).all())


def _figures(served: Served, load: RecordedLoad, counted: Any) -> Floats:
    """ln of the compared figures: means and the rate of a closed loop, quantiles of an open one.

    A closed loop's requests fall into step with each other, in groups, so that its quantiles jump.
    """
    ttft, tpot = _latencies(served, load, counted)
    if load.concurrency:
        span_s = float(served.last_token_s[counted].max() - served.sent_s[counted].min())
        figures = [ttft.mean(), *([tpot.mean()] if len(tpot) else []), len(ttft) / span_s]
    else:
        figures = [*np.quantile(ttft, (0.5, 0.9)), *(np.quantile(tpot, (0.5, 0.9)) if len(tpot) else [])]
    logs: Floats = np.log(np.array(figures))
    return logs


def _latencies(served: Served, load: RecordedLoad, counted: Any) -> tuple[Floats, Floats]:
    """TTFT and, if all have one, TPOT of the counted answers (s)."""
    sent, first, last = (
        column[counted] for column in (served.sent_s, served.first_token_s, served.last_token_s)
    )
    gaps = load.output_tokens[counted] - 1
    return first - sent, (last - first) / gaps if _several(load, counted) else np.zeros(0)


def _noise(served: Served, load: RecordedLoad, counted: Any) -> Floats:
    """Sampling error (ln) of each figure for independent requests; a rate has that of whole answers."""
    ttft, tpot = (_relative_error(column) for column in _latencies(served, load, counted))
    whole = _relative_error((served.last_token_s - served.sent_s)[counted])
    if load.concurrency:
        noise = [ttft, tpot, whole]
    else:
        noise = [MEDIAN * ttft, P90 * ttft, MEDIAN * tpot, P90 * tpot]
    return np.array([error for error in noise if not math.isnan(error)])


def _relative_error(values: Floats) -> float:
    """Standard error of the mean, over the mean; nan of nothing."""
    return float(values.std() / values.mean() / math.sqrt(len(values))) if len(values) else math.nan
