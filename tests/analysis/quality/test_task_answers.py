"""analysis.quality.task_answers: their file comes back, strangers are refused, pairs are scored."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.quality import task_answers
from analysis.quality.paired_scores import PairedScores
from analysis.quality.task_answers import MOST_LETTERS, TASK_ANSWERS, TaskAnswer, read, scored, write
from tests.support.quality.arithmetic import arithmetic


def one(number: int, right: bool, error: str | None = None, sha256: str = "") -> TaskAnswer:
    return TaskAnswer(number, sha256 or f"{number:064x}", None if error else "so: 7", right, error)


def test_answers_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = [one(0, True), one(1, False, "no whole answer within 10 s"), one(2, False)]
    path = tmp_path / task_answers.FILE
    write(reversed(found), path)
    assert read(path) == found


def test_of_a_text_its_printable_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / task_answers.FILE
    write([TaskAnswer(0, "a", "\x1b[2J" + MOST_LETTERS * "x" + "\n\ud800 42", True)], path)
    (found,) = read(path)
    assert found.text is not None and found.text.isprintable() and found.text.endswith("x   42")
    assert len(found.text) == MOST_LETTERS


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"question": [None]}, "question is missing"),
        ({"sha256": [None]}, "sha256 is missing"),
        ({"right": [None]}, "right is missing"),
    ],
)
def test_what_no_side_wrote_is_refused(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    row = {"question": [0], "sha256": ["a"], "text": ["b"], "right": [True], "error": [None]}
    pq.write_table(pa.table(row | changed, schema=TASK_ANSWERS), tmp_path / "some.parquet")
    with pytest.raises(ValueError, match=why):
        read(tmp_path / "some.parquet")


def test_other_tables_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": [0], "text": ["b"]}), tmp_path / "some.parquet")
    with pytest.raises(ValueError, match="it lacks sha256, right, error"):
        read(tmp_path / "some.parquet")
    rows = pa.table({name: [None] * 20_001 for name in TASK_ANSWERS.names}, schema=TASK_ANSWERS)
    pq.write_table(rows, tmp_path / "many.parquet")
    with pytest.raises(ValueError, match="has 20001 rows"):
        read(tmp_path / "many.parquet")


def test_pairs_are_scored_and_a_failure_counts_as_wrong() -> None:
    base = [one(0, True), one(1, True), one(2, False), one(3, False, "timeout"), one(4, True)]
    candidate = [one(0, True), one(1, False, "timeout"), one(2, True), one(3, False, "timeout")]
    assert scored(base, candidate) == PairedScores(1, 1, 1, 1, base_failed=1, candidate_failed=2)


@pytest.mark.parametrize(
    ("candidate", "why"),
    [
        ([one(1, True)], "A was not asked question 1 of B"),
        ([one(0, True, sha256="other")], "A was not asked question 0 of B"),
        ([one(0, True), one(0, False)], "answered twice"),
    ],
)
def test_other_questions_are_not_compared(candidate: list[TaskAnswer], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        scored([one(0, True)], candidate)


def test_prompts_and_answers_tell_questions_apart() -> None:
    made = arithmetic(200)
    assert len({question.digest for question in made}) == len(set(made))
