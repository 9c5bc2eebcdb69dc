"""The files of a gate: answers.parquet of each side, and the table of the evidence that follows from both."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.quality.answers import PAIRS, Answer, PromptEvidence, Side, evidence
from analysis.rows import parquet

FILE = "answers.parquet"
MOST_ANSWERS = 100_000
"""Most answers of a file that are read: a hundred default budgets (our choice)."""
MOST_BYTES = 2**30
"""Most bytes of a file's columns, unpacked: the largest budget has four fifths of them (our choice)."""

SCHEMA_VERSION = 1
ANSWERS = parquet.described("answers", SCHEMA_VERSION)
EVIDENCE_FILE = "quality-b.parquet"
"""The evidence on B in a study's folder, for other readers: ours compare the answers again."""
EVIDENCE = parquet.described("quality-b", SCHEMA_VERSION)
"""Arrow schema of the evidence: a row per compared position, and one per failed request."""


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """One request of the gate: `answer` is None where it failed, and `error` says why.

    `repeat` is 0 for the first answer to a prompt and 1 for the second.
    """

    prompt: int
    digest: int
    repeat: int
    answer: Answer | None
    error: str | None = None
    text: str | None = None


def digest(prompt: Sequence[int]) -> int:
    """A number that tells prompts apart: CRC-32 of their token ids."""
    return zlib.crc32(np.asarray(prompt, np.int64).tobytes())


def write(answers: Iterable[AnswerRecord], path: Path) -> None:
    """Write answers in order of prompt and repeat, whole or not at all. Raises OSError."""
    rows = [_row(answer) for answer in sorted(answers, key=lambda answer: (answer.prompt, answer.repeat))]
    parquet.write(pa.Table.from_pylist(rows, schema=ANSWERS), path)


def read(path: Path) -> list[AnswerRecord]:
    """The answers of a file. Raises OSError, ArrowException or ValueError for what is no such file."""
    file = pq.ParquetFile(path)
    parquet.refuse_foreign(path, file.schema_arrow, SCHEMA_VERSION, "answers", ANSWERS.names)
    meta = file.metadata
    size = sum(meta.row_group(group).total_byte_size for group in range(meta.num_row_groups))
    if meta.num_rows > MOST_ANSWERS or size > MOST_BYTES:
        most = f"{MOST_ANSWERS} of {MOST_BYTES}"
        raise ValueError(f"{path} has {meta.num_rows} rows of {size} bytes; at most {most} are read")
    table = file.read(columns=ANSWERS.names).cast(ANSWERS)
    try:
        return [_recorded(row) for row in table.to_pylist()]
    except TypeError as error:  # a null where no writer leaves one
        raise ValueError(f"{path} is no table of answers: {error}") from error


def _row(record: AnswerRecord) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in ("prompt", "digest", "repeat", "error", "text")}
    if record.answer is None:
        return row
    alternatives = record.answer.alternatives
    return row | {
        "tokens": record.answer.tokens,
        "alternatives": [len(likely) for likely in alternatives],
        "alternative_ids": [token for likely in alternatives for token in likely],
        "log_probabilities": [nats for likely in alternatives for nats in likely.values()],
    }


def _recorded(row: dict[str, Any]) -> AnswerRecord:
    answer = None if row["tokens"] is None else _answer(row)
    return AnswerRecord(row["prompt"], row["digest"], row["repeat"], answer, row["error"], row["text"])


def _answer(row: dict[str, Any]) -> Answer:
    """The answer of a row. Raises ValueError if its lists do not belong together."""
    likely = zip(row["alternative_ids"], row["log_probabilities"], strict=True)
    alternatives = tuple(dict(islice(likely, count)) for count in row["alternatives"])
    if [len(alternative) for alternative in alternatives] != row["alternatives"] or next(
        likely, None
    ) is not None:
        raise ValueError(f"the answer to prompt {row['prompt']} has other alternatives than it counts")
    return Answer(tuple(row["tokens"]), alternatives)


def folder_evidence(base: Path, candidate: Path) -> list[PromptEvidence]:
    """The evidence in two folders with answers.

    Raises OSError, ArrowException or ValueError for folders without comparable answers.
    """
    return evidence_of(*(read(path / FILE) for path in (base, candidate)))


def evidence_of(a: Sequence[AnswerRecord], b: Sequence[AnswerRecord]) -> list[PromptEvidence]:
    """The evidence of every prompt that B was asked. Raises ValueError if A was asked others."""
    base_answers = by_prompt(a)
    return [evidence_on(answer, base_answers) for answer in b if answer.repeat == 0]


def evidence_on(answer: AnswerRecord, base_answers: Mapping[tuple[int, int], AnswerRecord]) -> PromptEvidence:
    """The evidence of an answer of B, from A's answers `by_prompt`."""
    base, again = (base_answers.get((answer.prompt, repeat)) for repeat in (0, 1))
    if base is None or again is None or base.digest != answer.digest:
        raise ValueError(f"A was not asked prompt {answer.prompt} of B")
    answers: dict[Side, Answer | None] = {
        "base": base.answer,
        "again": again.answer,
        "candidate": answer.answer,
    }
    return evidence(answer.prompt, {side: answer for side, answer in answers.items() if answer})


def by_prompt(answers: Sequence[AnswerRecord]) -> dict[tuple[int, int], AnswerRecord]:
    """Answers by the number of the prompt and of the repeat."""
    return {(answer.prompt, answer.repeat): answer for answer in answers}


def write_evidence(prompts: Iterable[PromptEvidence], path: Path) -> None:
    """Write the evidence as Parquet, whole or not at all. Raises OSError if the disk does not take it."""
    rows = [row for prompt in prompts for row in _evidence_rows(prompt)]
    parquet.write(pa.Table.from_pylist(rows, schema=EVIDENCE), path)


def _evidence_rows(prompt: PromptEvidence) -> Iterator[dict[str, Any]]:
    for pair, compared in zip(PAIRS, (prompt.again, prompt.candidate), strict=True):
        if compared is not None:
            tokens = zip(compared.base_tokens, compared.tokens, compared.nats, strict=True)
            for position, (base, token, nats) in enumerate(tokens):
                yield {
                    "prompt": prompt.prompt,
                    "pair": pair,
                    "position": position,
                    "base_token": base,
                    "token": token,
                    "divergence_nats": nats,
                    "differs": base != token,
                }
    for side in prompt.unanswered:
        yield {"prompt": prompt.prompt, "unanswered": side}
