"""A measured grid: its cells as study.json holds them, and the same as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.results import grid_table, joint
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.study_verdict import MATRIX, CellRatio, MatrixCell, StudyVerdict
from analysis.stats.estimate import certified, interval, middle, span
from conf.specs.bounds import short

KIND = MATRIX
REFERENCE, PAIRED, UNPAIRED = "reference", "paired", "unpaired"
"""The origin of a ratio: 1 by definition, common arrivals, or two independent capacities."""
COLUMNS = (("QPS/node", 10), ("95 % interval", 17), ("certified", 11), ("limit", 7), ("ratio", 23), ("", 10))


def row(
    name: str, at: Mapping[str, Any], refused: str, verdict: RunVerdict | StudyVerdict | None
) -> MatrixCell:
    """A cell before its ratio is known; `refused` says why it makes no experiment.

    `exit_code` is None of a cell that is still to come.
    """
    if refused:
        return MatrixCell(name=name, at=dict(at), exit_code=2, reason=refused)
    if verdict is None:
        return MatrixCell(name=name, at=dict(at), exit_code=None)
    capacity = verdict.capacity if verdict.valid else None
    return MatrixCell(
        name=name,
        at=dict(at),
        exit_code=verdict.exit_code,
        reason=verdict.reason,
        hold=verdict.hold,
        qps_per_node=capacity.claimed if capacity else None,
        binding=capacity.binding if capacity else None,
        simulated=joint.kind(verdict.asked, capacity) if capacity else "",
        sampling_qps=capacity.sampling if capacity and capacity.constants else None,
    )


def lead(study: StudyVerdict) -> str:
    """The words before the verdict on a grid with simulated cells."""
    return joint.LEAD if any(cell.simulated for cell in study.cells or ()) else ""


def headline(study: StudyVerdict) -> str:
    """The number of cells that have an answer."""
    cells = study.cells or ()
    return f"{sum(cell.exit_code == 0 for cell in cells)} of {len(cells)} cells have a capacity"


def lines(study: StudyVerdict) -> list[str]:
    """The table, and below it the grounds of its ratios."""
    cells = study.cells or ()
    shown = grid_table.lines(
        ["cell", *(study.axes or ())],
        [({"cell": cell.name, **cell.at}, _told(cell), _why(cell)) for cell in cells],
        COLUMNS,
    )
    return [f"  {line}" for line in [*shown, *_notes(cells)]]


def _notes(cells: Sequence[MatrixCell]) -> list[str]:
    by_how: dict[str, list[tuple[str, CellRatio]]] = {}
    for cell in cells:
        if cell.ratio:
            by_how.setdefault(cell.ratio.how, []).append((cell.name, cell.ratio))
    notes = _simulated(cells)
    if REFERENCE in by_how and len(by_how) > 1:
        first, _ = by_how[REFERENCE][0]
        notes.append(f"ratio: capacity over that of {first}, each with a 95 % interval of its own")
        notes.append("each service was deployed once: how far deployments differ is in no interval")
    if PAIRED in by_how:
        notes.append("paired: got the same arrivals and lengths, scaled in time (common random numbers)")
    reasons: dict[str, list[str]] = {}
    for name, ratio in by_how.get(UNPAIRED, ()):
        reasons.setdefault(ratio.why, []).append(name)
    return notes + [f"unpaired, {', '.join(names)}: {why}" for why, names in reasons.items()]


def _simulated(cells: Sequence[MatrixCell]) -> list[str]:
    """The kind of every simulated interval and certified value; a ratio holds no constants."""
    by_kind: dict[str, list[str]] = {}
    for cell in cells:
        if cell.simulated:
            by_kind.setdefault(cell.simulated, []).append(cell.name)
    kinds = [f"SIMULATED, {kind}: interval and certified of {', '.join(by_kind[kind])}" for kind in by_kind]
    return [*kinds, "the interval of a ratio is sampling noise alone"] if kinds else []


def _told(cell: MatrixCell) -> list[str] | None:
    q, ratio = cell.qps_per_node, cell.ratio
    if q is None:
        return None
    limit = short(cell.binding) if cell.binding else ""
    if q.is_bound:
        return [span(q), "", "", limit, "", ""]
    figures = [middle(q), interval(q), certified(q), limit]
    if ratio is None:
        return [*figures, "", ""]
    if ratio.how == REFERENCE:
        return [*figures, "1", ""]
    return [*figures, span(ratio.estimate), ratio.how]


def _why(cell: MatrixCell) -> str:
    if cell.exit_code is None:
        return "not measured yet"
    return f"{'refused' if cell.exit_code == 2 else 'no result'} (exit {cell.exit_code}): {cell.reason}"
