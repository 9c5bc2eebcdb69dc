"""Asks one side of the quality gate its questions beside a load, and writes its answers into the run folder.

When and why a side is asked is for `quality_study`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from analysis.quality import answer_file
from analysis.quality.answer_file import AnswerRecord
from conf import Experiment
from conf.io.http_get import AskError
from loadgen.drive.driver import Driver
from loadgen.quality import pace, prompts
from loadgen.quality.asking import Asking
from loadgen.quality.pace import Pace
from loadgen.quality.questions import UnusableAnswer
from loadgen.quality.service import AskedPrompt, AskedService
from loadgen.run.endpoint import TargetError
from loadgen.run.progress import Emit
from loadgen.run.service import Service
from loadgen.studies.shared_service import Deploy
from loadgen.traffic.schedule import NS

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")

PIECE_S = 5.0
"""Load is offered in pieces so long: the last one ends so much later than the last answer, at most."""
FIRST_PIECE = 3000
"""Number of the first piece of load beside questions: the warm-up's are smaller."""
CHUNK = 64
"""Second answers to a prompt come so many prompts after the first ones, in other batches (our choice)."""
SAY_S = 10.0
LEAST_MASS = 0.3
"""Least mean probability of all alternatives of a position (our choice): with 3 %, of random weights, weights
off by a tenth change 404 of 432 answers at a divergence of 3e-6 nats (vLLM 0.32.0, measured)."""


class ServiceInUse:
    """Remembers the service that is up, so that a run can ask it questions of its own."""

    def __init__(self, deploy: Deploy) -> None:
        self._deploy = deploy
        self.up: Service | None = None

    @contextmanager
    def service(self, experiment: Experiment, emit: Emit) -> Iterator[Service]:
        """The service for one run; a `Site` can use this function as its own."""
        with self._deploy(experiment, emit) as self.up:
            yield self.up


def candidate_questions(experiment: Experiment) -> list[AskedPrompt]:
    """Every prompt of an experiment."""
    return [AskedPrompt(number, 0, prompt) for number, prompt in enumerate(prompts.gate_prompts(experiment))]


def base_questions(experiment: Experiment) -> list[AskedPrompt]:
    """Every prompt twice, the second time a chunk of prompts later."""
    questions, every = [], prompts.gate_prompts(experiment)
    for begin in range(0, len(every), CHUNK):
        chunk = list(enumerate(every))[begin : begin + CHUNK]
        questions += [AskedPrompt(number, repeat, prompt) for repeat in (0, 1) for number, prompt in chunk]
    return questions


def ask(
    experiment: Experiment,
    driver: Driver,
    service: Service,
    path: Path,
    questions: Sequence[AskedPrompt],
    enough: Callable[[AnswerRecord], bool],
    base: AnswerRecord | None = None,
) -> str:
    """Ask questions beside the load of `quality.load` until `enough`; returns the evidence in words.

    The answers are written to the run folder `path` whatever ends the asking. Raises TargetError for a
    service whose answers cannot be compared, also not with that of the `base` to the first question, before
    it is loaded.
    """
    asked, paced = asked_service(service, experiment), pace.gate_pace(experiment)
    answers: list[AnswerRecord] = []
    _refuse_unfit(asked, questions[0], base)

    def answered(_: AskedPrompt, one: AnswerRecord) -> bool:
        answers.append(one)
        return enough(one)

    began_s = time.monotonic()
    try:
        beside_load(driver, paced, questions, asked.ask, answered)
    finally:
        answer_file.write(answers, path / answer_file.FILE)
    failed, took_s = sum(one.answer is None for one in answers), time.monotonic() - began_s
    return f"{len(answers)} answers, {failed} of them failed, in {took_s:.0f} s; questions {paced.words}"


def asked_service(service: Service, experiment: Experiment) -> AskedService:
    """The service as one that is asked questions."""
    tokens, model = experiment.quality.answer_tokens, experiment.model.served_name
    return AskedService(service.urls, service.access, model, tokens, experiment.request_timeout_s)


def _refuse_unfit(service: AskedService, question: AskedPrompt, base: AnswerRecord | None) -> None:
    """Raise TargetError for a service whose answers cannot be compared."""
    try:
        answer, text = service.answer(question)
    except (AskError, UnusableAnswer) as error:
        raise TargetError(f"{service.urls[0]}: {error}") from error
    if answer.listed_mass < LEAST_MASS:
        raise TargetError(
            f"{service.urls[0]}: the alternatives hold only {answer.listed_mass:.0%} of the probability, so "
            "that no divergence would be seen; the gate needs a trained model and its raw_logprobs"
        )
    if base and base.answer and base.answer.tokens == answer.tokens and (base.text or text) != text:
        raise TargetError(
            f"{service.urls[0]}: writes the same tokens as another text: the two sides have other "
            "tokenizers, and token ids mean other words; compare configurations of one model"
        )


def beside_load(
    driver: Driver,
    paced: Pace,
    questions: Iterable[Asked],
    ask: Callable[[Asked], Answered],
    answered: Callable[[Asked, Answered], bool],
) -> None:
    """Ask questions at the pace, as `Asking` does, and offer the load beside them, if there is one."""
    count = 0

    def counted(question: Asked, answer: Answered) -> bool:
        nonlocal count
        count += 1
        return answered(question, answer)

    with Asking(questions, paced, ask, counted) as asking:
        _load(driver, paced, asking.is_over, lambda: count)


def _load(driver: Driver, paced: Pace, is_over: Callable[[], bool], count: Callable[[], int]) -> None:
    """Offer the load until the asking is over."""
    piece, said_s = FIRST_PIECE, time.monotonic()
    while not is_over():
        if paced.load_qps:
            driver.offer_piece(0, piece, paced.load_qps, PIECE_S)
            piece += 1
        else:
            driver.feed.wait_until(driver.feed.target.now_ns() + NS // 2)
        if time.monotonic() > said_s + SAY_S:
            said_s = time.monotonic()
            driver.emit("quality", text=f"{count()} answers")
    driver.feed.target.retract()
