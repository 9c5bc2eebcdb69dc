"""analysis.rows.parquet: how many and how long words of servers may be, and what stands for others."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from analysis import load_run
from analysis.__main__ import main
from analysis.capacity.checks import judge_window
from analysis.capacity.window_counts import NS, Window
from analysis.rows import parquet, records
from analysis.rows.parquet import MOST_WORDS, OTHER_WORD, WORD_LETTERS, BoundedWords, folded
from conf.specs.experiment import Slo
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.rows import EVERY_GAP, Clock, ServerWords, batch
from loadgen.run.run_folder import RunFolder
from loadgen.traffic.schedule import PHASES, ArrivalSchedule, Planned

MANY = 40_000
"""More than 16 bits with a sign can count."""


def names(count: int, first: int = 0) -> list[str]:
    return [f"replica-{number}" for number in range(first, first + count)]


def test_a_word_is_kept_short_and_printable_until_there_are_too_many() -> None:
    said = BoundedWords()
    assert said.kept(None) is None
    assert said.kept("\x1b[2Jr1\n") == "[2Jr1"
    assert said.kept("x" * 10_000) == said.kept("x" * 20_000) == "x" * WORD_LETTERS + " ..."
    kept = [said.kept(name) for name in names(MANY)]
    assert kept[: MOST_WORDS - 2] == names(MOST_WORDS - 2)
    assert set(kept[MOST_WORDS - 2 :]) == {OTHER_WORD}
    assert said.kept("replica-0") == "replica-0"


@pytest.mark.parametrize("kind", [pa.string(), parquet.WIDE_WORD, pa.large_string()])
def test_a_column_keeps_its_first_words(kind: pa.DataType) -> None:
    chunks = [names(3000), [None, "replica-0"], names(MANY, 2000)]
    column = folded(pa.chunked_array([pa.array(chunk).cast(kind) for chunk in chunks]))
    kept = column.to_pylist()
    assert column.type == parquet.WORD
    assert kept[:3002] == chunks[0] + chunks[1]
    assert kept[3002 : 3002 + MOST_WORDS - 2000] == names(MOST_WORDS - 2000, 2000)
    assert set(kept[3002 + MOST_WORDS - 2000 :]) == {OTHER_WORD}
    assert column.unify_dictionaries().combine_chunks().type == parquet.WORD


def test_a_column_of_no_chunk_is_one_of_words() -> None:
    assert folded(pa.chunked_array([], pa.string())).type == parquet.WORD


def test_bytes_that_are_no_text_are_refused() -> None:
    strange = pa.DictionaryArray.from_arrays([0], pa.array([b"\xff"]).view(pa.string()))
    with pytest.raises(pa.ArrowInvalid):
        folded(pa.chunked_array([strange]))


def rows(count: int, first: int = 0) -> pa.RecordBatch:
    """What a load actor writes of answers that each name another replica."""
    flights = []
    for seq in range(first, first + count):
        exchange = Exchange(seq, 1, sent_ns=0, first_token_ns=1, last_token_ns=1, end_ns=2, status="ok")
        exchange.replica_id, exchange.finish_reason = f"r{seq}", f"because {seq}"
        flights.append((Planned(seq, 0, "window", seq, 4, 1), exchange))
    return batch(flights, Clock(0, 0), 0, gaps=EVERY_GAP, words=ServerWords())


def plan(folder: RunFolder, count: int) -> None:
    window, tokens = np.full(count, PHASES.index("window")), np.full(count, 4)
    folder.plan(ArrivalSchedule(0, np.arange(count), np.arange(count), window, tokens, tokens, tokens * 0))


def test_a_null_among_the_words_of_another_tools_file_is_no_word() -> None:
    chunk = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", None]))
    assert parquet.folded(pa.chunked_array([chunk, chunk])).to_pylist() == ["a", None, "a"] * 2


def test_a_run_with_a_replica_for_every_answer_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each load actor has its own first words: together they are more than a small index counts."""
    folder, actors, each = RunFolder.create(tmp_path, "run"), 9, 4096
    folder.write_json("manifest.json", {"verb": "sweep"})
    plan(folder, actors * each)
    for actor in range(actors):
        with_shard = ArrowStream(folder.shards / f"client-{actor:02d}.arrow")
        with_shard.append(rows(each, actor * each))
        with_shard.close()
    assert load_run(folder.path).requests().num_rows == actors * each
    kept = folder.collect()
    folder.close()
    for table in (kept, load_run(folder.path).requests()):
        assert table.schema.equals(records.schema_of(table.column_names))
        assert table.num_rows == actors * each
        assert table["replica_id"].to_pylist()[: MOST_WORDS + 1] == [f"r{n}" for n in range(MOST_WORDS)] + [
            OTHER_WORD
        ]
        assert len(table["finish_reason"].unique()) == MOST_WORDS + 1
    assert main(["show", str(folder.path)]) == 0
    assert f"{actors * each} ok" in capsys.readouterr().out


def test_what_has_no_name_of_its_own_is_said() -> None:
    made = [
        {
            "seq": n,
            "window_index": 0,
            "due_ns": n,
            "status": "ok",
            "replica_id": OTHER_WORD if n < 7 else "r0",
        }
        for n in range(100)
    ]
    window = Window(0, "window", 1.0, 1, 0, 0, NS, NS)
    checks = {
        check.name: check for check in judge_window(records.table(made), window, Slo("s", 1.0, 1.0)).checks
    }
    said = checks["folded_names"]
    assert (said.value, said.passed, said.voids) == (7.0, False, False)
    none = judge_window(records.table(made[7:]), window, Slo("s", 1.0, 1.0)).checks
    assert "folded_names" not in [check.name for check in none]
