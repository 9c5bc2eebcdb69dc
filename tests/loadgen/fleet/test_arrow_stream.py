"""loadgen/fleet/arrow_stream.py: flushed rows survive a kill, a full disk and other readers."""

import errno
import fcntl
import os
from pathlib import Path

import pyarrow as pa
import pytest

from analysis.rows import records
from loadgen.fleet.arrow_stream import ArrowStream
from tests.support.runs.run_folders import Disk, on_disk


def row(seq: int) -> pa.RecordBatch:
    """One row as the worker hands it to its shard."""
    whole = {"seq": seq, "due_ns": seq, "status": "ok", "itl_us": [1, 2]}
    return pa.RecordBatch.from_pylist([whole], schema=records.SHARD)


def seqs(path: Path) -> list[int]:
    return list(records.read_shard(path)["seq"].to_pylist())


def test_a_cut_shard_gives_back_every_flushed_row(tmp_path: Path) -> None:
    shard = ArrowStream(tmp_path / "s.arrow")
    for seq in range(50):
        shard.append(row(seq))
        if seq % 10 == 9:
            shard.flush()
    content = shard.path.read_bytes()
    (tmp_path / "cut.arrow").write_bytes(content[:-37])
    assert seqs(tmp_path / "cut.arrow") == list(range(49))
    assert seqs(shard.path) == list(range(50))
    shard.close()


def test_what_another_writer_left_under_the_name_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    for first in (0, 100):
        shard = ArrowStream(path)
        for seq in range(first, first + 50 - first // 4):
            shard.append(row(seq))
        shard.close()
    assert seqs(path) == list(range(100, 125))


def test_only_a_failed_write_moves_in_the_file(tmp_path: Path) -> None:
    """On a network file system each move is a round trip that the sending loop would wait for."""
    shard, disk = on_disk(tmp_path / "s.arrow")
    for seq in range(5):
        shard.append(row(seq))
        shard.flush()
    assert disk.moves == 0
    disk.room_bytes = 100
    shard.append(row(5))
    with pytest.raises(OSError, match="No space"):
        shard.flush()
    disk.room_bytes = 1 << 30
    shard.flush()
    assert disk.moves > 0
    moves = disk.moves
    shard.append(row(6))
    shard.close()
    assert disk.moves == moves
    assert seqs(shard.path) == list(range(7))


def test_a_full_disk_neither_cuts_nor_doubles_rows(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    shard, disk = on_disk(path)

    def append(*numbers: int) -> None:
        for seq in numbers:
            shard.append(row(seq))

    append(*range(10))
    shard.flush()
    disk.room_bytes = 300
    append(*range(10, 20))
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            shard.flush()
        assert seqs(path) == list(range(10))
    disk.room_bytes = 1 << 30
    append(*range(20, 30))
    shard.flush()
    append(30)
    shard.close()
    assert seqs(path) == list(range(31))
    assert disk.closed


def test_a_full_disk_closes_the_file_all_the_same(tmp_path: Path) -> None:
    shard, disk = on_disk(tmp_path / "s.arrow")
    shard.append(row(0))
    disk.room_bytes = 0
    with pytest.raises(OSError, match="No space"):
        shard.close()
    assert disk.closed


def test_a_disk_that_is_full_from_the_start_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Disk, "room_bytes", 10)
    with pytest.raises(OSError, match="No space") as full:
        on_disk(tmp_path / "s.arrow")
    ArrowStream(tmp_path / "s.arrow").close()
    assert full.value.errno == errno.ENOSPC, "its traceback holds the file, which must be closed all the same"
    assert seqs(tmp_path / "s.arrow") == []


def test_a_second_writer_is_refused_and_destroys_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    shard = ArrowStream(path)
    shard.append(row(0))
    shard.flush()
    with pytest.raises(BlockingIOError):
        ArrowStream(path)
    shard.append(row(1))
    shard.close()
    assert seqs(path) == [0, 1]
    ArrowStream(path).close()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks_still_takes_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    shard = ArrowStream(tmp_path / "s.arrow")
    shard.append(row(0))
    shard.close()
    assert seqs(shard.path) == [0]


def test_a_shard_that_was_fetched_goes_but_not_the_copy_that_took_its_name(tmp_path: Path) -> None:
    gone, replaced = ArrowStream(tmp_path / "gone.arrow"), ArrowStream(tmp_path / "replaced.arrow")
    for shard in (gone, replaced):
        shard.append(row(0))
        shard.close()
    copy = tmp_path / "copy"
    copy.write_bytes(replaced.path.read_bytes())
    copy.replace(replaced.path)
    for shard in (gone, gone, replaced):
        shard.delete()
    assert not gone.path.exists() and seqs(replaced.path) == [0]
