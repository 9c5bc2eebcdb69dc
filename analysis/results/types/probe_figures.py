"""Parts of a verdict on one rate: each p90 against its bound, of a probe, a required rate, a hold."""

from dataclasses import dataclass

from analysis.results.types.fields import always, inline
from analysis.results.types.shared_figures import CapacityFigures
from conf.specs.bounds import LIMITS, Limit

Interval = tuple[float, float | None]
"""A 95 % interval; an open upper end is None."""


@dataclass(frozen=True, slots=True)
class P90Causes:
    """The two parts of a predicted p90's uncertainty in ms: Monte Carlo noise, and the constants."""

    noise_ms: Interval | None
    constants_ms: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class P90Figures:
    """A p90 in ms against its bound; `passed` is None where it does not apply or is unknown.

    `causes` are known of predictions alone.
    """

    p90_ms: float | None
    interval_ms: Interval | None
    causes: P90Causes | None = inline()
    bound_ms: float
    passed: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BothP90s:
    """A rate, and the p90 of each limit there."""

    rate_qps_per_node: float
    ttft: P90Figures
    tpot: P90Figures

    def p90(self, limit: Limit) -> P90Figures:
        found: P90Figures = getattr(self, limit)
        return found

    @property
    def missed(self) -> list[str]:
        """Limits over their bound, in capitals."""
        return [limit.upper() for limit in LIMITS if self.p90(limit).passed is False]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePiece(BothP90s):
    """The part of a load profile between two of its points."""

    from_s: float
    to_s: float
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredRate:
    """The verdict on a required rate (passed, failed, undecided) after so many interim analyses."""

    verdict: str
    reason: str
    looks: int
    capacity: CapacityFigures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFigures(BothP90s):
    """One rate, or one closed loop, against the bounds.

    `concurrency` is None in an open loop, and 0 where no closed loop could be asked for: of a required or
    a predicted rate. `varies`, `offered` and `pieces` are those of a measured probe.
    """

    loop: str = always("open")
    varies: bool | None = None
    concurrency: int | None = 0
    offered: str | None = None
    window_s: float | None = None
    pieces: tuple[ProfilePiece, ...] | None = None
    required: RequiredRate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldFigures(BothP90s):
    """The confirmation run at the certified rate; it vetoes if even the upper end of its own capacity lies
    below that rate."""

    window_s: float
    requests: int
    valid: bool
    void_reason: str
    capacity_high_qps_per_node: float
    vetoed: bool
