"""Numbers in the words of a figure: rates, latencies, counts and shares."""

import math


def qps(value: float) -> str:
    """A rate without its unit."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def ms(value: float | None) -> str:
    """A latency with its unit, or `infinite`, or `unknown`."""
    if value is None or math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "infinite"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def counted(count: int, noun: str) -> str:
    """A count with its noun in the right number."""
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def share(value: float) -> str:
    """A share in per cent; 100 only for all."""
    if 0.9995 <= value < 1:
        return "over 99.9 %"
    return f"{100 * value:.3g} %"
