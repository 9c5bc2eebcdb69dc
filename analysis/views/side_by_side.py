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
from conf.differences import differences
from conf.io.one_line import printable

MOST_KEYS = 12
"""Differing keys that are listed; the rest is counted."""
PLACE = ("out", "run")
"""Keys of the place of a run, not of what it is."""
QUESTION = ("workload.", "slo.")
"""Keys whose difference makes it another question."""
NEAR = 0.05
"""Largest relative distance of two rates whose windows are compared (our choice)."""
QUANTILES = (0.5, 0.9, 0.99)


def text(paths: Sequence[Path]) -> str:
    """The comparison as text, each side against the first. Raises RunError for a path that cannot be read."""
    sides = compared_results(paths)
    lines = [f"COMPARE  {len(sides)} sides, each against A"]
    lines += [f"  {one.letter}  {one.name}: {headline(one)}" for one in sides]
    for other in sides[1:]:
        lines += _pair(sides[0], other)
    if any(one.foreign for one in sides):
        lines += _loads(sides)
    return "\n".join(map(printable, lines))


def headline(side: ComparedResult) -> str:
    """Verdict and capacity, the first line of `show`."""
    if side.foreign:
        return foreign.headline(side.foreign)
    if side.verdict is None:
        return "UNFINISHED  no result yet"
    answer = answers.answer(side.verdict)
    return f"{answer.word}  {answer.headline}"


def _pair(a: ComparedResult, b: ComparedResult) -> list[str]:
    """Configuration, ratio and common rates of two sides; of another tool's load why there is no ratio."""
    differing = differences(a.asked, b.asked) if a.asked and b.asked else {}
    return [
        *_differing(a, b, {key: pair for key, pair in differing.items() if key not in PLACE}),
        *_ratio(a, b, differing),
        *_common(a, b),
    ]


def _differing(a: ComparedResult, b: ComparedResult, found: Mapping[str, Sequence[Any]]) -> list[str]:
    if not (a.asked and b.asked):
        return []
    if not found:
        return [f"  from {a.letter} to {b.letter}: nothing of the configuration differs"]
    changed = [f"    {key}: {_word(ours)} -> {_word(theirs)}" for key, (ours, theirs) in found.items()]
    more = [f"    and {len(changed) - MOST_KEYS} more keys"] if len(changed) > MOST_KEYS else []
    return [f"  from {a.letter} to {b.letter}:", *changed[:MOST_KEYS], *more]


def _word(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _ratio(a: ComparedResult, b: ComparedResult, differing: Mapping[str, Sequence[Any]]) -> list[str]:
    found = capacity_ratio(a, b)
    if found is None:
        return [f"  no ratio {b.letter} / {a.letter}: {refused(a, b)}"]
    asked = [key for key in differing if key.startswith(QUESTION) and not key.endswith(".name")]
    verb = "differs" if len(asked) == 1 else "differ"
    warning = [
        f"  WARNING: {', '.join(asked)} {verb}: the ratio is of two questions, no merit of either side"
    ]
    low, high = found.estimate.ends
    shows = "higher" if low and low > 1 else "lower" if high and high < 1 else "no difference shown"
    ratio = f"  capacity {b.letter} / {a.letter} = {span(found.estimate)} (95 %, {found.how}): {shows}"
    return [*(warning if asked else []), ratio]


def _common(a: ComparedResult, b: ComparedResult) -> list[str]:
    if a.foreign or b.foreign:
        return []
    ours, theirs = _rates(a), _rates(b)
    pairs = nearest(list(map(_rate, ours)), list(map(_rate, theirs)))
    if not pairs:
        return [
            f"  no rate per node was offered by both {a.letter} and {b.letter} (within {100 * NEAR:.0f} %)"
        ]
    head = f"  p90 at rates of both (QPS per node)  {'TTFT ms':>19}  {'TPOT ms':>19}"
    alone = f"{a.letter} {len(ours) - len(pairs)}, {b.letter} {len(theirs) - len(pairs)}"
    rule = f"    nearest with nearest, at most {100 * NEAR:.0f} % apart; windows without a partner: {alone}"
    return [head, *(_rate_line(a, b, ours[i], theirs[j]) for i, j in pairs), rule]


def _rates(one: ComparedResult) -> list[dict[str, Any]]:
    return [row for row in _valid_lines(one.run) if row["rate_qps_per_node"]] if one.run else []


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


def _rate(row: Mapping[str, Any]) -> float:
    return float(row["rate_qps_per_node"])


def _rate_line(
    a: ComparedResult, b: ComparedResult, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> str:
    rates = f"{a.letter} {_rate(ours):.3f} | {b.letter} {_rate(theirs):.3f}"
    ttft, tpot = (
        f"{_ms(ours[name])} | {_ms(theirs[name])}".rjust(19) for name in ("ttft_p90_ms", "tpot_p90_ms")
    )
    return f"    {rates:<33}  {ttft}  {tpot}"


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f}"


def _loads(sides: Sequence[ComparedResult]) -> list[str]:
    """Percentiles of every load from the send, as other tools count; then notes on what is unknown."""
    head = f"  {'':<22} {'requests/s':>10} {'requests':>8}"
    lines = [f"{head}  {'p50 / p90 / p99: TTFT from send ms':<34}  TPOT ms"]
    notes = []
    for one in sides:
        lines += _lines(one)
        notes += [f"  {one.letter}: {note}" for note in one.foreign.notes] if one.foreign else []
    return [*lines, "  a failed request is infinitely late", *notes]


def _lines(one: ComparedResult) -> list[str]:
    """A line for the load of another tool, or for each valid window of a run."""
    if load := one.foreign:
        values = load.latencies["ttft_from_send"], load.latencies["tpot"]
        return [_load(one.letter, load.sent_qps, load.measured.num_rows, *values)]
    found = []
    for line, rows in _measured(one.run) if one.run else ():
        values = metrics.ttft_from_send(rows), metrics.tpot(rows)
        found.append(_load(f"{one.letter} window {line['index']}", line["rate_qps"], rows.num_rows, *values))
    return found or [f"  {one.letter}  no valid window of its own"]


def _valid_lines(run: Run) -> list[dict[str, Any]]:
    """Lines of windows.parquet of the valid windows with requests, ramp steps left out."""
    lines = run.windows().to_pylist()
    return [line for line in lines if line["kind"] != "ramp" and line["valid"] and line["requests"]]


def _measured(run: Run) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """The line of each such window, and its requests in order of due time."""
    for line in _valid_lines(run):
        window = window_table.window(line)
        yield line, in_window(run.requests(window_index=window.index), window)


def _load(name: str, rate_qps: float | None, count: int, ttft_ms: Floats, tpot_ms: Floats) -> str:
    rate = "unknown" if rate_qps is None else f"{rate_qps:.2f}"
    ttft, tpot = (" / ".join(_ms(quantile(v, q)) for q in QUANTILES) for v in (ttft_ms, tpot_ms))
    return f"  {name:<22} {rate:>10} {count:>8}  {ttft:<34}  {tpot}"
