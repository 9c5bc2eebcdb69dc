"""The answer of another tool's result, by our definitions beside the tool's own figures; never a verdict."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from analysis.exchange.foreign import Foreign, Trio
from analysis.results.runs import RunError
from analysis.rows import metrics, records
from analysis.rows.metrics import Floats
from analysis.stats.dispersion import quantile_interval
from analysis.stats.quantiles import quantile
from analysis.views.probe import unknown_interval
from analysis.views.shown import Answer, Fact, Table
from conf.specs.bounds import LIMITS, QUANTILE, column

QUANTILES = (0.5, 0.9, 0.99)
BOUNDS: dict[str, str] = {f"slo.{column(limit)}": limit for limit in LIMITS}
"""Words for bounds of p90s, with their latency; TTFT counts from the send if the due time is unknown."""
TITLES = {
    "ttft": "TTFT from due",
    "ttft_from_send": "TTFT from send",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e_from_send": "E2E from send",
}
HEADS = "ms", "p50", "p90", "p99", "its own p50 / p90 / p99"
LOOPS = {True: "open loop", False: "not an open loop", None: "open or closed loop unknown"}
SURVIVORS = "a failed request is infinitely late here; the tool's own figures are of answered requests only"
NO_CLAIM = (
    "no capacity and no verdict follow from this file: nothing in it proves that the client kept its schedule"
)


def bounds(words: Sequence[str]) -> dict[str, float]:
    """Bounds of p90s in ms by latency, from words such as slo.tpot_p90_ms=100."""
    bounds_ms = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in BOUNDS:
            raise RunError(
                f"'{word}' is no bound for another tool's result; give {'=MS or '.join(BOUNDS)}=MS"
            )
        try:
            bounds_ms[BOUNDS[key]] = float(value)
        except ValueError:
            bounds_ms[BOUNDS[key]] = float("nan")
        if not 0 < bounds_ms[BOUNDS[key]] < float("inf"):
            raise RunError(f"{key}={value} must be a positive number of ms")
    return bounds_ms


def answer(foreign: Foreign, bounds_ms: Mapping[str, float] | None = None) -> Answer:
    """One load: offered and sent, latencies, p90s against their bounds, and what is unknown."""
    latencies = foreign.latencies
    if foreign.due_known:
        latencies = {"ttft": metrics.ttft(foreign.measured), **latencies}
    rows = tuple((TITLES[name], *_row(values, foreign.own.get(name))) for name, values in latencies.items())
    return Answer(
        "FOREIGN",
        "short",
        f"{headline(foreign)}: {foreign.name}",
        (*_load(foreign), *_against_bounds(latencies, bounds_ms or {}, foreign.seconds or 0.0)),
        (Table("", HEADS, rows, note=SURVIVORS),),
        (NO_CLAIM, *foreign.notes),
    )


def headline(foreign: Foreign) -> str:
    """The tool, its version and its model."""
    model = f", model {foreign.asked.model}" if foreign.asked.model else ""
    return f"{foreign.tool}, version {foreign.version}{model}"


def _load(foreign: Foreign) -> list[Fact]:
    """The load that was asked and sent, and the requests by status."""
    asked, rows = foreign.asked, foreign.measured
    held = f", at most {asked.concurrency} in flight" if asked.concurrency else ""
    rate = f", {asked.rate_qps:g} requests/s asked" if asked.rate_qps else ""
    states = Counter(rows["status"].to_pylist())
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return [
        ("load", f"{LOOPS[asked.open_loop]}, {asked.arrivals}{rate}{held}; {_sent(foreign)}"),
        (f"{rows.num_rows} requests", f"{counted}; {_throughput(foreign)}"),
    ]


def _sent(foreign: Foreign) -> str:
    rate = foreign.sent_qps
    return "the rate that was sent is unknown" if rate is None else f"{rate:.3g} requests/s sent"


def _throughput(foreign: Foreign) -> str:
    """Output of whole answers over the time from the first send to the last end."""
    rows, seconds = foreign.measured, foreign.seconds
    answered = rows.filter(pa.array(metrics.status_in(rows, records.OK)))
    if not seconds:
        return "throughput unknown"
    tokens = np.nansum(metrics.numbers(answered, "output_tokens"))
    rates = f"{answered.num_rows / seconds:.3g} answers/s, {tokens / seconds:.4g} output tokens/s"
    return f"{rates} in {seconds:.3g} s"


def _against_bounds(
    latencies: Mapping[str, Floats], bounds_ms: Mapping[str, float], seconds: float
) -> list[Fact]:
    """The p90 of each bounded latency; TTFT counts from the send if its due time is unknown."""
    names = {name: name if name in latencies else f"{name}_from_send" for name in bounds_ms}
    return [
        (f"p90 {TITLES[names[name]]}", _judged(latencies[names[name]], bound_ms, seconds))
        for name, bound_ms in bounds_ms.items()
    ]


def _judged(values: Floats, bound_ms: float, seconds: float) -> str:
    """One p90 of `seconds` (0 unknown) against its bound by its interval; undecided without an interval."""
    p90, interval = quantile(values, QUANTILE), quantile_interval(values, QUANTILE, seconds)
    if p90 is None:
        return f"unknown: nothing to hold against {bound_ms:g} ms"
    if interval.ends is None:
        side = "below" if p90 <= bound_ms else "above"
        return f"{p90:.1f} ms: {side} {bound_ms:g} ms, interval unknown: {unknown_interval(interval)}"
    low, high = interval.ends
    verdict = "KEPT" if high <= bound_ms else "MISSED" if low > bound_ms else "UNDECIDED"
    return f"{p90:.1f} ms [{low:.1f}, {high:.1f}] (95 %) against {bound_ms:g} ms: {verdict}"


def _row(values: Floats, own: Trio | None) -> tuple[str, ...]:
    theirs = " / ".join(map(latency, own)) if own else "not reported"
    return *(latency(quantile(values, q)) for q in QUANTILES), theirs


def latency(ms: float | None) -> str:
    """A latency in ms, infinite of a failed request."""
    return "unknown" if ms is None else f"{ms:.1f}"
