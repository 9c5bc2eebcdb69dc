"""The answer at one load: each limited quantile against its bound, of a probe, a required rate or a hold."""

import math

from analysis.results.figures import HoldFigures, ProbeFigures, ProfilePiece, Quantile, RateFigures
from analysis.stats.dispersion import QuantileInterval
from analysis.stats.estimate import UNKNOWN, interval, middle, number
from analysis.views.shown import Fact
from conf.specs.bounds import JOINT, Limit, label, metric_of, quantile_of

MANY_MINUTES = 300
"""Minutes of measuring from which on no figure is given (our choice)."""
HELD = "the 5 % quantile of the sampling noise"


def headline(probe: ProbeFigures) -> str:
    """The load that was offered, and the verdict on it."""
    return f"{load(probe)}: {outcome(probe)}"


def load(probe: ProbeFigures) -> str:
    """The load that was offered. A closed loop throttles its own load, so that its rate is no capacity."""
    if probe.loop == "closed":
        rate = f"{number(probe.rate_qps_per_node, 3)} requests/s per node"
        return f"closed loop, {probe.concurrency} in flight, {rate} (not a capacity)"
    mean = f"{number(probe.rate_qps_per_node)} QPS per node"
    return f"mean {mean}, {probe.offered}" if probe.varies else mean


def outcome(probe: ProbeFigures) -> str:
    """The verdict on one load; an unknown quantile is not within its bound."""
    if probe.required:
        return probe.required.verdict
    if probe.missed:
        return f"{' and '.join(map(label, probe.missed))} over the bound"
    if probe.not_shown:
        return f"within the bounds so far, not shown: {probe.not_shown}"
    unknown = [label(limit) for limit, quantile in probe.limits.items() if quantile.passed is None]
    if not unknown:
        short = any(quantile.needs_s for quantile in probe.limits.values())
        return "within the bounds as measured; too short for an interval" if short else "within the bounds"
    kept = [f"{label(limit)} within its bound" for limit, quantile in probe.limits.items() if quantile.passed]
    return ", ".join([*kept, f"{' and '.join(unknown)} unknown or not applicable"])


def facts(probe: ProbeFigures) -> list[Fact]:
    """Each limited quantile against its bound, and the pieces of a profile."""
    return [*limit_facts(probe), *map(_piece, probe.pieces or ())]


def hold_facts(hold: HoldFigures) -> list[Fact]:
    """The confirmation run at the 5 % quantile of the sampling noise, the certified rate of a real engine."""
    rate = f"{number(hold.rate_qps_per_node)} QPS per node, {HELD}"
    if not hold.valid:
        return [("not confirmed", f"the hold at {rate}, was void ({hold.void_reason})")]
    word = "vetoes the answer" if hold.vetoed else "does not veto the answer"
    shown = f"alone it shows at most {number(hold.capacity_high_qps_per_node)} (97.5 %) and {word}"
    return [(f"held for {hold.window_s:.0f} s", f"{rate}: {shown}"), *limit_facts(hold)]


def limit_facts(measured: RateFigures) -> list[Fact]:
    """Each limited quantile with its interval against its bound."""
    return [
        (_name(limit, quantile), _against(limit, quantile)) for limit, quantile in measured.limits.items()
    ]


def unknown_interval(quantile: Quantile | QuantileInterval) -> str:
    """The reason why a quantile has no interval, and how much to measure for one."""
    if quantile.needs:
        return f"needs {quantile.needs} requests"
    if not quantile.needs_s:
        return "too few independent stretches, measure longer"
    minutes = math.ceil(quantile.needs_s / 60)
    longer = f"some {minutes} minutes" if minutes < MANY_MINUTES else "far longer"
    return f"too few independent stretches, measure {longer}"


def _name(limit: Limit, quantile: Quantile) -> str:
    if quantile.share is None:
        return label(limit)
    return "requests" if metric_of(limit) == JOINT else "gaps between tokens"


def _against(limit: Limit, quantile: Quantile) -> str:
    if quantile.passed is None:
        return "does not apply or is unknown"
    if quantile.share is not None:
        least = 100 * quantile_of(limit)
        kept = "keeps" if quantile.passed else "misses"
        return f"{100 * quantile.share:.1f} % are within the bounds: {kept} the {least:g} % that are required"
    side = "within" if quantile.passed else "over"
    around = _spread(quantile) if quantile.has_interval else f"interval unknown: {unknown_interval(quantile)}"
    return f"{_ms(quantile)}, {around}: {side} the bound {quantile.bound_ms:g} ms"


def _spread(quantile: Quantile) -> str:
    """The 95 % interval of a quantile; of a prediction also the part of it that is Monte Carlo noise."""
    assert quantile.ms is not None
    whole = f"95 % {interval(quantile.ms)}"
    if not quantile.by_constants or not quantile.by_noise:
        return whole
    return f"{whole} (Monte Carlo noise alone {interval(quantile.by_noise)})"


def _ms(quantile: Quantile) -> str:
    return f"{middle(quantile.ms)} ms" if quantile.ms else UNKNOWN


def _piece(piece: ProfilePiece) -> Fact:
    offered = f"{piece.requests} requests, {number(piece.rate_qps_per_node, 3)} QPS per node"
    figures = (f"{label(limit)} {_ms(quantile)}" for limit, quantile in piece.limits.items())
    return f"{piece.from_s:g} to {piece.to_s:g} s", f"{offered}, {', '.join(figures)}"
