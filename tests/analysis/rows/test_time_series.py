"""analysis.rows.records: what is sampled once a second, its files, and streams that a kill cut short."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.results.runs import Run
from analysis.rows import records
from analysis.rows.records import CLIENTS, SERVER, read_stream
from loadgen.fleet.arrow_stream import ArrowStream

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


def shard(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    written = ArrowStream(path, schema)
    written.append(pa.RecordBatch.from_pylist(rows, schema=schema))
    written.close()


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
