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

from analysis.capacity.kernel import Kernel, log_loads
from analysis.capacity.window_counts import WindowCounts
from analysis.stats.dispersion import Dispersion, overdispersion
from analysis.stats.quantiles import Floats
from conf.specs.bounds import LIMITS, Limit, allowed_over, metric_of

SLOPE_CENTRE, SLOPE_SD = math.log(25), 0.5
"""Prior of ln slope. 21 to 46 on the engine model at four pairs of bounds, given the load around a block."""
GAP_SLOPES = {"itl": (math.log(13), 0.4), "itl_pooled": (math.log(6), 0.4)}
"""The same of bounds on gaps, which a step with a prompt makes long at any load: 11 to 17 of p99 of own gaps
and 5 to 7.5 of p95 of pooled ones there (eight of ten searches of 30 minutes)."""
STEP, REACH = 0.005, 140
"""Steps of the grid of limit loads (ln) and their number on either side of the prior's centre. Offered loads
are rounded to the same steps: then a likelihood is a correlation of counts with one curve per slope, and
costs the same after five windows and after fifty."""
LOAD_GRID = np.linspace(-STEP * REACH, STEP * REACH, 2 * REACH + 1)
UNUSUAL = 1.9
"""A slope is unusual beyond so many standard deviations of its prior: below 9.7 or above 65 (our choice)."""
LOG_SLOPES = SLOPE_CENTRE + np.linspace(-2.0, 1.2, 17)
"""Slopes from 3.4 to 83: with one request at a time they come down to 9 at 0.6 requests/s."""
OVERLOADED_SHARE = 0.6
"""A window with a larger share over the limit is overloaded and no steady state: it only shows that the limit
rate lies below. Near the knee of the engine model 0.5 makes the estimate 0.2 % too high, because it mutes
bursts, and 0.7 makes it 0.4 % too low."""
LONGER = 2.0
"""A longer kernel is believed beforehand by so much (ln) less than the first: with 0 the RMSE of 15 minutes
rises from 1.45 to 1.75 % where lengths are fixed, with 2 to 1.6 % (40 searches)."""
LEAST_DISPERSION_DWELLS = 3
RISING = 1.0
"""Deviance over dispersion from which a share that no load changes is rejected. A constant 0.3 to 3 % at a
third of the capacity never reaches it; 180 quick searches near the capacity all do (simulated)."""
LONG_E2E_S = 15.0
"""Longer answers are remembered longer than the dispersion of 5 s blocks takes in: in proportion,
neighbouring blocks are taken as one and more overdispersion is believed beforehand. With answers of 60 s on a
server that slows as it fills, 24 minutes around the capacity cover in 23 of 24 runs, without it in 19."""
E2E_UNKNOWN_S = 10.0
SHIFT_RANGE = (-1.5, 0.05)
LEAST_LOAD = 0.02
HALVINGS = 18
"""Halvings of the shift's range: to 6e-6, far within any interval."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True, slots=True)
class Prior:
    """The limit rate, as ln(QPS per node), is normal around `centre` for each limit."""

    centre: float
    sd: float = 0.25


@dataclass(frozen=True, slots=True)
class LimitPosterior:
    """Posterior of one limit: a mass per (limit load, column) cell, and each column's shift to a rate.

    A column is a slope with a kernel. `kept`: at least one window kept the limit. `rising`: the evidence
    rejects that at most half of the allowed share is over at any load. `beyond`: the evidence has its maximum
    at the grid's lower (-1) or upper (1) end, so that the prior was far off. `slope_unusual`: the
    share hardly follows the load, or jumps with it. `dispersion` is the variance inflation of the counts.
    """

    applies: bool
    loads: Floats
    mass: Floats
    shift: Floats
    beyond: int
    slope: float
    slope_unusual: bool
    dispersion: float
    kept: bool
    rising: bool
    over: float
    determined: float

    def cdf(self, at: Floats) -> Floats:
        """P(ln of the limit rate <= at), shape of `at`."""
        half = (self.loads[1] - self.loads[0]) / 2
        edges = np.concatenate([self.loads[:1] - half, self.loads + half])
        below = np.concatenate([np.zeros((1, len(self.shift))), np.cumsum(self.mass, axis=0)])
        parts = [np.interp(at - shift, edges, below[:, j]) for j, shift in enumerate(self.shift)]
        total: Floats = np.sum(parts, axis=0)
        return np.minimum(total, 1.0)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The blocks of steady windows in their order; all arrays have one length."""

    log_load: Floats
    over: Floats
    determined: Floats
    allowed: float

    @property
    def rarity(self) -> float:
        """The share that p90 allows over its limit, divided by the share of this bound; at least 1."""
        return max(allowed_over(LIMITS[0]) / self.allowed, 1.0)

    def evidence(self, centre: float, slopes: Floats) -> Floats:
        """Log-likelihood of each (limit load, slope), as if requests were independent."""
        step = np.rint((self.log_load - centre) / STEP).astype(np.int64)
        if not len(step):
            return np.zeros((len(LOAD_GRID), len(slopes)))
        least = int(step.min())
        determined = np.bincount(step - least, self.determined)
        apart = STEP * np.arange(least - REACH, least + len(determined) + REACH)
        curves = _softplus(logit(self.allowed) + slopes[:, None] * apart)
        expected = [np.correlate(curve, determined, "valid")[::-1] for curve in curves]
        over, load = self.over.sum(), self.over @ (STEP * step)
        given = over * logit(self.allowed) + slopes * (load - over * LOAD_GRID[:, None])
        return np.asarray(given - np.stack(expected, axis=1))

    def constant(self) -> float:
        """Log-likelihood of the likeliest share that is at most half of what is allowed, at any load."""
        over, determined = float(self.over.sum()), float(self.determined.sum())
        share = min(over / max(determined, 1.0), self.allowed / 2)
        return over * math.log(share) + (determined - over) * math.log1p(-share) if share else 0.0

    def dispersion(self, limit_load: float, slope: float, longer: float) -> Dispersion | None:
        """Variance inflation that a fit leaves unexplained."""
        expected = _logistic(logit(self.allowed) + slope * (self.log_load - limit_load))
        return overdispersion(self.over, self.determined, expected, longer, self.rarity)


def fit(windows: Sequence[WindowCounts], limit: Limit, prior: Prior) -> LimitPosterior:
    """The posterior from windows that are neither void nor empty, in order of time.

    The likelihood is a quasi-likelihood: divided by the dispersion, and, because that is itself an estimate
    of few degrees of freedom, with the tails of Student's t.
    """
    allowed = allowed_over(limit)
    known = [window for window in windows if window.over(limit).determined]
    overloaded = [window for window in known if _is_overloaded(window, limit)]
    steady = [window for window in known if not _is_overloaded(window, limit) and not window.aborted]
    e2e_s, slopes = _e2e_s(windows), np.exp(LOG_SLOPES)
    kernels = Kernel.all_of(limit, e2e_s, _rate_qps(known))
    # The prior is of the limit rate, the grid of the limit load, which lies above it by the shift.
    usual = float(
        _shifts(known, np.exp([_slope_prior(limit)[0]]), math.exp(prior.centre), kernels[:1], allowed)[0]
    )
    loads = prior.centre - usual + LOAD_GRID
    belief = _log_normal(loads, prior.centre - usual, prior.sd)[:, None] + _belief_in_columns(
        len(kernels), limit
    )
    blocks = _blocks(steady, limit, kernels)
    evidence = np.hstack([each.evidence(prior.centre - usual, slopes) for each in blocks])
    for window in overloaded:
        evidence += np.tile(_overload_evidence(window, limit, loads, slopes), len(kernels))
    longer = max(1.0, e2e_s / LONG_E2E_S)
    unexplained = Dispersion.unknown(blocks[0].determined, longer, blocks[0].rarity)
    i, j = np.unravel_index(np.argmax(belief + evidence / unexplained.inflation), belief.shape)
    beyond = int(i == len(loads) - 1) - int(i == 0)
    best = blocks[j // len(slopes)]
    if len(steady) >= LEAST_DISPERSION_DWELLS and best.over.any():
        unexplained = best.dispersion(loads[i], slopes[j % len(slopes)], longer) or unexplained
    deviance = 2 * (evidence.max() - evidence) / unexplained.inflation
    freedom = unexplained.freedom
    log_mass = belief - (freedom + 1) / 2 * np.log1p(deviance / freedom)
    i, j = np.unravel_index(np.argmax(log_mass), belief.shape)
    mass = np.exp(log_mass - log_mass.max())
    mass /= mass.sum()
    limit_qps = math.exp(loads[i] + usual)
    return LimitPosterior(
        applies=bool(known),
        loads=loads,
        mass=mass,
        shift=_shifts(known, slopes, limit_qps, kernels, allowed),
        beyond=beyond,
        slope=float(slopes[j % len(slopes)]),
        slope_unusual=_unusual(mass, limit),
        dispersion=unexplained.inflation,
        kept=any((window.over(limit).share or 0.0) <= allowed for window in known),
        rising=bool(overloaded)
        or 2 * (evidence.max() - blocks[0].constant()) / unexplained.inflation > RISING,
        over=sum(window.over(limit).over for window in known),
        determined=sum(window.over(limit).determined for window in known),
    )


def population_shift(
    slopes: Floats, load_var: Floats | float, arrivals_var: Floats | float, allowed: float = 0.1
) -> Floats:
    """Shift d from the limit load to the limit rate, per slope: the share is a mean over loads as requests
    meet them.

    Solves E of logistic(logit a + slope (d + ln L)) = a, the share that is `allowed`, by bisection. L has
    variance `load_var` and the skewness of a Poisson count; its mean is 1 + `arrivals_var`, the variance that
    arrivals alone cause, for a load meets the more requests the more of them it is made of.
    """
    variance, of_arrivals = (
        np.broadcast_to(each, slopes.shape)[:, None] for each in (load_var, arrivals_var)
    )
    deviation = np.sqrt(variance) * _NODES + variance * (_NODES**2 - 1) / 6
    loads = np.log(np.maximum(1 + of_arrivals + deviation, LEAST_LOAD))
    low, high = (np.full(len(slopes), end) for end in SHIFT_RANGE)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        # A sum and no matrix product: the threads of a BLAS cost more than they do, and the sends their core.
        curve = _logistic(logit(allowed) + slopes[:, None] * (middle[:, None] + loads))
        share = (curve * _WEIGHTS).sum(axis=1)
        low, high = np.where(share < allowed, middle, low), np.where(share < allowed, high, middle)
    shift: Floats = (low + high) / 2
    return shift


def _shifts(
    windows: Sequence[WindowCounts],
    slopes: Floats,
    qps_per_node: float,
    kernels: Sequence[Kernel],
    allowed: float,
) -> Floats:
    """The shift of each column: the slopes with the first kernel, then with the next."""
    if not windows:
        return np.zeros(len(slopes) * len(kernels))
    expected = (
        qps_per_node * windows[0].nodes * np.repeat([kernel.seconds for kernel in kernels], len(slopes))
    )
    arrivals_var = float(np.mean([window.arrivals_var for window in windows]))
    work_var = float(np.mean([window.work_var for window in windows]))
    columns = np.tile(slopes, len(kernels))
    return population_shift(columns, (arrivals_var + work_var) / expected, arrivals_var / expected, allowed)


def _belief_in_columns(kernels: int, limit: Limit) -> Floats:
    """ln of the prior mass of each slope with each of so many kernels."""
    longer = np.arange(kernels) > 0
    return np.concatenate([_log_normal(LOG_SLOPES, *_slope_prior(limit)) - LONGER * it for it in longer])


def _slope_prior(limit: Limit) -> tuple[float, float]:
    """Centre and standard deviation of ln slope beforehand."""
    return GAP_SLOPES.get(metric_of(limit), (SLOPE_CENTRE, SLOPE_SD))


def _unusual(mass: Floats, limit: Limit) -> bool:
    centre, sd = _slope_prior(limit)
    of_slopes = mass.sum(axis=0).reshape(-1, len(LOG_SLOPES)).sum(axis=0)
    return float(of_slopes[np.abs(LOG_SLOPES - centre) > UNUSUAL * sd].sum()) > 0.5


def _is_overloaded(window: WindowCounts, limit: Limit) -> bool:
    """True where the counts show an overload and not a rate.

    A window is aborted for its queue: it says nothing of a limit that is kept all the same.
    """
    return (window.over(limit).share or 0.0) > (allowed_over(limit) if window.aborted else OVERLOADED_SHARE)


def _overload_evidence(window: WindowCounts, limit: Limit, loads: Floats, slopes: Floats) -> Floats:
    """Log-likelihood of so large a share over the limit where less is expected; flat where more is."""
    counted = window.over(limit)
    share = min(counted.over / counted.determined, OVERLOADED_SHARE)
    expected = logit(allowed_over(limit)) + slopes * (window.log_work - loads[:, None])
    expected = np.minimum(expected, logit(share))
    loss: Floats = counted.determined * (share * expected - _softplus(expected))
    return loss


def _e2e_s(windows: Sequence[WindowCounts]) -> float:
    known = [window.median_e2e_s for window in windows if window.median_e2e_s is not None]
    return float(np.median(known)) if known else E2E_UNKNOWN_S


def _rate_qps(windows: Sequence[WindowCounts]) -> float:
    """Requests per second of the whole service, in the middle of the windows."""
    return float(np.median([window.rate_qps for window in windows])) if windows else math.inf


def _blocks(windows: Sequence[WindowCounts], limit: Limit, kernels: Sequence[Kernel]) -> list[_Blocks]:
    """Blocks of the windows, once with the loads of each kernel."""
    if not windows:
        nothing = np.array([], dtype=np.float64)
        return [_Blocks(nothing, nothing, nothing, allowed_over(limit))] * len(kernels)
    counts = [window.over(limit) for window in windows]
    over = np.array([n for counted in counts for n in counted.block_over], dtype=np.float64)
    determined = np.array([n for counted in counts for n in counted.block_determined], dtype=np.float64)
    loads = [(load, ~np.isnan(load)) for load in log_loads(windows, kernels)]
    allowed = allowed_over(limit)
    return [_Blocks(load[offered], over[offered], determined[offered], allowed) for load, offered in loads]


def logit(share: float) -> float:
    """ln of the odds of a share."""
    return math.log(share / (1 - share))


def _log_normal(at: Floats, centre: float, sd: float) -> Floats:
    return -0.5 * ((at - centre) / sd) ** 2


def _softplus(x: Floats) -> Floats:
    """ln(1 + e^x), without overflow and faster than logaddexp."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _logistic(x: Floats) -> Floats:
    share: Floats = 0.5 + 0.5 * np.tanh(x / 2)
    return share
