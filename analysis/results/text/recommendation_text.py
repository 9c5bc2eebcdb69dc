"""A recommendation for people: the answer, the table of shapes, what to measure; computes nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from analysis.results.grid_table import COUNT, FIGURE, TEXT, TRUTH
from analysis.results.types.recommendation import (
    ProposedMeasurement,
    RankedShape,
    RecommendationVerdict,
    ShapeRanking,
)
from analysis.stats.estimate import span
from conf.specs.bounds import short

LEAST_SHOWN = 0.01
"""Shapes with at least this probability are shown beside the best of each layout (our choice)."""
NAMED = 4
COLUMNS = ("rank", "layout", "node", "tokens", "GPUs", "nodes", "QPS per node", "P(best)", "limit", "assumed")
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


def text(verdict: RecommendationVerdict) -> str:
    """The screen of a recommendation; measured figures come first."""
    lines: list[str] = []
    if verdict.folder:
        lines += _measured(verdict)
    for one in verdict.rankings:
        lines += [_headline(verdict, one, "PREDICTED"), *_apart(one), *_table(one), *_unranked(one)]
        if not verdict.measured:
            lines += _proposed(one.proposed)
    return "\n".join([*lines, *_grounds(verdict)])


def _measured(verdict: RecommendationVerdict) -> list[str]:
    lines = []
    for one in verdict.measured:
        lines += [_headline(verdict, one, "MEASURED"), *_apart(one), *_table(one), *_unranked(one)]
        lines += _against(verdict, one)
    if not verdict.measured:
        lines.append("UNFINISHED  no shape has been measured yet; what was predicted stands below")
    if verdict.reason:
        lines.append(f"  {verdict.reason}")
    lines.append(f"  study {verdict.folder}, {verdict.measured_with} engine")
    if verdict.exit_code:
        lines.append(f"  to go on: python -m loadgen resume {verdict.folder}")
    return lines


def _against(verdict: RecommendationVerdict, one: ShapeRanking) -> list[str]:
    """Lines that put what was measured beside what was predicted, and say whether the choice changed."""
    predicted = next((each for each in verdict.rankings if each.hit == one.hit), None)
    if predicted is None:
        return []
    before = {shape.name: shape.qps_per_node for shape in predicted.shapes}
    known = [(each, before[each.name].value) for each in one.shapes if each.name in before]
    ratios = ", ".join(f"{each.name} {each.qps_per_node.value / qps:.2f}" for each, qps in known)
    changed = one.first.name != predicted.first.name
    said = f"the choice changes from {predicted.first.name}" if changed else "the choice stays"
    return [f"  measured over predicted QPS: {ratios}; {said}"]


def _headline(verdict: RecommendationVerdict, one: ShapeRanking, word: str) -> str:
    first = one.first
    at_high = first.nodes_at.get("high")
    upper = "" if at_high is None else f" ({at_high:,} at the upper end)"
    hit = "" if one.hit is None else f", prefix hit {100 * one.hit:g} %"
    cost = "" if first.usd_per_hour is None else f", ${first.usd_per_hour:,.2f} an hour"
    return (
        f"{word}  {first.layout} ({first.shape}, {first.budget_tokens} tokens a step): {first.nodes:,} nodes"
        f" of {verdict.gpus_per_node} GPUs{upper} for {verdict.peak_qps:,g} QPS at the peak{hit}{cost}"
    )


def _apart(one: ShapeRanking) -> list[str]:
    """A line on how sure the choice is, and on the shapes that it is not told from."""
    first = one.first
    layout = sum(shape.probability_best for shape in one.shapes if shape.layout == first.layout)
    lines = [
        f"  probability that it needs the fewest nodes: {_share(first.probability_best)}, of its layout with"
        f" any budget {_share(layout)}; a tie in whole nodes ({_share(one.tie_probability)} of the draws)"
        " counts in equal parts"
    ]
    tied = [shape.name for shape in one.shapes if shape.rank == first.rank and shape is not first]
    if tied:
        lines.append(f"  a tie: {_names(tied)} need{'s' * (len(tied) == 1)} as many nodes")
    close = [shape.name for shape in one.shapes if not shape.told_apart and shape is not first]
    if close:
        lines.append(f"  not told apart from it (no strict order in 95 % of the draws): {_names(close)}")
    likely = max(one.shapes, key=lambda shape: shape.probability_best)
    if likely.probability_best > first.probability_best:
        lines.append(
            f"  more often the best is {likely.name} ({_share(likely.probability_best)}); the order is that"
            " of the planned nodes, which wide intervals raise"
        )
    return lines


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _table(one: ShapeRanking) -> list[str]:
    shown = _shown(one.shapes)
    shared = set.intersection(*(set(shape.assumed) for shape in one.shapes))
    rows = [COLUMNS, *(_row(shape, shared) for shape in shown)]
    if not any(row[-1] for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = {0, 3, 4, 7}
    lines = [
        "  "
        + "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    if rest := [shape for shape in one.shapes if shape not in shown]:
        fewest, most = min(shape.nodes for shape in rest), max(shape.nodes for shape in rest)
        count = f"{len(rest)} more (other budgets)"
        lines.append(f"  {count}: {fewest:,} to {most:,} nodes; --json and --out have all")
    if undrawn := [shape.name for shape in one.shapes if not shape.draws and not shape.cell]:
        lines.append(f"  far behind, Monte Carlo noise alone: {_names(undrawn)}")
    if shared:
        lines.append(f"  assumed of all: {', '.join(sorted(map(_short, shared)))}")
    return lines


def _shown(shapes: Sequence[RankedShape]) -> list[RankedShape]:
    """The best shape of each layout, and others that may well be the best."""
    layouts: set[str] = set()
    out = []
    for shape in shapes:
        if shape.layout not in layouts or shape.probability_best >= LEAST_SHOWN:
            out.append(shape)
        layouts.add(shape.layout)
    return out


def _row(shape: RankedShape, shared: set[str]) -> tuple[str, ...]:
    q = shape.qps_per_node
    at = [shape.nodes_at.get(end) for end in ("high", "low")]
    ends = ", ".join("open" if nodes is None else f"{nodes:,}" for nodes in at)
    own = sorted(_short(path) for path in shape.assumed if path not in shared)
    return (
        f"{shape.rank}{'=' * shape.tied}",
        shape.layout,
        shape.shape,
        str(shape.budget_tokens),
        str(shape.gpus),
        f"{shape.nodes:,} [{ends}]",
        span(q),
        _share(shape.probability_best),
        short(shape.binding) + (", KV full" if shape.kv_full else ""),
        ", ".join(own),
    )


def _short(path: str) -> str:
    return path.rpartition(".")[2]


def _share(probability: float) -> str:
    return "<.01" if 0 < probability < 0.005 else f"{probability:.2f}"


def _unranked(one: ShapeRanking) -> list[str]:
    return [f"  {each.kind}: {each.name}: {each.reason}" for each in one.unranked]


def _proposed(found: Sequence[ProposedMeasurement]) -> list[str]:
    if not found:
        return []
    lines = ["  measure to be sure (--measure searches each shape that these name, once, in one study):"]
    for number, one in enumerate(found, 1):
        lines.append(f"    {number}. {one.command}")
        lines.append(f"       {one.load_s / 60:.0f} min of load")
    return lines


def _grounds(verdict: RecommendationVerdict) -> list[str]:
    asked, care = verdict.asked, verdict.care
    spares = care.get("spare_nodes", 0)
    lines = [
        f"  {asked.model} on {asked.hardware}, routing {asked.routing}, workload {asked.load}, "
        f"arrivals {asked.arrivals}, seed {asked.seed}",
        f"  bounds: {asked.slo.text}",
        f"  nodes [at the upper end, at the low end of the capacity]: planned with {_basis(care)},"
        f" {100 * care.get('headroom', 0.0):g} % headroom and {spares} spare node{'s' * (spares != 1)};"
        " E(n) = 1 is assumed",
        "  predicted: the interval is what is unknown of the engine model's constants, drawn jointly for all"
        " shapes, and Monte Carlo noise; what the model lacks is not in it",
    ]
    return [*lines, *(f"  {note}" for note in verdict.notes)]


def _basis(care: Mapping[str, Any]) -> str:
    named = {"low": "the low end", "certified": "the certified figure", "estimate": "the estimate"}
    return named.get(str(care.get("basis")), "an end")


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
