"""A service that is asked the gate's questions, a request each."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.quality.answer_file import AnswerRecord, digest
from analysis.quality.answers import Answer
from conf.io.access import Access
from conf.io.http_get import AskError, ask
from loadgen.quality import questions
from loadgen.quality.prompts import Prompt
from loadgen.quality.questions import UnusableAnswer

PATH = "/v1/completions"
BAD_REQUEST = 400
"""The status of vLLM's own refusals, of which one says that there are fewer alternatives."""
SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """A prompt by its number; `repeat` is 0 the first time that a side is asked it, and 1 the second."""

    number: int
    repeat: int
    prompt: Prompt


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
        parsed = questions.parse(got, prompt, tokens)
        return Answer(parsed.tokens, tuple(map(_as_stored, parsed.alternatives))), parsed.text

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


def _as_stored(likely: dict[int, float]) -> dict[int, float]:
    """Log probabilities as the file of answers keeps them, so that it gives the same verdict."""
    return dict(zip(likely, np.array(list(likely.values()), np.float32).tolist(), strict=True))
