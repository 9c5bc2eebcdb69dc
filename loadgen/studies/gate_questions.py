"""Questions of the quality gate: their requests, answers with every bound checked, who asks them when."""

import json
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from analysis.quality.answer_file import Answer, AnswerRecord, digest
from conf import Experiment
from conf.io.http_get import Access, AskError, ask
from conf.io.one_line import one_line
from conf.specs.request_sizes import Images
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import UNIQUE_TOKENS

ALTERNATIVES = 20
"""Alternatives of each position that are asked for: vLLM's default of --max-logprobs."""
MOST_ALTERNATIVES = ALTERNATIVES + 1
"""The token itself may be one more."""
MOST_ID = 2**31 - 1
NO_PROBABILITY = -9999.0
"""vLLM writes minus infinity so."""
ROUNDING, MOST_MASS = 1e-3, 1.01
"""Most that a log probability may be above 0, and most that those of a position may add up to: an engine that
computes in BF16 rounds to 0.4 % (our choice)."""
POSITION_BYTES, TOKEN_BYTES, ANSWER_BYTES = 4096, 16, 2**16
"""Longest position with 21 alternatives, longest token id, and longest rest of an answer (our choice: some
four times what vLLM writes)."""
TEXT_CHARS = 1000
"""Most letters that are kept of an answer's text (our choice)."""
WORD_CHARS = 200
"""Longest text of a server that is shown (our choice)."""
SERVER = "the gate needs vLLM's /v1/completions, or a server that answers as it does"
RAW = "start vLLM with --logprobs-mode raw_logprobs, its default"
_NAMED = re.compile(r"token_id:(0|[1-9][0-9]{0,9})")
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
BAD_REQUEST = 400
"""The status of vLLM's own refusals, of which one says that there are fewer alternatives."""
Prompt = tuple[int, ...]
"""Token ids of one prompt."""


class UnusableAnswer(ValueError):
    """An answer that cannot be compared; the message is one line with the remedy."""


def request_body(model: str, prompt: Sequence[int], output_tokens: int, cache_salt: str) -> bytes:
    """The JSON body of a question with these token ids, to be answered by exactly `output_tokens` tokens.

    It shares a prefix cache only with requests of its own `cache_salt`.
    """
    request = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": ALTERNATIVES,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "cache_salt": cache_salt,
    }
    return json.dumps(request, separators=(",", ":")).encode()


def most_bytes(prompt_tokens: int, output_tokens: int) -> int:
    """Bytes of an answer beyond which it need not be read: vLLM sends the prompt's token ids back."""
    return ANSWER_BYTES + prompt_tokens * TOKEN_BYTES + output_tokens * POSITION_BYTES


def parse(answer: bytes, prompt: Sequence[int], output_tokens: int) -> tuple[Answer, str]:
    """The answer in the body of a whole (not streamed) response, and the beginning of its text, printable.

    Raises UnusableAnswer unless the model read exactly `prompt`, and answered `output_tokens` positions, each
    with its token among at least `ALTERNATIVES` whose probabilities are some.
    """
    choice = _choice(answer)
    read, tokens = (_ids(choice, name) for name in ("prompt_token_ids", "token_ids"))
    if read != list(prompt):
        _fail(
            f"the endpoint read another prompt than it was sent, {len(read)} tokens for {len(prompt)}; it "
            "must neither truncate nor add tokens"
        )
    shown = choice.get("logprobs")
    tops = shown.get("top_logprobs") if isinstance(shown, dict) else None
    if not isinstance(tops, list) or not all(isinstance(top, dict) for top in tops):
        _fail(
            f"the endpoint answered no alternatives (logprobs.top_logprobs); {SERVER} with "
            f"logprobs={ALTERNATIVES}"
        )
    if not len(tokens) == len(tops) == output_tokens:
        _fail(
            f"the endpoint answered {len(tokens)} tokens, and alternatives of {len(tops)}, instead of "
            f"{output_tokens}; it must know ignore_eos, as vLLM does"
        )
    body_text = choice.get("text")
    text = one_line(body_text, TEXT_CHARS) if isinstance(body_text, str) else ""
    return Answer(tuple(tokens), tuple(map(_position, tokens, tops))), text


def _choice(answer: bytes) -> dict[str, Any]:
    """The one choice of the body of a whole answer. Raises UnusableAnswer."""
    tree = _tree(answer)
    _refuse_error(tree)
    metrics = tree.get("metrics")
    # vLLM tells how many drafts were accepted, with per-request metrics.
    if isinstance(metrics, dict) and metrics.get("speculative_decoding") is not None:
        _fail("the endpoint decodes speculatively, which changes what is compared; switch that off")
    choices = tree.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        _fail(f"the endpoint's answer has not one choice; {SERVER}")
    return choices[0]


def _tree(answer: bytes) -> dict[str, Any]:
    try:
        tree = json.loads(answer)
    except (ValueError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        _fail(f"the endpoint's answer is no JSON object; {SERVER}")
    return tree


def _refuse_error(tree: dict[str, Any]) -> None:
    if tree.get("error") is None and tree.get("object") != "error":
        return
    error = tree.get("error")
    message = (error if isinstance(error, dict) else tree).get("message")
    text = message if isinstance(message, str) else "without a reason"
    remedy = f"start vLLM with --max-logprobs {ALTERNATIVES}" if "logprobs of" in text else SERVER
    _fail(f"the endpoint refused the question: {one_line(text, WORD_CHARS)}; {remedy}")


def _ids(choice: Mapping[str, Any], name: str) -> list[int]:
    """The token ids of a field of the choice."""
    ids = choice.get(name)
    if not isinstance(ids, list) or not all(type(each) is int and 0 <= each <= MOST_ID for each in ids):
        _fail(f"the endpoint's {name} are no list of token ids; it must know return_token_ids, as vLLM does")
    return ids


def _position(token: int, top: Mapping[str, Any]) -> dict[int, float]:
    """Log probabilities of a position by token id."""
    if not ALTERNATIVES <= len(top) <= MOST_ALTERNATIVES:
        _fail(
            f"the endpoint answered {len(top)} alternatives of a token instead of {ALTERNATIVES}; start it "
            f"with --max-logprobs {ALTERNATIVES} or more"
        )
    tokens = [int(name[1]) for name in map(_NAMED.fullmatch, top) if name]
    if len(tokens) < len(top) or max(tokens) > MOST_ID:
        _fail(
            "the endpoint names alternatives by text, which several tokens may share; it must know "
            "return_tokens_as_token_ids, as vLLM does"
        )
    if token not in tokens:
        _fail(f"the endpoint answered a token that is not among its own alternatives; {SERVER}")
    # Neither a truth value, nor not a number, nor an integer beyond all floats.
    if not all(type(value) in (int, float) and NO_PROBABILITY < value <= ROUNDING for value in top.values()):
        _fail(f"the endpoint's log probabilities are none: they must be finite and not above 0; {RAW}")
    logprobs = [min(float(value), 0.0) for value in top.values()]
    if math.fsum(map(math.exp, logprobs)) > MOST_MASS:
        _fail(f"the endpoint's probabilities of a token add up to more than 1; {RAW}")
    # As the file of answers keeps them, so that it gives the same verdict.
    return dict(zip(tokens, np.array(logprobs, np.float32).tolist(), strict=True))


def _fail(message: str) -> NoReturn:
    raise UnusableAnswer(message)


# Who asks, and when.


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


@contextmanager
def asking(
    questions: Iterable[AskedPrompt],
    pace: Pace,
    ask: Callable[[AskedPrompt], AnswerRecord],
    answered: Callable[[AnswerRecord], bool],
) -> Iterator[Callable[[], bool]]:
    """Questions under way within the block; yields what is True once every one is answered or enough are.

    That raises the error that ended the asking. `ask` blocks until a question has its answer; `answered`
    takes each, one call at a time, and returns True when no more questions are needed. Leaving the block asks
    no more, and waits for answers in flight.
    """
    enough, one_at_a_time = threading.Event(), threading.Lock()

    def one(question: AskedPrompt, due_s: float) -> None:
        if enough.wait(max(0.0, due_s - time.monotonic())):
            return
        try:
            answer = ask(question)
            with one_at_a_time:
                if answered(answer):
                    enough.set()
        except BaseException:
            enough.set()
            raise

    def is_over() -> bool:
        if not all(question.done() for question in pending):
            return False
        for question in pending:
            question.result()
        return True

    threads = ThreadPoolExecutor(pace.in_flight, thread_name_prefix=THREADS)
    # The pool begins them in this order, each as soon as it is due and a thread is free.
    begin_s, apart_s = time.monotonic(), 1 / pace.per_s if pace.per_s else 0.0
    try:
        pending = [threads.submit(one, each, begin_s + at * apart_s) for at, each in enumerate(questions)]
        yield is_over
    finally:
        enough.set()
        threads.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class AskedService:
    """The endpoints of an experiment's service, which get the questions in turn. Any thread may ask."""

    experiment: Experiment
    urls: Sequence[str]
    access: Access

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
        prompt, tokens = question.prompt, self.experiment.quality.answer_tokens
        response = ask(
            f"{self.urls[question.number % len(self.urls)]}/v1/completions",
            self.experiment.request_timeout_s,
            body=request_body(self.experiment.model.served_name, prompt, tokens, secrets.token_hex(16)),
            headers={"Content-Type": "application/json"},
            access=self.access,
            most_bytes=most_bytes(len(prompt), tokens),
        )
        if response.status == BAD_REQUEST:
            _refuse_error(_tree(response.body))
        if not response.is_success:
            raise AskError(response.said)
        return parse(response.body, prompt, tokens)
