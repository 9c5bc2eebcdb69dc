"""Writes report.html once a run or study has ended; whatever goes wrong with that changes no result.

Knows when a report is due; what stands in it is for `analysis.report`.
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
    """The verdict of a run or study with the path of its `report`; as it is where none could be written.

    The verdict is on disk by now. Why there is no report is one line on stderr; so is a Ctrl-C meanwhile.
    """
    if not verdict.folder or _is_empty(verdict):
        return verdict
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


def _is_empty(verdict: RunVerdict | StudyVerdict) -> bool:
    """True where nothing was planned, as after a failed start: the answer says why."""
    return verdict.requests is not None and not verdict.requests.planned
