"""Ratio of two services' capacities, from windows of both that had the same requests.

Common random numbers: the method, section 2.5. The comparison is ours: over each bound the share of A's
window minus that of B's, in which the luck of the common arrivals cancels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.capacity.limit_posterior import OVERLOADED_SHARE
from analysis.stats.dispersion import Dispersion, long_run
from analysis.stats.estimate import NORMAL_975, Estimate
from analysis.stats.quantiles import Floats
from conf.specs.bounds import LIMITS, Limit, allowed_over, deciding, metric_of

BAND = 0.3
"""A share is averaged over bounds within a factor e^+-0.3 of the asked one: the ratio hardly depends on the
bound, and requests that just miss it no longer decide (halves the spread, simulated)."""
STRETCHES = 8
"""Parts of a pair whose differences show for how long a service is slower: some 5 s each."""

Latencies = Mapping[Limit, Floats]
"""The latency over its bound of a window's requests in order of due time, by the bound's name; nan is not
known (yet), inf failed. Where gaps between tokens decide it has two columns: the part of each request that is
over, and the part that is known. For gaps lie in clusters, of steps with a prompt and of those without, and a
mean over bounds around the asked one hardly moves with the rate, unlike a count."""


@dataclass(frozen=True, slots=True)
class Shares:
    """One limit in a pair: of `determined` requests known on both sides, `over` it as (A, B).

    `near` counts the same averaged over bounds within e^+-BAND, so that a request counts in part; where gaps
    decide (`of_gaps`) it is the same, and a request counts by its part among those of its side. `stretches`
    are the requests in `STRETCHES` equal parts in order of due time: `near` of B minus that of A, and their
    number.
    """

    determined: int
    over: tuple[float, float]
    near: tuple[float, float]
    stretches: tuple[tuple[float, int], ...]
    of_gaps: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """A window of A and its replay on B at exp(`log_ratio`) times the rate, as far as both went.

    A pair is not `whole` if one side was ended early: then it says where to look, but not what to report,
    because a window ends early by its own outcome.
    """

    index: int
    log_ratio: float
    whole: bool
    limits: Mapping[Limit, Shares]


def pair(index: int, log_ratio: float, whole: bool, a: Latencies, b: Latencies) -> Pair:
    """The pair of two windows with the same requests; where one ended early, the requests that both had."""
    count = min(len(known) for side in (a, b) for known in side.values())
    shares = {limit: _shares(known[:count], b[limit][:count]) for limit, known in a.items()}
    return Pair(index, log_ratio, whole, shares)


def _shares(a: Floats, b: Floats) -> Shares:
    if a.ndim == 2:
        return _shares_of_gaps(a, b)
    both = ~(np.isnan(a) | np.isnan(b))
    over = int(np.sum(a[both] > 1)), int(np.sum(b[both] > 1))
    parts = [_near(side[both]) for side in (a, b)]
    near = float(np.sum(parts[0])), float(np.sum(parts[1]))
    return Shares(int(both.sum()), over, near, _stretches(*parts))


def _shares_of_gaps(a: Floats, b: Floats) -> Shares:
    """Shares of what is known of the requests that both sides know, as parts of their number."""
    both = (a[:, 1] > 0) & (b[:, 1] > 0)
    count = int(both.sum())
    parts = [count * side[both, 0] / max(float(side[both, 1].sum()), 1e-9) for side in (a, b)]
    over = float(parts[0].sum()), float(parts[1].sum())
    return Shares(count, over, over, _stretches(*parts), of_gaps=True)


def _stretches(a: Floats, b: Floats) -> tuple[tuple[float, int], ...]:
    """Difference of the requests' parts, and the requests, of each stretch."""
    return tuple(
        (float(part.sum()), len(part)) for part in np.array_split(b - a, min(STRETCHES, max(len(a), 1)))
    )


def _near(over: Floats) -> Floats:
    """Part of the bounds within e^+-BAND, even in ln, that a latency is over; it is given over its bound."""
    above = np.log(np.maximum(over, 1e-9))
    part: Floats = np.clip(0.5 + above / (2 * BAND), 0.0, 1.0)
    return part


Open = Literal["", "above", "below"]

Belief = tuple[float, float, float]
"""Centre and sd of ln slope, d logit(share) / d ln(rate), and the sd of the difference of a pair's shares
over sqrt(v (1 - v)), v being their mean, before anything is seen."""
WHOLE: Belief = math.log(18), 0.3, 0.1
"""Slopes are 16 to 24 over scenarios S1, S2, S4 of the method (simulated, windows ended early left out)."""
GAPS: Belief = math.log(12), 0.5, 0.5
"""Of a request's own gaps: 7 to 18 of a p99 on the engine model. A long step is long for the whole batch, and
B's steps are not A's: with this noise 22 of 24 comparisons of I99 cover, with 0.3 some 7 of ten."""
POOLED: Belief = math.log(6), 0.4, 0.1
"""Slopes of pooled gaps are 3 to 6.5 there."""
NOISE_FREEDOM = 2.0
"""Degrees of freedom of the noise that is believed beforehand."""
UNSEEN = 8.0
"""Variance that the pairs hide, as a multiple of what they show over its degrees of freedom: a neighbour or a
queue of its own slows one side for a minute, and a few minutes see few of these. When it was chosen, 2 of 56
quick comparisons of identical `noisy` and 1 of `queue` were wrong, with 4 some 5 and 4; those of today stand
in docs/search_accuracy.md (`foreign_services --compare`)."""
TILT, TILT_SD = 0.5, 0.4
"""ln of B's slope over A's, by ln(ratio): the faster one is nearer to its saturation, hence steeper. 0.75 in
S2, 0.5 where a batch is the only limit (theory); what a share far from the allowed one says depends on it."""
APART_SD = 0.03
"""sd of ln(ratio) by ln(ratio): services that differ much make less alike of the same luck, in all windows at
once. Without it the interval covers in .88 of 99 comparisons with ratios of .47 to 2, with it in .96
(simulated)."""
MOST_AROUND = 0.2
"""Largest share around a bound where the bound is just kept: a heavier tail is no tail."""
UNSURE = 0.27
"""An expected difference so large, in the units of the noise, is as unsure as the noise, for no curve has one
slope throughout: some 0.05 (ln) from the answer. Where one side is all over, or none, it is sure again, of
the side."""
PRIOR_SD = 0.55
"""sd of ln(ratio) around where the search for it began: a factor of 3 is within two of them (our choice)."""
LEAST_REQUESTS, LEAST_PAIRS = 10, 3
UNLIKE = 0.5
"""A and B are limited by different bounds if what is over each differs by more (`_distance`)."""
OPEN = 2.0
"""An end of the interval is only the prior if the evidence falls by less (ln) from its best to far away."""
_FAR, _COARSE, _FINE, _TAIL = 2.0, 0.02, 200, 1e-4
"""The posterior is found on a grid so far from the start, then on so many points between its tails."""
_STEPS = np.linspace(-2.0, 2.0, 5)


@dataclass(frozen=True, slots=True)
class LimitRatio:
    """Ratio of the rates at which one limit is just kept, with its 95 % interval.

    `weight` is the limit's part among the requests over a bound. Of one that is `open` above or below, all
    pairs lie on one side of the answer: the end there is only the prior, and the other one a bound.
    """

    estimate: Estimate
    weight: float
    open: Open = ""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Capacity of B over capacity of A, with its 95 % interval, and per limit where that is known.

    `correlation` is that of the two sides' shares over the pairs, None where it is unknown. `unlike`: A and
    B are limited by different bounds, so that common arrivals do not help. `open` is as in a limit's.
    """

    estimate: Estimate
    limits: Mapping[Limit, LimitRatio]
    pairs: int
    correlation: float | None
    unlike: bool
    open: Open = ""

    @property
    def verdict(self) -> str:
        """The answer in words."""
        low, high = self.estimate.ends
        if low is not None and low > 1:
            return "B is better"
        return "B is worse" if high is not None and high < 1 else "no difference shown"

    @property
    def log_next(self) -> float:
        """ln(ratio) to try next: halfway to the bound while no pair was above, for an overload costs more."""
        value, low = math.log(self.estimate.value), self.estimate.low
        return (value + math.log(low)) / 2 if self.open == "above" and low else value


def ratio(pairs: Sequence[Pair], start: float) -> Ratio | None:
    """Ratio of the capacities from `pairs`; ln(ratio) was thought to be near `start`.

    None if not one request was over a bound or near it: the pairs then say nothing.
    """
    # A side far beyond its capacity does not show which limit binds there.
    steady = [pair for pair in pairs if not any(map(_is_over, pair.limits.values()))] or pairs
    limits = deciding(list(pairs[0].limits)) if pairs else []
    parts = [_over(steady, limits, side) for side in (0, 1)]
    total = sum(map(sum, parts))
    ratios: dict[Limit, LimitRatio] = {}
    for limit, *over in zip(limits, *parts, strict=True):
        if sum(over) and (figures := _limit(pairs, limit, start)):
            ratios[limit] = LimitRatio(figures[0], sum(over) / total, figures[1])
    known = list(ratios.values())
    if not known:
        return None
    closed = [limit_ratio for limit_ratio in known if not limit_ratio.open]
    value, low, high = (math.exp(figure) for figure in _mixed(closed or known))
    side: Open = "" if closed else max(known, key=lambda limit_ratio: limit_ratio.weight).open
    broken = min([_broken_at(pairs, limit) for limit in limits if limit not in ratios], default=math.inf)
    if high > broken:  # the other limits cannot tell how far below B breaks this one
        value, low, high, side = min(value, broken), min(low, broken), broken, "below"
    main = max(ratios, key=lambda limit: ratios[limit].weight)
    unlike = all(map(sum, parts)) and _distance(*parts) > UNLIKE
    return Ratio(
        estimate=Estimate(value, low, high),
        open=side,
        limits=ratios,
        pairs=len(pairs),
        correlation=_correlation(pairs, main),
        unlike=unlike,
    )


def _broken_at(pairs: Sequence[Pair], limit: Limit) -> float:
    """The lowest ratio at which B was overloaded under a bound on gaps; infinite if it never was."""
    shares = [(pair.log_ratio, pair.limits[limit]) for pair in pairs]
    return min((math.exp(at) for at, share in shares if share.of_gaps and _is_over(share)), default=math.inf)


def _distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Distance of two distributions over the limits: 0 of equal ones, 1 of those that share no limit."""
    return sum(abs(ours / sum(a) - theirs / sum(b)) for ours, theirs in zip(a, b, strict=True)) / 2


def unpaired(a: Estimate, b: Estimate) -> Estimate:
    """Ratio b / a of two independent estimates. Raises ValueError for an open end."""
    if a.low is None or a.high is None or b.low is None or b.high is None:
        raise ValueError("a ratio needs two intervals with both ends")
    value = math.log(b.value / a.value)
    below = math.hypot(math.log(b.value / b.low), math.log(a.high / a.value))
    above = math.hypot(math.log(b.high / b.value), math.log(a.value / a.low))
    return Estimate(math.exp(value), math.exp(value - below), math.exp(value + above))


def _is_over(shares: Shares) -> bool:
    return shares.determined > 0 and max(shares.over) > OVERLOADED_SHARE * shares.determined


def _over(pairs: Sequence[Pair], limits: Sequence[Limit], side: int) -> list[float]:
    """Requests of one side over each limit, or around it, as many as if a tenth might be over each."""
    alike = [allowed_over(LIMITS[0]) / allowed_over(limit) for limit in limits]
    near = [sum(pair.limits[limit].near[side] for pair in pairs) for limit in limits]
    return [scale * count for scale, count in zip(alike, near, strict=True)]


def _limit(pairs: Sequence[Pair], limit: Limit, start: float) -> tuple[Estimate, Open] | None:
    """Median and 95 % interval of the ratio for one limit, and its open end; None if no pair tells."""
    samples = [(pair.log_ratio, pair.limits[limit]) for pair in pairs]
    samples = [(at, shares) for at, shares in samples if shares.determined >= LEAST_REQUESTS]
    # Gaps can be over a bound in a tenth of the requests or in all: beyond an overload no slope leads.
    samples = [(at, shares) for at, shares in samples if not (shares.of_gaps and _is_over(shares))]
    informative = [(at, shares) for at, shares in samples if 0 < sum(shares.near) < 2 * shares.determined]
    if not informative:
        return None
    # The share around a bound at which the bound itself is just kept.
    kept = allowed_over(limit)
    near = sum(sum(share.near) for _, share in informative)
    over = sum(sum(share.over) for _, share in samples)
    allowed = max(kept, min(kept * near / max(1, over), MOST_AROUND))
    belief = GAPS if any(shares.of_gaps for _, shares in samples) else WHOLE
    belief = POOLED if metric_of(limit) == "itl_pooled" else belief
    tried, determined, *sides = np.array([(at, share.determined, *share.near) for at, share in informative]).T
    stretches = [np.array(share.stretches).T for _, share in informative]
    fit = _Fit(tried, determined, np.array(sides) / determined, stretches, allowed, belief)
    wide = start + np.arange(-_FAR, _FAR + _COARSE / 2, _COARSE)
    noise = fit.noise(wide)
    log_evidence = fit.evidence(wide, noise)
    cdf = _cdf(log_evidence, wide, start)
    lowest, highest = np.interp([_TAIL, 1 - _TAIL], cdf, wide)
    fine = np.linspace(lowest, highest, _FINE)
    cdf = _cdf(fit.evidence(fine, noise), fine, start)
    median, low, high = np.interp([0.5, 0.025, 0.975], cdf, fine)
    apart = NORMAL_975 * APART_SD * abs(median)
    low, high = median - math.hypot(median - low, apart), median + math.hypot(high - median, apart)
    best = _flat(log_evidence)
    side: Open = "above" if best[-1] > best.max() - OPEN else "below" if best[0] > best.max() - OPEN else ""
    return Estimate(math.exp(median), math.exp(low), math.exp(high)), side


@dataclass(frozen=True, slots=True)
class _Fit:
    """The informative pairs of one limit in order of time, and what is believed of them.

    Their noise is a `Dispersion`: the variance of the difference of a mean pair's shares over v (1 - v).

    Per pair two logits are slope x (ln ratio tried - delta) + tilt x (logit v - logit `allowed`) apart, and v
    is the mean share that was seen; then D = share of B - share of A solves 2 D = K (1 - w^2 + D^2) with
    w = 2 v - 1 and K the tanh of half the distance.
    """

    tried: Floats
    determined: Floats
    shares: Floats
    stretches: Sequence[Floats]
    allowed: float
    belief: Belief

    @property
    def unit(self) -> Floats:
        """The noise of one request, so that quiet windows are held to it too."""
        mean = self.shares.mean(axis=0)
        unit: Floats = np.sqrt(mean * (1 - mean))
        return unit

    def evidence(self, deltas: Floats, noise: Dispersion) -> Floats:
        """Log-likelihood on a grid of (tilt and slope, delta), with the priors of all but delta.

        A quasi-likelihood with the tails of Student's t, as that of a capacity.
        """
        expected, spread = self._expected(deltas)
        return self._log_evidence(expected, spread, noise).reshape(-1, len(deltas))

    def noise(self, deltas: Floats) -> Dispersion:
        """The noise that the stretches of the pairs show around the likeliest cell of the grid."""
        freedom, variance = NOISE_FREEDOM, self.belief[2] ** 2
        expected, spread = self._expected(deltas)
        log_evidence = self._log_evidence(expected, spread, Dispersion(variance, freedom))
        best = int(np.argmax(log_evidence))
        expected, spread = (each.reshape(len(self.tried), -1)[:, best] for each in (expected, spread))
        scale, shift = self.unit * np.sqrt(spread), self.unit * expected
        error = [
            (apart - size * at) / by
            for (apart, size), at, by in zip(self.stretches, shift, scale, strict=True)
        ]
        observed = long_run(np.concatenate(error), len(self.tried) * float(self.determined.mean()) ** 2)
        shown = max(observed.variance, observed.alone) * (1 + UNSEEN / observed.freedom)
        known = (freedom * variance + observed.freedom * shown) / (freedom + observed.freedom)
        return Dispersion(known, observed.freedom)

    def _expected(self, deltas: Floats) -> tuple[Floats, Floats]:
        """Expected difference of each pair over its unit, and by how much its variance grows with that.

        Shape (pair, tilt, slope, delta).
        """
        centre, sd, _ = self.belief
        slope = np.exp(centre + sd * _STEPS)[:, None]
        tilt = (TILT + TILT_SD * _STEPS)[:, None, None] * deltas
        mean = self.shares.mean(axis=0)
        above = np.log(mean / (1 - mean)) - math.log(self.allowed / (1 - self.allowed))
        tried, above, room, unit = (
            array[:, None, None, None] for array in (self.tried, above, 4 * mean * (1 - mean), self.unit)
        )
        steep = np.tanh((slope * (tried - deltas) + tilt * above) / 2)
        expected = steep * room / (1 + np.sqrt(1 - steep**2 * room)) / unit
        return expected, 1 + (expected * (1 - steep**2) / UNSURE) ** 2

    def _log_evidence(self, expected: Floats, spread: Floats, noise: Dispersion) -> Floats:
        weight = self.determined / self.determined.mean()
        difference = (self.shares[1] - self.shares[0]) / self.unit
        squares = np.tensordot(weight, (difference[:, None, None, None] - expected) ** 2 / spread, 1)
        deviance = (squares - squares.min()) / noise.inflation
        evidence = -(noise.freedom + 1) / 2 * np.log1p(deviance / noise.freedom)
        evidence -= np.log(spread).sum(axis=0) / 2
        return np.asarray(evidence - (_STEPS**2)[:, None, None] / 2 - (_STEPS**2)[:, None] / 2)


def _flat(log_evidence: Floats) -> Floats:
    """ln of the mean evidence over slopes, at each delta."""
    most: float = log_evidence.max()
    return np.asarray(most + np.log(np.exp(log_evidence - most).mean(axis=0) + 1e-300))


def _cdf(log_evidence: Floats, deltas: Floats, start: float) -> Floats:
    """The posterior's distribution at each delta of an even grid."""
    log_mass = _flat(log_evidence) - 0.5 * ((deltas - start) / PRIOR_SD) ** 2
    mass = np.exp(log_mass - log_mass.max())
    return np.asarray((np.cumsum(mass) - mass / 2) / mass.sum())


def _mixed(known: Sequence[LimitRatio]) -> tuple[float, float, float]:
    """ln of the ratio of the capacities and its interval: the limits by weight, and how far they disagree."""
    weights = np.array([ratio.weight for ratio in known])
    weights = weights / weights.sum()
    figures = [(ratio.estimate.value, *ratio.estimate.ends) for ratio in known]
    logs: Floats = np.log(np.array(figures, dtype=np.float64))
    value, low, high = weights @ logs
    between = NORMAL_975 * math.sqrt(float(weights @ (logs[:, 0] - value) ** 2))
    down, up = math.hypot(value - low, between), math.hypot(high - value, between)
    return float(value), float(value - down), float(value + up)


def _correlation(pairs: Sequence[Pair], limit: Limit) -> float | None:
    shares = [pair.limits[limit] for pair in pairs]
    sides = np.array([share.near for share in shares if share.determined]).T
    if sides.size < 6 or not np.all(sides.std(axis=1) > 0):
        return None
    return float(np.corrcoef(sides)[0, 1])
