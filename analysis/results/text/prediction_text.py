"""Predictions for people: the lines of one, a grid as a table or as columns; computes nothing."""

from collections.abc import Sequence

import pyarrow as pa

from analysis.results import grid_table
from analysis.results.grid_table import COUNT, FIGURE, TEXT, TRUTH
from analysis.results.text import constants_text
from analysis.results.types.prediction_verdict import GridCell, PredictionVerdict, RateDraws, RateForecast
from analysis.results.types.shared_figures import AskedExperiment, CapacityFigures
from analysis.stats.estimate import certified, interval, middle, span
from conf.specs.bounds import LIMITS, Limit, column, label, short

TERMS_SHOWN = 4
SENSITIVITIES_IN_A_TABLE = 3
COLUMNS = (
    ("QPS/node", 9),
    ("95 % interval", 16),
    ("limit", 6),
    ("TTFT p90 ms", 12),
    ("TPOT p90 ms", 12),
    ("hit %", 6),
    ("in tok/s", 9),
    ("out tok/s", 10),
    ("in flight", 10),
    ("over the first", 20),
)
TYPES = {
    **dict.fromkeys(("model", "hardware", "layout", "routing", "workload", "tokens"), TEXT),
    **dict.fromkeys(("nodes", "seed"), COUNT),
    **dict.fromkeys(("ttft_p90_bound_ms", "tpot_p90_bound_ms", "qps_per_node"), FIGURE),
    **{f"qps_per_node_{end}": FIGURE for end in ("low", "high", "certified")},
    "binding": TEXT,
    "binding_probability": FIGURE,
    **dict.fromkeys(("open_above", "open_below"), TRUTH),
    **grid_table.RATIO,
    "rate_qps_per_node": FIGURE,
    "steady": TRUTH,
    **{column(limit): FIGURE for limit in LIMITS},
    **{f"{kind}_tokens_per_s_per_node": FIGURE for kind in ("input", "image", "output")},
    **dict.fromkeys(
        ("cached_share_of_input", "in_flight_per_node", "kv_used", "busy", "prefill_busy"), FIGURE
    ),
    **dict.fromkeys(("replicas_per_session", "max_over_mean_share", "blocked_share"), FIGURE),
    **dict.fromkeys(("reusable_share_of_input", "sessions_per_node", "sessions_over_kv"), FIGURE),
    "simulated_nodes": COUNT,
    **dict.fromkeys(("fill_s", "mfu"), FIGURE),
    "requests": COUNT,
    **dict.fromkeys(("simulated_node_s", "noise_pct"), FIGURE),
    "varied_nodes": COUNT,
    "varied_node_s": FIGURE,
    **dict.fromkeys(("draws", "open_draws_below", "open_draws_above"), COUNT),
    "kept_probability": FIGURE,
    "exit_code": COUNT,
    "reason": TEXT,
}
"""Columns of the Parquet file behind those of the grid's axes."""


def headline(prediction: PredictionVerdict, capacity: CapacityFigures) -> str:
    """The capacity in one line; beyond an end of the search it is unknown."""
    q = capacity.qps_per_node
    if capacity.at_end:
        why = "the bounds are kept even there (search.highest_qps)"
        return f"{span(q)} QPS per node: {why}{kept(prediction)}"
    return f"{middle(q)} QPS per node, 95 % interval {interval(q)}, certified {certified(q)}"


def kept(prediction: PredictionVerdict) -> str:
    """The share of draws that keep the bounds at the rate of the answer; empty where that was not asked."""
    found = prediction.forecast
    if found is None or found.of_rate is None or found.of_rate.kept_probability is None:
        return ""
    return f"; the bounds are kept in {_kept_share(found.of_rate)} of the constants"


def lines(prediction: PredictionVerdict) -> list[str]:
    """The lines that a planner should read below the answer; none without a forecast."""
    found = prediction.forecast
    if found is None:
        return []
    text = found.input_tokens_per_s_per_node - (images := found.image_tokens_per_s_per_node)
    # A throughput with image tokens compares with none without.
    apart = f" (of these {images:.0f} image tokens, {text:.0f} text)" if images else ""
    in_flight = "requests in flight unknown (overload: the queue grows)"
    if found.in_flight_per_node is not None:
        in_flight = f"{found.in_flight_per_node:.1f} requests in flight"
    latencies = ", ".join(f"{label(limit)} {_ms(ms)}" for limit, ms in found.limits_ms.items())
    rounded = _rounded(prediction, found)
    return [
        f"  at {found.rate_qps_per_node:.4g} QPS per node{rounded}: {latencies}",
        *_service(prediction.asked, found.rate_qps_per_node),
        f"  per node {found.input_tokens_per_s_per_node:.0f} input{apart}"
        f" ({100 * found.cached_share_of_input:.0f} % cached) and"
        f" {found.output_tokens_per_s_per_node:.0f} output tok/s,"
        f" {in_flight}, KV cache {_percent(found.kv_used)} in use, MFU {_percent(found.mfu)}",
        *_sides(found),
        *_step_time(found),
        *_sessions(found, prediction.asked),
        *_evidence(found),
        *(f"  {line}" for line in constants_text.lines(prediction)),
        *constants_text.sensitivity_lines(prediction.sensitivity or ()),
    ]


def _step_time(found: RateForecast) -> list[str]:
    terms = sorted(found.step_terms.items(), key=lambda term: -(term[1] or 0.0))[:TERMS_SHOWN]
    named = ", ".join(f"{name} {_percent(share)}" for name, share in terms)
    return [f"  step time: {named}"] if terms else []


def _sides(found: RateForecast) -> list[str]:
    """The load of both sides of a split node; its ratio wants more of the one that is busier."""
    if found.prefill_busy is None:
        return []
    return [
        f"  prefill engines compute {_percent(found.prefill_busy)} of the time, decode engines"
        f" {_percent(found.busy)}"
    ]


def _rounded(prediction: PredictionVerdict, found: RateForecast) -> str:
    """A note where the rate of the headline is this one in fewer digits; this one keeps its bounds."""
    capacity, rate = prediction.capacity, found.rate_qps_per_node
    same = not capacity or capacity.at_end or f"{rate:.2f}" == f"{rate:.4g}"
    return "" if same else " (above rounded to two decimals)"


def _service(asked: AskedExperiment, rate_qps: float) -> list[str]:
    if asked.nodes == 1:
        return []
    own = asked.routing == "per_node"
    alone = ", each with arrivals of its own: one was simulated for all" if own else ""
    return [f"  that is {rate_qps * asked.nodes:.6g} QPS of {asked.nodes} nodes{alone}"]


def _sessions(found: RateForecast, asked: AskedExperiment) -> list[str]:
    seen = found.sessions
    if seen is None:
        return []
    met, most, blocked = seen.replicas_per_session, seen.reusable_share_of_input, seen.blocked_share
    waits = f"; {100 * blocked:.1f} % of the turns came before the answer before had ended" if blocked else ""
    hit = f"hit rate {100 * found.cached_share_of_input:.1f} %"
    return [
        f"  sessions by {asked.routing}: {hit} of the prompt tokens"
        f"{'' if most is None else f' (at most {100 * most:.1f} %)'},"
        f" {'unknown' if met is None else f'{met:.2f}'} replicas per session,"
        f" busiest replica {seen.max_over_mean_share:.2f} of the mean{waits}",
        f"  {seen.sessions_per_node:.0f} sessions per node at a time want {seen.sessions_over_kv:.2f}"
        f" of its KV cache; {seen.simulated_nodes} of {asked.nodes} nodes simulated, after"
        f" {seen.fill_s:.0f} s that filled their caches",
    ]


def _evidence(found: RateForecast) -> list[str]:
    hours, noise = found.simulated_node_s / 3600, ""
    if found.noise:
        known = found.noise_pct is not None
        noise = f"; Monte Carlo noise {f'{found.noise_pct:.1f} % (95 %)' if known else 'unknown'}"
    out = [f"  evidence: {found.requests} requests in {hours:.3g} virtual hours of a node{noise}"]
    drawn = found.of_capacity or found.of_rate
    if found.of_rate and found.of_rate.kept_probability is not None:
        count = len(found.of_rate.constants_sampled)
        endless = found.of_rate.overloaded_draws
        more = f"; the queue grows without end in {endless} of the draws" if endless else ""
        share = _kept_share(found.of_rate)
        out.append(f"  the bounds are kept in {share} of {count} uncertain constants{more}")
    elif drawn and drawn.draws:
        open_draws = found.of_capacity.open_draws if found.of_capacity else 0
        beyond = f", {open_draws} of them beyond an end of the search" if open_draws else ""
        count = len(drawn.constants_sampled)
        out.append(f"  interval: {drawn.draws} draws of {count} uncertain constants{beyond}")
    elif drawn and not drawn.constants_sampled:
        out.append(
            "  interval: Monte Carlo noise alone; no constant of this model and hardware has an interval"
        )
    return out


def _kept_share(drawn: RateDraws) -> str:
    return f"{100 * (drawn.kept_probability or 0.0):.0f} % of {drawn.draws} draws"


def table(axes: Sequence[str], cells: Sequence[GridCell]) -> str:
    """The grid as text: one line per cell, the reason where there is no number."""
    rows = [(cell.at, _figures(cell), cell.answer.reason) for cell in cells]
    heads, *shown = grid_table.lines(axes, rows, COLUMNS)
    out = [heads]
    for line, cell in zip(shown, cells, strict=True):
        out.append(line)
        known = cell.prediction and cell.prediction.sensitivity
        if first := (known or ())[:SENSITIVITIES_IN_A_TABLE]:
            parts = (f"{row.path} ({100 * row.share:.0f} % of variance)" for row in first)
            out.append(f"  measure first: {', '.join(parts)}")
    return "\n".join([*out, *constants_text.grid_lines(cells)])


def _figures(cell: GridCell) -> list[str] | None:
    one = cell.prediction
    if one is None or one.forecast is None or not (one.capacity or one.probe):
        return None
    found = one.forecast
    return [
        *(_capacity(one.capacity) if one.capacity else _rate(one, found)),
        *(_whole_ms(found, limit) for limit in LIMITS),
        f"{100 * found.cached_share_of_input:.1f}",
        f"{found.input_tokens_per_s_per_node:.0f}",
        f"{found.output_tokens_per_s_per_node:.0f}",
        "unknown" if found.in_flight_per_node is None else f"{found.in_flight_per_node:.1f}",
        grid_table.ratio(cell.ratio),
    ]


def _capacity(capacity: CapacityFigures) -> tuple[str, str, str]:
    q = capacity.qps_per_node
    if q.is_bound:
        return span(q), "", short(capacity.binding)
    return middle(q), interval(q), short(capacity.binding)


def _rate(one: PredictionVerdict, found: RateForecast) -> tuple[str, str, str]:
    """The rate that was asked, in how many draws its bounds are kept, and which one is missed."""
    assert one.probe
    share = found.kept_probability
    chance = "unknown" if share is None else f"kept in {100 * share:.0f} %"
    return f"{one.probe.rate_qps_per_node:.2f}", chance, grid_table.over(one.probe.missed)


def rows(cells: Sequence[GridCell]) -> pa.Table:
    """A row per cell, as `grid_table.rows`; the columns and their types do not depend on the answers."""
    return grid_table.rows(cells, TYPES, _columns)


def _columns(one: PredictionVerdict) -> dict[str, object]:
    row: dict[str, object] = {
        f"{limit}_p90_bound_ms": getattr(one.asked.slo, column(limit)) for limit in LIMITS
    }
    forecast = one.forecast
    if forecast:
        parts = forecast, forecast.sessions, forecast.noise, forecast.of_capacity, forecast.of_rate
        row |= {column(limit): ms for limit, ms in forecast.limits_ms.items()}
        row |= {name: getattr(part, name) for part in parts for name in TYPES if hasattr(part, name)}
    if one.capacity is None:
        return row
    q = one.capacity.qps_per_node
    ends = {f"qps_per_node_{end}": getattr(q, end) for end in ("low", "high", "certified")}
    named = ("binding", "binding_probability", "open_above", "open_below")
    return row | {name: getattr(one.capacity, name) for name in named} | {"qps_per_node": q.value, **ends}


def _whole_ms(found: RateForecast, limit: Limit) -> str:
    ms = found.limits_ms.get(limit)
    return "n/a" if ms is None else f"{ms:.0f}"


def _percent(share: float | None) -> str:
    if share is None:
        return "unknown"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def _ms(value: float | None) -> str:
    return "does not apply" if value is None else f"{value:.1f} ms"
