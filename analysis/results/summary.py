"""Exit codes, the word of a verdict, and what its engine's figures mean."""

from collections import Counter

import pyarrow as pa

from analysis.results.predictions import PredictionVerdict
from analysis.results.verdicts import MatrixCell, StudyVerdict, Verdict

EXIT_OK = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_SLO_MISSED = 3
EXIT_VOID = 4
EXIT_TARGET = 5
EXIT_OPEN = 6
EXIT_DEGRADED = 7
EXIT_INTERRUPTED = 130

RESUMABLE = (EXIT_INTERNAL, EXIT_VOID, EXIT_TARGET, EXIT_INTERRUPTED)
"""Ends of a sweep after which `resume` may still reach a result."""

FAILED_WORDS = {EXIT_INTERRUPTED: "INTERRUPTED", EXIT_TARGET: "NO RESULT", EXIT_INTERNAL: "FAILED"}
SIMULATED = "a simulated engine: how far its step times may be off, and what they rest on, `predict` says"
EMULATED = (
    "emulated: vLLM {} itself on GPUs that do not exist; step times are the simulated engine's "
    "(constants {}); how far they may be off, and what they rest on, `predict` says"
)
ON_CPU = "a functional test: a tiny model on a CPU, which says nothing about a GPU"


def resumable(verdict: Verdict | MatrixCell) -> bool:
    """True of a sweep or a study that `resume` may still bring to a result; a veto is final."""
    if isinstance(verdict, PredictionVerdict):
        return False
    if isinstance(verdict, StudyVerdict) and verdict.is_matrix:
        return any(map(resumable, verdict.cells or ()))
    vetoed = verdict.hold is not None and verdict.hold.vetoed
    return verdict.exit_code in (None, *RESUMABLE) and not vetoed


def status_counts(rows: pa.Table) -> Counter[str]:
    """Request rows by status; retracted ones, which the search took back before their due time, apart."""
    states = zip(rows["status"].to_pylist(), rows["phase"].to_pylist(), strict=True)
    return Counter("retracted" if phase == "retracted" else status for status, phase in states)


def word(verdict: Verdict | None) -> str:
    """The one word above everything else; None is a run that did not end."""
    if verdict is None or verdict.exit_code is None:
        return "UNFINISHED"
    if isinstance(verdict, StudyVerdict) and verdict.quality:
        return verdict.quality.verdict
    if isinstance(verdict, StudyVerdict) and verdict.is_matrix and verdict.valid:
        return "VALID"  # what one cell lacks, others have
    if verdict.exit_code in FAILED_WORDS:
        return FAILED_WORDS[verdict.exit_code]
    good = "PREDICTED" if verdict.clock == "virtual" else "VALID"
    return good if verdict.valid else "VOID"


def engine_label(verdict: Verdict) -> str:
    """The meaning of an engine's figures, where it is not the real one on real hardware."""
    experiment = verdict.experiment
    if experiment.engine == "vllm_emulated":
        return EMULATED.format(experiment.vllm_version or "of unknown version", experiment.constants)
    if experiment.engine == "vllm_cpu":
        return ON_CPU
    predicted = isinstance(verdict, PredictionVerdict) and (verdict.forecast or verdict.replay)
    if experiment.engine != "simulated" or predicted:
        return ""
    if isinstance(verdict, StudyVerdict):
        return SIMULATED + ("; the interval of the ratio is sampling noise alone" if verdict.ratio else "")
    return SIMULATED + (
        "" if verdict.capacity or not verdict.valid else "; the intervals are this run's sampling noise alone"
    )
