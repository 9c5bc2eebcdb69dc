"""Writes report.html once a run or study has ended; whatever goes wrong with that changes no result.

What stands in it is for `analysis.report`.
"""

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from analysis import report
from analysis.results.locations import REPORT
from analysis.results.verdicts import RunVerdict, StudyVerdict
from conf.io import terminal
from conf.io.one_line import reason

Reported = TypeVar("Reported", bound=RunVerdict | StudyVerdict)


def announced(verdict: Reported) -> Reported:
    """The verdict with the path of the `report` that `write` writes, if there is something to report."""
    if not verdict.folder or (verdict.requests is not None and not verdict.requests.planned):
        return verdict  # nothing was planned, as after a failed start: the answer says why
    return replace(verdict, report=str(Path(verdict.folder) / REPORT))


def write(verdict: RunVerdict | StudyVerdict) -> None:
    """Write the announced report; a line on stderr if that fails."""
    if not verdict.report:
        return
    folder = Path(verdict.folder)
    try:
        report.write(folder)
        return
    except KeyboardInterrupt:
        why = "interrupted"
    except Exception as error:  # noqa: BLE001  what was measured must not be lost with its picture
        why = f"{type(error).__name__}: {reason(error)}"
    terminal.note(f"no report was written ({why}); python -m analysis report {folder} tries again")
