"""Replays of so many requests on the engine model, for people: lines, a grid, columns; computes nothing."""

from collections.abc import Sequence

import pyarrow as pa

from analysis.results import grid_table
from analysis.results.grid_table import COUNT, FIGURE, TEXT
from analysis.results.text import constants_text
from analysis.results.types.prediction_verdict import (
    GridCell,
    PredictionVerdict,
    ReplayForecast,
)
from analysis.stats.estimate import Estimate, interval, middle, span

LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "gap_ms": "p99 gap of a request", "e2e_ms": "E2E"}
NONE = "n/a"
PLACES = ("p50", "p90", "p99")
RATES = {
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tok/s",
    "total_tokens_per_s": "total tok/s",
}
COLUMNS = (
    ("TTFT p50 ms", 12),
    ("TTFT p90 ms", 12),
    ("[95 %]", 17),
    ("TPOT p90 ms", 12),
    ("[95 %]", 15),
    ("p99 gap p90 ms", 15),
    ("out tok/s", 10),
    ("[95 %]", 16),
    ("makespan s", 11),
    ("over", 6),
    ("tok/s over the first", 22),
)
NAMES = (*(f"{name}.{place}" for name in LATENCIES for place in PLACES), *RATES, "makespan_s")
TYPES = {
    **{name: COUNT if name in ("nodes", "seed") else TEXT for name in grid_table.ASKED},
    **dict.fromkeys(("requests", "concurrency"), COUNT),
    "rate_qps_per_node": FIGURE,
    **{f"{name.replace('.', '_')}{end}": FIGURE for name in NAMES for end in ("", "_low", "_high")},
    "kept_probability": FIGURE,
    **grid_table.RATIO,
    "exit_code": COUNT,
    "reason": TEXT,
}
"""Columns of the file behind those of the grid's axes."""


def headline(it: ReplayForecast) -> str:
    """The requests that were sent, in words."""
    if it.concurrency:
        return f"{it.requests} requests, {it.concurrency} in flight"
    return f"{it.requests} requests at {it.rate_qps_per_node:.4g} QPS per node"


def kept(it: ReplayForecast) -> str:
    """The share of draws of the constants that keep the bounds; empty without draws."""
    if it.kept_probability is None:
        return ""
    return f"; the bounds are kept in {100 * it.kept_probability:.0f} % of {it.draws} draws of the constants"


def lines(prediction: PredictionVerdict) -> list[str]:
    """The figures with their intervals, and the grounds of these; none without a replay."""
    it, asked = prediction.replay, prediction.asked
    if it is None:
        return []
    figures = it.figures
    out = [f"  {'ms [95 %]':<22}" + "".join(f"{place:>26}" for place in PLACES)]
    for name, words in LATENCIES.items():
        cells = "".join(f"{_figure(figures[f'{name}.{place}']):>26}" for place in PLACES)
        out.append(f"  {words:<22}{cells}")
    rates = ", ".join(f"{_figure(figures[name])} {words}" for name, words in RATES.items())
    whole = f" of all {asked.nodes} nodes" if asked.nodes > 1 else ""
    out.append(f"  throughput{whole}: {rates}")
    out.append(f"  makespan {_figure(figures['makespan_s'])} s")
    if asked.replicas > 1:
        out.append(f"  {asked.replicas} replicas behind one balancer, routing {asked.routing}")
    return [*out, *_evidence(it), *(f"  {line}" for line in constants_text.lines(prediction))]


def _evidence(it: ReplayForecast) -> list[str]:
    """Number of requests, scatter by chance, and the parts of the interval."""
    chance = "chance: arrivals and lengths are given, so that no other seed is part of the intervals"
    if ends := it.other_seeds:
        chance = (
            f"chance: with another seed p90 TTFT lies in {_ends(ends['ttft_ms.p90'])} ms (95 %,"
            f" {it.seeds} were tried), which is part of the intervals"
        )
    drawn = f"{it.draws} draws of {len(it.constants_sampled)} uncertain constants"
    return [
        f"  evidence: {it.requests} requests of {it.input_tokens:.0f} and {it.output_tokens:.4g}"
        " tokens in the mean, on a service that began empty, all of them counted",
        f"  {chance}",
        f"  interval: {drawn}" if it.draws else "  interval: no constant is uncertain",
    ]


def table(axes: Sequence[str], cells: Sequence[GridCell]) -> str:
    """The grid as text: a line per cell, the reason where there is no number."""
    rows = [(cell.at, _cell(cell), cell.answer.reason) for cell in cells]
    return "\n".join([*grid_table.lines(axes, rows, COLUMNS), *constants_text.grid_lines(cells)])


def _cell(cell: GridCell) -> list[str] | None:
    one = cell.prediction
    if one is None or one.replay is None or one.probe is None:
        return None
    figures = one.replay.figures

    def both(name: str) -> tuple[str, str]:
        return _middle(figures[name]), _ends(figures[name])

    return [
        _middle(figures["ttft_ms.p50"]),
        *both("ttft_ms.p90"),
        *both("tpot_ms.p90"),
        _middle(figures["gap_ms.p90"]),
        *both("output_tokens_per_s"),
        _middle(figures["makespan_s"]),
        grid_table.over(one.probe.missed),
        grid_table.ratio(cell.ratio),
    ]


def rows(cells: Sequence[GridCell]) -> pa.Table:
    """A row per cell, as `grid_table.rows`."""
    return grid_table.rows(cells, TYPES, _columns)


def _columns(one: PredictionVerdict) -> dict[str, object]:
    if one.replay is None:
        return {}
    row: dict[str, object] = {name: getattr(one.replay, name) for name in TYPES if hasattr(one.replay, name)}
    for name, figure in one.replay.figures.items():
        row |= grid_table.with_ends(name.replace(".", "_"), figure) if figure else {}
    return row


def _figure(figure: Estimate | None) -> str:
    return span(figure) if figure else NONE


def _middle(figure: Estimate | None) -> str:
    return middle(figure) if figure else NONE


def _ends(figure: Estimate | None) -> str:
    return interval(figure) if figure else ""
