"""Rates against their bounds, as the screen shows them: a probe, a required rate, a confirmation run."""

import math

from analysis.results.types.probe_figures import (
    HoldFigures,
    ProbeFigures,
    ProfilePiece,
    Quantile,
    RateFigures,
)
from analysis.stats.estimate import UNKNOWN, interval, middle, number
from analysis.stats.quantile_interval import QuantileInterval
from conf.specs.bounds import JOINT, Limit, label, metric_of, quantile_of

MANY_MINUTES = 300
"""Minutes of measuring from which on no figure is given (our choice)."""


def load(probe: ProbeFigures) -> str:
    """The load that was offered. A closed loop throttles its own load, so that its rate is no capacity."""
    if probe.loop == "closed":
        rate = f"{probe.rate_qps_per_node:.3g} requests/s per node"
        return f"closed loop, {probe.concurrency} in flight, {rate} (not a capacity)"
    mean = f"{probe.rate_qps_per_node:.4g} QPS per node"
    return f"mean {mean}, {probe.offered}" if probe.varies else mean


def verdict(probe: ProbeFigures) -> str:
    """The verdict on one load; an unknown quantile is not within its bound."""
    if probe.required:
        return probe.required.verdict
    if probe.missed:
        return f"{' and '.join(map(label, probe.missed))} over the bound"
    if probe.not_shown:
        return f"within the bounds so far, not shown: {probe.not_shown}"
    unknown = [label(limit) for limit, found in probe.limits.items() if found.passed is None]
    if not unknown:
        short = any(found.needs_s for found in probe.limits.values())
        return "within the bounds as measured; too short for an interval" if short else "within the bounds"
    kept = [f"{label(limit)} within its bound" for limit, found in probe.limits.items() if found.passed]
    return ", ".join([*kept, f"{' and '.join(unknown)} unknown or not applicable"])


def lines(probe: ProbeFigures) -> list[str]:
    """Each limited quantile against its bound, and the pieces of a profile."""
    return _limit_lines(probe) + [_piece_line(piece) for piece in probe.pieces or ()]


def hold_lines(hold: HoldFigures) -> list[str]:
    """The confirmation run at the 5 % quantile of the sampling noise, the certified rate of a real engine."""
    rate = f"{hold.rate_qps_per_node:.4g} QPS per node, the 5 % quantile of the sampling noise,"
    if not hold.valid:
        return [f"  not confirmed: the hold at {rate} was void ({hold.void_reason})"]
    word = "vetoes the answer" if hold.vetoed else "does not veto the answer"
    shown = f"alone it shows at most {number(hold.capacity_high_qps_per_node)} (97.5 %) and {word}"
    return [f"  {rate} held for {hold.window_s:.0f} s: {shown}", *_limit_lines(hold)]


def spread(found: Quantile) -> str:
    """The 95 % interval of a quantile; of a prediction also the part of it that is Monte Carlo noise."""
    assert found.ms is not None
    whole = f"95 % {interval(found.ms)}"
    if not found.by_constants or not found.by_noise:
        return whole
    return f"{whole} (Monte Carlo noise alone {interval(found.by_noise)})"


def unknown_interval(found: Quantile | QuantileInterval) -> str:
    """The reason why a quantile has no interval, and how much to measure for one."""
    if found.needs:
        return f"needs {found.needs} requests"
    if not found.needs_s:
        return "too few independent stretches, measure longer"
    minutes = math.ceil(found.needs_s / 60)
    longer = f"some {minutes} minutes" if minutes < MANY_MINUTES else "far longer"
    return f"too few independent stretches, measure {longer}"


def _limit_lines(measured: RateFigures) -> list[str]:
    return [f"  {_limit_line(limit, found)}" for limit, found in measured.limits.items()]


def _limit_line(limit: Limit, found: Quantile) -> str:
    if found.passed is None:
        return f"{label(limit)} does not apply or is unknown"
    side = "within" if found.passed else "over"
    if found.share is not None:
        least = 100 * quantile_of(limit)
        kept = "keeps" if found.passed else "misses"
        figure = f"{100 * found.share:.1f} % of the {_kept(limit)} within the bounds"
        return f"{figure}: {kept} the {least:g} % that are asked for"
    around = spread(found) if found.has_interval else f"interval unknown: {unknown_interval(found)}"
    return f"{label(limit)} {_ms(found)}, {around}: {side} the bound {found.bound_ms:g} ms"


def _kept(limit: Limit) -> str:
    return "requests are" if metric_of(limit) == JOINT else "gaps between tokens are"


def _piece_line(piece: ProfilePiece) -> str:
    stretch = f"{piece.from_s:g} to {piece.to_s:g} s"
    offered = f"{piece.requests} requests, {piece.rate_qps_per_node:.3g} QPS per node"
    figures = (f"{label(limit)} {_ms(found)}" for limit, found in piece.limits.items())
    return f"  {stretch}: {offered}, {', '.join(figures)}"


def _ms(found: Quantile) -> str:
    return f"{middle(found.ms)} ms" if found.ms else UNKNOWN
