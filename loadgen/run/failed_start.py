"""The folder of a start that failed: nothing was measured, so it is removed and its name is free again."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from analysis.results import studies, summary
from analysis.results.locations import SUMS
from analysis.results.verdicts import RunVerdict, StudyVerdict

Started = TypeVar("Started", bound=RunVerdict | StudyVerdict)
WITHOUT_EVIDENCE = {
    "config.yaml",
    "events.jsonl",
    "manifest.json",
    "sweep.json",
    studies.OTHER,
    studies.FILE,
    SUMS,
}
"""Files of every folder, which repeat the command and the answer on the screen."""


def removed(verdict: Started) -> Started:
    """The verdict without its folder if its start failed; any other verdict as it is.

    A folder that holds more, as the last words of engines or a prediction, stays.
    """
    if verdict.exit_code != summary.EXIT_TARGET or not verdict.folder:
        return verdict
    folder = Path(verdict.folder)
    files = {file.name for file in folder.rglob("*") if not file.is_dir()}
    if not files <= WITHOUT_EVIDENCE:
        return verdict
    shutil.rmtree(folder, ignore_errors=True)
    return replace(verdict, folder="")
