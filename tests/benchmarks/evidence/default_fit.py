"""The joint posterior of the default model's constants from published measurements.

Three experiments speak of it: every request at 8 QPS on two layouts, the share within both bounds at lower
rates, and a closed loop of long prompts by another team. They are taken together, with a ratio of step times
between the two teams that has a spread of its own. The likelihood is normal in ln of sorted latencies,
so that neighbouring requests, which wait in one queue, do not count as if each were a witness. An ensemble of
walkers samples it (emcee), since attainment jumps by whole requests and has no slope.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from typing import Any

import emcee
import numpy as np

from analysis.stats.map_fit import Floats
from conf import load
from conf.constants import bounded, constants
from conf.specs.engine import FITTED_BACKEND
from conf.specs.experiment import Constant
from loadgen.predict.draws import DEPLOYMENT_SCALE, LAYOUT_SCALE
from tests.benchmarks.evidence.blog import WAVES, Attainment, ClosedLoop, Requests
from tests.benchmarks.evidence.figures import Study
from tests.benchmarks.evidence.fits import Ends, correlation_lines, prior_between

_STEP, _REACHED = "model.step_time.", "hardware.efficiency."
FREE: Mapping[str, Ends] = {
    _STEP + "prefill_layer_us": (40.0, 900.0),
    _STEP + "prefill_token_us": (3.0, 40.0),
    _STEP + "layer_us": (70.0, 220.0),
    _STEP + "gemm_prefill": (0.12, 0.6),
    _STEP + "gemm_decode": (0.03, 0.6),
    _STEP + "gemm_rise_tokens": (2.0, 3000.0),
    _STEP + "expert_read": (0.3, 1.0),
    _STEP + "expert_spread": (0.25, 1.0),
    _STEP + "expert_imbalance": (1.02, 1.3),
    _STEP + "host_per_sequence_us": (5.0, 50.0),
    _STEP + "front_end_latency_ms": (5.0, 60.0),
    _REACHED + "hbm": (0.6, 0.85),
    _REACHED + "kv_read": (0.3, 0.9),
    _REACHED + "attention": (0.1, 0.5),
    _REACHED + "link": (0.5, 1.0),
}
"""95 % of what is thought possible of each before these data: at least what launches and a fused all-reduce
take, at most what vLLM takes without graphs, and no more than AMD reaches in large products and copies."""
TEAMS_LN_SD = 0.07
"""sd of ln step time between teams (our choice: two are 8 % apart). Their difference has it twice."""
WAVES_LN_SD = 0.4
WITNESSES = 10
"""The sorted latencies of a hundred requests in one queue say as much as so many independent ones
(our choice)."""
LATENCY_SD, SHARE_SD, LOOP_SD = 0.05, 0.04, 0.03
"""How far the form of the model may miss a latency, a share of requests, a closed loop (ln; our choice)."""
FARTHEST = 0.3
"""A p99 gap is a step with prefill or one without, five times as short: a request on the wrong side counts as
so far off (ln; our choice)."""
WALKERS, STEPS, STEPS_TOLD, CHUNK = 64, 600, 50, 8
BEGIN = 0.2
"""How far around conf/ walkers begin, in sds of the prior."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The unknowns in order: `FREE`, the ratio of the second team, and the waves of each closed loop (ln)."""

    studies: tuple[Study, ...]

    @property
    def loops(self) -> tuple[ClosedLoop, ...]:
        return tuple(study for study in self.studies if isinstance(study, ClosedLoop))

    @property
    def centre(self) -> Floats:
        return np.array([*prior_between(FREE.values()).centre, 0.0, *(math.log(WAVES) for _ in self.loops)])

    @property
    def shipped(self) -> Floats:
        """Around the constants of conf/."""
        known = _known()
        return np.array([*(math.log(known[path].value) for path in FREE), *self.centre[len(FREE) :]])

    @property
    def sd(self) -> Floats:
        free = prior_between(FREE.values()).below
        return np.array([*free, math.sqrt(2) * TEAMS_LN_SD, *(WAVES_LN_SD for _ in self.loops)])

    def values(self, at: Floats) -> dict[str, float]:
        """Constants by config key, at the pace of the first team, on its layouts."""
        known = _known()
        result = zip(FREE, np.exp(at[: len(FREE)]).tolist(), strict=True)
        return {DEPLOYMENT_SCALE: 1.0, LAYOUT_SCALE: 1.0} | {
            path: bounded(known[path], value) for path, value in result
        }

    def residuals(self, at: Floats) -> Iterator[Floats]:
        """Misses of every study in turn, in sds of what the form may miss."""
        for study, seen in zip(self.studies, predicted(self, at), strict=True):
            if isinstance(study, Requests):
                yield from (_sorted(study, column, seen) for column in (0, 1))
            else:
                sd = SHARE_SD if isinstance(study, Attainment) else LOOP_SD
                yield (seen - [figure.scaled for figure in study.figures]) / sd

    def ln_posterior(self, at: Floats) -> float:
        off = (at - self.centre) / self.sd
        misfit = sum(float(np.sum(each**2)) for each in self.residuals(at))
        return -0.5 * (misfit + float(np.sum(off**2)))


@cache
def _known() -> dict[str, Constant]:
    return constants(load(["hardware=mi300x"]))


def _sorted(study: Requests, column: int, seen: Floats) -> Floats:
    published, predicted = study.quantiles(column, seen)
    off = np.clip(predicted - published, -FARTHEST, FARTHEST)
    return np.asarray(off / LATENCY_SD * math.sqrt(WITNESSES / len(off)))


def sampled(problem: Problem, steps: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Draws of the unknowns and their ln posteriors, a row each, from walkers that begin around conf/."""
    rng = np.random.default_rng(seed)
    size = len(problem.centre)
    begin = problem.shipped + BEGIN * problem.sd * rng.standard_normal((WALKERS, size))
    moves = [(emcee.moves.DEMove(), 0.8), (emcee.moves.DESnookerMove(), 0.2)]
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        spread = _Pool(pool)
        sampler = emcee.EnsembleSampler(WALKERS, size, problem.ln_posterior, pool=spread, moves=moves)
        sampler.random_state = np.random.RandomState(seed).get_state()
        state = begin
        for done in range(STEPS_TOLD, steps + 1, STEPS_TOLD):
            state = sampler.run_mcmc(state, STEPS_TOLD)
            known = sampler.get_log_prob()[-1]
            best, middle = known.max(), np.median(known)
            told = f"ln posterior {best:.1f} at best, {middle:.1f} in the middle"
            print(f"  {done} of {steps} steps: {told}", flush=True)
    draws, known = (get(discard=steps // 2, flat=True) for get in (sampler.get_chain, sampler.get_log_prob))
    return np.asarray(draws), np.asarray(known)


def middle(draws: Floats, ln_posterior: Floats) -> Floats:
    """The draw nearest to the medians among the tenth that fits best.

    The medians themselves are of no draw, and fit worse than most.
    """
    good = draws[ln_posterior >= np.quantile(ln_posterior, 0.9)]
    off = (good - np.median(draws, axis=0)) / draws.std(axis=0)
    return np.asarray(good[np.argmin((off**2).sum(axis=1))])


class _Pool:
    """A pool as the sampler wants it; walkers are sent in chunks, since one takes a few milliseconds."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def map(self, function: Callable[[Any], Any], values: Iterable[Any]) -> Iterator[Any]:
        return self._pool.map(function, values, chunksize=CHUNK)


def of_the_fit(studies: Sequence[Study]) -> tuple[Study, ...]:
    """The studies that are fitted: other backends have ratios of their own, other figures judge the fit."""
    latencies = (study for study in studies if isinstance(study, Requests | Attainment))
    loops = (study for study in studies if isinstance(study, ClosedLoop) and study.backend == FITTED_BACKEND)
    return *latencies, *loops


def run(studies: Sequence[Study], steps: int) -> int:
    """Fit, and print the constants, every row by them, and the blocks for conf/."""
    problem = Problem(of_the_fit(studies))
    draws, ln_posterior = sampled(problem, steps)
    at = middle(draws, ln_posterior)
    values = problem.values(at)
    for study, figures in zip(problem.studies, predicted(problem, at), strict=True):
        print(f"\n{study.source}: published, fitted, error")
        for figure, seen in zip(study.figures, figures.tolist(), strict=True):
            fitted = figure.unscaled(seen)
            both = f"{figure.value:>8.4g} {fitted:>8.4g} {figure.unit:<5}"
            print(f"  {figure.label:<48} {both} {figure.error(seen)}")
    print("\nratio of step times, the second team's over the first's:", _interval(draws[:, len(FREE)]))
    for index, study in enumerate(problem.loops, len(FREE) + 1):
        print(f"requests for each of the {study.concurrency} in flight:", _interval(draws[:, index]))
    known = _known()
    print("\nstep_time and efficiency:")
    for index, path in enumerate(FREE):
        low, high = (
            bounded(known[path], float(np.exp(np.quantile(draws[:, index], q)))) for q in (0.025, 0.975)
        )
        entry = f"value: {values[path]:.4g}, unit: {known[path].unit}, low: {low:.4g}, high: {high:.4g}"
        print(f"  {path}: {{{entry}}}")
    print("\n".join(correlation_lines(tuple(FREE), np.corrcoef(draws[:, : len(FREE)].T))))
    return 0


def predicted(problem: Problem, at: Floats) -> Iterator[Floats]:
    """Every figure of every study, as its own team measured it."""
    values, waves = problem.values(at), iter(np.exp(at[len(FREE) + 1 :]).tolist())
    for study in problem.studies:
        if isinstance(study, ClosedLoop):
            theirs = {**values, DEPLOYMENT_SCALE: math.exp(at[len(FREE)])}
            yield replace(study, waves=next(waves)).predict(theirs)
        else:
            yield study.predict(values)


def _interval(ln: Floats) -> str:
    low, middle, high = np.exp(np.quantile(ln, (0.025, 0.5, 0.975)))
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"
