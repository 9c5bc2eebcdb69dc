"""Exit codes of every command, which stand in sweep.json and study.json too, and the ends that can go on."""

from analysis.results.types.prediction_verdict import PredictionVerdict
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.study_verdict import MatrixCell, StudyVerdict

EXIT_OK = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_SLO_MISSED = 3
EXIT_VOID = 4
EXIT_TARGET = 5
EXIT_OPEN = 6
EXIT_INTERRUPTED = 130

RESUMABLE = (EXIT_INTERNAL, EXIT_VOID, EXIT_TARGET, EXIT_INTERRUPTED)
"""Ends of a sweep after which `resume` may still reach a result."""


def resumable(verdict: RunVerdict | StudyVerdict | PredictionVerdict | MatrixCell) -> bool:
    """True of a sweep or a study that `resume` may still bring to a result; a veto is final."""
    if isinstance(verdict, PredictionVerdict):
        return False
    if isinstance(verdict, StudyVerdict) and verdict.is_matrix:
        return any(map(resumable, verdict.cells or ()))
    vetoed = verdict.hold is not None and verdict.hold.vetoed
    return verdict.exit_code in (None, *RESUMABLE) and not vetoed
