"""analysis.quality.answer_file: what is written is read again, and no other file, in one line."""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.quality import answer_file
from analysis.quality.answer_file import ANSWERS, Answer, AnswerRecord
from tests.support.quality.answers import prompt

NATS = st.floats(-50, 0, width=32)
POSITION = st.dictionaries(st.integers(0, 2**31 - 1), NATS, min_size=1, max_size=21)
ANSWER = st.lists(st.tuples(st.integers(0, 2**31 - 1), POSITION), min_size=1, max_size=5).map(
    lambda places: Answer(tuple(token for token, _ in places), tuple(likely for _, likely in places))
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.none(), ANSWER), max_size=6))
def test_answers_are_read_as_they_were_written(tmp_path: Path, answers: list[Answer | None]) -> None:
    written = [
        AnswerRecord(
            number // 2, 7 * number, number % 2, answer, None if answer else "no whole answer", "a text"
        )
        for number, answer in enumerate(answers)
    ]
    path = tmp_path / answer_file.FILE
    answer_file.write(reversed(written), path)
    assert answer_file.read(path) == written


def test_prompts_with_other_tokens_have_other_digests() -> None:
    assert answer_file.digest([1, 2, 3]) == answer_file.digest((1, 2, 3))
    assert len({answer_file.digest(tokens) for tokens in ([1, 2, 3], [1, 3, 2], [1, 2], [])}) == 4


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"alternatives": [[1, 1]]}, "alternatives at 2"),
        ({"alternatives": [[1]]}, "than it counts"),
        ({"alternatives": [[3]]}, "than it counts"),
        ({"alternative_ids": [[5, 5]]}, "than it counts"),
        ({"log_probabilities": [[-1.0]]}, "shorter"),
        ({"log_probabilities": [[math.nan, -1.0]]}, "no log probability"),
        ({"alternative_ids": [None]}, "no table of answers"),
        ({"prompt": None}, "lacks prompt"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, changed: dict[str, object], why: str) -> None:
    good = {
        "prompt": [0],
        "digest": [1],
        "repeat": [0],
        "error": [None],
        "text": ["yes"],
        "tokens": [[5]],
        "alternatives": [[2]],
        "alternative_ids": [[5, 6]],
        "log_probabilities": [[-0.5, -2.0]],
    }
    columns = {name: values for name, values in (good | changed).items() if values is not None}
    table = pa.table({name: pa.array(columns[name], ANSWERS.field(name).type) for name in columns})
    path = tmp_path / answer_file.FILE
    pq.write_table(table, path)
    with pytest.raises(ValueError, match=why):
        answer_file.read(path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    pq.write_table(ANSWERS.with_metadata({"schema_version": "2"}).empty_table(), tmp_path / "later.parquet")
    with pytest.raises(ValueError, match="has schema_version 2, this version reads 1 alone"):
        answer_file.read(tmp_path / "later.parquet")


def test_a_longer_file_than_any_gate_writes_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / answer_file.FILE
    answer_file.write([AnswerRecord(n, 1, 0, None, "timeout") for n in range(5)], path)
    for bound, most in (("MOST_ANSWERS", 4), ("MOST_BYTES", 100)):
        with monkeypatch.context() as patch, pytest.raises(ValueError, match=f"5 rows .* at most .*{most}"):
            patch.setattr(answer_file, bound, most)
            answer_file.read(path)


def test_the_evidence_has_a_row_for_each_position_and_each_failure(tmp_path: Path) -> None:
    result = [prompt(5, 0.1, 0.2, "candidate"), prompt(8, 0.0, 0.3, flipped=True)]
    answer_file.write_evidence(result, tmp_path / "evidence.parquet")
    table = pq.read_table(tmp_path / "evidence.parquet")
    assert table.schema.equals(answer_file.EVIDENCE, check_metadata=True)
    rows = table.to_pylist()
    assert [(row["prompt"], row["pair"], row["unanswered"]) for row in rows] == [
        *[(5, "again", None)] * 4,
        (5, None, "candidate"),
        *[(8, "again", None)] * 4,
        *[(8, "candidate", None)] * 4,
    ]
    last = {"position": 3, "base_token": 3, "token": 99, "divergence_nats": 0.3, "differs": True}
    assert rows[-1].items() >= last.items()
