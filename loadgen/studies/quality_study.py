"""The quality gate: A answers every prompt twice, then B until the verdict is clear.

`analysis.quality` holds the statistics.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from analysis.quality import answer_file
from analysis.quality.answer_file import AnswerRecord
from analysis.quality.gate import Gate, GateRule
from analysis.results import studies
from analysis.results.studies import Parts
from analysis.results.types.study_verdict import StudyVerdict
from conf import Experiment, load
from conf.compose import dump
from loadgen.drive.driver import Driver
from loadgen.drive.prepared_load import warm_up
from loadgen.quality import pace
from loadgen.run import verdicts
from loadgen.run.folder import Folder
from loadgen.run.lifecycle import Conclude
from loadgen.run.measure import Act
from loadgen.studies import gate_questions
from loadgen.studies.gate_evidence import (
    KIND,
    by_prompt,
    evidence_on,
    judged,
    told,
)
from loadgen.studies.gate_questions import ServiceInUse
from loadgen.studies.study import Study

SIDES = ("a", "b")


@dataclass(frozen=True, slots=True)
class GateSide:
    """One side of a gate: its run folder, and that of the base, which is its own for the base.

    `seed` decides the prompts of all sides.
    """

    path: Path
    base: Path
    seed: int
    in_use: ServiceInUse

    def ask(self, asked: Experiment, driver: Driver) -> str:
        """Ask the questions of this side; returns the evidence in words."""
        assert self.in_use.up is not None
        up, asked = self.in_use.up, replace(asked, seed=self.seed)
        if self.path == self.base:
            return gate_questions.ask(
                asked, driver, up, self.path, gate_questions.twice(asked), lambda _: False
            )
        ours, begun = (
            by_prompt(answer_file.read(self.base / answer_file.FILE)),
            Gate(GateRule.of(asked.quality)),
        )

        def enough(one: AnswerRecord) -> bool:
            if not begun.ended:
                begun.add(evidence_on(one, ours))
            return begun.ended

        questions, first = gate_questions.once(asked), ours.get((0, 0))
        return gate_questions.ask(asked, driver, up, self.path, questions, enough, first)

    def alone(self, experiment: Experiment, driver: Driver) -> Conclude:
        """The act of a run that only asks: its deployment has warmed it up, and nothing is timed."""
        driver.replan(warmup_requests=0)
        warm_up(driver)
        said = self.ask(experiment, driver)
        return lambda: verdicts.of_answers(experiment, driver, said)


class QualityStudy(Study):
    """Both sides of the gate in the folder `path`; a side that was cut short is asked again."""

    kind = verb = part_verb = KIND
    anew = True

    def __init__(self, a: Experiment, b: Experiment, path: Path, in_use: ServiceInUse) -> None:
        super().__init__(a, SIDES)
        self._sides = {"a": a, "b": b}
        self._path, self._in_use = path, in_use

    def part(self, name: str, done: Parts) -> Experiment:
        return replace(self._sides[name], run=name)

    def act(self, name: str) -> Act:
        return GateSide(self._path / name, self._path / "a", self.experiment.seed, self._in_use).alone

    def conclude(self, verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
        """The verdict from the answers of both folders, its evidence written beside them."""
        found = judged(self._path, self.experiment.quality)
        evidence = f"{found.prompts} prompts; questions {pace.of(self.experiment).words}"
        return told(replace(verdict, evidence=evidence), found, self._sides["a"], self._sides["b"])


def new_study(folder: Folder, a: Experiment, b: Experiment, in_use: ServiceInUse) -> QualityStudy:
    """The study in its new folder, which stores B's configuration too."""
    folder.write_text(studies.OTHER, dump(b))
    return QualityStudy(a, b, folder.path, in_use)


def saved_study(path: Path, a: Experiment, in_use: ServiceInUse) -> QualityStudy:
    """The study of an existing folder."""
    return QualityStudy(a, load(base=path / studies.OTHER), path, in_use)
