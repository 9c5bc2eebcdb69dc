"""The rows of one source by constants that never saw them: how far a new source may be missed.

A source of the default model is left out of its joint fit, which is made again around the shipped constants
(damped Gauss-Newton, a normal posterior). A card with one source alone takes the constants of its nearest
relative instead. Whoever measured has a pace that is not known then. A release of a card's becomes one that
nobody measured.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np

from analysis.stats.map_fit import Floats, ParameterPrior, fit
from conf import Experiment, load
from conf.constants import KERNELS, bounded, constants
from conf.kernels import listed, other_release, ratio
from conf.specs.experiment import Model, SimulatedEngine
from loadgen.predict.draws import DEPLOYMENT_SCALE, LAYOUT_SCALE, drawn
from tests.benchmarks.evidence import default_fit
from tests.benchmarks.evidence.figures import Answer, Study, Values, answers, table, verdict
from tests.benchmarks.evidence.reading import read

RELATIVES: Mapping[str, str] = {
    "Llama-2-70B-Chat-FP8": "llama31_405b_fp8",
    "Llama-3.1-405B-Instruct-FP8": "llama2_70b_fp8",
    "Qwen3-VL-235B-A22B-Instruct": "qwen3_235b_a22b_fp8",
    "DeepSeek-V3.2": "deepseek_r1_fp8",
    "DeepSeek-R1-0528": "deepseek_v32_fp8",
    "Kimi-K2.5": "deepseek_v32_fp8",
}
"""The card whose architecture is nearest, by the name of a model with one source."""
FITTED = ("MLPerf Inference 5.1", "arXiv 2603.10031", "InferenceX")
"""Sources that are all that a card other than the default was fitted to."""


def without(studies: Sequence[Study], source: str, draws: int) -> int:
    """Print the rows of `source` by a fit without it, and how far they are missed.

    Returns 0; 2 for an unknown source.
    """
    left = [study for study in studies if source.lower() in named(study).lower()]
    if not left:
        names = "; ".join(dict.fromkeys(map(named, studies)))
        print(f"error: no source has '{source}' in its name; there are {names}", file=sys.stderr)
        return 2
    result: dict[str, list[Answer]] = {}
    refitted: Draws | None = None
    for study in left:
        if study.source.startswith(default_sources()):
            refitted = refitted or Draws.of(source, draws)
            sets = refitted.sets(study.experiment)
        elif study.source.startswith(FITTED):
            sets = relative(study.experiment, draws)
        else:
            sets = transferred(study.experiment, unmeasured(study.experiment), draws)
        result.setdefault(study.source, []).extend(answers(study, draws, sets))
        print("\n".join(row.line() for row in result[study.source][-len(study.figures) :]), flush=True)
    rows = [row for of_source in result.values() for row in of_source]
    off = np.array([row.predicted - row.figure.scaled for row in rows])
    print("\n".join(table(result)))
    print(f"left out: missed by {100 * math.sqrt(float(np.mean(off**2))):.1f} % (rms of ln)")
    print("\n".join(verdict(rows)))
    return 0


def named(study: Study) -> str:
    """A source with the layout of its engines, so that one layout of it can be left out."""
    return f"{study.source}, {' + '.join(study.experiment.layout.engine_kinds)}"


def default_sources() -> tuple[str, ...]:
    """The sources of the default model's fit."""
    return tuple(dict.fromkeys(study.source for study in default_fit.of_the_fit(read()[0])))


def relative(experiment: Experiment, draws: int) -> list[Values]:
    """The constants of the nearest relative, and draws of them, widened as any other model's are."""
    theirs = load([f"model={RELATIVES[experiment.model.name]}"]).model
    model = replace(experiment.model, step_time=theirs.step_time, posterior=theirs.posterior)
    return transferred(experiment, model, draws)


def unmeasured(experiment: Experiment) -> Model:
    """The model without the release of the experiment among those that were measured."""
    model, engine = experiment.model, experiment.engine
    assert isinstance(engine, SimulatedEngine)
    fit = model.posterior
    own = listed(other_release(engine, model), fit.releases)
    others = {name: times for name, times in fit.releases.items() if name != own}
    return replace(model, posterior=replace(fit, releases=others))


def transferred(experiment: Experiment, model: Model, draws: int) -> list[Values]:
    """The constants of an experiment by another fit of its `model`, and draws of them."""
    engine = experiment.engine
    assert isinstance(engine, SimulatedEngine)
    theirs = replace(engine, kernel_ratio=ratio(asdict(engine), asdict(model)))
    changed = replace(experiment, model=model, engine=theirs)
    known, theirs_known = constants(experiment), constants(changed)
    own = {path: 1.0 for path in known if path.startswith(KERNELS)} | {
        path: constant.value
        for path, constant in theirs_known.items()
        if path.startswith(("model.step_time.", KERNELS))
    }
    sets = [own, *({**own, **values} for values in drawn(changed, draws))]
    step = f"{KERNELS}.step"
    if step in theirs_known and step not in known:  # a study has the engine of its words
        sets = [{**values, DEPLOYMENT_SCALE: values[DEPLOYMENT_SCALE] * values[step]} for values in sets]
    return [{path: values[path] for path in values if path in known} for values in sets]


class Draws:
    """The default model's constants by a fit without some sources, and draws of them."""

    def __init__(self, at: Floats, covariance: Floats, problem: default_fit.Problem, draws: int) -> None:
        normals = np.random.default_rng(0).multivariate_normal(at, covariance, draws, method="cholesky")
        self._values = [problem.values(each) for each in (at, *normals)]

    @classmethod
    def of(cls, source: str, draws: int) -> "Draws":
        """Fit what the repository has without the sources whose names hold `source`."""
        kept = [study for study in read()[0] if source.lower() not in named(study).lower()]
        problem = default_fit.Problem(default_fit.of_the_fit(kept))
        prior = ParameterPrior(problem.centre, problem.sd, problem.sd)

        def residuals(at: Floats) -> Floats:
            return np.concatenate(list(problem.residuals(at)))

        zeros = np.zeros_like(residuals(problem.shipped))
        fitted = fit(residuals, zeros, prior, [problem.shipped], np.ones_like(zeros))
        free = len(default_fit.FREE)
        for path, value in zip(default_fit.FREE, np.exp(fitted.at[:free]).tolist(), strict=True):
            print(f"  {path} {value:.4g}")
        return cls(fitted.at, fitted.covariance, problem, draws)

    def sets(self, experiment: Experiment) -> list[Values]:
        """The constants, then draws; teams and layouts are drawn as `predict` does."""
        known = constants(experiment)
        scales = (DEPLOYMENT_SCALE, LAYOUT_SCALE)
        centre = {path: known[path].value for path in scales}
        paces = drawn(experiment, len(self._values) - 1)
        drawn_scales = [{path: each[path] for path in scales} for each in paces]
        return [
            {path: bounded(known[path], value) for path, value in {**values, **scale}.items()}
            for values, scale in zip(self._values, [centre, *drawn_scales], strict=True)
        ]
