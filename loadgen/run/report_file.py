"""Writes report.html once a run or study has ended; whatever goes wrong with that changes no result.

What stands in it is for `analysis.report`.
"""

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from analysis import report
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.study_verdict import StudyVerdict
from conf.io import terminal
from conf.io.one_line import reason
from loadgen.run.progress import Emit

Reported = TypeVar("Reported", bound=RunVerdict | StudyVerdict)


def written(verdict: Reported, show: Emit) -> Reported:
    """The verdict with the path of its `report`, or as it is and a line on stderr if there is none."""
    if not verdict.folder or (verdict.requests is not None and not verdict.requests.planned):
        return verdict  # nothing was planned, as after a failed start: the answer says why
    folder = Path(verdict.folder)
    try:
        show("report", text="writing the report")
        return replace(verdict, report=str(report.write(folder)))
    except KeyboardInterrupt:
        why = "interrupted"
    except Exception as error:  # noqa: BLE001  what was measured must not be lost with its picture
        why = f"{type(error).__name__}: {reason(error)}"
    terminal.note(f"no report was written ({why}); python -m analysis report {folder} tries again")
    return verdict
