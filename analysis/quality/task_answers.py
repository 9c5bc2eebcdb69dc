"""The file task_answers.parquet of one side: answers to questions with exact answers, and their scores."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.quality.paired_scores import PairedScores
from analysis.quality.questions import MOST_QUESTIONS
from analysis.rows import parquet
from analysis.rows.parquet import Column, schema
from conf.io.one_line import printable

FILE = "task_answers.parquet"
MOST_LETTERS = 4096
"""Last letters of an answer's text that are kept (our choice): a number counts where it stands last."""
MOST_BYTES = 2**29
"""Most bytes of a file's columns, unpacked (our choice): so many questions with the longest texts in ASCII
have a sixth of it."""

_COLUMNS: tuple[Column, ...] = (
    ("question", pa.int32(), "", "number of the question, from 0, in the order of its file"),
    ("sha256", pa.string(), "", "SHA-256 of its prompt and its answer, in hexadecimal"),
    ("text", pa.string(), "", "the end of what was answered, printable; null where there is none"),
    ("right", pa.bool_(), "", "the whole text gives the answer; false where there is none"),
    ("error", pa.string(), "", "why there is no answer; null where there is one"),
)
TASK_ANSWERS = schema(_COLUMNS, {"schema_version": "1"})


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """The answer to one question: `text` is None where the request failed, and `error` says why."""

    question: int
    sha256: str
    text: str | None
    right: bool
    error: str | None = None

    @property
    def row(self) -> dict[str, object]:
        """The columns of the file: the text as its bounded, printable end."""
        shown = None if self.text is None else printable(self.text[-MOST_LETTERS:])
        return {name: getattr(self, name) for name in TASK_ANSWERS.names} | {"text": shown}


def write(answers: Iterable[TaskAnswer], path: Path) -> None:
    """Write answers in the order of their questions, whole or not at all. Raises OSError."""
    rows = [one.row for one in sorted(answers, key=lambda one: one.question)]
    parquet.write(pa.Table.from_pylist(rows, schema=TASK_ANSWERS), path)


def read(path: Path) -> list[TaskAnswer]:
    """The answers of a file. Raises OSError, ArrowException or ValueError for what is no such file."""
    with pq.ParquetFile(path) as file:
        names, meta = file.schema_arrow.names, file.metadata
        if lacking := [name for name in TASK_ANSWERS.names if name not in names]:
            raise ValueError(f"{path} is no table of task answers: it lacks {', '.join(lacking)}")
        size = sum(meta.row_group(group).total_byte_size for group in range(meta.num_row_groups))
        if meta.num_rows > MOST_QUESTIONS or size > MOST_BYTES:
            raise ValueError(f"{path} has {meta.num_rows} rows of {size} bytes; at most {MOST_QUESTIONS}")
        table = file.read(columns=TASK_ANSWERS.names).cast(TASK_ANSWERS)
    for name in ("question", "sha256", "right"):
        if table[name].null_count:
            raise ValueError(f"{path} is no table of task answers: {name} is missing in a row")
    return [TaskAnswer(**row) for row in table.to_pylist()]


def scored(base: Sequence[TaskAnswer], candidate: Sequence[TaskAnswer]) -> PairedScores:
    """The scores of the questions that the candidate was asked.

    Raises ValueError for one that the base was not asked, and for one that is there twice.
    """
    ours = {one.question: one for one in base}
    theirs = {one.question: one for one in candidate}
    if len(ours) < len(base) or len(theirs) < len(candidate):
        raise ValueError("a question was answered twice")
    pairs = []
    for number, one in theirs.items():
        if number not in ours or ours[number].sha256 != one.sha256:
            raise ValueError(f"A was not asked question {number} of B")
        pairs.append((ours[number], one))
    return PairedScores.of(
        ((a.right, b.right) for a, b in pairs),
        base_failed=sum(a.error is not None for a, _ in pairs),
        candidate_failed=sum(b.error is not None for _, b in pairs),
    )
