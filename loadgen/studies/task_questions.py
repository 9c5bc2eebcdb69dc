"""Asks one side of the quality gate its questions with exact answers, and writes what it answers.

`gate_questions` asks beside the load.
"""

from collections.abc import Iterable
from pathlib import Path

from analysis.quality import task_answers
from analysis.quality.task_answers import TaskAnswer
from analysis.results.integrity import sha256_of
from analysis.results.locations import MANIFEST, read_json
from conf import ConfigError, Experiment
from conf.specs.quality import Quality
from loadgen.drive.driver import Driver
from loadgen.quality import pace, tasks
from loadgen.quality.tasks import Task, TaskService
from loadgen.run.lifecycle import QUESTIONS
from loadgen.run.service import Service
from loadgen.studies import gate_questions

FIRST_PIECE = 1_000_000
"""Pieces of load beside these questions have numbers beyond those beside the gate's own."""


def ask(experiment: Experiment, driver: Driver, service: Service, path: Path) -> str:
    """Ask each question of `quality.questions` once; returns the evidence in words, empty without a file.

    The answers are written to the run folder `path` whatever ends the asking.
    """
    asked, answers = tasks.of(experiment.quality), list[TaskAnswer]()
    if not asked:
        return ""
    one = TaskService(gate_questions.asked_service(service, experiment), experiment.quality.question_tokens)

    def answered(_: Task, found: TaskAnswer) -> bool:
        answers.append(found)
        return False

    try:
        paced = pace.of(experiment)
        gate_questions.beside_load(driver, paced, asked, one.ask, answered, FIRST_PIECE)
    finally:
        task_answers.write(answers, path / task_answers.FILE)
    return f"; {tasks.words(answers)}"


def refuse_changed(asked: Quality, parts: Iterable[Path]) -> None:
    """Raise ConfigError if a part of a study that goes on was asked the questions of another file."""
    if not asked.questions:
        return
    now = sha256_of(Path(asked.questions))
    for part in parts:
        known = read_json(part / MANIFEST).get(QUESTIONS) if (part / MANIFEST).exists() else None
        if known not in (None, now):
            raise ConfigError(
                f"{asked.questions} is not what it was when {part} began; put the old file back"
            )
