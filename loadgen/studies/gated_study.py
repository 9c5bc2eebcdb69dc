"""A comparison or a matrix whose sweeps are followed by the quality gate: the base first, then candidates.

`quality_study` asks and judges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from analysis.quality import answer_file
from analysis.quality.gate_verdict import GateVerdict
from analysis.results.studies import Parts
from analysis.results.summary import EXIT_OK, EXIT_OPEN
from analysis.results.types.study_verdict import StudyVerdict
from loadgen.run.measure import Act
from loadgen.studies.gate_evidence import CODES, judged
from loadgen.studies.gate_questions import ServiceInUse
from loadgen.studies.quality_study import GateSide
from loadgen.studies.study import StudyPlan


def gated(study: StudyPlan, path: Path, in_use: ServiceInUse) -> StudyPlan:
    """The study in the folder `path` with a gate: its first part is the base, every other a candidate."""
    first, *others = study.names
    base, asked = path / first, study.asked

    def act(name: str) -> Act:
        return GateSide(path / name, base, asked.seed, in_use).after(study.act(name))

    def shown(verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
        ended = [name for name in others if name in parts and (path / name / answer_file.FILE).exists()]
        found = {name: judged(path, first, name, asked.quality) for name in ended}
        return with_gates(study.shown(verdict, parts), found)

    def conclude(verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
        unasked = [name for name in others if not (path / name / answer_file.FILE).exists()]
        return with_worst_code(study.conclude(verdict, parts), unasked)

    return replace(study, act=act, shown=shown, conclude=conclude)


def with_gates(verdict: StudyVerdict, found: Mapping[str, GateVerdict]) -> StudyVerdict:
    """The verdict of a comparison with that of its gate, or of a matrix with one for each candidate."""
    if not verdict.is_matrix:
        return replace(verdict, quality=next(iter(found.values()), None))
    cells = tuple(replace(cell, quality=found.get(cell.name)) for cell in verdict.cells or ())
    return replace(verdict, cells=cells)


def with_worst_code(verdict: StudyVerdict, unasked: Sequence[str] = ()) -> StudyVerdict:
    """The verdict with the exit code of its worst gate, if that is higher than its own.

    A candidate whose answers were not compared, one of `unasked`, is as open as one that stays undecided.
    """
    cells = [cell.quality for cell in verdict.cells or () if cell.quality]
    gates = [verdict.quality] if verdict.quality else cells
    worst = max([CODES[one.verdict] for one in gates] + [EXIT_OPEN] * bool(unasked), default=EXIT_OK)
    if worst <= (verdict.exit_code or EXIT_OK):
        return verdict
    why = [line for one in gates if CODES[one.verdict] == worst for line in one.why]
    if unasked and worst == EXIT_OPEN:
        why.append(f"the answers of {', '.join(unasked)} were not compared (events.jsonl of each says why)")
    return replace(verdict, passed=False, exit_code=worst, reason=verdict.reason or "; ".join(why))
