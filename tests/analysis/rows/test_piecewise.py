"""analysis.rows.parquet: more rows than one Arrow list counts, joined in pieces, in order, once each."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import load_run
from analysis.rows import parquet, records, shards
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.run.run_folder import RunFolder


def rows(*seqs: int) -> pa.Table:
    told = [{"seq": seq, "due_ns": 10 * seq, "status": "ok", "itl_us": [seq] * (seq % 4)} for seq in seqs]
    return pa.Table.from_pylist(told, schema=records.SHARD)


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
        shard = ArrowStream(folder.shards / f"client-{number:02d}.arrow")
        for batch in rows(*seqs).to_batches(max_chunksize=2):
            shard.append(batch)
        shard.close()
    folder.collect()
    files = sorted(path.name for path in (tmp_path / "requests").iterdir())
    assert files == ["part-000.parquet", "part-001.parquet", "part-002.parquet", "part-003.parquet"]
    assert pq.read_schema(tmp_path / "requests" / files[0]).field("itl_us").type == pa.list_(pa.int32())
    read = records.read(tmp_path / "requests")
    assert read["seq"].to_pylist() == list(range(15)) and read["itl_us"].to_pylist()[7] == [7, 7, 7]
    again = ArrowStream(folder.shards / "client-02.arrow")
    for batch in rows(3, 15).to_batches():
        again.append(batch)
    again.close()
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
    shard = ArrowStream(folder.shards / "client-00.arrow")
    for batch in rows(0, 1).to_batches():
        shard.append(batch)
    shard.close()
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
    shard = ArrowStream(tmp_path / "shards" / "client-00.arrow")
    for status in ("ok", "timeout"):
        again = pa.Table.from_pylist([{"seq": 3, "due_ns": 30, "status": status}], schema=records.SHARD)
        shard.append(again.to_batches()[0])
    shard.close()
    assert shards.requests(tmp_path)["status"].to_pylist() == ["ok"]
