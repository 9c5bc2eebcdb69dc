"""Answers of two run folders side by side: the gate's evidence, its verdict, and the study's words for it."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from analysis.quality import answer_file, evidence_table, gate
from analysis.quality.answer_file import AnswerRecord
from analysis.quality.answers import Answer, PromptEvidence, Side, evidence
from analysis.quality.gate import Called, Gate, GateVerdict
from analysis.results import studies
from analysis.results.asked import describe
from analysis.results.runs import load_run
from analysis.results.studies import Parts
from analysis.results.summary import EXIT_DEGRADED, EXIT_OK, EXIT_OPEN
from analysis.results.verdicts import RunVerdict, StudyVerdict
from conf import Experiment, load
from conf.compose import dump
from conf.io.http_get import AskError
from conf.keys import differences
from conf.specs.search import Quality
from loadgen.drive.driver import Driver
from loadgen.drive.prepared_load import warm_up
from loadgen.quality import asking
from loadgen.quality.asking import AskedPrompt, AskedService, Asking, Pace
from loadgen.quality.questions import UnusableAnswer
from loadgen.run import verdicts
from loadgen.run.endpoint import TargetError
from loadgen.run.jobs import Job, Service
from loadgen.run.progress import Emit
from loadgen.run.run_folder import Folder
from loadgen.studies.shared_service import Deploy
from loadgen.studies.study import Study
from loadgen.traffic.schedule import NS

KIND = "quality"
CODES: dict[Called, int] = {"SAME": EXIT_OK, "DEGRADED": EXIT_DEGRADED, "UNDECIDED": EXIT_OPEN}


def verdict_on_folders(a: Path, b: Path) -> StudyVerdict:
    """The verdict on answers on record, by the margins of A's configuration; nothing is written.

    Raises OSError, ArrowException or ValueError as `folder_evidence` does, and RunError for a folder without
    a run.
    """
    runs = load_run(a), load_run(b)
    gate_verdict = gate.judge(folder_evidence(a, b), runs[0].config.quality)
    return with_gate_verdict(
        StudyVerdict(
            study=KIND,
            verb=KIND,
            asked=describe(runs[0].config),
            names=(str(a), str(b)),
            parts=(),
            exit_code=None,
            valid=True,
            evidence=f"answers on record in {a} and {b}",
        ),
        gate_verdict,
        runs[0].config,
        runs[1].config,
    )


def with_gate_verdict(
    verdict: StudyVerdict, gate_verdict: GateVerdict, a: Experiment, b: Experiment
) -> StudyVerdict:
    """The study's verdict with that of the gate, its exit code and its reason."""
    return replace(
        verdict,
        quality=gate_verdict,
        differs={key: tuple(values) for key, values in differences(a, b).items()},
        passed=gate_verdict.verdict == "SAME",
        exit_code=CODES[gate_verdict.verdict],
        reason="" if gate_verdict.verdict == "SAME" else "; ".join(gate_verdict.why),
    )


def judged_study(path: Path, quality: Quality) -> GateVerdict:
    """The verdict on both parts of the study in `path`, its evidence written there.

    Raises as `folder_evidence` does.
    """
    evidence = folder_evidence(path / "a", path / "b")
    evidence_table.write(evidence, path / evidence_table.FILE)
    return gate.judge(evidence, quality)


def folder_evidence(base: Path, candidate: Path) -> list[PromptEvidence]:
    """The evidence in two folders with answers.

    Raises OSError, ArrowException or ValueError for folders without comparable answers.
    """
    return evidence_of(*(answer_file.read(path / answer_file.FILE) for path in (base, candidate)))


def evidence_of(a: Sequence[AnswerRecord], b: Sequence[AnswerRecord]) -> list[PromptEvidence]:
    """The evidence of every prompt that B was asked. Raises ValueError if A was asked others."""
    ours = by_prompt(a)
    return [evidence_on(one, ours) for one in b if one.repeat == 0]


def evidence_on(of_b: AnswerRecord, of_a: Mapping[tuple[int, int], AnswerRecord]) -> PromptEvidence:
    base, again = (of_a.get((of_b.prompt, repeat)) for repeat in (0, 1))
    if base is None or again is None or base.digest != of_b.digest:
        raise ValueError(f"A was not asked prompt {of_b.prompt} of B")
    answers: dict[Side, Answer | None] = {
        "base": base.answer,
        "again": again.answer,
        "candidate": of_b.answer,
    }
    return evidence(of_b.prompt, {side: answer for side, answer in answers.items() if answer})


def by_prompt(answers: Sequence[AnswerRecord]) -> dict[tuple[int, int], AnswerRecord]:
    return {(one.prompt, one.repeat): one for one in answers}


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
    return [AskedPrompt(number, 0, prompt) for number, prompt in enumerate(asking.gate_prompts(experiment))]


def base_questions(experiment: Experiment) -> list[AskedPrompt]:
    """Every prompt twice, the second time a chunk of prompts later."""
    questions, every = [], asking.gate_prompts(experiment)
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
    asked, paced = asked_service(service, experiment), asking.gate_pace(experiment)
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
            questions = base_questions(experiment)
            self._said = ask(experiment, driver, up, self._path, questions, lambda _: False)
            return
        ours = by_prompt(answer_file.read(self._base / answer_file.FILE))
        begun = Gate(experiment.quality)

        def enough(one: AnswerRecord) -> bool:
            if not begun.ended:
                begun.add(evidence_on(one, ours))
            return begun.ended

        questions, first = candidate_questions(experiment), ours.get((0, 0))
        self._said = ask(experiment, driver, up, self._path, questions, enough, first)

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
        evidence = f"{gate_verdict.prompts} prompts; questions {asking.gate_pace(self.experiment).words}"
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
