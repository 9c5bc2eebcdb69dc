"""Questions with exact answers: their file, the body of a request for one, and the text that came back."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.quality import questions as exact
from analysis.quality.task_answers import TaskAnswer
from conf import ConfigError, Experiment
from conf.io.http_get import AskError
from conf.specs.quality import Quality
from loadgen.quality.questions import ANSWER_BYTES, SERVER, UnusableAnswer, choice_of
from loadgen.quality.service import SALT_BYTES, AskedService

TEXT_BYTES = 1024
"""Longest text of a token in JSON (our choice): 128 spaces are one, and an escaped letter has six bytes."""


@dataclass(frozen=True, slots=True)
class Task:
    """A question with an exact answer, by its number in the file."""

    number: int
    question: exact.Question


@dataclass(frozen=True, slots=True)
class TaskService:
    """A service that is asked tasks; an answer may end before `output_tokens`. Any thread may ask."""

    service: AskedService
    output_tokens: int

    def ask(self, task: Task) -> TaskAnswer:
        """The answer to a task, or the reason why there is none, which counts as wrong."""
        question = task.question
        asked = body(self.service.model, question.prompt, self.output_tokens)
        most_bytes = ANSWER_BYTES + self.output_tokens * TEXT_BYTES
        try:
            text = text_of(self.service.post(task.number, asked, most_bytes))
        except (AskError, UnusableAnswer) as failed:
            return TaskAnswer(task.number, question.digest, None, False, str(failed))
        return TaskAnswer(task.number, question.digest, text, question.is_right(text))


def body(model: str, prompt: str, output_tokens: int) -> bytes:
    """The JSON body of a request for the likeliest text after a prompt; no other one's cache serves it."""
    asked = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "cache_salt": secrets.token_hex(SALT_BYTES),
    }
    return json.dumps(asked, separators=(",", ":")).encode()


def text_of(answer: bytes) -> str:
    """The text of the body of a whole (not streamed) answer. Raises UnusableAnswer."""
    text = choice_of(answer).get("text")
    if not isinstance(text, str):
        raise UnusableAnswer(f"the endpoint answered no text; {SERVER}")
    return text


def of(asked: Quality) -> list[Task]:
    """The tasks in the order of their file; none without a file. Raises ConfigError for a bad one."""
    if not asked.questions:
        return []
    try:
        return [Task(number, one) for number, one in enumerate(exact.read(asked.questions))]
    except ValueError as error:
        raise ConfigError(f"quality.questions: {error}") from error


def located(asked: Quality) -> Quality:
    """The same with the absolute path of its questions, for whoever resumes it elsewhere.

    Raises ConfigError for a bad file.
    """
    if not asked.questions:
        return asked
    found = replace(asked, questions=str(Path(asked.questions).expanduser().absolute()))
    of(found)
    return found


def asks(asked: Experiment, verb: str) -> bool:
    """True of a run that asks the questions of its file."""
    gated = verb == "quality" or (asked.quality.gate and verb in ("sweep", "compare"))
    return bool(asked.quality.questions) and gated


def words(found: Sequence[TaskAnswer]) -> str:
    """The number of tasks that were right or failed, for the log."""
    failed = sum(one.error is not None for one in found)
    right = sum(one.right for one in found)
    return f"{len(found)} questions with answers, {right} right, {failed} failed"
