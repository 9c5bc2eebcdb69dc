"""The text of `python -m analysis show` for a run or a study; knows folders, judges nothing itself."""

from pathlib import Path

from analysis.results import recount, studies, summary
from analysis.results.runs import RunError, load_run


def concluded(path: Path) -> str:
    """The summary of a run or a study; of a run that did not end, what can be read."""
    if studies.is_study(path):
        return summary.text(studies.load_verdict(path))
    run = load_run(path)
    return summary.text(run.verdict, studies.whole(path)) if run.verdict else summary.unfinished(run)


def recomputed(path: Path) -> tuple[str, bool]:
    """The verdict of a run beside what its Parquet files give, and whether the two agree."""
    if studies.is_study(path):
        raise RunError(f"{path} is a study: recompute one of its parts, {path}/NAME")
    lines, agrees = recount.text(load_run(path))
    return f"{'SAME' if agrees else 'DIFFERENT'}  {path} recomputed from its Parquet files\n{lines}", agrees
