"""Results of other tools by our definitions; sides compared by configuration, capacity, ratio and latencies.

Another tool's result is never a verdict. A ratio needs two claimed capacities; if workload or bounds differ
too, a warning says so: the ratio is then not the merit of a layout.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity import window_table
from analysis.capacity.window_counts import in_window
from analysis.exchange.compared import ComparedResult, capacity_ratio, compared_results, refused
from analysis.exchange.foreign import Foreign
from analysis.results.figures import WindowRow
from analysis.results.runs import Run, RunError
from analysis.rows import metrics, records
from analysis.rows.metrics import Floats
from analysis.stats.dispersion import quantile_interval
from analysis.stats.estimate import fixed, span
from analysis.stats.quantiles import quantile
from analysis.views import answers
from analysis.views.rates import unknown_interval
from analysis.views.shown import Answer, Fact, Table
from conf.io.one_line import one_line
from conf.keys import differences
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
MOST_LETTERS, MOST_KEYS = 40, 12
"""Letters of a value, and differing keys that are listed; the rest is counted."""
PLACE = ("out", "run")
"""Keys of the place of a run, not of what it is."""
QUESTION = ("workload.", "slo.")
"""Keys whose difference makes it another question."""
NEAR = 0.05
"""Largest relative distance of two rates whose windows are compared (our choice)."""


def foreign_bounds(words: Sequence[str]) -> dict[str, float]:
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
            bounds_ms[BOUNDS[key]] = math.nan
        if not 0 < bounds_ms[BOUNDS[key]] < math.inf:
            raise RunError(f"{key}={value} must be a positive number of ms")
    return bounds_ms


def foreign_answer(foreign: Foreign, bounds_ms: Mapping[str, float] | None = None) -> Answer:
    """One load: offered and sent, latencies, p90s against their bounds, and what is unknown."""
    latencies = foreign.latencies
    if foreign.due_known:
        latencies = {"ttft": metrics.ttft(foreign.measured), **latencies}
    rows = []
    for name, values in latencies.items():
        own = foreign.own.get(name)
        theirs = " / ".join(fixed(ms, 1) for ms in own) if own else "not reported"
        rows.append((TITLES[name], *(fixed(quantile(values, q), 1) for q in QUANTILES), theirs))
    facts = list(_offered(foreign))
    for limit, bound_ms in (bounds_ms or {}).items():
        name = limit if limit in latencies else f"{limit}_from_send"
        facts.append((f"p90 {TITLES[name]}", _judged(latencies[name], bound_ms, foreign.seconds or 0.0)))
    return Answer(
        "FOREIGN",
        "short",
        f"{_tool(foreign)}: {foreign.name}",
        tuple(facts),
        (Table("", HEADS, tuple(rows), note=SURVIVORS),),
        (NO_CLAIM, *foreign.notes),
    )


def _tool(foreign: Foreign) -> str:
    model = f", model {foreign.experiment.model}" if foreign.experiment.model else ""
    return f"{foreign.tool}, version {foreign.version}{model}"


def _offered(foreign: Foreign) -> Iterator[Fact]:
    """The load that was asked and sent; requests by status, and whole answers over the time of all."""
    experiment, rows, qps, seconds = foreign.experiment, foreign.measured, foreign.sent_qps, foreign.seconds
    held = f", at most {experiment.concurrency} in flight" if experiment.concurrency else ""
    rate = f", {experiment.rate_qps:g} requests/s asked" if experiment.rate_qps else ""
    sent = "the rate that was sent is unknown" if qps is None else f"{qps:.3g} requests/s sent"
    yield "load", f"{LOOPS[experiment.open_loop]}, {experiment.arrivals}{rate}{held}; {sent}"
    states = Counter(rows["status"].to_pylist())
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    throughput = "throughput unknown"
    if seconds:
        answered = rows.filter(pa.array(metrics.status_in(rows, records.OK)))
        tokens = np.nansum(metrics.numbers(answered, "output_tokens"))
        throughput = f"{answered.num_rows / seconds:.3g} answers/s, {tokens / seconds:.4g} output tokens/s"
        throughput += f" in {seconds:.3g} s"
    yield f"{rows.num_rows} requests", f"{counted}; {throughput}"


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


def answer(paths: Sequence[Path]) -> Answer:
    """The comparison, each side against the first. Raises RunError for a path that cannot be read."""
    sides = compared_results(paths)
    first, others = sides[0], sides[1:]
    facts: list[Fact] = [(f"{side.letter}  {side.name}", _headline(side)) for side in sides]
    tables: list[Table] = []
    notes: list[str] = []
    for other in others:
        changed: Mapping[str, Sequence[Any]] = {}  # the keys of another tool's load are unknown
        if first.experiment and other.experiment:
            keys = differences(first.experiment, other.experiment)
            changed = {key: pair for key, pair in keys.items() if key not in PLACE}
        if first.experiment and other.experiment and not changed:
            facts.append((f"from {first.letter} to {other.letter}", "nothing of the configuration differs"))
        facts += _ratio(first, other, changed)
        rates = _common_rates(first, other)
        tables += [*_changes(first, other, changed), *rates]
        if not (rates or first.foreign or other.foreign):
            both = f"no rate per node was offered by both {first.letter} and {other.letter}"
            notes.append(f"{both} (within {100 * NEAR:.0f} %)")
    if any(side.foreign for side in sides):
        # Percentiles of every load from the send, as other tools count.
        heads = "load", "requests/s", "requests", "TTFT from send ms: p50 / p90 / p99", "TPOT ms"
        rows = tuple(row for side in sides for row in _loads(side))
        tables.append(Table("", heads, rows, note="a failed request is infinitely late"))
        notes += [f"{side.letter}: {note}" for side in sides if side.foreign for note in side.foreign.notes]
    head = f"{len(sides)} sides, each against A"
    return Answer("COMPARE", "good", head, tuple(facts), tuple(tables), tuple(notes))


def _headline(side: ComparedResult) -> str:
    if side.foreign:
        return f"FOREIGN  {_tool(side.foreign)}"
    if side.verdict is None:
        return "UNFINISHED  no result yet"
    shown = answers.answer(side.verdict)
    return f"{shown.word}  {shown.headline}"


def _changes(a: ComparedResult, b: ComparedResult, changed: Mapping[str, Sequence[Any]]) -> list[Table]:
    rows = tuple((key, _word(ours), _word(theirs)) for key, (ours, theirs) in changed.items())
    more = f"and {len(rows) - MOST_KEYS} more keys" if len(rows) > MOST_KEYS else ""
    title = f"from {a.letter} to {b.letter}"
    return [Table(title, ("key", a.letter, b.letter), rows[:MOST_KEYS], note=more)] if rows else []


def _word(value: Any) -> str:
    return one_line(f"{value:g}" if isinstance(value, float) else str(value), MOST_LETTERS)


def _ratio(a: ComparedResult, b: ComparedResult, changed: Mapping[str, Sequence[Any]]) -> Iterator[Fact]:
    ratio = capacity_ratio(a, b)
    if ratio is None:
        yield f"no ratio {b.letter} / {a.letter}", refused(a, b)
        return
    question = [key for key in changed if key.startswith(QUESTION) and not key.endswith(".name")]
    if question:
        differ = "differs" if len(question) == 1 else "differ"
        why = f"{', '.join(question)} {differ}: the ratio is of two questions, no merit of either side"
        yield "WARNING", why
    low, high = ratio.estimate.ends
    shows = "higher" if low and low > 1 else "lower" if high and high < 1 else "no difference shown"
    yield f"capacity {b.letter} / {a.letter}", f"{span(ratio.estimate)} (95 %, {ratio.how}): {shows}"


def _common_rates(a: ComparedResult, b: ComparedResult) -> list[Table]:
    """The p90s of both at rates that both offered; none of another tool's load."""
    ours, theirs = (_valid_lines(side.run) if side.run else [] for side in (a, b))
    pairs = nearest(*([line["rate_qps_per_node"] for line in lines] for lines in (ours, theirs)))
    if not pairs:
        return []
    names = [f"{name} {side.letter}" for name in ("QPS per node", "TTFT ms", "TPOT ms") for side in (a, b)]
    rows = []
    for i, j in pairs:
        rates = (f"{line['rate_qps_per_node']:.3f}" for line in (ours[i], theirs[j]))
        p90s = (line[column(limit)] for limit in LIMITS for line in (ours[i], theirs[j]))
        rows.append((*rates, *(fixed(ms, 1) for ms in p90s)))
    alone = f"{a.letter} {len(ours) - len(pairs)}, {b.letter} {len(theirs) - len(pairs)}"
    rule = f"nearest with nearest, at most {100 * NEAR:.0f} % apart; windows without a partner: {alone}"
    return [Table(f"p90 at rates of both {a.letter} and {b.letter}", tuple(names), tuple(rows), note=rule)]


def nearest(ours: Sequence[float], theirs: Sequence[float]) -> list[tuple[int, int]]:
    """Indices of rates that belong together: the nearest two first, each once, none beyond `NEAR`.

    No two of different pairs are nearer to each other than to both of their partners.
    """
    close = [(abs(math.log(theirs[j] / ours[i])), i, j) for i in range(len(ours)) for j in range(len(theirs))]
    pairs: dict[int, int] = {}
    for apart, i, j in sorted(close):
        if apart <= math.log1p(NEAR) and i not in pairs and j not in pairs.values():
            pairs[i] = j
    return sorted(pairs.items(), key=lambda pair: ours[pair[0]])


def _loads(side: ComparedResult) -> Iterator[tuple[str, ...]]:
    """A row for the load of another tool, or for each valid window of a run."""
    if load := side.foreign:
        values = load.latencies["ttft_from_send"], load.latencies["tpot"]
        yield _load(side.letter, load.sent_qps, load.measured.num_rows, *values)
        return
    lines = _valid_lines(side.run) if side.run else []
    if not side.run or not lines:
        yield side.letter, "", "", "no valid window of its own", ""
        return
    for line in lines:
        window = window_table.window(dict(line))
        rows = in_window(side.run.requests(window_index=window.index), window)
        values = metrics.ttft_from_send(rows), metrics.tpot(rows)
        yield _load(f"{side.letter} window {window.index}", line["rate_qps"], rows.num_rows, *values)


def _valid_lines(run: Run) -> list[WindowRow]:
    """Lines of windows.parquet of the valid windows with requests, ramp steps left out."""
    lines = run.windows().to_pylist()
    return [line for line in lines if line["kind"] != "ramp" and line["valid"] and line["requests"]]


def _load(name: str, rate_qps: float | None, count: int, ttft_ms: Floats, tpot_ms: Floats) -> tuple[str, ...]:
    latencies = (" / ".join(fixed(quantile(v, q), 1) for q in QUANTILES) for v in (ttft_ms, tpot_ms))
    return name, fixed(rate_qps, 2), str(count), *latencies
