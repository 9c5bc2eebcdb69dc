"""analysis.rows.parquet and records: tables of any length, streams cut short by a kill, bounded words."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import load_run
from analysis.__main__ import main
from analysis.results.runs import Run
from analysis.rows import parquet, records, shards
from analysis.rows.parquet import MOST_WORDS, OTHER_WORD, WORD_LETTERS, BoundedWords, folded
from analysis.rows.records import CLIENTS, SERVER, read_stream
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.rows import Clock, GapRecord, batch
from loadgen.run.run_folder import RunFolder
from loadgen.traffic.schedule import PHASES, ArrivalSchedule, Planned


def rows(*seqs: int) -> pa.Table:
    told = [{"seq": seq, "due_ns": 10 * seq, "status": "ok", "itl_us": [seq] * (seq % 4)} for seq in seqs]
    return pa.Table.from_pylist(told, schema=records.SHARD)


def shard(
    path: Path, rows: list[dict[str, Any]] | pa.Table, schema: pa.Schema = records.SHARD, size: int = 9
) -> None:
    """A shard of these rows, so many in a batch."""
    written = ArrowStream(path, schema)
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema=schema)
    for piece in table.to_batches(max_chunksize=size):
        written.append(piece)
    written.close()


@pytest.mark.parametrize(("most_rows", "most_elements"), [(1, 9), (3, 9), (100, 1), (100, 5), (100, 10**9)])
def test_rows_come_in_order_in_pieces_of_few_rows_and_elements(most_rows: int, most_elements: int) -> None:
    table = pa.concat_tables([rows(*range(0, 20, 2)), rows(*range(1, 20, 2))])
    order = np.argsort(table["seq"].to_numpy())
    pieces = list(parquet.taken([table], order, records.SHARD, most_rows, most_elements))
    assert pa.concat_tables(pieces).to_pylist() == rows(*range(20)).to_pylist()
    assert all(len(piece) <= most_rows for piece in pieces)
    gaps = [sum(map(len, piece["itl_us"].to_pylist())) for piece in pieces]
    assert all(count <= most_elements or len(piece) == 1 for count, piece in zip(gaps, pieces, strict=True))


def test_more_gaps_than_a_list_can_count_are_no_obstacle() -> None:
    """Three thousand batches that share the memory of one: 2^31 gaps and a half more."""
    count = 2**20
    one = pa.array([[0] * count], pa.list_(pa.int32()))
    table = pa.table({"seq": np.arange(3000), "itl_us": pa.chunked_array([one] * 3000)})
    with pytest.raises(pa.ArrowInvalid, match="offset overflow"):
        table.take(pa.array([0, 2999]))
    pieces = parquet.taken([table], np.array([2999, 0, 1500]), table.schema, most_elements=count)
    assert [piece["seq"].to_pylist() for piece in pieces] == [[2999], [0], [1500]]


def test_a_long_run_has_several_files_that_read_as_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, most_rows=4)
    for number, seqs in enumerate((range(0, 15, 2), range(1, 15, 2))):
        shard(folder.shards / f"client-{number:02d}.arrow", rows(*seqs), size=2)
    folder.collect()
    files = sorted(path.name for path in (tmp_path / "requests").iterdir())
    assert files == ["part-000.parquet", "part-001.parquet", "part-002.parquet", "part-003.parquet"]
    assert pq.read_schema(tmp_path / "requests" / files[0]).field("itl_us").type == pa.list_(pa.int32())
    read = records.read(tmp_path / "requests")
    assert read["seq"].to_pylist() == list(range(15)) and read["itl_us"].to_pylist()[7] == [7, 7, 7]
    shard(folder.shards / "client-02.arrow", rows(3, 15))
    before = (tmp_path / "requests" / files[0]).read_bytes()
    assert folder.collect()["seq"].to_pylist() == list(range(16))
    assert (tmp_path / "requests" / files[0]).read_bytes() == before, "what was saved stays"
    folder.close()


@pytest.mark.parametrize("torn", ["requests/part-000.parquet", "schedule/from-000000000.parquet"])
@pytest.mark.parametrize("left", [b"", b"PAR1", b"PAR1 and no end"])
def test_a_table_that_a_power_cut_tore_costs_no_row_that_shards_have(
    tmp_path: Path, torn: str, left: bytes
) -> None:
    folder = RunFolder(tmp_path)
    folder.write_json("manifest.json", {"verb": "sweep"})
    shard(folder.shards / "client-00.arrow", rows(0, 1))
    (tmp_path / torn).parent.mkdir()
    (tmp_path / torn).write_bytes(left)
    assert load_run(tmp_path).requests()["seq"].to_pylist() == [0, 1]
    assert shards.requests(tmp_path)["seq"].to_pylist() == [0, 1]
    assert folder.collect()["seq"].to_pylist() == [0, 1]
    assert folder.unreadable == [f"shards/unreadable-{Path(torn).name}"]
    assert load_run(tmp_path).requests()["seq"].to_pylist() == [0, 1]
    folder.close()


def test_of_two_records_of_a_request_the_first_counts(tmp_path: Path) -> None:
    """A row that was written again after a kill says nothing new."""
    twice = [{"seq": 3, "due_ns": 30, "status": status} for status in ("ok", "timeout")]
    shard(tmp_path / "shards" / "client-00.arrow", twice, size=1)
    assert shards.requests(tmp_path)["status"].to_pylist() == ["ok"]


AT = 1_795_000_000_000_000
SECONDS = [
    {"at": AT + i, "clock_ns": i, "replica": f"r{i % 2}", "running": i, "kv_usage": 0.5} for i in range(6)
]


def table(rows: list[dict[str, Any]], schema: pa.Schema = SERVER) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


def test_what_is_absent_is_null_and_not_zero() -> None:
    (row,) = table([{"clock_ns": 1, "replica": "r0", "error": "HTTP 500"}]).to_pylist()
    assert row == dict.fromkeys(SERVER.names) | {"clock_ns": 1, "replica": "r0", "error": "HTTP 500"}
    (row,) = table([{"client_id": 3, "cpu_share": 0.25}], CLIENTS).to_pylist()
    assert row == dict.fromkeys(CLIENTS.names) | {"client_id": 3, "cpu_share": 0.25}


def test_a_written_series_is_sorted_whole_and_carries_its_units(tmp_path) -> None:
    path = tmp_path / "run" / "timeseries.parquet"
    records.write_series(table(SECONDS[::-1]), path)
    back = pq.read_table(path)
    assert back.schema.equals(SERVER, check_metadata=True)
    assert back.equals(table(SECONDS))
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"
    assert [file.name for file in path.parent.iterdir()] == ["timeseries.parquet"]


def test_wherever_a_stream_is_cut_its_whole_batches_are_read(tmp_path) -> None:
    written, ends = ArrowStream(tmp_path / "whole", SERVER), []
    for pair in (SECONDS[:2], SECONDS[2:4], SECONDS[4:]):
        written.append(pa.RecordBatch.from_pylist(pair, schema=SERVER))
        written.flush()
        ends.append((tmp_path / "whole").stat().st_size)
    written.close()
    whole, cut = (tmp_path / "whole").read_bytes(), tmp_path / "cut"
    for size in range(0, len(whole) + 1, 13):
        cut.write_bytes(whole[:size])
        rows = 2 * sum(end <= size for end in ends)
        assert read_stream(cut, SERVER).equals(table(SECONDS[:rows]))


def test_a_stream_that_ends_in_garbage_keeps_what_came_before(tmp_path) -> None:
    shard(tmp_path / "shard", [{"client_id": 1}], CLIENTS)
    with (tmp_path / "shard").open("ab") as file:
        file.write(b"\xff\xff\xff\xff\x40\x00\x00\x00garbage")
    assert read_stream(tmp_path / "shard", CLIENTS)["client_id"].to_pylist() == [1]


def test_shards_that_outlive_their_parquet_double_no_row(tmp_path: Path) -> None:
    """A kill between writing a series and removing its shards, then a session that adds to it."""
    beats = [{"client_id": i % 2, "clock_ns": i // 2, "sends": i} for i in range(6)]
    records.write_series(table(SECONDS), tmp_path / "timeseries.parquet")
    records.write_series(table(beats, CLIENTS), tmp_path / "clients.parquet")
    (tmp_path / "shards").mkdir()
    added, beat = {"clock_ns": 6, "replica": "r0"}, {"client_id": 2, "clock_ns": 2, "sends": 9}
    shard(tmp_path / "shards" / "server-1.arrow", [*SECONDS[2:], added], SERVER)
    shard(tmp_path / "shards" / "client-00.health.arrow", [beats[2], beats[0]], CLIENTS)
    shard(tmp_path / "shards" / "client-02.health.arrow", [beat], CLIENTS)
    run = Run(tmp_path, {}, None)
    assert run.timeseries().equals(table([*SECONDS, added]))
    assert run.clients().equals(table([*beats, beat], CLIENTS))


def test_two_replicas_of_one_moment_are_two_rows(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    rows = [{"clock_ns": 5, "replica": name, "running": i} for i, name in enumerate(["r0", "r1", "r0"])]
    shard(tmp_path / "shards" / "server-1.arrow", rows, SERVER)
    assert Run(tmp_path, {}, None).timeseries().equals(table(rows[:2]))


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


def test_a_column_has_words_alone_and_no_chunk_is_one_of_them() -> None:
    assert folded(pa.chunked_array([], pa.string())).type == parquet.WORD
    chunk = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", None]))
    assert folded(pa.chunked_array([chunk, chunk])).to_pylist() == ["a", None, "a"] * 2, "another tool's null"
    strange = pa.DictionaryArray.from_arrays([0], pa.array([b"\xff"]).view(pa.string()))
    with pytest.raises(pa.ArrowInvalid):
        folded(pa.chunked_array([strange]))


def naming(count: int, first: int = 0) -> pa.RecordBatch:
    """What a load actor writes of answers that each name another replica."""
    flights = []
    for seq in range(first, first + count):
        plan = Planned(seq, 0, "window", seq, 4, 1)
        exchange = Exchange(plan, sent_ns=0, first_token_ns=1, last_token_ns=1, end_ns=2, status="ok")
        exchange.replica_id, exchange.finish_reason = f"r{seq}", f"because {seq}"
        flights.append(exchange)
    return batch(flights, Clock(0, 0), 0, gaps=GapRecord(), words=defaultdict(BoundedWords))


def plan(folder: RunFolder, count: int) -> None:
    window, tokens = np.full(count, PHASES.index("window")), np.full(count, 4)
    folder.plan(ArrivalSchedule(0, np.arange(count), np.arange(count), window, tokens, tokens, tokens * 0))


def test_a_run_with_a_replica_for_every_answer_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each load actor has its own first words: together they are more than a small index counts."""
    folder, actors, each = RunFolder.create(tmp_path, "run"), 9, 4096
    folder.write_json("manifest.json", {"verb": "sweep"})
    plan(folder, actors * each)
    for actor in range(actors):
        one = pa.Table.from_batches([naming(each, actor * each)])
        shard(folder.shards / f"client-{actor:02d}.arrow", one, size=each)
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
