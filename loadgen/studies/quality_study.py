"""The quality gate: A answers every prompt twice, then B until the verdict is clear, beside a load or alone.

`analysis.quality` holds the statistics.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyarrow import ArrowException

from analysis.quality import answer_file, gate
from analysis.quality.answer_file import AnswerRecord, by_prompt, evidence_on, folder_evidence
from analysis.quality.gate import Called, Gate, GateVerdict
from analysis.results.experiment_facts import describe
from analysis.results.runs import load_run
from analysis.results.studies import Parts
from analysis.results.summary import EXIT_DEGRADED, EXIT_OK, EXIT_OPEN
from analysis.results.verdicts import RunVerdict, StudyVerdict
from conf import ConfigError, Experiment
from conf.io.http_get import AskError
from conf.io.one_line import reason
from loadgen.drive.driver import Driver
from loadgen.drive.prepared_load import warm_up
from loadgen.run import verdicts
from loadgen.run.endpoint import TargetError
from loadgen.run.jobs import Job
from loadgen.studies.gate_questions import (
    AskedPrompt,
    AskedService,
    Pace,
    UnusableAnswer,
    asking,
    gate_pace,
    gate_prompts,
)
from loadgen.studies.study import TwoSides, differing
from loadgen.traffic.schedule import NS

KIND = "quality"
CODES: dict[Called, int] = {"SAME": EXIT_OK, "DEGRADED": EXIT_DEGRADED, "UNDECIDED": EXIT_OPEN}
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


class QualityStudy(TwoSides):
    """Both sides of the gate; a side that was cut short is asked again."""

    kind = verb = KIND
    anew = True

    def job(self, name: str, experiment: Experiment) -> Job:
        return AskSide(experiment, self.path / name)

    def conclude(self, verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
        """The verdict from the answers of both folders, its evidence written beside them."""
        evidence = folder_evidence(self.path / "a", self.path / "b")
        answer_file.write_evidence(evidence, self.path / answer_file.EVIDENCE_FILE)
        gate_verdict = gate.judge(evidence, self.experiment.quality)
        pace = f"{gate_verdict.prompts} prompts; questions {gate_pace(self.experiment).words}"
        return _with_gate(replace(verdict, evidence=pace), gate_verdict, self.experiment, self.other)


class AskSide(Job):
    """The job of one side: ask its questions in its run folder `path`, beside the load of `quality.load`."""

    verb = KIND

    def __init__(self, experiment: Experiment, path: Path) -> None:
        super().__init__(experiment)
        self._path, self._base = path, path.with_name("a")

    def load(self, driver: Driver) -> None:
        """Only ask: the deployment has warmed the service up, and nothing is timed.

        The answers are written whatever ends the asking. Raises TargetError for a service whose answers
        cannot be compared, also not with A's to the first question, before it is loaded.
        """
        driver.replan(warmup_requests=0)
        warm_up(driver)
        experiment, service, is_base = self.experiment, self.service, self._path == self._base
        assert service is not None
        answering = AskedService(experiment, service.urls, service.access)
        base_answers = {} if is_base else by_prompt(answer_file.read(self._base / answer_file.FILE))
        questions = (base_questions if is_base else candidate_questions)(experiment)
        _refuse_unfit(answering, questions[0], base_answers.get((0, 0)))
        pace, answers, decided = gate_pace(experiment), list[AnswerRecord](), Gate(experiment.quality)

        def answered(answer: AnswerRecord) -> bool:
            answers.append(answer)
            if not is_base and not decided.ended:
                decided.add(evidence_on(answer, base_answers))
            return decided.ended

        began_s = time.monotonic()
        try:
            with asking(questions, pace, answering.ask, answered) as is_over:
                _load(driver, pace, is_over, lambda: len(answers))
        finally:
            answer_file.write(answers, self._path / answer_file.FILE)
        failed, took_s = sum(answer.answer is None for answer in answers), time.monotonic() - began_s
        counted = f"{len(answers)} answers, {failed} of them failed"
        self._evidence = f"{counted}, in {took_s:.0f} s; questions {pace.words}"

    def verdict(self, driver: Driver) -> RunVerdict:
        verdict = replace(verdicts.seen_verdict(self.experiment, driver, self._evidence), checks=None)
        return replace(verdict, clock="wall", valid=True, passed=True, exit_code=EXIT_OK)


def candidate_questions(experiment: Experiment) -> list[AskedPrompt]:
    """Every prompt of an experiment."""
    return [AskedPrompt(number, 0, prompt) for number, prompt in enumerate(gate_prompts(experiment))]


def base_questions(experiment: Experiment) -> list[AskedPrompt]:
    """Every prompt twice, the second time a chunk of prompts later."""
    once, questions = candidate_questions(experiment), []
    for begin in range(0, len(once), CHUNK):
        chunk = once[begin : begin + CHUNK]
        questions += [*chunk, *(replace(question, repeat=1) for question in chunk)]
    return questions


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


def _load(driver: Driver, pace: Pace, is_over: Callable[[], bool], count: Callable[[], int]) -> None:
    """Offer the load beside the questions, if there is one, until the asking is over."""
    piece, said_s = FIRST_PIECE, time.monotonic()
    while not is_over():
        if pace.load_qps:
            driver.offer_piece(0, piece, pace.load_qps, PIECE_S)
            piece += 1
        else:
            driver.feed.wait_until(driver.feed.target.now_ns() + NS // 2)
        if time.monotonic() > said_s + SAY_S:
            said_s = time.monotonic()
            driver.emit("quality", text=f"{count()} answers")
    driver.feed.target.retract()


def verdict_on_folders(a: Path, b: Path) -> StudyVerdict:
    """The verdict on answers on record, by the margins of A's configuration; nothing is written.

    Side A was asked everything twice. Raises ConfigError for folders without answers to the same questions,
    and RunError for a folder without a run.
    """
    config_a, config_b = load_run(a).config, load_run(b).config
    try:
        evidence = folder_evidence(a, b)
    except (OSError, ArrowException, ValueError) as error:
        raise ConfigError(f"cannot compare the answers of {a} and {b}: {reason(error)}") from error
    gate_verdict = gate.judge(evidence, config_a.quality)
    verdict = StudyVerdict(
        study=KIND,
        verb=KIND,
        experiment=describe(config_a),
        names=(str(a), str(b)),
        parts=(),
        exit_code=None,
        valid=True,
        evidence=f"answers on record in {a} and {b}",
    )
    return _with_gate(verdict, gate_verdict, config_a, config_b)


def _with_gate(
    verdict: StudyVerdict, gate_verdict: GateVerdict, a: Experiment, b: Experiment
) -> StudyVerdict:
    """The study's verdict with that of the gate, its exit code and its reason."""
    return replace(
        verdict,
        quality=gate_verdict,
        differs=differing(a, b),
        passed=gate_verdict.verdict == "SAME",
        exit_code=CODES[gate_verdict.verdict],
        reason="" if gate_verdict.verdict == "SAME" else "; ".join(gate_verdict.why),
    )
