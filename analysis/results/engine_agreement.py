"""Whether two engines that served the same requests agree: each p90 of one against that of the other.

Knows latencies and how far they may lie apart; knows neither engine.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from analysis.stats.quantiles import Floats, quantile

TPOT_SHARE, TPOT_SHARE_CACHED = 0.02, 0.03
"""Of the p90 TPOT; the second where nearly all of the prompt is cached and a step is mostly overhead."""
CACHED = 0.95
"""Share of the prompts' tokens in the prefix cache from which on the second holds."""
TTFT_SHARE, TTFT_MS = 0.10, 30.0
"""Of the p90 TTFT, or so many ms if that is more: a real front end takes up to 20 ms over its serial time."""

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Agreement:
    """One p90 of both engines in ms, and how far they may be apart; None where too little ended."""

    limit: str
    emulated_ms: float | None
    simulated_ms: float | None
    tolerance_ms: float | None
    rule: str

    @property
    def difference_ms(self) -> float | None:
        if self.emulated_ms is None or self.simulated_ms is None:
            return None
        return self.emulated_ms - self.simulated_ms

    @property
    def agrees(self) -> bool:
        difference_ms = self.difference_ms
        return (
            difference_ms is not None
            and self.tolerance_ms is not None
            and abs(difference_ms) <= self.tolerance_ms
        )

    def tree(self) -> Tree:
        return {**asdict(self), "difference_ms": self.difference_ms, "agrees": self.agrees}


def ttft(emulated_ms: Floats, simulated_ms: Floats) -> Agreement:
    """p90 of the time to the first token."""
    ours, theirs = quantile(emulated_ms, 0.9), quantile(simulated_ms, 0.9)
    most = None if theirs is None else max(TTFT_SHARE * theirs, TTFT_MS)
    return Agreement("ttft", ours, theirs, most, f"max({TTFT_SHARE:.0%}, {TTFT_MS:g} ms)")


def tpot(emulated_ms: Floats, simulated_ms: Floats, cached_share: float) -> Agreement:
    """p90 of the time per output token after the first."""
    ours, theirs = quantile(emulated_ms, 0.9), quantile(simulated_ms, 0.9)
    share = TPOT_SHARE_CACHED if cached_share >= CACHED else TPOT_SHARE
    most = None if theirs is None else share * theirs
    return Agreement("tpot", ours, theirs, most, f"{share:.0%}")


def headline(verify: Mapping[str, Any]) -> str:
    """The verdict in a few words."""
    off = [one["limit"].upper() for one in verify["comparisons"] if not one["agrees"]]
    return f"p90 {' and '.join(off)} of the simulated engine is off" if off else "the simulated engine agrees"


def line(agreement: Mapping[str, Any]) -> str:
    """One comparison of a `tree` as a line: both figures, their difference, what is allowed, the verdict."""
    name, difference_ms = f"p90 {agreement['limit'].upper()}", agreement["difference_ms"]
    if difference_ms is None:
        return f"  {name} of vLLM or of the simulated engine is unknown: off"
    ours, theirs = agreement["emulated_ms"], agreement["simulated_ms"]
    allowed = f"allowed {agreement['rule']} = {agreement['tolerance_ms']:.1f} ms"
    verdict = "ok" if agreement["agrees"] else "off"
    share = f"{difference_ms / theirs:+.1%}" if theirs else "of zero"
    figures = f"vLLM {ours:.1f} ms, simulated engine {theirs:.1f} ms"
    return f"  {name}: {figures}, {difference_ms:+.1f} ms ({share}, {allowed}): {verdict}"
