"""Step-time constants fitted to recorded runs against their prior, and checked on others.

The evidence of a run are its requests and a few figures of their latencies.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from analysis.results import studies
from analysis.results.locations import refuse_repeated
from analysis.results.runs import RECORDED, RunError, load_run, refuse_out
from analysis.rows import metrics, records
from analysis.stats.map_fit import Floats, ParameterFit, ParameterPrior, fit
from conf import Experiment, load
from conf.constants import KERNELS, Covariance, bounded, calibration, constants, covariance, replaced
from conf.specs.experiment import Constant, SimulatedEngine

NS = 1e9
FAILED_MOST = 0.01
LEAST_REQUESTS = 5
TOKENS = ("requested_input_tokens", "requested_output_tokens", "shared_tokens")
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
    tokens = (np.nan_to_num(metrics.numbers(rows, name)).astype(np.int64) for name in TOKENS)
    load = RecordedLoad(experiment.concurrency or 0, metrics.numbers(rows, "due_ns") / NS, *tokens)
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


LEAST_SD = 0.01
"""Least sd of a prior, so that one whose interval ends at its value can still move (our choice)."""
LEARNT = 0.5
"""The data identify a constant if they remove this share of its prior's variance (our choice). A constant
that they do not identify keeps its prior: value, interval, and no covariance."""
POOR = 0.15
"""Above this rms of a fit another engine ran than the one that was configured (our choice)."""


@dataclass(frozen=True, slots=True)
class FittedConstants:
    """The constants of a machine, fitted to `evidence` (`12 runs`) from those that it had, `prior`.

    `exact` are constants that the fit holds in others.
    """

    experiment: Experiment
    prior: Mapping[str, Constant]
    fit: ParameterFit
    evidence: str
    exact: Mapping[str, Constant] = field(default_factory=dict)

    def constants(self) -> dict[str, Constant]:
        """Every fitted constant with its 95 % interval and its source."""
        ends = np.exp([self.fit.low, self.fit.at, self.fit.high]).T.tolist()
        fitted = {}
        for (path, before), held, (low, value, high) in zip(
            self.prior.items(), self.fit.held, ends, strict=True
        ):
            if held:
                source = f"not identified by {self.evidence}; {before.source}"
                fitted[path] = replace(before, source=source)
                continue
            # A share that the data push over its peak is at the peak, as the engine model takes it.
            low, value, high = (bounded(before, end) for end in (low, value, high))
            fitted[path] = Constant(value, before.unit, f"calibrated on {self.evidence}", low, high)
        return fitted

    def lines(self) -> list[str]:
        """Every constant with its interval, and what the data say of it."""
        lines, fit = [], self.fit
        for (path, it), learnt, held in zip(self.constants().items(), fit.learnt, fit.held, strict=True):
            note = f"{100 * learnt:.0f} % of the prior's variance gone"
            if held:
                note = f"NOT IDENTIFIED, the prior's ({note})"
            elif learnt < LEARNT:
                note += "; known with others alone, in their sum"
            figures = f"{it.value:.4g} {it.unit}, 95 % interval [{it.low:.4g}, {it.high:.4g}]"
            lines.append(f"  {path} {figures}; {note}")
        return lines

    def written(self, text: str, out: Path | None) -> str:
        """The text of the fit; the file that `engine.constants=FILE` reads is written to `out` if given."""
        if out is None:
            return text
        moved = np.flatnonzero(~self.fit.held)
        cells = self.fit.covariance[np.ix_(moved, moved)].tolist()
        paths = tuple(self.prior)
        known = Covariance(tuple(paths[index] for index in moved), tuple(map(tuple, cells)))
        tree = calibration(self.experiment, {**self.constants(), **self.exact}, known)
        out.write_text(yaml.safe_dump(tree, sort_keys=False))
        return f"{text}\n  use them: python -m loadgen predict engine.constants={out}"


def fit_runs(runs: Sequence[Observed], fitted: Sequence[Observed], serve: Serve) -> FittedConstants:
    """Every constant that has an interval, fitted to those `fitted` of the runs.

    Raises RunError if the runs are of several machines or nothing is uncertain.
    """
    experiment = _one_machine(runs)
    known = {path: constant for path, constant in constants(experiment).items() if constant.low is not None}
    known = {path: constant for path, constant in known.items() if not path.startswith(KERNELS)}
    if not known:
        raise RunError(
            "no constant has an interval, so there is nothing to fit; begin with the published ones: add "
            "model=NAME hardware=NAME"
        )
    paths, prior = tuple(known), prior_of(known)
    noise = np.concatenate([run.noise for run in fitted])
    measured = np.concatenate([run.measured for run in fitted])

    def predicted(at: Floats) -> Floats:
        machine = machine_at(fitted[0].experiment, paths, at)
        return np.concatenate([run.predict(serve, machine) for run in fitted])

    # Beside the prior a machine that is slow in everything and one that is fast, one sd away each.
    slower = np.array([-1.0 if constant.unit.startswith("share") else 1.0 for constant in known.values()])
    result = fit(predicted, measured, prior, [prior.ln(slower), prior.ln(-slower)], noise, LEARNT)
    return FittedConstants(experiment, known, result, f"{len(fitted)} runs")


def _one_machine(runs: Sequence[Observed]) -> Experiment:
    first = runs[0].experiment
    for run in runs[1:]:
        experiment = run.experiment
        for group in ("model", "hardware", "layout", "engine", "cluster"):
            if getattr(experiment, group) != getattr(first, group):
                raise RunError(
                    f"{run.path} has another {group} than {runs[0].path}; calibrate each by itself, or say "
                    f"which it is: {group}=NAME"
                )
    if isinstance(first.engine, SimulatedEngine) and covariance(first) is not None:
        quiet = replace(first.engine, constants="", constants_covariance={})
        return replace(first, engine=quiet)
    return first


def prior_of(known: Mapping[str, Constant]) -> ParameterPrior:
    """The intervals of constants as normals of their logarithms."""
    sds = np.maximum(np.array([constant.ln_sd for constant in known.values()]), LEAST_SD)
    centre = np.log(np.array([constant.value for constant in known.values()]))
    return ParameterPrior(centre, sds[:, 0], sds[:, 1])


def machine_at(experiment: Experiment, paths: tuple[str, ...], at: Floats) -> Experiment:
    """The experiment with the constants at `paths` whose logarithms are `at`."""
    return replaced(experiment, dict(zip(paths, np.exp(at).tolist(), strict=True)))


def fit_text(
    known: FittedConstants, fitted: Sequence[Observed], runs: Sequence[Observed], serve: Serve
) -> str:
    """Constants, what is not identified, and every figure of all runs measured and predicted."""
    fit, machine = known.fit, machine_at(known.experiment, tuple(known.prior), known.fit.at)
    predictions = [(run, run.predict(serve, machine)) for run in runs]
    off = [predicted - run.measured for run, predicted in predictions if run not in fitted]
    held_out = "no held-out error: it takes closed loops to fit and an open one to check"
    if off:
        error = math.sqrt(float(np.mean(np.concatenate(off) ** 2)))
        held_out = f"held out {100 * error:.1f} % (open loops, which were not fitted)"
    lines = [f"rms {100 * fit.rms:.1f} % of {len(fit.residuals)} fitted figures; {held_out}"]
    if fit.stalled:
        lines.append("  the descent from the prior gained nothing; what follows is from other starts")
    if fit.held.all():
        lines.append("  no constant is identified: all stay the prior's; add the runs of a recipe")
    if fit.rms > POOR:
        lines.append(
            f"  WARNING: an rms above {100 * POOR:.0f} % says that another engine ran; check the model, the "
            "layout and the engine.* words"
        )
    lines += known.lines()
    for run, predicted in predictions:
        lines.append(f"  {run.name}{'' if run in fitted else ', not fitted'}:")
        for name, was, will in zip(run.figures, np.exp(run.measured), np.exp(predicted), strict=True):
            unit = "" if name == "requests/s" else " s"
            apart = f"{100 * (will / was - 1):+.1f} %"
            lines.append(f"    {name} measured {was:.4g}{unit}, model {will:.4g}{unit} ({apart})")
    return "\n".join(lines)


MACHINE = ("engine", "model", "hardware", "layout")
"""Groups of words that may add what a run did not know of the service it measured."""


def calibrate(words: Sequence[str], out: Path | None, serve: Serve) -> str:
    """Fit the constants to the probes that `words` name, write them to `out`, and return the text.

    Raises RunError for wrong words, for folders that are no probes of one machine, and for an existing `out`.
    """
    overrides = [word for word in words if "=" in word]
    paths = [path for word in words if "=" not in word for path in studies.parts(Path(word))]
    if not paths:
        raise RunError("calibrate needs the folder of a run; see --help")
    refuse_words(overrides)
    refuse_repeated(paths, "a run counts once")
    refuse_out(out, ".yaml", ".yml")
    runs = [observe(path, partial(simulated, overrides)) for path in paths]
    try:
        # Closed loops are fitted and open ones checked; runs of one kind are all fitted.
        fitted = [run for run in runs if run.load.concurrency] or runs
        known = fit_runs(runs, fitted, serve)
        text = fit_text(known, fitted, runs, serve)
    except ValueError as error:
        raise RunError(f"the engine model cannot serve these runs: {error}") from error
    return known.written(text, out)


def refuse_words(words: Sequence[str]) -> None:
    """Raise RunError for a word that is not of the machine."""
    for word in words:
        if word.partition("=")[0].partition(".")[0] not in MACHINE:
            raise RunError(
                f"'{word}' is not of the machine; calibrate takes {', '.join(MACHINE)} words, "
                "the runs say the rest"
            )


def simulated(words: Sequence[str], config: Path) -> Experiment:
    """The experiment of a run on the engine model, without noise because its figures are of many steps."""
    chosen = [] if load(base=config).engine.kind == "simulated" else ["engine=simulated"]
    given = {word.partition("=")[0] for word in words}
    quiet = [*chosen, "engine.step_noise_cv=0", "engine.drift_sd=0", "engine.stall_every_steps=0"]
    return load([*(word for word in quiet if word.partition("=")[0] not in given), *words], config)
