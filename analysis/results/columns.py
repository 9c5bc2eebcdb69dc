"""A grid of predictions as columns of a file: a row per cell; columns do not depend on the answers."""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from analysis.results.types.prediction_verdict import GridCell, PredictionVerdict
from analysis.results.types.recommendation import RankedShape, RecommendationVerdict
from analysis.stats.estimate import Estimate
from conf.specs.bounds import LIMITS, column

ASKED = ("model", "hardware", "layout", "routing", "workload", "tokens", "arrivals", "nodes", "seed")
TEXT, COUNT, FIGURE, TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()
RATIO = dict.fromkeys(("ratio_to_first", "ratio_to_first_low", "ratio_to_first_high"), FIGURE)
LATENCIES, PLACES = ("ttft_ms", "tpot_ms", "gap_ms", "e2e_ms"), ("p50", "p90", "p99")
RATES = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
FORECAST = {
    **dict.fromkeys(("model", "hardware", "layout", "routing", "workload", "tokens"), TEXT),
    **dict.fromkeys(("nodes", "seed"), COUNT),
    **dict.fromkeys(("ttft_p90_bound_ms", "tpot_p90_bound_ms", "qps_per_node"), FIGURE),
    **{f"qps_per_node_{end}": FIGURE for end in ("low", "high", "certified")},
    "binding": TEXT,
    "binding_probability": FIGURE,
    **dict.fromkeys(("open_above", "open_below"), TRUTH),
    **RATIO,
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
NAMES = (*(f"{name}.{place}" for name in LATENCIES for place in PLACES), *RATES, "makespan_s")
REPLAY = {
    **{name: COUNT if name in ("nodes", "seed") else TEXT for name in ASKED},
    **dict.fromkeys(("requests", "concurrency"), COUNT),
    "rate_qps_per_node": FIGURE,
    **{f"{name.replace('.', '_')}{end}": FIGURE for name in NAMES for end in ("", "_low", "_high")},
    "kept_probability": FIGURE,
    **RATIO,
    "exit_code": COUNT,
    "reason": TEXT,
}
"""Columns of the file behind those of the grid's axes."""


def grid_rows(cells: Sequence[GridCell], are_replays: bool) -> pa.Table:
    """A row per cell: its words as text, then its figures; null where there is no figure."""
    types, columns = (REPLAY, _replay_columns) if are_replays else (FORECAST, _forecast_columns)
    axes = dict.fromkeys((f"asked.{key}" for cell in cells for key in cell.at), TEXT)
    schema = pa.schema([*axes.items(), *types.items()])
    return pa.Table.from_pylist([_row(cell, columns) for cell in cells], schema=schema)


def _row(cell: GridCell, figures: Callable[[PredictionVerdict], Mapping[str, object]]) -> dict[str, object]:
    one = cell.prediction
    row: dict[str, object] = {f"asked.{key}": str(value) for key, value in cell.at.items()}
    row |= {"exit_code": cell.answer.exit_code, "reason": cell.answer.reason}
    if one is not None:
        row |= {name: getattr(one.asked, name) for name in ASKED} | dict(figures(one))
    return row | _with_ends("ratio_to_first", cell.ratio) if cell.ratio else row


def _with_ends(name: str, figure: Estimate) -> dict[str, object]:
    """A figure and its interval as columns."""
    return {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}


def _forecast_columns(one: PredictionVerdict) -> dict[str, object]:
    row: dict[str, object] = {
        f"{limit}_p90_bound_ms": getattr(one.asked.slo, column(limit)) for limit in LIMITS
    }
    forecast = one.forecast
    if forecast:
        parts = forecast, forecast.sessions, forecast.noise, forecast.of_capacity, forecast.of_rate
        row |= {column(limit): ms for limit, ms in forecast.limits_ms.items()}
        row |= {name: getattr(part, name) for part in parts for name in FORECAST if hasattr(part, name)}
    if one.capacity is None:
        return row
    q = one.capacity.qps_per_node
    ends = {f"qps_per_node_{end}": getattr(q, end) for end in ("low", "high", "certified")}
    named = ("binding", "binding_probability", "open_above", "open_below")
    return row | {name: getattr(one.capacity, name) for name in named} | {"qps_per_node": q.value, **ends}


def _replay_columns(one: PredictionVerdict) -> dict[str, object]:
    if one.replay is None:
        return {}
    row: dict[str, object] = {name: getattr(one.replay, name) for name in REPLAY if hasattr(one.replay, name)}
    for name, figure in one.replay.figures.items():
        row |= _with_ends(name.replace(".", "_"), figure) if figure else {}
    return row


RECOMMENDATION = {
    "prefix_hit": FIGURE,
    **dict.fromkeys(("name", "layout", "shape"), TEXT),
    **dict.fromkeys(("budget_tokens", "gpus", "rank"), COUNT),
    "tied": TRUTH,
    **dict.fromkeys(("nodes", "nodes_at_low", "nodes_at_certified"), COUNT),
    **dict.fromkeys(("nodes_at_estimate", "nodes_at_high"), COUNT),
    **dict.fromkeys(("qps_per_node", "qps_per_node_low", "qps_per_node_high"), FIGURE),
    "qps_per_node_certified": FIGURE,
    "binding": TEXT,
    "kv_full": TRUTH,
    "probability_best": FIGURE,
    "told_apart": TRUTH,
    "draws": COUNT,
    "usd_per_hour": FIGURE,
    **dict.fromkeys(("assumed", "unranked", "reason"), TEXT),
}
"""Columns of the file that --out names: a row for every shape, those without a rank last."""


def recommendation_rows(verdict: RecommendationVerdict) -> pa.Table:
    """A row for every predicted shape at every hit rate; null where there is no figure."""
    out: list[dict[str, object]] = []
    for one in verdict.rankings:
        out += [{"prefix_hit": one.hit, **_shape_columns(shape)} for shape in one.shapes]
        out += [
            {"prefix_hit": one.hit, "name": each.name, "unranked": each.kind, "reason": each.reason}
            for each in one.unranked
        ]
    return pa.Table.from_pylist(out, schema=pa.schema(list(RECOMMENDATION.items())))


def _shape_columns(shape: RankedShape) -> dict[str, object]:
    q = shape.qps_per_node
    return {
        **{name: getattr(shape, name) for name in RECOMMENDATION if hasattr(shape, name)},
        **{f"nodes_at_{end}": nodes for end, nodes in shape.nodes_at.items()},
        "qps_per_node": q.value,
        **{f"qps_per_node_{end}": getattr(q, end) for end in ("low", "high", "certified")},
        "assumed": ", ".join(shape.assumed),
    }
