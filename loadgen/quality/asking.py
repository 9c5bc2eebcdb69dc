"""Asks the questions of the quality gate: prompts of real text, their pace beside a load, the requests."""

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from analysis.quality.answer_file import AnswerRecord, digest
from analysis.quality.answers import Answer
from conf import ConfigError, Experiment
from conf.io.http_get import Access, AskError, ask
from conf.specs.request_sizes import Images
from loadgen.prompts.bodies import Prompts
from loadgen.quality import questions
from loadgen.quality.questions import UnusableAnswer
from loadgen.traffic.lengths import UNIQUE_TOKENS

QUESTION_SHARE = 0.5
"""Share of the load's tokens that the questions replace: with both together the service does the work of the
rate that is asked (our choice)."""
MOST_PER_S = 32.0
"""Most questions per second: threads of one process ask them (our choice)."""
MOST_IN_FLIGHT = 64
IDLE_IN_FLIGHT = 8
"""Questions in flight at a service without other load: a small batch (our choice)."""
THREADS = "question"
"""The beginning of the names of the threads that ask."""
PATH = "/v1/completions"
BAD_REQUEST = 400
"""The status of vLLM's own refusals, of which one says that there are fewer alternatives."""
SALT_BYTES = 16
Prompt = tuple[int, ...]
"""Token ids of one prompt."""


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """A prompt by its number; `repeat` is 0 the first time that a side is asked it, and 1 the second."""

    number: int
    repeat: int
    prompt: Prompt


def gate_prompts(experiment: Experiment) -> list[Prompt]:
    """The prompts in the order in which they are asked; the experiment's seed decides them."""
    quality = experiment.quality
    # Plain text as token ids, whatever the form of the workload's prompts.
    workload = replace(experiment.workload, prompt="token_ids", conversations=None, images=Images())
    build = Prompts(workload, "", experiment.model.vocab, experiment.seed)
    # The tokens that name a prompt are words without a sense: the text begins after them.
    tokens = quality.prompt_tokens + UNIQUE_TOKENS
    bodies = (build.body(number, tokens, 1) for number in range(quality.prompts))
    return [tuple(json.loads(body)["prompt"][UNIQUE_TOKENS:]) for body in bodies]


def refuse_synthetic(experiment: Experiment) -> None:
    """Raise ConfigError if a real model would get prompts of random tokens."""
    if experiment.engine.kind != "simulated" and not experiment.workload.tokenizer:
        raise ConfigError(
            "quality needs prompts of real text, because divergences on random tokens mean nothing: add "
            "workload.tokenizer=FOLDER of the model"
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """Questions come `per_s`, or with None as fast as others end, and at most `in_flight` at once.

    `load_qps` is the rate per node of the load beside them.
    """

    load_qps: float
    per_s: float | None
    in_flight: int

    @property
    def words(self) -> str:
        """The pace in words."""
        if self.per_s is None:
            return f"without other load, {self.in_flight} in flight"
        return f"{self.per_s:.1f} a second beside {self.load_qps:.2f} QPS per node of load"


def gate_pace(experiment: Experiment) -> Pace:
    """The pace at which questions and load together are the work of the rate `quality.load`."""
    rate_qps = experiment.quality.rate_qps
    if not rate_qps:
        return Pace(0.0, None, IDLE_IN_FLIGHT)
    workload, quality = experiment.workload, experiment.quality
    request = workload.input_tokens.mean + workload.output_tokens.mean
    question = quality.prompt_tokens + quality.answer_tokens
    whole = rate_qps * experiment.cluster.nodes
    per_s = min(QUESTION_SHARE * whole * request / question, MOST_PER_S)
    load = whole - per_s * question / request
    return Pace(load / experiment.cluster.nodes, per_s, MOST_IN_FLIGHT)


def longest_s(experiment: Experiment, pace: Pace) -> float | None:
    """Seconds of asking both sides all prompts, the first one twice; None if the service decides."""
    return None if pace.per_s is None else 3 * experiment.quality.prompts / pace.per_s


class Asking:
    """Questions under way. Leaving the block asks no more, and waits for answers in flight.

    `ask` blocks until a question has its answer; `answered` takes both, one call at a time, and returns True
    when no more questions are needed.
    """

    def __init__(
        self,
        questions: Iterable[AskedPrompt],
        pace: Pace,
        ask: Callable[[AskedPrompt], AnswerRecord],
        answered: Callable[[AskedPrompt, AnswerRecord], bool],
    ) -> None:
        self._questions, self._pace, self._ask, self._answered = questions, pace, ask, answered
        self._enough = threading.Event()
        self._room = threading.Semaphore(pace.in_flight)
        self._one_at_a_time = threading.Lock()
        self._threads = ThreadPoolExecutor(pace.in_flight + 1, thread_name_prefix=THREADS)

    def __enter__(self) -> "Asking":
        self._feeding: Future[None] = self._threads.submit(self._feed)
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def is_over(self) -> bool:
        """True once every question is answered or enough are. Raises the error that ended the asking."""
        if not self._feeding.done():
            return False
        self._feeding.result()
        return True

    def _feed(self) -> None:
        """Ask one question after the other at the pace, then wait for the last answers."""
        began_s, pending = time.monotonic(), []
        for number, question in enumerate(self._questions):
            if self._pace.per_s:
                due_s = began_s + number / self._pace.per_s
                self._enough.wait(max(0.0, due_s - time.monotonic()))
            self._room.acquire()
            if self._enough.is_set():
                break
            pending.append(self._threads.submit(self._one, question))
        for one in pending:
            one.result()

    def _one(self, question: AskedPrompt) -> None:
        try:
            answer = self._ask(question)
            with self._one_at_a_time:
                if self._answered(question, answer):
                    self._enough.set()
        except BaseException:
            self._enough.set()
            raise
        finally:
            self._room.release()


@dataclass(frozen=True, slots=True)
class AskedService:
    """The endpoints of a service, which get the questions in turn. Any thread may ask."""

    urls: Sequence[str]
    access: Access
    model: str
    output_tokens: int
    timeout_s: float

    def ask(self, question: AskedPrompt) -> AnswerRecord:
        """The answer to a question, or the reason why there is none."""
        number, repeat, prompt = question.number, question.repeat, question.prompt
        try:
            answer, text = self.answer(question)
        except (AskError, UnusableAnswer) as failed:
            return AnswerRecord(number, digest(prompt), repeat, None, str(failed))
        return AnswerRecord(number, digest(prompt), repeat, answer, None, text)

    def answer(self, question: AskedPrompt) -> tuple[Answer, str]:
        """The answer to a question, and its text. Raises AskError or UnusableAnswer, each with one line.

        Every request has a salt of its own: no answer comes out of a prefix cache that another one filled, be
        it of the other side at the same endpoint, of the first repeat, or of the request that tried it out.
        """
        prompt, tokens = question.prompt, self.output_tokens
        body = questions.body(self.model, prompt, tokens, secrets.token_hex(SALT_BYTES))
        got = self.post(question.number, body, questions.most_bytes(len(prompt), tokens))
        return questions.parse(got, prompt, tokens)

    def post(self, number: int, body: bytes, most_bytes: int) -> bytes:
        """The body of an answer to the request with this number, without the key.

        Raises AskError, or UnusableAnswer for a refusal.
        """
        url = self.urls[number % len(self.urls)]
        got = ask(
            f"{url}{PATH}",
            self.timeout_s,
            body=body,
            headers={"Content-Type": "application/json"},
            access=self.access,
            most_bytes=most_bytes,
        )
        if got.status == BAD_REQUEST:
            questions.refuse(got.body)
        if not got.is_success:
            raise AskError(got.said)
        return got.body
