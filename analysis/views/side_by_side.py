"""Compare runs, studies and results of other tools: configuration, capacities, ratios, latencies.

A ratio needs two claimed capacities. If workload or bounds differ too, a warning says so: the ratio is then
not the merit of a layout.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.capacity import window_table
from analysis.capacity.window_counts import in_window
from analysis.exchange.compared import ComparedResult, capacity_ratio, compared_results, refused
from analysis.results.runs import Run
from analysis.rows import metrics
from analysis.rows.metrics import Floats
from analysis.stats.estimate import span
from analysis.stats.quantiles import quantile
from analysis.views import answers, foreign
from analysis.views.shown import Answer, Fact, Table
from conf.keys import differences

MOST_KEYS = 12
"""Differing keys that are listed; the rest is counted."""
PLACE = ("out", "run")
"""Keys of the place of a run, not of what it is."""
QUESTION = ("workload.", "slo.")
"""Keys whose difference makes it another question."""
NEAR = 0.05
"""Largest relative distance of two rates whose windows are compared (our choice)."""
QUANTILES = (0.5, 0.9, 0.99)


def answer(paths: Sequence[Path]) -> Answer:
    """The comparison, each side against the first. Raises RunError for a path that cannot be read."""
    sides = compared_results(paths)
    first, others = sides[0], sides[1:]
    facts: list[Fact] = [(f"{side.letter}  {side.name}", headline(side)) for side in sides]
    tables: list[Table] = []
    notes: list[str] = []
    for other in others:
        changed = _changed(first, other)
        facts += [*_alike(first, other, changed), *_ratio(first, other, changed)]
        rates = _common_rates(first, other)
        tables += [*_changes(first, other, changed), *rates]
        if not (rates or first.foreign or other.foreign):
            both = f"no rate per node was offered by both {first.letter} and {other.letter}"
            notes.append(f"{both} (within {100 * NEAR:.0f} %)")
    if any(side.foreign for side in sides):
        tables.append(_loads(sides))
        notes += [f"{side.letter}: {note}" for side in sides if side.foreign for note in side.foreign.notes]
    head = f"{len(sides)} sides, each against A"
    return Answer("COMPARE", "good", head, tuple(facts), tuple(tables), tuple(notes))


def headline(side: ComparedResult) -> str:
    """Verdict and capacity, the first line of `show`."""
    if side.foreign:
        return f"FOREIGN  {foreign.headline(side.foreign)}"
    if side.verdict is None:
        return "UNFINISHED  no result yet"
    shown = answers.answer(side.verdict)
    return f"{shown.word}  {shown.headline}"


def _changed(a: ComparedResult, b: ComparedResult) -> Mapping[str, Sequence[Any]]:
    """Keys that differ, each with both values; none of another tool's load, whose keys are unknown."""
    changed = differences(a.experiment, b.experiment) if a.experiment and b.experiment else {}
    return {key: pair for key, pair in changed.items() if key not in PLACE}


def _alike(a: ComparedResult, b: ComparedResult, changed: Mapping[str, Sequence[Any]]) -> list[Fact]:
    known = a.experiment and b.experiment and not changed
    return [(f"from {a.letter} to {b.letter}", "nothing of the configuration differs")] if known else []


def _changes(a: ComparedResult, b: ComparedResult, changed: Mapping[str, Sequence[Any]]) -> list[Table]:
    rows = tuple((key, _word(ours), _word(theirs)) for key, (ours, theirs) in changed.items())
    more = f"and {len(rows) - MOST_KEYS} more keys" if len(rows) > MOST_KEYS else ""
    title = f"from {a.letter} to {b.letter}"
    return [Table(title, ("key", a.letter, b.letter), rows[:MOST_KEYS], note=more)] if rows else []


def _word(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _ratio(a: ComparedResult, b: ComparedResult, changed: Mapping[str, Sequence[Any]]) -> list[Fact]:
    ratio = capacity_ratio(a, b)
    if ratio is None:
        return [(f"no ratio {b.letter} / {a.letter}", refused(a, b))]
    question = [key for key in changed if key.startswith(QUESTION) and not key.endswith(".name")]
    differ = "differs" if len(question) == 1 else "differ"
    why = f"{', '.join(question)} {differ}: the ratio is of two questions, no merit of either side"
    low, high = ratio.estimate.ends
    shows = "higher" if low and low > 1 else "lower" if high and high < 1 else "no difference shown"
    shown = f"{span(ratio.estimate)} (95 %, {ratio.how}): {shows}"
    return [*([("WARNING", why)] if question else []), (f"capacity {b.letter} / {a.letter}", shown)]


def _common_rates(a: ComparedResult, b: ComparedResult) -> list[Table]:
    """The p90s of both at rates that both offered; none of another tool's load."""
    ours, theirs = (_valid_lines(side.run) if side.run else [] for side in (a, b))
    pairs = nearest(*([line["rate_qps_per_node"] for line in lines] for lines in (ours, theirs)))
    if not pairs:
        return []
    names = [f"{name} {side.letter}" for name in ("QPS per node", "TTFT ms", "TPOT ms") for side in (a, b)]
    rows = tuple(_rates(ours[i], theirs[j]) for i, j in pairs)
    alone = f"{a.letter} {len(ours) - len(pairs)}, {b.letter} {len(theirs) - len(pairs)}"
    rule = f"nearest with nearest, at most {100 * NEAR:.0f} % apart; windows without a partner: {alone}"
    return [Table(f"p90 at rates of both {a.letter} and {b.letter}", tuple(names), rows, note=rule)]


def _rates(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, ...]:
    rates = (f"{line['rate_qps_per_node']:.3f}" for line in (ours, theirs))
    p90s = (line[name] for name in ("ttft_p90_ms", "tpot_p90_ms") for line in (ours, theirs))
    return *rates, *map(foreign.latency, p90s)


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


def _loads(sides: Sequence[ComparedResult]) -> Table:
    """Percentiles of every load from the send, as other tools count."""
    heads = "load", "requests/s", "requests", "TTFT from send ms: p50 / p90 / p99", "TPOT ms"
    rows = tuple(row for side in sides for row in _load_rows(side))
    return Table("", heads, rows, note="a failed request is infinitely late")


def _load_rows(side: ComparedResult) -> Iterator[tuple[str, ...]]:
    """A row for the load of another tool, or for each valid window of a run."""
    if load := side.foreign:
        values = load.latencies["ttft_from_send"], load.latencies["tpot"]
        yield _load(side.letter, load.sent_qps, load.measured.num_rows, *values)
        return
    windows = list(_measured(side.run)) if side.run else []
    if not windows:
        yield side.letter, "", "", "no valid window of its own", ""
    for line, rows in windows:
        values = metrics.ttft_from_send(rows), metrics.tpot(rows)
        yield _load(f"{side.letter} window {line['index']}", line["rate_qps"], rows.num_rows, *values)


def _valid_lines(run: Run) -> list[dict[str, Any]]:
    """Lines of windows.parquet of the valid windows with requests, ramp steps left out."""
    lines = run.windows().to_pylist()
    return [line for line in lines if line["kind"] != "ramp" and line["valid"] and line["requests"]]


def _measured(run: Run) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """The line of each such window, and its requests in order of due time."""
    for line in _valid_lines(run):
        window = window_table.window(line)
        yield line, in_window(run.requests(window_index=window.index), window)


def _load(name: str, rate_qps: float | None, count: int, ttft_ms: Floats, tpot_ms: Floats) -> tuple[str, ...]:
    rate = "unknown" if rate_qps is None else f"{rate_qps:.2f}"
    latencies = (" / ".join(foreign.latency(quantile(v, q)) for q in QUANTILES) for v in (ttft_ms, tpot_ms))
    return name, rate, str(count), *latencies
