"""Parts of a verdict on one rate: each p90 against its bound, of a probe, a required rate, a hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from analysis.results.types.fields import always, inline
from analysis.results.types.shared_figures import CapacityFigures
from conf.specs.bounds import Limit, parsed

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

    `causes` are known of predictions alone. An interval that is None takes `needs` requests, or about
    `needs_s` seconds where there were enough requests in too few independent stretches.
    """

    p90_ms: float | None
    interval_ms: Interval | None
    causes: P90Causes | None = inline()
    bound_ms: float
    passed: bool | None
    needs: int | None = None
    needs_s: float | None = None

    @property
    def figure(self) -> "QuantileFigures":
        """The same as figures of any quantile."""
        return QuantileFigures(quantile_ms=self.p90_ms, **_shared(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileFigures:
    """A quantile in ms against its bound, as `P90Figures`, or the `share` of requests or gaps within it."""

    quantile_ms: float | None
    interval_ms: Interval | None
    causes: P90Causes | None = inline()
    bound_ms: float
    passed: bool | None
    share: float | None = None
    needs: int | None = None
    needs_s: float | None = None

    @property
    def p90(self) -> P90Figures:
        """The same as figures of a p90."""
        return P90Figures(p90_ms=self.quantile_ms, **_shared(self))


def _shared(found: P90Figures | QuantileFigures) -> dict[str, Any]:
    names = "interval_ms", "causes", "bound_ms", "passed", "needs", "needs_s"
    return {name: getattr(found, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFigures:
    """A rate, and each limited quantile there: the p90 of TTFT and TPOT, and `others` by their bounds."""

    rate_qps_per_node: float
    ttft: P90Figures | None = None
    tpot: P90Figures | None = None
    others: Mapping[Limit, QuantileFigures] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for limit in self.others:
            parsed(limit)

    @property
    def limits(self) -> dict[Limit, QuantileFigures]:
        """The figures by the bounds' names."""
        own: dict[Limit, P90Figures | None] = {"ttft": self.ttft, "tpot": self.tpot}
        return {limit: found.figure for limit, found in own.items() if found} | dict(self.others)

    @property
    def missed(self) -> list[Limit]:
        """Names of the bounds that are not kept."""
        return [limit for limit, found in self.limits.items() if found.passed is False]

    @property
    def unshown(self) -> dict[Limit, int]:
        """Bounds that are kept by too few requests for an interval, and how many it takes."""
        return {limit: found.needs for limit, found in self.limits.items() if found.passed and found.needs}


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

    loop: str = always("open")
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
