"""loadgen/run/run_folder.py: a folder survives kills, full disks and load actors that outlive it."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis import load_run
from analysis.results.experiment_facts import describe
from analysis.results.json_border import to_tree
from analysis.results.runs import Run
from analysis.results.verdicts import RunVerdict
from analysis.rows import records, shards
from conf import ConfigError, load
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.run.run_folder import BusyError, RunFolder
from loadgen.traffic.schedule import NS, PHASES, ArrivalSchedule
from tests.support.machine.patience import PATIENCE_S


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "one")


def planned(folder: RunFolder, *seqs: int) -> None:
    """Plan these requests, each due so many seconds after the start."""
    count = len(seqs)
    window, tokens = np.full(count, PHASES.index("window")), np.full(count, 4)
    folder.plan(ArrivalSchedule(0, np.array(seqs), np.array(seqs) * NS, window, tokens, tokens, tokens * 0))


def rows(schema: pa.Schema, status: str, *seqs: int, **more: Any) -> pa.Table:
    told = [{"seq": seq, "due_ns": seq * NS, "status": status, **more} for seq in seqs]
    return pa.Table.from_pylist(told, schema=schema)


def shard(folder: RunFolder, status: str, *seqs: int, client: int = 0) -> ArrowStream:
    """An open shard of a load actor that has flushed these rows."""
    written = ArrowStream(folder.shards / f"client-{client:02d}.arrow")
    for batch in rows(records.SHARD, status, *seqs, client_id=client, itl_us=[1, 2]).to_batches():
        written.append(batch)
    written.flush()
    return written


def states(table: pa.Table) -> list[tuple[int, str]]:
    assert table.schema.names in (records.REQUESTS.names, records.PROGRESS.names)
    return [(row["seq"], row["status"]) for row in table.select(["seq", "status"]).to_pylist()]


def files(folder: RunFolder) -> set[str]:
    return {str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()}


WHOLE = {"events.jsonl", "requests/part-000.parquet", "schedule/from-000000000.parquet"}


def test_what_the_driver_was_told_stands_where_the_shard_is_out_of_reach(folder: RunFolder) -> None:
    planned(folder, *range(6))
    shard(folder, "ok", 0, 1).close()
    folder.tell(rows(records.PROGRESS, "truncated", 1, 2))
    folder.tell(rows(records.PROGRESS, "timeout"))
    folder.tell(rows(records.PROGRESS, "timeout", 3, 3))
    expected = [(0, "ok"), (1, "ok"), (2, "truncated"), (3, "timeout"), (4, "lost"), (5, "lost")]
    assert states(shards.requests(folder.path)) == expected, "on the disk at once, without a close"
    collected = folder.collect()
    saved = records.read(folder.path / "requests")
    assert states(saved) == expected and collected.equals(saved.drop_columns("itl_us"))
    assert saved["itl_us"].to_pylist() == [[1, 2], [1, 2], None, None, None, None]
    assert files(folder) == WHOLE


def test_every_session_tells_in_a_shard_of_its_own(folder: RunFolder) -> None:
    planned(folder, *range(4))
    folder.tell(rows(records.PROGRESS, "ok", 0))
    folder.close()
    again = RunFolder(folder.path)
    again.tell(rows(records.PROGRESS, "ok", 1))
    assert {path.name for path in again.shards.iterdir()} == {"driver-0.arrow", "driver-1.arrow"}
    assert states(again.collect())[:2] == [(0, "ok"), (1, "ok")]
    again.tell(rows(records.PROGRESS, "ok", 2))
    assert states(again.collect()) == [(0, "ok"), (1, "ok"), (2, "lost"), (3, "lost")], "lost is lost"
    again.close()


def test_a_kill_before_the_shards_go_doubles_no_row_and_the_parquet_stands(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(folder, *range(4))
    shard(folder, "ok", 0, 1).close()
    shard(folder, "ok", 2, client=1).close()

    unlink = Path.unlink

    def killed(path: Path, **more: Any) -> None:
        if path.suffix == ".arrow":
            raise Killed
        unlink(path, **more)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "unlink", killed)
        folder.collect()
    once = [(0, "ok"), (1, "ok"), (2, "ok"), (3, "lost")]
    shard(folder, "http_error", 1, 3).close()
    assert states(Run(folder.path, {}, None).requests()) == once
    assert states(folder.collect()) == once
    assert states(records.read(folder.path / "requests")) == once
    assert files(folder) == WHOLE


def test_a_second_session_killed_at_once_has_its_plan_on_record(folder: RunFolder) -> None:
    """Its folder has the verdict of the first session and no shard."""
    planned(folder, 0, 1)
    folder.tell(rows(records.PROGRESS, "ok", 0, 1))
    folder.collect()
    folder.write_json("manifest.json", {"verb": "sweep"})
    verdict = RunVerdict(experiment=describe(load([])), exit_code=130, valid=False)
    folder.write_json("sweep.json", to_tree(verdict))
    planned(folder, 2)
    assert states(load_run(folder.path).requests()) == [(0, "ok"), (1, "ok"), (2, "lost")]


def test_a_load_actor_that_still_writes_is_waited_for(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.run.run_folder.RELEASE_S", PATIENCE_S)
    planned(folder, 0, 1)
    writing = shard(folder, "ok", 0)

    def end() -> None:
        (batch,) = rows(records.SHARD, "truncated", 1).to_batches()
        writing.append(batch)
        writing.close()

    dying = threading.Timer(0.3, end)
    dying.start()
    assert states(folder.collect()) == [(0, "ok"), (1, "truncated")]
    dying.join()


def test_a_load_actor_that_does_not_end_is_left_alone(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.run.run_folder.RELEASE_S", 0.0)
    planned(folder, 0)
    writing = shard(folder, "ok", 0)
    with pytest.raises(BusyError) as busy:
        folder.collect()
    assert str(busy.value) == f"a load actor still writes {writing.path}; try again"
    assert not (folder.path / "requests").exists()
    writing.close()
    assert states(folder.collect()) == [(0, "ok")]


def test_shards_stay_until_the_disk_has_the_parquet(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system may say only at the end that it is full."""
    planned(folder, 0)
    shard(folder, "ok", 0).close()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full)
        folder.collect()
    assert states(records.read_shard(folder.shards / "client-00.arrow")) == [(0, "ok")]
    assert states(folder.collect()) == [(0, "ok")]


def test_a_small_file_that_cannot_be_written_leaves_the_old_one_and_no_half(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_json("sweep.json", {"a": 1})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full)
        folder.write_json("sweep.json", {"a": 2})
    assert folder.read_json("sweep.json") == {"a": 1}
    assert files(folder) == {"events.jsonl", "sweep.json"}


def test_a_folder_that_cannot_be_begun_does_not_take_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="No space"):
        patch.setattr("loadgen.run.run_folder.lock", full)
        RunFolder.create(tmp_path, "one")
    RunFolder.create(tmp_path, "one").close()


@pytest.mark.parametrize("way", [".", "../one", "../link"])
def test_a_folder_knows_its_name_from_wherever_it_is_opened(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    folder.close()
    folder.path.with_name("link").symlink_to(folder.path)
    monkeypatch.chdir(folder.path)
    again = RunFolder(Path(way))
    monkeypatch.chdir("/")
    again.event("begun")
    assert (again.run_id, again.path) == ("one", folder.path)
    assert [event["event"] for event in Run(folder.path, {}, None).events()] == ["begun"]
    again.close()


@pytest.mark.parametrize("cut", [b'{"event": "hal', b'{"event": "whole"}', b"\xff\xfe\0\0\0", b"\n"])
def test_what_follows_a_line_cut_by_a_kill_is_read(folder: RunFolder, cut: bytes) -> None:
    folder.event("before")
    folder.close()
    with (folder.path / "events.jsonl").open("ab") as file:
        file.write(cut)
    again = RunFolder(folder.path)
    again.event("after")
    again.close()
    kinds = [event["event"] for event in Run(folder.path, {}, None).events()]
    assert kinds == (["before", "whole", "after"] if b"whole" in cut else ["before", "after"])
