"""Curves that the share over a limit may follow as the load rises: in columns, each a slope and a floor."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from analysis.capacity.rate_shift import logistic
from analysis.stats.quantiles import Floats
from conf.specs.bounds import Limit, metric_of


class SlopePrior(NamedTuple):
    """ln slope is normal around `centre` with `sd`, above a floor with `floor_sd`."""

    centre: float
    sd: float
    floor_sd: float


SLOPE_CENTRE, SLOPE_SD = math.log(25), 0.5
"""Prior of ln slope. 21 to 46 on the engine model at four pairs of bounds, given the load around a block."""
MANY = 40.0
"""Requests in flight from which that centre holds. Arrivals by chance move the load of fewer by more, so that
the share rises more slowly: the centre falls with the root of their number. By brute force slopes are 4 with
two in flight, 6 with four, 13 with 8 to 16 and 27 with 60. With it the RMSE of `long` falls from 10 to 8 %,
and told half of the truth it covers in .96 for .88 (24 searches, the same windows). Not where one rate is
held, which shows no slope: at the capacity `probe --require` would pass .10 to .13 of `erlang` and `queue`,
not .05 (60 runs each)."""
GAP_SLOPES = {
    "itl": SlopePrior(math.log(13), 0.4, 0.4),
    "itl_pooled": SlopePrior(math.log(6), 0.4, 1.0),
}
"""The same of bounds on gaps, which a step with a prompt makes long at any load: 11 to 17 of p99 of own gaps
and 5 to 7.5 of p95 of pooled ones there (eight of ten searches of 30 minutes). With an sd of 1 above a floor
the cover of p99 ITL in 30 minutes falls from 1.00 to .93 and its RMSE rises from 3.9 to 4.4 %; with .4 that
of pooled gaps rises from 1.9 to 2.0 % (60 searches each)."""
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
LONGER = 2.0
"""A longer kernel is believed beforehand by so much (ln) less than the first: with 0 the RMSE of 15 minutes
rises from 1.45 to 1.75 % where lengths are fixed, with 2 to 1.6 % (40 searches)."""
STEP, SPAN = 0.01, 800
"""A step of ln load, and the steps on either side of the limit load for which shares are kept: three thousand
times the load."""
LEAST_SHARE = 1e-12
"""A share as good as none."""


def slope_prior(limit: Limit, in_flight: float) -> SlopePrior:
    """The prior of the slope with so many requests in flight."""
    few = min(max(in_flight, 1.0) / MANY, 1.0)
    usual = SlopePrior(SLOPE_CENTRE + math.log(few) / 2, SLOPE_SD, FLOOR_SLOPE_SD)
    return GAP_SLOPES.get(metric_of(limit), usual)


def belief_in_columns(kernels: int, prior: SlopePrior) -> Floats:
    """ln of the prior mass of each floor and slope with each of so many kernels."""
    sds, steps = np.where(COLUMN_FLOORS, prior.floor_sd, prior.sd), np.where(COLUMN_FLOORS, 2, 1)
    apart = (COLUMN_SLOPES - prior.centre) / sds
    belief = FLOOR_BELIEF[COLUMN_FLOORS] - apart**2 / 2 + np.log(steps / sds)
    return np.concatenate([belief - LONGER * (kernel > 0) for kernel in range(kernels)])


def is_unusual(mass: Floats, prior: SlopePrior) -> bool:
    odd = (np.abs(COLUMN_SLOPES - prior.centre) > UNUSUAL * prior.sd) | (FLOOR_PARTS >= MUCH)
    return float(mass.sum(axis=0).reshape(-1, len(SLOPES))[:, odd].sum()) > 0.5


def floors(allowed: float) -> Floats:
    """The floor of each column, as a share."""
    floors: Floats = np.minimum(FLOOR_PARTS * allowed, (1 + allowed) / 2)
    return floors


def rises(allowed: float) -> Floats:
    """The share over the limit, at a column's limit load, of the requests that are not of its floor."""
    floor = floors(allowed)
    return np.maximum((allowed - floor) / (1 - floor), HOPELESS_RISE * allowed)


@cache
def log_shares(allowed: float) -> tuple[Floats, Floats]:
    """ln of the shares over and within a limit, per column, from `SPAN` steps below the limit load to as many
    above."""
    rise, floor = rises(allowed)[:, None], floors(allowed)[:, None]
    odds = np.log(rise / (1 - rise)) + SLOPES[:, None] * STEP * np.arange(-SPAN, SPAN + 1)
    over = np.where(
        floor > 0, np.log(np.maximum(floor + (1 - floor) * logistic(odds), LEAST_SHARE)), -_softplus(-odds)
    )
    return over, np.log1p(-floor) - _softplus(odds)


def logit(share: float) -> float:
    """ln of the odds of a share."""
    return math.log(share / (1 - share))


def _softplus(x: Floats) -> Floats:
    """ln(1 + e^x), without overflow and faster than logaddexp."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))
