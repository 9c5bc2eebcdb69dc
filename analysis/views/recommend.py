"""The answer of `recommend`: the first shape of a node, the ranking of all, and what to measure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from analysis.recommendation.ranking import RankedShape, RecommendationVerdict, ShapeRanking
from analysis.rows import parquet
from analysis.stats.estimate import span
from analysis.views.plan import BASES
from analysis.views.shown import Answer, Fact, Table
from conf.specs.bounds import short

LEAST_SHOWN = 0.01
"""Shapes with at least this probability are shown beside the best of each layout (our choice)."""
NAMED = 4
TO_BE_SURE = "measure to be sure (--measure searches each shape that these name, once, in one study):"
HEADS = (
    *("P(best)", "rank", "layout", "node", "tokens", "GPUs", "planned", "nodes", "QPS per node", "limit"),
)


def answers(verdict: RecommendationVerdict) -> list[Answer]:
    """An answer for each hit rate; measured ones first, and the grounds of all with the last."""
    shown: list[Answer] = []
    for ranking in verdict.measured:
        facts = (*_certainty(ranking), *_against(verdict, ranking), *_study(verdict))
        tone, head = "short" if verdict.exit_code else "good", _headline(verdict, ranking)
        shown.append(Answer("MEASURED", tone, head, facts, (_table(ranking),), _unranked(ranking)))
    if verdict.folder and not verdict.measured:
        headline = "no shape has been measured yet; what was predicted stands below"
        shown.append(Answer("UNFINISHED", "bad", headline, tuple(_study(verdict))))
    for ranking in verdict.rankings:
        lines = list(_unranked(ranking))
        if ranking.proposed and not verdict.measured:
            lines.append(TO_BE_SURE)
            for number, shape in enumerate(ranking.proposed, 1):
                lines += [f"  {number}. {shape.command}", f"     {shape.load_s / 60:.0f} min of load"]
        facts, head = tuple(_certainty(ranking)), _headline(verdict, ranking)
        shown.append(Answer("PREDICTED", "good", head, facts, (_table(ranking),), tuple(lines)))
    *first, last = shown
    facts, notes = (*last.facts, *_grounds(verdict)), (*last.notes, *verdict.notes)
    return [*first, replace(last, facts=facts, notes=notes)]


def text(verdict: RecommendationVerdict) -> str:
    """The screen of a recommendation."""
    return "\n".join(map(str, answers(verdict)))


def _study(verdict: RecommendationVerdict) -> Iterator[Fact]:
    if verdict.reason:
        yield "why", verdict.reason
    yield "study", f"{verdict.folder}, {verdict.measured_with} engine"
    if verdict.exit_code:
        yield "to go on", f"python -m loadgen resume {verdict.folder}"


def _against(verdict: RecommendationVerdict, ranking: ShapeRanking) -> Iterator[Fact]:
    """What was measured over what was predicted, and whether the choice changed."""
    predicted = next((each for each in verdict.rankings if each.hit == ranking.hit), None)
    if predicted is None:
        return
    before = {shape.name: shape.qps_per_node.value for shape in predicted.shapes}
    known = [(each, before[each.name]) for each in ranking.shapes if each.name in before]
    ratios = ", ".join(f"{each.name} {each.qps_per_node.value / qps:.2f}" for each, qps in known)
    changed = ranking.first.name != predicted.first.name
    choice = f"the choice changes from {predicted.first.name}" if changed else "the choice stays"
    yield "measured over predicted QPS", f"{ratios}; {choice}"


def _headline(verdict: RecommendationVerdict, ranking: ShapeRanking) -> str:
    """The nodes to plan with, of the first shape and of all that are not told from it, and their names."""
    first, close = ranking.first, [ranking.first, *_close(ranking)]
    fewest, most = min(shape.nodes for shape in close), max(shape.nodes for shape in close)
    nodes = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    hit = "" if ranking.hit is None else f", prefix hit {100 * ranking.hit:g} %"
    cost = "" if first.usd_per_hour is None else f", from ${first.usd_per_hour:,.2f} an hour"
    layouts = list(dict.fromkeys(shape.layout for shape in _by_probability(close)))
    which = f"{first.layout} ({first.shape}, {first.budget_tokens} tokens a step)"
    if len(layouts) > 1:
        which = f"{_names(layouts)} cannot be told apart"
    elif len(close) > 1:
        which = f"{first.layout} ({first.shape}); its step budgets cannot be told apart"
    peak = f"{verdict.peak_qps:,g} QPS at the peak"
    return f"{nodes} nodes of {verdict.gpus_per_node} GPUs for {peak}{hit}{cost}; {which}"


def _close(ranking: ShapeRanking) -> list[RankedShape]:
    return [shape for shape in ranking.shapes if not shape.told_apart and shape is not ranking.first]


def _by_probability(shapes: Sequence[RankedShape]) -> list[RankedShape]:
    return sorted(shapes, key=lambda shape: -shape.probability_best)


def _certainty(ranking: ShapeRanking) -> Iterator[Fact]:
    """How sure the choice is, and the shapes that are not told from it."""
    first = ranking.first
    layout = sum(shape.probability_best for shape in ranking.shapes if shape.layout == first.layout)
    yield (
        f"probability that {first.name} needs the fewest nodes",
        f"{_share(first.probability_best)}, of its layout with any budget {_share(layout)}; a tie in whole"
        f" nodes ({_share(ranking.tie_probability)} of the draws) counts in equal parts",
    )
    if close := [shape.name for shape in _by_probability(_close(ranking))]:
        yield f"not told apart from {first.name} (no strict order in 95 % of the draws)", _names(close)
    if assumed := {path.rpartition(".")[2] for shape in ranking.shapes for path in shape.assumed}:
        yield "assumed", ", ".join(sorted(assumed))


def _names(names: Sequence[str]) -> str:
    if len(names) > NAMED:
        return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def _table(ranking: ShapeRanking) -> Table:
    """The best shape of each layout, and others that may well be the best."""
    best = {shape.layout: shape.name for shape in reversed(ranking.shapes)}
    likely = [
        shape
        for shape in ranking.shapes
        if shape.name == best[shape.layout] or shape.probability_best >= LEAST_SHOWN
    ]
    rows = tuple(map(_row, _by_probability(likely)))
    note = ""
    if rest := [shape.nodes for shape in ranking.shapes if shape not in likely]:
        nodes = f"{min(rest):,} to {max(rest):,} nodes"
        note = f"{len(rest)} more (other budgets): {nodes}; --json and --out have all"
    return Table("", HEADS, rows, note=note)


def _row(shape: RankedShape) -> tuple[str, ...]:
    likely, *at = [shape.nodes_at.get(figure) for figure in ("estimate", "high", "low")]
    ends = ", ".join("open" if nodes is None else f"{nodes:,}" for nodes in at)
    return (
        _share(shape.probability_best),
        f"{shape.rank}{'=' * shape.tied}",
        shape.layout,
        shape.shape,
        str(shape.budget_tokens),
        str(shape.gpus),
        f"{shape.nodes:,}",
        f"{'unknown' if likely is None else f'{likely:,}'} [{ends}]",
        span(shape.qps_per_node),
        short(shape.binding) + (", KV full" if shape.kv_full else ""),
    )


def _share(probability: float) -> str:
    return "<.01" if 0 < probability < 0.005 else f"{probability:.2f}"


def _unranked(ranking: ShapeRanking) -> tuple[str, ...]:
    return tuple(f"{each.kind}: {each.name}: {each.reason}" for each in ranking.unranked)


def _grounds(verdict: RecommendationVerdict) -> Iterator[Fact]:
    experiment, care = verdict.experiment, verdict.care
    spares = care.spare_nodes
    load = f"workload {experiment.load}, arrivals {experiment.arrivals}, seed {experiment.seed}"
    service = f"{experiment.model} on {experiment.hardware}, routing {experiment.routing}"
    yield "service", f"{service}, {load}"
    yield "bounds", experiment.slo.text
    yield (
        "planned nodes, and nodes [at the upper end, at the low end of the capacity]",
        f"planned with {BASES[care.basis]}, {100 * care.headroom:g} % headroom and {spares} spare"
        f" node{'s' * (spares != 1)}; E(n) = 1 is assumed",
    )
    yield (
        "predicted",
        "the interval is what is unknown of the engine model's constants, drawn jointly for all shapes, and"
        " Monte Carlo noise; what the model lacks is not in it",
    )


RECOMMENDATION = parquet.described("recommendation")
"""Columns of the file that --out names: a row for every shape, those without a rank last."""


def recommendation_rows(verdict: RecommendationVerdict) -> pa.Table:
    """A row for every predicted shape at every hit rate; null where there is no figure."""
    out: list[dict[str, object]] = []
    for ranking in verdict.rankings:
        for shape in ranking.shapes:
            row = parquet.record_columns(RECOMMENDATION, shape) | {"prefix_hit": ranking.hit}
            row |= {f"nodes_at_{end}": nodes for end, nodes in shape.nodes_at.items()}
            out.append(row | {"assumed": ", ".join(shape.assumed)})
        out += [
            {"prefix_hit": ranking.hit, "name": each.name, "unranked": each.kind, "reason": each.reason}
            for each in ranking.unranked
        ]
    return pa.Table.from_pylist(out, schema=RECOMMENDATION)
