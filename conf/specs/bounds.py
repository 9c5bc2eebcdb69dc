"""The spec of the bounds on latencies: a quantile over the requests of each, and the most it may be.

`analysis.rows.metrics` measures the latencies. The name of a bound says its latency and its
quantile: `itl_p99`; `ttft` and `tpot` alone are those of the 90th percentile.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated

from conf.io.check import Positive, Range, Share, require

Limit = str
"""Name of a bound."""
LIMITS: tuple[Limit, Limit] = ("ttft", "tpot")
"""The bounds that a run has unless its words say otherwise."""
METRICS = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "itl_pooled": "pooled ITL",
    "e2e": "E2E",
    "queue": "queue time",
}
"""Latencies that can have a bound, and their words in a text."""
PER_REQUEST = ("ttft", "tpot", "itl", "e2e", "queue")
"""Latencies of which a request has one, so that it keeps their bounds or does not."""
GAPS = ("itl", "itl_pooled")
"""Latencies made of the gaps between tokens."""
JOINT = "joint"
"""Pseudo-metric of the joint bound: the share of requests that keep all their bounds at once."""

PERCENT = 90
QUANTILE = PERCENT / 100
"""The quantile of a bound whose name is a latency alone."""
LEAST_QUANTILE, MOST_QUANTILE = 0.5, 0.999
"""Below the median a bound says little; beyond .999 hardly a run has the requests for it (our choice)."""
ITL_WITHIN = 0.99
"""Quantile of a request's own gaps that its ITL is: an answer of 140 tokens has one gap beyond it."""
UNBOUND_TTFT_MS, UNBOUND_TPOT_MS = 10_000.0, 200.0
"""A first token, and a token, that takes longer is overload where no bound says so (our choice)."""
_NAME = re.compile(rf"({'|'.join((*METRICS, JOINT))})_p(\d{{2,3}})")
_SHORT = re.compile(rf"slo\.((?:{'|'.join(METRICS)})_p\d+)_ms")


@dataclass(frozen=True, slots=True)
class Bound:
    """The most in ms that the quantile over requests of one latency may be."""

    limit: Limit
    ms: float

    @property
    def column(self) -> str:
        return column(self.limit)


@cache
def parsed(limit: Limit) -> tuple[str, float]:
    """Latency and quantile of a bound by its name. Raises ValueError for a name that is none."""
    if limit in LIMITS:
        return limit, QUANTILE
    match = _NAME.fullmatch(limit)
    quantile = float(f"0.{match[2]}") if match else 0.0
    if match is None or not LEAST_QUANTILE <= quantile <= MOST_QUANTILE:
        raise ValueError(
            f"'{limit}' is no bound; give METRIC_pNN, METRIC of {', '.join(METRICS)} and NN from 50 to 999 "
            "(p999 is the quantile .999)"
        )
    return match[1], quantile


def metric_of(limit: Limit) -> str:
    """The latency that a bound limits."""
    return parsed(limit)[0]


def quantile_of(limit: Limit) -> float:
    """The quantile over requests that a bound limits; of a joint one the share that keeps all bounds."""
    return parsed(limit)[1]


def allowed_over(limit: Limit) -> float:
    """Share of the requests that may be over a bound."""
    return round(1 - quantile_of(limit), 3)


def deciding(limits: Sequence[Limit]) -> list[Limit]:
    """Bounds that may be the first to break; a joint one implies those that may be broken as often as it."""
    joint = min([allowed_over(limit) for limit in limits if metric_of(limit) == JOINT], default=math.inf)
    return [it for it in limits if metric_of(it) not in PER_REQUEST or allowed_over(it) < joint]


def limit_of(metric: str, quantile: float) -> Limit:
    """The name of a bound. Raises ValueError for an unknown latency or an impossible quantile."""
    if metric in LIMITS and quantile == QUANTILE:
        return metric
    limit = f"{metric}_p{f'{quantile:.3f}'[2:].rstrip('0').ljust(2, '0')}"
    if not LEAST_QUANTILE <= quantile <= MOST_QUANTILE or parsed(limit)[1] != quantile:
        raise ValueError(f"{quantile} is no quantile of a bound; give .5 to .999, of three digits")
    return limit


def column(limit: Limit) -> str:
    """Key of the limited quantile in ms, in a configuration, a table and a verdict: `ttft_p90_ms`."""
    return f"{limit}_p{PERCENT}_ms" if limit in LIMITS else f"{limit}_ms"


def short_key(key: str) -> str:
    """A key as a user writes it: `slo.itl_p99_ms` for `slo.at_most_ms.itl_p99`."""
    limit = key.removeprefix("slo.at_most_ms.")
    return key if limit == key else f"slo.{limit}_ms"


def long_key(key: str) -> str:
    """The key of the spec that a key as a user writes it sets; the inverse of `short_key`."""
    match = _SHORT.fullmatch(key)
    return f"slo.at_most_ms.{match[1]}" if match and f"{match[1]}_ms" not in map(column, LIMITS) else key


def label(limit: Limit) -> str:
    """The limited quantile in a text: `p90 TTFT`."""
    metric, quantile = parsed(limit)
    if metric == JOINT:
        return f"{100 * quantile:g} % of requests within all bounds"
    return f"p{100 * quantile:g} {METRICS[metric]}"


def short(limit: Limit) -> str:
    """A bound in a narrow column: `TTFT`, `p99 ITL`."""
    metric, quantile = parsed(limit)
    if metric == JOINT:
        return f"joint {100 * quantile:g} %"
    return METRICS[metric] if limit in LIMITS else label(limit)


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds on quantiles over requests: TTFT from the due time, TPOT per request, and those of `at_most_ms`.

    `at_most_ms` holds further bounds in ms by name (`itl_p99`); None takes one away. `joint` is the share of
    requests that must keep all their bounds at once (goodput in the sense of DistServe, arXiv:2401.09670).
    `itl_within` is the quantile of a request's own gaps that its ITL is.
    """

    name: str = ""
    ttft_p90_ms: Positive | None = None
    tpot_p90_ms: Positive | None = None
    at_most_ms: dict[str, Positive | None] = field(default_factory=dict)
    joint: Annotated[float, Range(ge=LEAST_QUANTILE, le=MOST_QUANTILE)] | None = None
    itl_within: Share = ITL_WITHIN

    def __post_init__(self) -> None:
        for limit in self.at_most_ms:
            name = limit_of(*parsed(limit))
            right = "slo.joint=SHARE" if metric_of(limit) == JOINT else f"slo.{column(name)}"
            is_own = name == limit and limit not in LIMITS and metric_of(limit) != JOINT
            require(is_own, f"slo.at_most_ms.{limit}: set {right} instead")
        pooled = [limit for limit, ms in self.at_most_ms.items() if ms and metric_of(limit) == "itl_pooled"]
        require(len(pooled) < 2, "slo has two bounds on pooled gaps; leave one of them out")
        require(bool(self._own), "slo has no bound; set one, such as slo.ttft_p90_ms=2000")
        if self.joint is not None:
            three = round(self.joint, 3) == self.joint
            require(three, f"slo.joint={self.joint} must have at most three digits")
            own = any(metric_of(bound.limit) in PER_REQUEST for bound in self._own)
            require(own, "slo.joint needs a bound of a request; set one, such as slo.ttft_p90_ms=2000")

    @property
    def _own(self) -> tuple[Bound, ...]:
        limits_ms = {limit: getattr(self, column(limit)) for limit in LIMITS} | self.at_most_ms
        return tuple(Bound(limit, ms) for limit, ms in limits_ms.items() if ms is not None)

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """Every bound; a joint one, whose limit in ms is infinite, stands last."""
        if self.joint is None:
            return self._own
        return *self._own, Bound(limit_of(JOINT, self.joint), math.inf)

    def bound_ms(self, limit: Limit) -> float:
        """The most in ms that the quantile of a bound may be."""
        return next(bound.ms for bound in self.bounds if bound.limit == limit)

    def words(self, limit: Limit) -> str:
        """A bound in words: `p90 TTFT <= 2000 ms`."""
        return label(limit) if metric_of(limit) == JOINT else f"{label(limit)} <= {self.bound_ms(limit):g} ms"

    def is_about_gaps(self, limit: Limit) -> bool:
        """True if gaps between tokens decide whether a request keeps a bound; of a joint one any bound."""
        metric = metric_of(limit)
        return metric in GAPS or (metric == JOINT and self.strictest_ms("itl") is not None)

    @property
    def text(self) -> str:
        """All bounds in words."""
        return ", ".join(map(self.words, self.limits))

    def scaled(self, factor: float) -> "Slo":
        """The same bounds, each that many times as wide; the joint share stays."""
        changed = {column(limit): factor * ms for limit in LIMITS if (ms := getattr(self, column(limit)))}
        others = {limit: ms and factor * ms for limit, ms in self.at_most_ms.items()}
        return replace(self, at_most_ms=others, **changed)

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The names of the bounds."""
        return tuple(bound.limit for bound in self.bounds)

    def strictest_ms(self, metric: str) -> float | None:
        """The smallest bound on a latency at any quantile; None without one."""
        return min((bound.ms for bound in self._own if metric_of(bound.limit) == metric), default=None)

    @property
    def first_token_ms(self) -> float:
        """The longest that a first token may take: the bound on TTFT, or on E2E where TTFT has none."""
        bounds_ms = [self.strictest_ms(metric) for metric in ("ttft", "e2e")]
        return next((ms for ms in bounds_ms if ms is not None), UNBOUND_TTFT_MS)

    def answer_s(self, tokens: float) -> float:
        """Seconds of an answer of `tokens` tokens that just meets its bounds."""
        whole_ms = self.strictest_ms("e2e") or math.inf
        return min(whole_ms, self.first_token_ms + 1e3 * self.tokens_s(tokens)) / 1e3

    def tokens_s(self, tokens: float) -> float:
        """Seconds of so many tokens at the slowest pace that the bounds allow."""
        bounds_ms = [self.strictest_ms(metric) for metric in ("tpot", "itl_pooled", "itl")]
        return tokens * next((ms for ms in bounds_ms if ms is not None), UNBOUND_TPOT_MS) / 1e3
