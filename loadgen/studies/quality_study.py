"""The quality gate: A answers every prompt twice, then B until the verdict is clear.

`analysis.quality` holds the statistics.
"""

from dataclasses import replace
from pathlib import Path

from analysis.quality import answer_file
from analysis.quality.answer_file import AnswerRecord
from analysis.quality.gate import Gate, GateRule
from analysis.results import studies
from analysis.results.studies import Parts
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.study_verdict import StudyVerdict
from conf import Experiment, load
from conf.compose import dump
from loadgen.drive.driver import Driver
from loadgen.drive.prepared_load import warm_up
from loadgen.quality import pace
from loadgen.run import verdicts
from loadgen.run.folder import Folder
from loadgen.run.jobs import Job
from loadgen.studies import gate_questions
from loadgen.studies.gate_evidence import (
    KIND,
    by_prompt,
    evidence_on,
    judged_study,
    with_gate_verdict,
)
from loadgen.studies.gate_questions import ServiceInUse
from loadgen.studies.study import Study

SIDES = ("a", "b")


class AskSide(Job):
    """The job of one side: ask its questions in its run folder `path`; `base` is that of the side A.

    `seed` decides the prompts of both sides.
    """

    verb = KIND

    def __init__(
        self, experiment: Experiment, path: Path, base: Path, seed: int, in_use: ServiceInUse
    ) -> None:
        super().__init__(experiment)
        self._path, self._base, self._seed, self._in_use = path, base, seed, in_use

    def load(self, driver: Driver) -> None:
        """Only ask: the deployment has warmed the service up, and nothing is timed."""
        driver.replan(warmup_requests=0)
        warm_up(driver)
        experiment, up = replace(self.experiment, seed=self._seed), self._in_use.up
        assert up is not None
        if self._path == self._base:
            questions = gate_questions.base_questions(experiment)
            self._said = gate_questions.ask(experiment, driver, up, self._path, questions, lambda _: False)
            return
        ours = by_prompt(answer_file.read(self._base / answer_file.FILE))
        begun = Gate(GateRule.of(experiment.quality))

        def enough(one: AnswerRecord) -> bool:
            if not begun.ended:
                begun.add(evidence_on(one, ours))
            return begun.ended

        questions, first = gate_questions.candidate_questions(experiment), ours.get((0, 0))
        self._said = gate_questions.ask(experiment, driver, up, self._path, questions, enough, first)

    def verdict(self, driver: Driver) -> RunVerdict:
        return verdicts.answers_verdict(self.experiment, driver, self._said)


class QualityStudy(Study):
    """Both sides of the gate in the folder `path`; a side that was cut short is asked again."""

    kind = verb = KIND
    anew = True

    def __init__(self, a: Experiment, b: Experiment, path: Path, in_use: ServiceInUse) -> None:
        super().__init__(a, SIDES)
        self._sides = {"a": a, "b": b}
        self._path, self._in_use = path, in_use

    def part(self, name: str, done: Parts) -> Experiment:
        return replace(self._sides[name], run=name)

    def job(self, name: str, experiment: Experiment) -> Job:
        return AskSide(experiment, self._path / name, self._path / "a", self.experiment.seed, self._in_use)

    def conclude(self, verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
        """The verdict from the answers of both folders, its evidence written beside them."""
        gate_verdict = judged_study(self._path, self.experiment.quality)
        evidence = f"{gate_verdict.prompts} prompts; questions {pace.gate_pace(self.experiment).words}"
        return with_gate_verdict(
            replace(verdict, evidence=evidence), gate_verdict, self._sides["a"], self._sides["b"]
        )


def new_study(folder: Folder, a: Experiment, b: Experiment, in_use: ServiceInUse) -> QualityStudy:
    """The study in its new folder, which stores B's configuration too."""
    folder.write_text(studies.OTHER, dump(b))
    return QualityStudy(a, b, folder.path, in_use)


def saved_study(path: Path, a: Experiment, in_use: ServiceInUse) -> QualityStudy:
    """The study of an existing folder."""
    return QualityStudy(a, load(base=path / studies.OTHER), path, in_use)
