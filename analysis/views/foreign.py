"""Text of another tool's result, judged by our definitions beside the tool's own figures; never a verdict."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from analysis.exchange.compared import load_foreign
from analysis.exchange.foreign import Foreign, Trio
from analysis.results.runs import RunError
from analysis.rows import metrics, records
from analysis.rows.metrics import Floats
from analysis.stats.quantile_interval import quantile_interval
from analysis.stats.quantiles import quantile
from analysis.views.probe import unknown_interval
from conf.io.one_line import printable
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
LOOPS = {True: "open loop", False: "not an open loop", None: "open or closed loop unknown"}
SURVIVORS = "a failed request is infinitely late here; the tool's own figures are of answered requests only"
NO_CLAIM = (
    "no capacity and no verdict follow from this file: nothing in it proves that the client kept its schedule"
)


def show(path: Path, words: Sequence[str] = ()) -> str:
    """The loads in a result file. Raises RunError for any other path, or for words that are no bounds."""
    bounds_ms = bounds(words)
    return "\n".join(show_text(one, bounds_ms) for one in load_foreign(path))


def bounds(words: Sequence[str]) -> dict[str, float]:
    """Bounds of p90s in ms by latency, from words such as slo.tpot_p90_ms=100."""
    found = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in BOUNDS:
            raise RunError(
                f"'{word}' is no bound for another tool's result; give {'=MS or '.join(BOUNDS)}=MS"
            )
        try:
            found[BOUNDS[key]] = float(value)
        except ValueError:
            found[BOUNDS[key]] = float("nan")
        if not 0 < found[BOUNDS[key]] < float("inf"):
            raise RunError(f"{key}={value} must be a positive number of ms")
    return found


def show_text(foreign: Foreign, bounds_ms: Mapping[str, float]) -> str:
    """One load: offered and sent, latencies, p90s against their bounds, and what is unknown."""
    latencies = foreign.latencies
    if foreign.due_known:
        latencies = {"ttft": metrics.ttft(foreign.measured), **latencies}
    lines = [
        f"{headline(foreign)}: {foreign.name}",
        *load(foreign),
        f"  {'ms':<15} {'p50':>9} {'p90':>9} {'p99':>9}   its own p50 / p90 / p99",
        *(
            f"  {TITLES[name]:<15} {_row(values, foreign.own.get(name))}"
            for name, values in latencies.items()
        ),
        f"  {SURVIVORS}",
        *(f"  {line}" for line in judgements(latencies, bounds_ms, foreign.seconds or 0.0)),
        f"  {NO_CLAIM}",
        *(f"  note: {note}" for note in foreign.notes),
    ]
    return "\n".join(map(printable, lines))


def headline(foreign: Foreign) -> str:
    """The tool, its version and its model."""
    model = f", model {foreign.asked.model}" if foreign.asked.model else ""
    return f"FOREIGN  {foreign.tool}, version {foreign.version}{model}"


def load(foreign: Foreign) -> list[str]:
    """The load that was asked and sent, and the requests by status."""
    asked, rows = foreign.asked, foreign.measured
    held = f", at most {asked.concurrency} in flight" if asked.concurrency else ""
    rate = f", {asked.rate_qps:g} requests/s asked" if asked.rate_qps else ""
    states = Counter(rows["status"].to_pylist())
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return [
        f"  load: {LOOPS[asked.open_loop]}, {asked.arrivals}{rate}{held}; {_sent(foreign)}",
        f"  {rows.num_rows} requests: {counted}; {_throughput(foreign)}",
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


def judgements(latencies: Mapping[str, Floats], bounds_ms: Mapping[str, float], seconds: float) -> list[str]:
    """A line for each bound."""
    known = {"ttft": latencies["ttft_from_send"], **latencies}
    return [
        judged(name if name in latencies else f"{name}_from_send", known[name], bound_ms, seconds)
        for name, bound_ms in bounds_ms.items()
    ]


def judged(name: str, values: Floats, bound_ms: float, seconds: float) -> str:
    """One p90 of `seconds` (0 unknown) against its bound by its interval; undecided without an interval."""
    value, interval = quantile(values, QUANTILE), quantile_interval(values, QUANTILE, seconds)
    if value is None:
        return f"p90 {TITLES[name]} unknown: nothing to hold against {bound_ms:g} ms"
    measured = f"p90 {TITLES[name]} {value:.1f} ms"
    if interval.ends is None:
        side = "below" if value <= bound_ms else "above"
        return f"{measured}: {side} {bound_ms:g} ms, interval unknown: {unknown_interval(interval)}"
    low, high = interval.ends
    verdict = "KEPT" if high <= bound_ms else "MISSED" if low > bound_ms else "UNDECIDED"
    return f"{measured} [{low:.1f}, {high:.1f}] (95 %) against {bound_ms:g} ms: {verdict}"


def _row(values: Floats, own: Trio | None) -> str:
    ours = " ".join(_figure(quantile(values, q)) for q in QUANTILES)
    return f"{ours}   {' / '.join(_figure(value).strip() for value in own) if own else 'not reported'}"


def _figure(value: float | None) -> str:
    return f"{'unknown' if value is None else f'{value:.1f}':>9}"
