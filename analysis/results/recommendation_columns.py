"""A recommendation as columns of a file: a row for every shape, those without a rank last."""

import pyarrow as pa

from analysis.results.grid_columns import COUNT, FIGURE, TEXT, TRUTH
from analysis.results.types.recommendation import RankedShape, RecommendationVerdict

TYPES = {
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


def rows(verdict: RecommendationVerdict) -> pa.Table:
    """A row for every predicted shape at every hit rate; null where there is no figure."""
    out: list[dict[str, object]] = []
    for one in verdict.rankings:
        out += [{"prefix_hit": one.hit, **_columns(shape)} for shape in one.shapes]
        out += [
            {"prefix_hit": one.hit, "name": each.name, "unranked": each.kind, "reason": each.reason}
            for each in one.unranked
        ]
    return pa.Table.from_pylist(out, schema=pa.schema(list(TYPES.items())))


def _columns(shape: RankedShape) -> dict[str, object]:
    q = shape.qps_per_node
    return {
        **{name: getattr(shape, name) for name in TYPES if hasattr(shape, name)},
        **{f"nodes_at_{end}": nodes for end, nodes in shape.nodes_at.items()},
        "qps_per_node": q.value,
        **{f"qps_per_node_{end}": getattr(q, end) for end in ("low", "high", "certified")},
        "assumed": ", ".join(shape.assumed),
    }
