"""The spec of the bounds on latencies."""

from dataclasses import dataclass

from conf.io.check import require_positive
from conf.specs.bounds import LIMITS, Bound, column


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
