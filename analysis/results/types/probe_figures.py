"""Parts of a verdict on one rate: each limited quantile against its bound, of a probe or a hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from analysis.results.types.shared_figures import CapacityFigures
from analysis.stats.estimate import Estimate
from conf.specs.bounds import Limit, parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A limited quantile in ms against its bound, or the `share` of requests or gaps within it.

    `ms` is None where the quantile is unknown or does not apply; `passed` is None then too. An interval that
    is unknown takes `needs` requests, or about `needs_s` seconds where there were enough requests in too few
    independent stretches. A predicted quantile knows two causes apart: its interval by Monte Carlo noise
    alone, `by_noise`, and by the constants alone, `by_constants`.
    """

    ms: Estimate | None
    bound_ms: float
    passed: bool | None
    by_noise: Estimate | None = None
    by_constants: Estimate | None = None
    share: float | None = None
    needs: int | None = None
    needs_s: float | None = None

    @property
    def has_interval(self) -> bool:
        """True if an end of the interval is known."""
        return self.ms is not None and self.ms.ends != (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFigures:
    """A rate, and the limited quantiles there by the names of their bounds."""

    rate_qps_per_node: float
    limits: Mapping[Limit, Quantile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for limit in self.limits:
            parsed(limit)

    @property
    def missed(self) -> list[Limit]:
        """Names of the bounds that are not kept."""
        return [limit for limit, quantile in self.limits.items() if quantile.passed is False]

    @property
    def unshown(self) -> dict[Limit, int]:
        """Bounds that are kept by too few requests for an interval, and how many it takes."""
        return {
            limit: quantile.needs
            for limit, quantile in self.limits.items()
            if quantile.passed and quantile.needs
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePiece(RateFigures):
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
class ProbeFigures(RateFigures):
    """One rate, or one closed loop, against the bounds.

    `concurrency` is None in an open loop, and 0 where no closed loop could be asked for: of a required or
    a predicted rate. `varies`, `offered` and `pieces` are those of a measured probe. `not_shown` is why the
    window is too short to show that the rate is within its bounds; empty if it shows that, or a missed bound.
    """

    loop: str = "open"
    varies: bool | None = None
    concurrency: int | None = 0
    offered: str | None = None
    window_s: float | None = None
    pieces: tuple[ProfilePiece, ...] | None = None
    required: RequiredRate | None = None
    not_shown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldFigures(RateFigures):
    """The confirmation run at the certified rate; it vetoes if even the upper end of its own capacity lies
    below that rate."""

    window_s: float
    requests: int
    valid: bool
    void_reason: str
    capacity_high_qps_per_node: float
    vetoed: bool
