"""Step-time constants fitted to recorded runs against their prior, and checked on others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from analysis.calibration.observed import Observed, Serve, observe
from analysis.results import studies
from analysis.results.runs import RunError, refuse_out
from analysis.stats.map_fit import Floats, ParameterFit, ParameterPrior, fit
from conf import Experiment, load
from conf.constants import KERNELS, Covariance, bounded, calibration, constants, covariance, replaced
from conf.specs.experiment import Constant, SimulatedEngine

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

    result = fit(predicted, measured, prior, _starts(known, prior), noise, LEARNT)
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


def _starts(known: Mapping[str, Constant], prior: ParameterPrior) -> list[Floats]:
    """A machine that is slow in everything and one that is fast, one sd from the prior each."""
    slower = np.array([-1.0 if constant.unit.startswith("share") else 1.0 for constant in known.values()])
    return [prior.ln(slower), prior.ln(-slower)]


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
    for (path, constant), learnt, held in zip(known.constants().items(), fit.learnt, fit.held, strict=True):
        note = f"{100 * learnt:.0f} % of the prior's variance gone"
        note = f"NOT IDENTIFIED, the prior's ({note})" if held else note
        lines.append(constant_line(path, constant, note))
    for run, predicted in predictions:
        lines.append(f"  {run.name}{'' if run in fitted else ', not fitted'}:")
        for name, was, will in zip(run.figures, np.exp(run.measured), np.exp(predicted), strict=True):
            unit = "" if name == "requests/s" else " s"
            apart = f"{100 * (will / was - 1):+.1f} %"
            lines.append(f"    {name} measured {was:.4g}{unit}, model {will:.4g}{unit} ({apart})")
    return "\n".join(lines)


def constant_line(path: str, constant: Constant, note: str) -> str:
    """A constant with its interval, and what is said of it."""
    ends = f"[{constant.low:.4g}, {constant.high:.4g}]"
    return f"  {path} {constant.value:.4g} {constant.unit}, 95 % interval {ends}; {note}"


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
    resolved = [path.resolve() for path in paths]
    for path in paths:
        if resolved.count(path.resolve()) > 1:
            raise RunError(f"{path} is given twice; a run counts once")
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
