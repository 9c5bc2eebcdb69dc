"""Questions with an exact answer, read from JSON lines, and whether a text gives it."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import BinaryIO

from conf.io.one_line import one_line, reason

MOST_BYTES = 2**26
"""Most bytes of a file, which is held in memory (our choice); 1,319 questions of GSM8K have 0.75 MB."""
MOST_QUESTIONS = 20_000
"""Most questions of a file (our choice); MMLU has 14,042."""
MOST_LINE_BYTES = 2**20
"""Most bytes of a line: a prompt of 200,000 tokens (our choice)."""
KEYS = ("prompt", "answer")
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w|\.\d)")
"""A number as people write it: 1,319 or -0.5; not one within a word."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, and the answer that counts as right."""

    prompt: str
    answer: str

    @property
    def digest(self) -> str:
        """SHA-256 of prompt and answer, in hexadecimal: equal ones are scored alike."""
        return hashlib.sha256(json.dumps([self.prompt, self.answer]).encode()).hexdigest()

    def is_right(self, text: str) -> bool:
        """True if the text is the answer, spaces around it aside; of a number, if the last one in it is.

        1,319 and 1319.0 are one number.
        """
        if (wanted := _number(self.answer.strip())) is None:
            return text.strip() == self.answer.strip()
        found = NUMBER.findall(text)
        return bool(found) and _number(found[-1]) == wanted


def read(path: str | Path) -> list[Question]:
    """The questions in a file, in its order; empty lines are left out, and further keys.

    Raises ValueError with one line, which names the file and the number of the bad line.
    """
    try:
        with Path(path).open("rb") as file:
            return list(_questions(file))
    except OSError as error:
        raise ValueError(f"cannot read the questions {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"questions {path}: {error}") from error


def _questions(file: BinaryIO) -> Iterator[Question]:
    count = size = number = 0
    while line := file.readline(MOST_LINE_BYTES + 1):
        number, size = number + 1, size + len(line)
        if len(line) > MOST_LINE_BYTES:
            raise ValueError(f"line {number} is longer than {MOST_LINE_BYTES} bytes")
        if size > MOST_BYTES:
            raise ValueError(f"line {number} is beyond the {MOST_BYTES} bytes that are read")
        if line.strip():
            count += 1
            if count > MOST_QUESTIONS:
                raise ValueError(f"line {number} is beyond the {MOST_QUESTIONS} questions that are read")
            yield _question(line, number)
    if not count:
        raise ValueError("the file has no question")


def _question(line: bytes, number: int) -> Question:
    try:
        tree = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number} is no JSON: {reason(error)}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"line {number} is no object with prompt and answer")
    for key in KEYS:
        if key not in tree:
            raise ValueError(f"line {number} lacks {key}")
        if not isinstance(tree[key], str) or not tree[key].strip():
            raise ValueError(f"line {number}: {key} is {one_line(json.dumps(tree[key]), 40)} and no text")
    return Question(tree["prompt"], tree["answer"])


def _number(text: str) -> Decimal | None:
    """The number that a text is; None for any other text."""
    if not NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None
