"""The answer of a study: its parts, their spread, the ratio of two, or the cells of a grid."""

from collections.abc import Mapping, Sequence

from analysis.capacity.paired_ratio import Ratio
from analysis.results.runs import RECORDED
from analysis.results.verdicts import (
    PAIRED,
    REFERENCE,
    UNPAIRED,
    CellRatio,
    MatrixCell,
    PartRow,
    StudyVerdict,
)
from analysis.stats.estimate import UNKNOWN, Estimate, certified, interval, middle, number, span
from analysis.views import capacity, quality
from analysis.views.shown import Cell, Fact, Table
from conf.specs.bounds import label, short

MOST_KEYS = 4
"""Keys that differ between A and B and stand among the facts."""
WITHOUT_CAPACITY = ("recipe", "quality")
"""Studies whose parts record answers or loads, and claim no capacity."""


def headline(study: StudyVerdict) -> str:
    """The answer in one line."""
    if study.is_matrix:
        cells = study.cells or ()
        return f"{sum(cell.exit_code == 0 for cell in cells)} of {len(cells)} cells have a capacity"
    if not study.valid:
        return "no capacity is claimed"
    if study.quality:
        return quality.headline(study.quality)
    if study.ratio:
        return f"B / A = {span(study.ratio.estimate)} (95 %): {study.ratio.verdict}"
    if study.study == "compare":
        return "no ratio was shown"
    if study.study == "recipe":
        return f"{study.evidence}: python -m analysis calibrate {study.folder} --out FILE"
    return capacity.headline(study)


def facts(study: StudyVerdict) -> list[Fact]:
    """What the parts show together."""
    out: list[Fact] = []
    if study.ratio or study.quality:
        out += differing(study)
    if study.ratio:
        out += _ratio(study.ratio)
    if study.quality:
        out += quality.facts(study.quality)
    if between := study.between:
        out.append((f"pooled over {study.evidence}", f"sd between them {span(between.sd_pct)} %"))
        out.append(("noise within one", f"sd {number(between.within_sd_pct, 3)} %"))
    if effects := study.effects_pct:
        out += [(f"{name} against the mean", f"{span(effect)} %") for name, effect in effects.items()]
    if study.variation_pct:
        out.append((f"mean of {study.evidence}", f"coefficient of variation {span(study.variation_pct)} %"))
    return out


def differing(study: StudyVerdict) -> list[Fact]:
    """The keys in which A and B differ."""
    changed = [f"{key} {ours} -> {theirs}" for key, (ours, theirs) in (study.differs or {}).items()]
    more = f" and {len(changed) - MOST_KEYS} more (study.json)" if len(changed) > MOST_KEYS else ""
    return [("from A to B", f"{', '.join(changed[:MOST_KEYS])}{more}")] if changed else []


def _ratio(ratio: Ratio) -> list[Fact]:
    """The evidence of a paired ratio."""
    correlation = "unknown" if ratio.correlation is None else f"{ratio.correlation:.2f}"
    pairs = f"B got A's arrivals and lengths, scaled in time; correlation {correlation}"
    out = [(f"{ratio.pairs} pairs of windows", pairs)]
    for limit, one in ratio.limits.items():
        weight = f"{100 * one.weight:.0f} % of what was over a bound"
        out.append((f"by {label(limit)} alone", f"{span(one.estimate)}, {weight}"))
    if ratio.unlike:
        why = "A and B are limited by different bounds: the ratio is that of the two capacities alone"
        out.append(("unpaired", why))
    return out


def table(study: StudyVerdict, links: Mapping[str, Cell] | None = None) -> Table:
    """Every part, or cell, with its answer or the reason why it has none; `links` lead to their reports."""
    names = {name: (links or {}).get(name, name) for name in study.names}
    return _cells(study, names) if study.is_matrix else _parts(study, names)


def _parts(study: StudyVerdict, names: Mapping[str, Cell]) -> Table:
    known = {row.name: row for row in study.parts}
    if study.study in WITHOUT_CAPACITY:
        recorded = tuple((cell, *_recorded(known.get(name))) for name, cell in names.items())
        return Table("", ("part", "result", "seed"), recorded, state=1, words=frozenset({1}))
    rows = tuple((cell, *_part(known.get(name))) for name, cell in names.items())
    failed = tuple("failed" if str(row[-1]).startswith("no result (") else "" for row in rows)
    heads = "part", "QPS per node", "95 % interval", "certified", "limited by", "seed", "result"
    return Table("", heads, rows, tones=failed, state=6, words=frozenset({6}))


def _recorded(row: PartRow | None) -> tuple[str, str]:
    if row is None:
        return "no result yet", ""
    return ("recorded" if row.exit_code in RECORDED else _no_result(row)), _seed(row)


def _no_result(row: PartRow) -> str:
    return f"no result (exit {row.exit_code}): {row.reason}".removesuffix(": ")


def _seed(row: PartRow) -> str:
    return UNKNOWN if row.seed is None else str(row.seed)


def _part(row: PartRow | None) -> tuple[str, ...]:
    if row is None:
        return *[""] * 5, "no result yet"
    if row.exit_code or not row.qps_per_node:
        return *[""] * 4, _seed(row), _no_result(row)
    result = f"valid (SIMULATED, {row.simulated})" if row.simulated else "valid"
    return *_figures(row.qps_per_node), _limit(row.binding), _seed(row), result


def _figures(q: Estimate) -> tuple[str, str, str]:
    """A capacity, its interval and its certified rate; of a bound the bound alone."""
    return (span(q), "", "") if q.is_bound else (middle(q), interval(q), certified(q))


def _limit(binding: str | None) -> str:
    return label(binding) if binding else UNKNOWN


def _cells(study: StudyVerdict, names: Mapping[str, Cell]) -> Table:
    axes, cells = study.axes or (), study.cells or ()
    rows = tuple(
        (names.get(cell.name, cell.name), *(str(cell.at.get(axis)) for axis in axes), *_cell(cell))
        for cell in cells
    )
    heads = "QPS per node", "95 % interval", "certified", "limit", "ratio", "how"
    return Table(
        "",
        ("cell", *axes, *heads),
        rows,
        tones=tuple("failed" if cell.exit_code else "" for cell in cells),
        words=frozenset({len(axes) + 6}),
    )


def _cell(cell: MatrixCell) -> tuple[str, ...]:
    if cell.qps_per_node is None:
        return *[""] * 5, _why(cell)
    limit = short(cell.binding) if cell.binding else ""
    return *_figures(cell.qps_per_node), limit, *_cell_ratio(cell.ratio)


def _cell_ratio(ratio: CellRatio | None) -> tuple[str, str]:
    if ratio is None:
        return "", ""
    return ("1" if ratio.how == REFERENCE else span(ratio.estimate)), ratio.how


def _why(cell: MatrixCell) -> str:
    if cell.exit_code is None:
        return "not measured yet"
    return f"{'refused' if cell.exit_code == 2 else 'no result'} (exit {cell.exit_code}): {cell.reason}"


def _notes(cells: Sequence[MatrixCell]) -> list[str]:
    """The grounds of the ratios, and the kind of every simulated interval: a ratio holds no constants."""
    kinds: dict[str, list[str]] = {}
    ratios: dict[str, list[tuple[str, CellRatio]]] = {}
    for cell in cells:
        if cell.simulated:
            kinds.setdefault(cell.simulated, []).append(cell.name)
        if cell.ratio:
            ratios.setdefault(cell.ratio.how, []).append((cell.name, cell.ratio))
    notes = [f"SIMULATED, {kind}: interval and certified of {', '.join(kinds[kind])}" for kind in kinds]
    notes += ["the interval of a ratio is sampling noise alone"] if kinds else []
    if REFERENCE in ratios and len(ratios) > 1:
        first, _ = ratios[REFERENCE][0]
        notes.append(f"ratio: capacity over that of {first}, each with a 95 % interval of its own")
        notes.append("each service was deployed once: how far deployments differ is in no interval")
    if PAIRED in ratios:
        pairs = ", ".join(f"{name} {ratio.pairs}" for name, ratio in ratios[PAIRED])
        alike = "got the same arrivals and lengths, scaled in time (common random numbers)"
        notes.append(f"paired: {alike}; pairs of windows: {pairs}")
    reasons: dict[str, list[str]] = {}
    for name, ratio in ratios.get(UNPAIRED, ()):
        reasons.setdefault(ratio.why, []).append(name)
    return notes + [f"unpaired, {', '.join(names)}: {why}" for why, names in reasons.items()]


def grid_notes(study: StudyVerdict) -> list[str]:
    """The notes below the cells of a grid."""
    return _notes(study.cells or ())
