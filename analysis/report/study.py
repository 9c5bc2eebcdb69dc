"""Tables of a study's answers; each part has a report of its own."""

from collections.abc import Mapping

from analysis.report.blocks import Cell, Facts, Table
from analysis.report.wording import UNKNOWN, figure, value
from analysis.results import matrix_table
from analysis.results.runs import RECORDED
from analysis.results.types.study_verdict import CellRatio, MatrixCell, PartRow, StudyVerdict
from analysis.stats.estimate import Estimate, certified, interval, middle, span
from conf.specs.bounds import label

Links = Mapping[str, Cell]
"""Each part's name as a cell that links to its report."""


def parts(study: StudyVerdict, links: Links) -> Table:
    """Every part with its answer, or the reason why it has none."""
    if study.study == matrix_table.KIND:
        return _cells(study, links)
    known = {row.name: row for row in study.parts}
    recorded = study.study in ("recipe", "quality")
    rows = [(links[name], *_part(known.get(name), recorded)) for name in study.names]
    heads = "part", "result", "QPS per node", "95 % interval", "certified", "limited by", "seed"
    failed = tuple("failed" if str(row[1]).startswith("no result (") else "" for row in rows)
    return Table(
        "Parts of the study (study.json)", heads, tuple(rows), tones=failed, state=1, words=frozenset({1})
    )


def _part(row: PartRow | None, recorded: bool) -> tuple[str, ...]:
    if row is None:
        return "no result yet", *[""] * 5
    if recorded and row.exit_code in RECORDED:
        return "recorded", *[""] * 4, _seed(row)
    q = row.qps_per_node
    if row.exit_code or not q:
        return f"no result (exit {row.exit_code}): {row.reason}", *[""] * 4, _seed(row)
    result = f"valid (SIMULATED, {row.simulated})" if row.simulated else "valid"
    return result, *_figures(q), _limit(row.binding), _seed(row)


def _limit(binding: str | None) -> str:
    return label(binding) if binding else UNKNOWN


def _seed(row: PartRow) -> str:
    return UNKNOWN if row.seed is None else str(row.seed)


def _cells(study: StudyVerdict, links: Links) -> Table:
    rows, tones, axes = [], [], study.axes or ()
    for cell in study.cells or ():
        at = [value(cell.at.get(axis)) for axis in axes]
        rows.append((links.get(cell.name, cell.name), *at, *_answer(cell), *_ratio(cell.ratio)))
        tones.append("failed" if cell.exit_code else "")
    found = "QPS per node", "95 % interval", "certified", "limited by", "ratio to the reference", "how"
    heads = ("cell", *axes, *found)
    words = frozenset({len(axes) + 1, len(heads) - 1})
    return Table("Cells of the matrix (study.json)", heads, tuple(rows), tones=tuple(tones), words=words)


def _answer(cell: MatrixCell) -> tuple[str, ...]:
    q = cell.qps_per_node
    if q is None:
        why = "not measured yet" if cell.exit_code is None else f"exit {cell.exit_code}: {cell.reason}"
        return why, "", "", ""
    limit = _limit(cell.binding)
    kind = f" (SIMULATED, {cell.simulated})" if cell.simulated and not q.is_bound else ""
    shown, ends, claim = _figures(q)
    return shown, f"{ends}{kind}", claim, limit


def _ratio(ratio: CellRatio | None) -> tuple[str, str]:
    if ratio is None:
        return "", ""
    if ratio.how == matrix_table.REFERENCE:
        return "1", "the reference"
    how = f"{ratio.how}: {ratio.why}" if ratio.why else f"{ratio.how}, {ratio.pairs} pairs"
    return span(ratio.estimate), how


def together(study: StudyVerdict) -> Facts | None:
    """Spread between deployments, or variation of repeats; None if the study has neither."""
    rows = []
    if between := study.between:
        rows.append(("spread between deployments (sd)", _percent(between.sd_pct)))
        rows.append(("noise within one (sd)", f"{figure(between.within_sd_pct)} %"))
    if effects := study.effects_pct:
        rows += [(f"{name} against the mean", _percent(effect)) for name, effect in effects.items()]
    if study.variation_pct:
        rows.append(("coefficient of variation", _percent(study.variation_pct)))
    if study.remedy:
        rows.append(("to narrow the interval", study.remedy))
    return Facts(tuple(rows)) if rows else None


def differences(study: StudyVerdict) -> Table | None:
    """Keys that differ between A and B of a comparison; None for another study."""
    if not study.differs:
        return None
    rows = tuple((key, value(ours), value(theirs)) for key, (ours, theirs) in study.differs.items())
    return Table("What differs from A to B", ("key", "A", "B"), rows)


def _figures(q: Estimate) -> tuple[str, str, str]:
    """A capacity, its interval and its certified rate; of a bound the bound alone."""
    return (span(q), "", UNKNOWN) if q.is_bound else (middle(q), interval(q), certified(q))


def _percent(found: Estimate) -> str:
    return f"{span(found)} %"
