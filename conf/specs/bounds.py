"""The spec of the bounds on latencies: one quantile over the requests of each, and the most it may be.

Knows the latencies by name only; how one is measured is known in `analysis.rows.metrics`.
"""

from dataclasses import dataclass
from typing import Literal

from conf.io.check import require_positive

Limit = Literal["ttft", "tpot"]
"""A latency that has a bound."""
LIMITS: tuple[Limit, Limit] = ("ttft", "tpot")

PERCENT = 90
QUANTILE = PERCENT / 100
"""The quantile over requests that every bound limits."""
ALLOWED_OVER = (100 - PERCENT) / 100
"""Share of the requests that may be over a bound."""


def column(limit: Limit) -> str:
    """Key of the limited quantile in ms, in a configuration, a table and a verdict: `ttft_p90_ms`."""
    return f"{limit}_p{PERCENT}_ms"


@dataclass(frozen=True, slots=True)
class Bound:
    """The most in ms that the quantile over requests of one latency may be."""

    limit: Limit
    ms: float

    @property
    def column(self) -> str:
        return column(self.limit)


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds on the 90th percentile over requests: TTFT from the due time, TPOT per request."""

    name: str
    ttft_p90_ms: float
    tpot_p90_ms: float

    def __post_init__(self) -> None:
        require_positive("slo.", self, *map(column, LIMITS))

    @property
    def bounds(self) -> tuple[Bound, ...]:
        return tuple(Bound(limit, getattr(self, column(limit))) for limit in LIMITS)

    def answer_s(self, tokens: float) -> float:
        """Seconds of an answer of `tokens` tokens that just meets both bounds."""
        return (self.ttft_p90_ms + tokens * self.tpot_p90_ms) / 1e3
