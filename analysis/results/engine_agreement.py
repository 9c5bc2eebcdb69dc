"""Agreement of two engines that served the same requests: each p90 of one against that of the other."""

from analysis.results.types.run_verdict import EngineCheck, EngineComparison
from analysis.stats.quantiles import Floats, quantile

TPOT_SHARE, TPOT_SHARE_CACHED = 0.02, 0.03
"""Most relative difference of p90 TPOT; the second where a prompt is nearly all cached, so that a step is
mostly overhead."""
CACHED = 0.95
"""Share of the prompts' tokens in the prefix cache from which on the second holds."""
TTFT_SHARE, TTFT_MS = 0.10, 30.0
"""Most relative difference of p90 TTFT, or so many ms if that is more: a real front end takes up to 20 ms
over its serial time."""


def ttft(emulated_ms: Floats, simulated_ms: Floats) -> EngineComparison:
    """p90 of the time to the first token."""
    ours, theirs = quantile(emulated_ms, 0.9), quantile(simulated_ms, 0.9)
    most = None if theirs is None else max(TTFT_SHARE * theirs, TTFT_MS)
    return EngineComparison("ttft", ours, theirs, most, f"max({TTFT_SHARE:.0%}, {TTFT_MS:g} ms)")


def tpot(emulated_ms: Floats, simulated_ms: Floats, cached_share: float) -> EngineComparison:
    """p90 of the time per output token after the first."""
    ours, theirs = quantile(emulated_ms, 0.9), quantile(simulated_ms, 0.9)
    share = TPOT_SHARE_CACHED if cached_share >= CACHED else TPOT_SHARE
    most = None if theirs is None else share * theirs
    return EngineComparison("tpot", ours, theirs, most, f"{share:.0%}")


def headline(verify: EngineCheck) -> str:
    """The verdict in a few words."""
    off = [one.limit.upper() for one in verify.comparisons if not one.agrees]
    return f"p90 {' and '.join(off)} of the simulated engine is off" if off else "the simulated engine agrees"


def line(one: EngineComparison) -> str:
    """One comparison as a line: both figures, their difference, what is allowed, the verdict."""
    name, ours, theirs = f"p90 {one.limit.upper()}", one.emulated_ms, one.simulated_ms
    if ours is None or theirs is None:
        return f"  {name} of vLLM or of the simulated engine is unknown: off"
    share = f"{(ours - theirs) / theirs:+.1%}" if theirs else "of zero"
    allowed = f"allowed {one.rule} = {one.tolerance_ms:.1f} ms"
    figures = f"vLLM {ours:.1f} ms, simulated engine {theirs:.1f} ms"
    return (
        f"  {name}: {figures}, {ours - theirs:+.1f} ms ({share}, {allowed}): {'ok' if one.agrees else 'off'}"
    )
