"""Rates against their bounds, as the screen shows them: a probe, a required rate, a confirmation run."""

from analysis.results.types.probe_figures import BothP90s, HoldFigures, P90Figures, ProbeFigures, ProfilePiece
from conf.specs.bounds import LIMITS


def load(probe: ProbeFigures) -> str:
    """The load that was offered. A closed loop throttles its own load, so that its rate is no capacity."""
    if probe.loop == "closed":
        rate = f"{probe.rate_qps_per_node:.3g} requests/s per node"
        return f"closed loop, {probe.concurrency} in flight, {rate} (not a capacity)"
    mean = f"{probe.rate_qps_per_node:.4g} QPS per node"
    return f"mean {mean}, {probe.offered}" if probe.varies else mean


def verdict(probe: ProbeFigures) -> str:
    """The verdict on one load; an unknown p90 is not within its bound."""
    if probe.required:
        return probe.required.verdict
    if probe.missed:
        return f"p90 {' and '.join(probe.missed)} over the bound"
    unknown = [limit.upper() for limit in LIMITS if probe.p90(limit).passed is None]
    if not unknown:
        return "within the bounds"
    kept = [f"p90 {limit.upper()} within its bound" for limit in LIMITS if probe.p90(limit).passed]
    return ", ".join([*kept, f"p90 {' and '.join(unknown)} unknown or not applicable"])


def lines(probe: ProbeFigures) -> list[str]:
    """Each p90 against its bound, and the pieces of a profile."""
    return _p90_lines(probe) + [_piece_line(piece) for piece in probe.pieces or ()]


def hold_lines(hold: HoldFigures) -> list[str]:
    """The confirmation run at the certified rate."""
    rate = f"{hold.rate_qps_per_node:.4g} QPS per node"
    if not hold.valid:
        return [f"  not confirmed: the hold at the certified {rate} was void ({hold.void_reason})"]
    word = "vetoes the answer" if hold.vetoed else "does not veto the answer"
    shown = f"alone it shows at most {hold.capacity_high_qps_per_node:.2f} (97.5 %) and {word}"
    return [f"  certified {rate} held for {hold.window_s:.0f} s: {shown}", *_p90_lines(hold)]


def spread(p90: P90Figures) -> str:
    """The 95 % interval of a p90; of a prediction also the part of it that is Monte Carlo noise."""
    assert p90.interval_ms is not None
    low, high = p90.interval_ms
    whole = f"95 % [{plain_ms(low)}, {'open' if high is None else plain_ms(high)}]"
    if not p90.causes or not p90.causes.constants_ms or not p90.causes.noise_ms:
        return whole
    return f"{whole} (Monte Carlo noise alone [{', '.join(map(plain_ms, p90.causes.noise_ms))}])"


def plain_ms(value: float | None) -> str:
    """A latency in ms."""
    return "unknown" if value is None else "inf" if value == float("inf") else f"{value:.1f}"


def _p90_lines(measured: BothP90s) -> list[str]:
    out = []
    for limit in LIMITS:
        p90 = measured.p90(limit)
        if p90.passed is None:
            out.append(f"  p90 {limit.upper()} does not apply or is unknown")
            continue
        around = spread(p90) if p90.interval_ms else "interval unknown: needs 100 requests"
        side = "within" if p90.passed else "over"
        figure = f"p90 {limit.upper()} {plain_ms(p90.p90_ms)} ms"
        out.append(f"  {figure}, {around}: {side} the bound {p90.bound_ms:g} ms")
    return out


def _piece_line(piece: ProfilePiece) -> str:
    span = f"{piece.from_s:g} to {piece.to_s:g} s"
    offered = f"{piece.requests} requests, {piece.rate_qps_per_node:.3g} QPS per node"
    p90s = ", ".join(f"p90 {limit.upper()} {plain_ms(piece.p90(limit).p90_ms)} ms" for limit in LIMITS)
    return f"  {span}: {offered}, {p90s}"
