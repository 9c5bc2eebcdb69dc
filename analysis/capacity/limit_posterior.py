"""Posterior of the highest rate at which one limit is kept, from the 5 s blocks of all measurement windows.

The model: of the requests due in a block a share logistic(logit a + slope (x - limit load)) is over the
limit, x being the logarithm of the load around the block (`Kernel`) and a the share that may be over.
Bursts of load explain most of the likeness of neighbours, so that a block is worth many more independent
requests than it is within whole windows. The share at an offered rate is the mean of that curve over the
loads that arrive at it: the limit rate lies below the limit load by a shift. All loads and rates are per
node, most of them logarithms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.capacity.kernel import Kernel, log_loads
from analysis.capacity.rate_shift import population_shift
from analysis.capacity.share_curves import (
    FLOOR_PARTS,
    LEAST_SHARE,
    SLOPES,
    SPAN,
    STEP,
    USUAL,
    belief_in_columns,
    floors,
    is_unusual,
    log_shares,
    rises,
    slope_prior,
)
from analysis.capacity.window_counts import WindowCounts
from analysis.stats.dispersion import Dispersion, overdispersion, rarity
from analysis.stats.quantiles import Floats
from conf.specs.bounds import Limit, allowed_over

Steps = NDArray[np.int64]

REACH = 70
"""Steps of the grid of limit loads (ln) on either side of the prior's centre. Offered loads are rounded to
the same steps: then a likelihood is a correlation of counts with one curve per slope, and costs the same
after five windows and after fifty."""
LOAD_GRID = np.linspace(-STEP * REACH, STEP * REACH, 2 * REACH + 1)
OVERLOADED_SHARE = 0.6
"""A window with a larger share over the limit is overloaded and no steady state: it only shows that the limit
rate lies below. Near the knee of the engine model 0.5 makes the estimate 0.2 % too high, because it mutes
bursts, and 0.7 makes it 0.4 % too low."""
OVERLOAD_WEIGHT = 0.7
"""What a request of an overloaded window counts beside one of a steady window: the queue in which it waits
makes its neighbours late too. With 1 the RMSE of quick searches of `erlang` rises from 5.7 to 6.7 %, that of
standard ones of `control` from 1.51 to 1.56 % (48 and 96; the same windows)."""
BAD_TIME = 0.05
"""Where a window kept the limit, another one that seems overloaded at a load at most so much (ln) higher
shows a bad time of the service and counts as it is: as an overload it would say less. With it the certified
values above the truth of `noisy` go from .05 to .01 of 96 standard searches, and the RMSE of S1 from 1.85 to
1.75 %; with 0.1 that of `control` is 1.7 % for 1.5 (the same windows)."""
LEAST_DISPERSION_WINDOWS = 3
FLAT = 0.75
"""Part of what is allowed that a share may be at any load and be no upper end of the capacity."""
RISING = 1.0
"""Deviance over dispersion from which a share that no load changes is rejected. A constant 0.3 to 3 % at a
third of the capacity never reaches it; 180 quick searches near the capacity all do (simulated)."""
LONG_E2E_S = 15.0
"""Longer answers are remembered longer than the dispersion of 5 s blocks takes in: in proportion,
neighbouring blocks are taken as one and more overdispersion is believed beforehand. With answers of 60 s on a
server that slows as it fills, 24 minutes around the capacity cover in 23 of 24 runs, without it in 19."""
E2E_UNKNOWN_S = 10.0
LEAST_MASS = 1e-9
"""A mass as good as none."""


@dataclass(frozen=True, slots=True)
class Prior:
    """ln of the limit rate in QPS per node: Student's t of three degrees of freedom, for each limit."""

    centre: float
    sd: float = 0.25


@dataclass(frozen=True, slots=True)
class LimitPosterior:
    """Posterior of one limit: a mass per (limit load, column) cell, and each column's shift to a rate.

    A column is a slope and a floor with a kernel. `floor`: the share over the limit at any load. `kept`: at
    least one window kept the limit. `rising`: the evidence rejects that at most `FLAT` of the allowed share
    is over at any load. `beyond`: the evidence has its maximum at the grid's lower (-1) or upper (1) end,
    so that the prior was far off. `slope_unusual`: the share hardly follows the load, or jumps with it.
    `dispersion` is the variance inflation of the counts.
    """

    applies: bool
    loads: Floats
    mass: Floats
    shift: Floats
    beyond: int
    slope: float
    floor: float
    slope_unusual: bool
    dispersion: Dispersion
    kept: bool
    rising: bool
    over: float
    determined: float

    def cdf(self, at: Floats) -> Floats:
        """P(ln of the limit rate <= at), shape of `at`."""
        edges = np.append(self.loads, self.loads[-1] + STEP) - STEP / 2
        below = np.vstack([np.zeros(len(self.shift)), np.cumsum(self.mass, axis=0)])
        likely = np.flatnonzero(below[-1] > LEAST_MASS)
        parts = [np.interp(at - self.shift[j], edges, below[:, j]) for j in likely]
        total: Floats = np.sum(parts, axis=0) / below[-1, likely].sum()
        return np.minimum(total, 1.0)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The blocks of steady windows in their order; all arrays have one length.

    `step` is the ln load above the grid's centre, in steps.
    """

    step: Steps
    over: Floats
    determined: Floats
    allowed: float

    def evidence(self) -> Floats:
        """Log-likelihood of each (limit load, column), as if requests were independent."""
        if not len(self.step):
            return np.zeros((len(LOAD_GRID), len(SLOPES)))
        least, most = int(self.step.min()), int(self.step.max())
        counts = [
            np.bincount(self.step - least, weights) for weights in (self.over, self.determined - self.over)
        ]
        above, within = (
            table[:, SPAN + least - REACH : SPAN + most + REACH + 1] for table in log_shares(self.allowed)
        )
        log_evidence = [
            np.correlate(over, counts[0], "valid") + np.correlate(rest, counts[1], "valid")
            for over, rest in zip(above, within, strict=True)
        ]
        return np.asarray(np.stack(log_evidence, axis=1)[::-1])

    def share(self, place: int, column: int) -> Floats:
        """The share over the limit of each block that a cell expects."""
        table, _ = log_shares(self.allowed)
        expected: Floats = np.exp(table[column, SPAN + self.step - (place - REACH)])
        return expected

    def dispersion(self, place: int, column: int, longer: float) -> Dispersion | None:
        """The dispersion of the counts around what a cell expects; None where no request is over."""
        if not self.over.any():
            return None
        rare = rarity(self.allowed)
        return overdispersion(self.over, self.determined, self.share(place, column), longer, rare)

    def constant(self) -> float:
        """Log-likelihood of the likeliest share of at most `FLAT` of what is allowed, at any load."""
        over, determined = float(self.over.sum()), float(self.determined.sum())
        share = min(over / max(determined, 1.0), FLAT * self.allowed)
        return over * math.log(share) + (determined - over) * math.log1p(-share) if share else 0.0


def fit(
    windows: Sequence[WindowCounts], limit: Limit, prior: Prior, dispersion: Dispersion | None = None
) -> LimitPosterior:
    """The posterior from windows that are neither void nor empty, in order of time.

    `dispersion` is believed beforehand, if it is known.

    The likelihood is a quasi-likelihood: divided by the dispersion, and, because that is itself an estimate
    of few degrees of freedom, with the tails of Student's t.
    """
    allowed = allowed_over(limit)
    known = [window for window in windows if window.over(limit).determined]
    steady, overloaded = _steady_and_overloaded(known, limit)
    answers_s = [window.median_e2e_s for window in windows if window.median_e2e_s is not None]
    e2e_s = float(np.median(answers_s)) if answers_s else E2E_UNKNOWN_S
    rate_qps = float(np.median([window.rate_qps for window in known])) if known else math.inf
    kernels = Kernel.all_of(limit, e2e_s, rate_qps)
    # The prior is of the limit rate, the grid of the limit load, which lies above it by the shift.
    usual = float(_shifts(known, math.exp(prior.centre), kernels[:1], allowed, [USUAL])[0])
    # A prior that the windows moved away from was wrong: it is as wide as that, and the grid holds both.
    moved = _moved(known, prior)
    centre = prior.centre - usual + moved / 2
    loads = centre + LOAD_GRID
    several = len({window.rate_qps for window in known}) > 1
    is_held = len(known) > 1 and not several
    believed = slope_prior(limit, math.inf if is_held else rate_qps * e2e_s)
    belief = belief_in_columns(len(kernels), believed)
    belief += np.tile(_floor_evidence(known, limit), len(kernels))
    belief = belief + _heavy_tailed(loads, prior.centre - usual, math.hypot(prior.sd, moved))[:, None]
    blocks = _blocks(steady, limit, kernels, centre)
    evidence = np.hstack([each.evidence() for each in blocks])
    for window in overloaded:
        evidence += np.tile(_overload_evidence(window, limit, centre), len(kernels))
    longer = max(1.0, e2e_s / LONG_E2E_S)
    unexplained = dispersion or Dispersion.unknown(blocks[0].determined, longer, rarity(allowed))
    i, j = np.unravel_index(np.argmax(belief + evidence / unexplained.inflation), belief.shape)
    edge = int(i == len(loads) - 1) - int(i == 0)
    if len(steady) >= LEAST_DISPERSION_WINDOWS:
        best = blocks[j // len(SLOPES)]
        unexplained = best.dispersion(int(i), int(j) % len(SLOPES), longer) or unexplained
    deviance = 2 * (evidence.max() - evidence) / unexplained.inflation
    freedom = unexplained.freedom
    log_mass = belief - (freedom + 1) / 2 * np.log1p(deviance / freedom)
    i, j = np.unravel_index(np.argmax(log_mass), belief.shape)
    mass = np.exp(log_mass - log_mass.max())
    mass /= mass.sum()
    shift = _shifts(known, math.exp(loads[i] + usual), kernels, allowed)
    return LimitPosterior(
        applies=bool(known),
        loads=loads,
        mass=mass,
        shift=np.where(np.tile(FLOOR_PARTS, len(kernels)) > 1, -np.inf, shift),
        beyond=edge,
        slope=float(SLOPES[j % len(SLOPES)]),
        floor=float(mass.sum(axis=0) @ np.tile(floors(allowed), len(kernels))),
        slope_unusual=several and is_unusual(mass, believed),
        dispersion=unexplained,
        kept=any((window.over(limit).share or 0.0) <= allowed for window in known),
        rising=any(_is_overloaded(window, limit) for window in known)
        or 2 * (evidence.max() - blocks[0].constant()) / unexplained.inflation > RISING,
        over=sum(window.over(limit).over for window in known),
        determined=sum(window.over(limit).determined for window in known),
    )


def _moved(windows: Sequence[WindowCounts], prior: Prior) -> float:
    """ln distance from the prior to the median load of the windows that were not ended early."""
    loads = [window.log_work for window in windows if window.requests and not window.aborted]
    return float(np.median(loads)) - prior.centre if loads else 0.0


def _shifts(
    windows: Sequence[WindowCounts],
    qps_per_node: float,
    kernels: Sequence[Kernel],
    allowed: float,
    columns: Sequence[int] | slice = slice(None),
) -> Floats:
    """The shift of each of the columns: those with the first kernel, then with the next."""
    slopes, rise = SLOPES[columns], rises(allowed)[columns]
    if not windows:
        return np.zeros(len(slopes) * len(kernels))
    arrivals_var = float(np.mean([window.arrivals_var for window in windows]))
    work_var = float(np.mean([window.work_var for window in windows]))
    requests = [qps_per_node * windows[0].nodes * kernel.seconds for kernel in kernels]
    return np.concatenate(
        [population_shift(slopes, (arrivals_var + work_var) / n, arrivals_var / n, rise) for n in requests]
    )


def _steady_and_overloaded(
    windows: Sequence[WindowCounts], limit: Limit
) -> tuple[list[WindowCounts], list[WindowCounts]]:
    """The windows that show a rate, or a bad time, and those that show an overload (`BAD_TIME`)."""
    allowed = allowed_over(limit)
    kept = [w.log_work for w in windows if not w.aborted and (w.over(limit).share or 0.0) <= allowed]
    most = max(kept, default=-math.inf) + BAD_TIME
    overloads = [w for w in windows if _is_overloaded(w, limit) and (w.aborted or w.log_work > most)]
    steady = [w for w in windows if not w.aborted and (w.log_work <= most or not _is_overloaded(w, limit))]
    return steady, overloads


def _is_overloaded(window: WindowCounts, limit: Limit) -> bool:
    """True where the counts show an overload, or a bad time, and not a rate.

    A window is aborted for its queue: it says nothing of a limit that is kept all the same.
    """
    return (window.over(limit).share or 0.0) > (allowed_over(limit) if window.aborted else OVERLOADED_SHARE)


def _floor_evidence(windows: Sequence[WindowCounts], limit: Limit) -> Floats:
    """Log-likelihood of the windows with fewer requests over the limit than each column's floor.

    Requests that are over at any load do not come in bursts, so that no dispersion weakens a quiet window. By
    chance half of all windows lie below a true floor: each window takes a quarter off the loss.
    """
    if not windows:
        return np.zeros(len(SLOPES))
    over, determined = np.array(
        [(count.over, count.determined) for count in (w.over(limit) for w in windows)]
    ).T
    floor = np.maximum(floors(allowed_over(limit)), LEAST_SHARE)
    lower = np.minimum((over / determined)[:, None], floor)
    loss = lower * np.log(np.maximum(lower, LEAST_SHARE) / floor) + (1 - lower) * np.log(
        (1 - lower) / (1 - floor)
    )
    return np.asarray(-np.maximum((determined[:, None] * loss).sum(axis=0) - len(windows) / 4, 0.0))


def _overload_evidence(window: WindowCounts, limit: Limit, centre: float) -> Floats:
    """Log-likelihood of so large a share over the limit where less is expected; flat where more is."""
    counted = window.over(limit)
    share = min(counted.over / counted.determined, OVERLOADED_SHARE)
    places = SPAN + _steps(window.log_work - centre) - np.arange(-REACH, REACH + 1)
    expected = np.minimum(np.exp(log_shares(allowed_over(limit))[0][:, places].T), share)
    loss: Floats = counted.determined * (share * np.log(expected) + (1 - share) * np.log1p(-expected))
    return OVERLOAD_WEIGHT * loss


def _steps(apart: Floats | float) -> Steps:
    """A distance of ln loads in steps, within what the tables hold."""
    return np.clip(np.rint(np.asarray(apart) / STEP), REACH - SPAN, SPAN - REACH).astype(np.int64)


def _blocks(
    windows: Sequence[WindowCounts], limit: Limit, kernels: Sequence[Kernel], centre: float
) -> list[_Blocks]:
    """Blocks of the windows, once with the loads of each kernel."""
    allowed = allowed_over(limit)
    if not windows:
        return [_Blocks(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), allowed)] * len(kernels)
    counts = [window.over(limit) for window in windows]
    over = np.array([n for counted in counts for n in counted.block_over], dtype=np.float64)
    determined = np.array([n for counted in counts for n in counted.block_determined], dtype=np.float64)
    loads = [(load, ~np.isnan(load)) for load in log_loads(windows, kernels)]
    return [
        _Blocks(_steps(load[column] - centre), over[column], determined[column], allowed)
        for load, column in loads
    ]


def _heavy_tailed(at: Floats, centre: float, sd: float) -> Floats:
    """ln density of Student's t with three degrees of freedom: what is believed beforehand may be wrong."""
    return -2.0 * np.log1p(((at - centre) / sd) ** 2 / 3)
