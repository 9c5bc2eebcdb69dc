"""analysis.quality.evidence_table: what is written comes back, and what no gate wrote is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.quality import evidence_table
from analysis.quality.answers import PromptEvidence
from tests.support.quality.answers import prompt, prompts

FOUND: list[PromptEvidence] = [
    *prompts(5, 1, 0.01),
    prompt(5, 0.1, 0.2, "candidate"),
    prompt(6, 0.1, 0.2, "base", "again"),
    prompt(7, 0.1, 0.2, "base", "again", "candidate"),
    prompt(8, 0.0, 0.3, flipped=True),
]


def test_evidence_comes_back_as_it_was(tmp_path: Path) -> None:
    evidence_table.write(FOUND, tmp_path / "evidence.parquet")
    assert evidence_table.read(tmp_path / "evidence.parquet") == FOUND


def test_rows_of_any_order_are_the_same_evidence() -> None:
    rows = evidence_table.table(FOUND)
    mixed = rows.take(pa.array(np.random.default_rng(1).permutation(rows.num_rows)))
    assert evidence_table.prompts(mixed) == FOUND


def changed(name: str, place: int, value: object) -> Callable[[list[dict]], None]:
    def change(rows: list[dict]) -> None:
        rows[place][name] = value

    return change


def left_out(place: int) -> Callable[[list[dict]], None]:
    return lambda rows: rows.pop(place) and None


WRONG = {
    "a prompt's number": changed("prompt", 0, -1),
    "divergence outside": changed("divergence_nats", 3, 0.9),
    "a divergence outside": changed("divergence_nats", 3, float("nan")),
    "a word of pair": changed("pair", 0, "other"),
    "a word of unanswered": changed("unanswered", -10, "nobody"),
    "token is missing": changed("token", 2, None),
    "what the tokens say": changed("token", 1, 77),
    "positions twice, or gaps": left_out(1),
    "candidate is missing": lambda rows: rows.__delitem__(slice(4, 8)),
    "failed twice": lambda rows: rows.append(next(row for row in rows if row["unanswered"] == "base")),
}


@pytest.mark.parametrize("words", WRONG)
def test_rows_that_no_gate_writes_are_refused(words: str, tmp_path: Path) -> None:
    rows = evidence_table.table(FOUND).to_pylist()
    WRONG[words](rows)
    file = tmp_path / "evidence.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=evidence_table.EVIDENCE), file)
    with pytest.raises(ValueError, match=words) as caught:
        evidence_table.read(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_prompt_that_goes_on_after_another_token_is_refused() -> None:
    rows = evidence_table.table([FOUND[0]]).to_pylist()
    rows[0] |= {"token": 77, "differs": True}
    with pytest.raises(ValueError, match="goes on after"):
        evidence_table.prompts(pa.Table.from_pylist(rows, schema=evidence_table.EVIDENCE))


@pytest.mark.parametrize(
    "columns, words",
    [
        ({"prompt": [1]}, "lacks pair"),
        ({name: ["x"] for name in evidence_table.EVIDENCE.names}, "its prompt is string and not int32"),
    ],
)
def test_a_table_of_something_else_is_refused(columns: dict, words: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(columns), tmp_path / "other.parquet")
    with pytest.raises(ValueError, match=words):
        evidence_table.read(tmp_path / "other.parquet")


def test_another_version_is_refused(tmp_path: Path) -> None:
    later = evidence_table.EVIDENCE.with_metadata({"schema_version": "2"}).empty_table()
    pq.write_table(later, tmp_path / "later.parquet")
    with pytest.raises(ValueError, match="has schema_version 2, this version reads 1 alone"):
        evidence_table.read(tmp_path / "later.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 20, b"no parquet at all"])
def test_a_torn_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "torn.parquet").write_bytes(content)
    with pytest.raises(ValueError, match="torn.parquet is no evidence"):
        evidence_table.read(tmp_path / "torn.parquet")


def test_too_many_rows_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence_table.write(FOUND, tmp_path / "evidence.parquet")
    monkeypatch.setattr(evidence_table, "MOST_ROWS", 10)
    with pytest.raises(ValueError, match="at most 10"):
        evidence_table.read(tmp_path / "evidence.parquet")
