"""A study's folder, opened: its verdict so far, and the runs among its parts."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.results import locations, studies
from analysis.results.runs import Run, load_run
from analysis.results.types.study_verdict import StudyVerdict

if TYPE_CHECKING:
    from analysis.views.shown import Answer


@dataclass(frozen=True, slots=True, repr=False)
class Study:
    """A study's folder: its verdict so far, the names of parts that have `begun`, and the runs among them."""

    path: Path
    verdict: StudyVerdict
    begun: tuple[str, ...]
    parts: tuple[Run, ...]

    def __repr__(self) -> str:
        answer = self.answer()
        return f"<Study {self.path}: {answer.word}  {answer.headline}>"

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    def answer(self) -> "Answer":
        """The verdict as `python -m analysis show` prints it; Jupyter shows it as HTML."""
        from analysis.views import answers  # shows what this file opens

        return answers.answer(self.verdict)


def load_study(path: Path | str) -> Study:
    """Open a study's folder: a local one, or a URI. Raises RunError if it cannot be read."""
    folder = locations.local(path)
    verdict = studies.load_verdict(folder)
    runs = [name for name in verdict.names if (folder / name / locations.MANIFEST).exists()]
    begun = [name for name in verdict.names if name in runs or studies.is_study(folder / name)]
    return Study(folder, verdict, tuple(begun), tuple(load_run(folder / name) for name in runs))
