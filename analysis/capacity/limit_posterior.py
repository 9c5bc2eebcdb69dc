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
from functools import cache

import numpy as np
from numpy.typing import NDArray

from analysis.capacity.kernel import Kernel, log_loads
from analysis.capacity.rate_shift import logistic, population_shift
from analysis.capacity.window_counts import WindowCounts
from analysis.stats.dispersion import Dispersion, overdispersion, rarity
from analysis.stats.quantiles import Floats
from conf.specs.bounds import Limit, allowed_over, metric_of

Steps = NDArray[np.int64]

SLOPE_CENTRE, SLOPE_SD = math.log(25), 0.5
"""Prior of ln slope. 21 to 46 on the engine model at four pairs of bounds, given the load around a block."""
MANY = 40.0
"""Requests in flight from which that centre holds. Arrivals by chance move the load of fewer by more, so that
the share rises more slowly: the centre falls with the root of their number. By brute force slopes are 4 with
two in flight, 6 with four, 13 with 8 to 16 and 27 with 60. With it the RMSE of `long` falls from 10 to 8 %,
and told half of the truth it covers in .96 for .88 (24 searches, the same windows). Not where one rate is
held, which shows no slope: at the capacity `probe --require` would pass .10 to .13 of `erlang` and `queue`,
not .05 (60 runs each)."""
GAP_SLOPES = {"itl": (math.log(13), 0.4), "itl_pooled": (math.log(6), 0.4)}
"""The same of bounds on gaps, which a step with a prompt makes long at any load: 11 to 17 of p99 of own gaps
and 5 to 7.5 of p95 of pooled ones there (eight of ten searches of 30 minutes)."""
STEP, REACH = 0.01, 70
"""Steps of the grid of limit loads (ln) and their number on either side of the prior's centre. Offered loads
are rounded to the same steps: then a likelihood is a correlation of counts with one curve per slope, and
costs the same after five windows and after fifty."""
SPAN = 800
"""Steps on either side of the limit load for which shares are kept: three thousand times the load."""
LOAD_GRID = np.linspace(-STEP * REACH, STEP * REACH, 2 * REACH + 1)
UNUSUAL, MUCH = 1.9, 0.5
"""A slope is unusual beyond so many standard deviations of its prior (our choice): below 9.7 or above 65 with
many requests in flight. So is a floor of at least this part of what is allowed."""
LOG_SLOPES = SLOPE_CENTRE + np.linspace(-3.4, 1.2, 17)
"""Slopes from 0.8 to 83: with one request at a time they come down to 9 at 0.6 requests/s. Every second one
is tried above a floor."""
FLOORS = np.array([0.0, 0.4, 0.75, 0.9, 0.97, 1.3])
FLOOR_BELIEF, FLOOR_SLOPE_SD = np.log([0.85, 0.06, 0.03, 0.02, 0.015, 0.01]), 1.0
"""Floors over what is allowed, and the belief in them beforehand: shares of the requests that are over the
limit at any load, because their prompts are long or the service stalls. With one above 1 no rate keeps the
limit. What rises above a floor may do so slowly: with the narrower prior of slopes 15 minutes of `floor`
certify too much in 1 of 12, and with the tails of Student's t for all slopes the RMSE of an M/G/16 queue goes
from 8 to 12 % (`foreign_services`)."""
_COLUMNS = [(slope, floor) for floor in range(len(FLOORS)) for slope in LOG_SLOPES[:: 2 if floor else 1]]
COLUMN_SLOPES, COLUMN_FLOORS = (np.array(each) for each in zip(*_COLUMNS, strict=True))
SLOPES, FLOOR_PARTS = np.exp(COLUMN_SLOPES), FLOORS[COLUMN_FLOORS]
"""Slope and floor of each column of the posterior."""
USUAL = int(np.argmin(np.abs(LOG_SLOPES - SLOPE_CENTRE)))
"""The column of the usual slope, without a floor."""
HOPELESS_RISE = 0.02
"""Part of what is allowed that rises with the load where the floor is above 1."""
OVERLOADED_SHARE = 0.6
"""A window with a larger share over the limit is overloaded and no steady state: it only shows that the limit
rate lies below. Near the knee of the engine model 0.5 makes the estimate 0.2 % too high, because it mutes
bursts, and 0.7 makes it 0.4 % too low."""
OVERLOAD_WEIGHT = 0.7
"""What a request of an overloaded window counts beside one of a steady window: the queue in which it waits
makes its neighbours late too. With 1 the RMSE of standard searches rises from 1.6 to 2.0 % (S1) and from 1.4
to 1.8 % (control); with 0.5 standard searches of `noisy` are 6.6 % too high for 5.8, with 0.125 the RMSE of
`queue` rises from 5 to 10 % (12 to 96 searches each)."""
BAD_TIME = 0.1
"""Where a window kept the limit, another one that seems overloaded at a load at most so much (ln) higher
shows a bad time of the service and counts as it is: as an overload it would say less. With it the certified
values above the truth of `noisy` go from .08 to .03 of 96 standard searches, and the RMSE of S1 from 2.0 to
1.8 % (48 searches; the same windows)."""
LONGER = 2.0
"""A longer kernel is believed beforehand by so much (ln) less than the first: with 0 the RMSE of 15 minutes
rises from 1.45 to 1.75 % where lengths are fixed, with 2 to 1.6 % (40 searches)."""
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
LEAST_SHARE, LEAST_MASS = 1e-12, 1e-9
"""A share and a mass as good as none."""


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
            table[:, SPAN + least - REACH : SPAN + most + REACH + 1] for table in _log_shares(self.allowed)
        )
        log_evidence = [
            np.correlate(over, counts[0], "valid") + np.correlate(rest, counts[1], "valid")
            for over, rest in zip(above, within, strict=True)
        ]
        return np.asarray(np.stack(log_evidence, axis=1)[::-1])

    def share(self, place: int, column: int) -> Floats:
        """The share over the limit of each block that a cell expects."""
        table, _ = _log_shares(self.allowed)
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
    most = _most_kept(known, limit) + BAD_TIME
    missed = [window for window in known if _is_overloaded(window, limit)]
    overloaded = [window for window in missed if window.aborted or window.log_work > most]
    steady = [
        window
        for window in known
        if not window.aborted and (window.log_work <= most or not _is_overloaded(window, limit))
    ]
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
    slope_prior = _slope_prior(limit, math.inf if is_held else rate_qps * e2e_s)
    belief = _belief_in_columns(len(kernels), *slope_prior)
    belief += np.tile(_floor_evidence(known, limit), len(kernels))
    belief = belief + _heavy_tailed(loads, prior.centre - usual, math.hypot(prior.sd, moved))[:, None]
    blocks = _blocks(steady, limit, kernels, centre)
    beyond = sum(
        (_overload_evidence(window, limit, centre) for window in overloaded), np.zeros((1, len(SLOPES)))
    )
    evidence, beyond = np.hstack([each.evidence() for each in blocks]), np.tile(beyond, len(kernels))
    longer = max(1.0, e2e_s / LONG_E2E_S)
    unexplained = dispersion or Dispersion.unknown(blocks[0].determined, longer, rarity(allowed))
    i, j = np.unravel_index(np.argmax(belief + (evidence + beyond) / unexplained.inflation), belief.shape)
    edge = int(i == len(loads) - 1) - int(i == 0)
    if len(steady) >= LEAST_DISPERSION_WINDOWS:
        best = blocks[j // len(SLOPES)]
        unexplained = best.dispersion(int(i), int(j) % len(SLOPES), longer) or unexplained
    deviance = 2 * (evidence.max() - evidence) / unexplained.inflation
    freedom = unexplained.freedom
    # What an overload says is not of the counts, whose dispersion is uncertain.
    belief += beyond / unexplained.inflation
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
        floor=float(mass.sum(axis=0) @ np.tile(_floors(allowed), len(kernels))),
        slope_unusual=several and _unusual(mass, *slope_prior),
        dispersion=unexplained,
        kept=any((window.over(limit).share or 0.0) <= allowed for window in known),
        rising=bool(missed) or 2 * (evidence.max() - blocks[0].constant()) / unexplained.inflation > RISING,
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
    slopes, rise = SLOPES[columns], _rise(allowed)[columns]
    if not windows:
        return np.zeros(len(slopes) * len(kernels))
    arrivals_var = float(np.mean([window.arrivals_var for window in windows]))
    work_var = float(np.mean([window.work_var for window in windows]))
    requests = [qps_per_node * windows[0].nodes * kernel.seconds for kernel in kernels]
    return np.concatenate(
        [population_shift(slopes, (arrivals_var + work_var) / n, arrivals_var / n, rise) for n in requests]
    )


def _belief_in_columns(kernels: int, centre: float, sd: float) -> Floats:
    """ln of the prior mass of each floor and slope with each of so many kernels."""
    sds, steps = np.where(COLUMN_FLOORS, FLOOR_SLOPE_SD, sd), np.where(COLUMN_FLOORS, 2, 1)
    belief = FLOOR_BELIEF[COLUMN_FLOORS] - ((COLUMN_SLOPES - centre) / sds) ** 2 / 2 + np.log(steps / sds)
    return np.concatenate([belief - LONGER * (kernel > 0) for kernel in range(kernels)])


def _slope_prior(limit: Limit, in_flight: float) -> tuple[float, float]:
    """Centre and standard deviation of ln slope beforehand, with so many requests in flight."""
    few = min(max(in_flight, 1.0) / MANY, 1.0)
    return GAP_SLOPES.get(metric_of(limit), (SLOPE_CENTRE + math.log(few) / 2, SLOPE_SD))


def _unusual(mass: Floats, centre: float, sd: float) -> bool:
    odd = (np.abs(COLUMN_SLOPES - centre) > UNUSUAL * sd) | (FLOOR_PARTS >= MUCH)
    return float(mass.sum(axis=0).reshape(-1, len(SLOPES))[:, odd].sum()) > 0.5


def _most_kept(windows: Sequence[WindowCounts], limit: Limit) -> float:
    """ln of the highest load of a window that kept the limit."""
    allowed = allowed_over(limit)
    kept = [w.log_work for w in windows if not w.aborted and (w.over(limit).share or 0.0) <= allowed]
    return max(kept, default=-math.inf)


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
    floor = np.maximum(_floors(allowed_over(limit)), LEAST_SHARE)
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
    expected = np.minimum(np.exp(_log_shares(allowed_over(limit))[0][:, places].T), share)
    loss: Floats = counted.determined * (share * np.log(expected) + (1 - share) * np.log1p(-expected))
    return OVERLOAD_WEIGHT * loss


@cache
def _log_shares(allowed: float) -> tuple[Floats, Floats]:
    """ln of the shares over and within a limit, per column, from `SPAN` steps below the limit load to as many
    above."""
    rise, floor = _rise(allowed)[:, None], _floors(allowed)[:, None]
    odds = np.log(rise / (1 - rise)) + SLOPES[:, None] * STEP * np.arange(-SPAN, SPAN + 1)
    over = np.where(
        floor > 0, np.log(np.maximum(floor + (1 - floor) * logistic(odds), LEAST_SHARE)), -_softplus(-odds)
    )
    return over, np.log1p(-floor) - _softplus(odds)


def _floors(allowed: float) -> Floats:
    """The floor of each column, as a share."""
    floors: Floats = np.minimum(FLOOR_PARTS * allowed, (1 + allowed) / 2)
    return floors


def _rise(allowed: float) -> Floats:
    """The share over the limit, at a column's limit load, of the requests that are not of its floor."""
    floor = _floors(allowed)
    return np.maximum((allowed - floor) / (1 - floor), HOPELESS_RISE * allowed)


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


def logit(share: float) -> float:
    """ln of the odds of a share."""
    return math.log(share / (1 - share))


def _heavy_tailed(at: Floats, centre: float, sd: float) -> Floats:
    """ln density of Student's t with three degrees of freedom: what is believed beforehand may be wrong."""
    return -2.0 * np.log1p(((at - centre) / sd) ** 2 / 3)


def _softplus(x: Floats) -> Floats:
    """ln(1 + e^x), without overflow and faster than logaddexp."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))
