"""The bounds of an SLO: one quantile over the requests of each limited latency, and the most it may be.

Knows the latencies by name only; how one is measured is known in `analysis.rows.metrics`.
"""

from dataclasses import dataclass
from typing import Literal

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
