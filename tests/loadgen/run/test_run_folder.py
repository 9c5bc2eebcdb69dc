"""loadgen/run: a folder that a kill leaves whole, and a run that was cut short goes on, nothing twice."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis import load_run
from analysis.capacity.posterior import posterior
from analysis.capacity.window_counts import LOOK_AHEAD, LOOK_BACK, Window
from analysis.results.experiment_facts import describe
from analysis.results.json_border import to_tree
from analysis.results.runs import Run
from analysis.results.verdicts import RunVerdict
from analysis.rows import records, shards
from conf import ConfigError, load
from conf.host_outage import HostOutage
from loadgen.drive.driver import Driver
from loadgen.drive.load_feed import Past
from loadgen.drive.programs import sweep
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.target import Observation
from loadgen.run.resumption import past
from loadgen.run.run_folder import BusyError, RunFolder
from loadgen.search.policy import prior
from loadgen.search.window_plan import MeasuredWindow, Start
from loadgen.traffic.schedule import NS, PHASES, ArrivalSchedule
from tests.support.machine.patience import PATIENCE_S
from tests.support.runs.run_folders import full
from tests.support.search.searches import swept
from tests.support.virtual.virtual_drivers import Killed, engines, plan
from tests.support.virtual.virtual_target import VirtualTarget


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


def test_an_actor_that_still_writes_is_waited_for(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_actor_that_does_not_end_is_left_alone(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.run.run_folder.RELEASE_S", 0.0)
    planned(folder, 0)
    writing = shard(folder, "ok", 0)
    with pytest.raises(BusyError) as busy:
        folder.collect()
    assert str(busy.value) == f"a load actor still writes {writing.path}; try again"
    assert not (folder.path / "requests").exists()
    writing.close()
    assert states(folder.collect()) == [(0, "ok")]


def test_shards_stay_until_the_disk_has_parquet(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may say only at the end that it is full."""
    planned(folder, 0)
    shard(folder, "ok", 0).close()

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full)
        folder.collect()
    assert states(records.read_shard(folder.shards / "client-00.arrow")) == [(0, "ok")]
    assert states(folder.collect()) == [(0, "ok")]


def test_a_small_file_that_cannot_be_written_leaves_the_old_one_and_no_half(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_json("sweep.json", {"a": 1})

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full)
        folder.write_json("sweep.json", {"a": 2})
    assert folder.read_json("sweep.json") == {"a": 1}
    assert files(folder) == {"events.jsonl", "sweep.json"}


def test_a_folder_that_cannot_be_begun_does_not_take_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


EXPERIMENT = load(["search=quick", "search.budget_s=400"])


class Recorded(VirtualTarget):
    """The engine model as target, whose rows reach a shard as a load actor's would until it is `ended`."""

    def __init__(self, folder: RunFolder, from_ns: int = 0, first_client: int = 0) -> None:
        super().__init__(engines(EXPERIMENT))
        self._now_ns = from_ns
        self._shard = ArrowStream(folder.shards / f"client-{first_client:02d}.arrow")

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        progress = super().run(schedule, until_ns)
        gaps = pa.nulls(progress.ended.num_rows, records.SHARD.field("itl_us").type)
        for batch in progress.ended.append_column("itl_us", gaps).select(records.SHARD.names).to_batches():
            self._shard.append(batch)
        self._shard.flush()
        return progress

    def end(self) -> None:
        """The load actor ends: its shard is let go."""
        self._shard.close()


def driver(
    folder: RunFolder,
    emit: Callable[..., None],
    before: Past | None = None,
    replicas: frozenset[str] | None = None,
) -> Driver:
    target = Recorded(folder, before.end_ns if before else 0, before.next_client if before else 0)
    planned = plan(EXPERIMENT, Start(5.1, 3.35), warmup_requests=4, replicas=replicas)
    drive = Driver(target, planned, emit, folder.plan)
    if before is not None:
        drive.restore(before)
    return drive


def killed_after(folder: RunFolder, windows: int) -> Driver:
    """A sweep whose process dies in the window after so many finished windows."""

    def emit(kind: str, /, **facts: Any) -> None:
        folder.event(kind, **facts)
        if kind == "window" and facts["index"] == windows:
            raise Killed

    drive = driver(folder, emit)
    with pytest.raises(Killed):
        sweep(drive)
    ended(drive)
    return drive


def ended(drive: Driver) -> None:
    """The load actors of a driver are gone, as they are at the end of a run and soon after a kill."""
    assert isinstance(drive.feed.target, Recorded)
    drive.feed.target.end()


def next_session(folder: RunFolder, replicas: frozenset[str] | None = None) -> Driver:
    """The driver of the session that resumes a run."""
    folder.close()
    again = RunFolder(folder.path)
    again.collect()
    return driver(again, again.event, past(load_run(again.path)), replicas)


@pytest.fixture
def begun(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path, "run")
    made.write_json("manifest.json", {"verb": "sweep"})
    return made


def capacity(drive: Driver) -> Any:
    belief = prior(drive.plan.search, drive.plan.begin, drive.windows.outcomes)
    assert belief is not None
    return posterior([outcome.counts for outcome in drive.windows.outcomes if not outcome.void], belief)


def nearby(outcome: MeasuredWindow) -> MeasuredWindow:
    """An outcome without loads far from its window, of which a later session knows more or less."""
    load = outcome.counts.load[LOOK_BACK - 12 : 3 - LOOK_AHEAD]
    return replace(outcome, counts=replace(outcome.counts, load=load))


def test_a_restored_search_has_the_posterior_it_had(begun: RunFolder) -> None:
    before = killed_after(begun, 4)
    after = next_session(begun)
    # The kill took answers of the last window with it, so that one is measured again.
    before.windows.outcomes.pop()
    assert [*map(nearby, after.windows.outcomes)] == [*map(nearby, before.windows.outcomes)]
    assert capacity(after) == capacity(before)
    assert after.elapsed_s() > 100


def test_finished_windows_stay_valid_although_the_service_was_deployed_anew(begun: RunFolder) -> None:
    killed_after(begun, 3)
    after = next_session(begun, frozenset({"another"}))
    assert after.windows.outcomes and not any(outcome.void for outcome in after.windows.outcomes)


def cut(folder: Path, window: Window, **end: Any) -> None:
    """Gives the last answer of a window another end."""
    rows = records.read(folder / "requests").to_pylist()
    inside = [row for row in rows if window.window_start_ns <= row["due_ns"] < window.window_end_ns]
    inside[-1].update(end)
    records.write(records.table(rows), folder / "requests" / "part-000.parquet")


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", [{"status": "lost"}, {"status": "truncated", "error_kind": "interrupted"}], ids=["lost", "cut"]
)
def test_a_window_whose_answers_ended_with_the_session_is_measured_again(
    begun: RunFolder, row: dict[str, Any]
) -> None:
    killed_after(begun, 3)
    begun.collect()
    before = past(load_run(begun.path))
    cut(begun.path, before.windows[-1].counts, **row)
    after = past(load_run(begun.path))
    assert len(after.windows) == len(before.windows) - 1
    assert after.windows == before.windows[:-1] and after.elapsed_s < before.elapsed_s
    assert after.next_seq == before.next_seq


@pytest.mark.slow
def test_what_was_measured_while_the_service_died_is_measured_again(begun: RunFolder) -> None:
    killed_after(begun, 3)
    begun.collect()
    before = past(load_run(begun.path))
    begun.event("target_lost", text="gone", last=3)
    assert past(load_run(begun.path)).windows == before.windows[:3]


@pytest.mark.slow
def test_a_resumed_run_ends_like_any_other_with_one_row_for_every_request(begun: RunFolder) -> None:
    killed_after(begun, 3)
    begun.close()
    again = RunFolder(begun.path)
    first = again.collect()
    drive = driver(again, again.event, past(load_run(begun.path)))
    result = swept(drive)
    assert result.capacity is not None and result.capacity.low < 3.35 < result.capacity.high
    assert result.elapsed_s <= EXPERIMENT.search.budget_s + 60
    ended(drive)
    rows = again.collect()
    seqs = rows["seq"].to_pylist()
    assert len(seqs) == len(set(seqs)) == RunFolder.planned_in(again.path) > first.num_rows
    assert [row["due_ns"] for row in rows.to_pylist()] == sorted(rows["due_ns"].to_pylist())
    events = load_run(begun.path).events()
    assert [e["text"] for e in events if e["event"] == "warm"] == ["warm-up: 4 requests, 4 ok"] * 2
    indices = [event["index"] for event in events if event["event"] == "window_done"]
    assert sorted(set(indices)) == list(range(len(drive.windows.outcomes)))  # the last one twice


def test_a_run_killed_before_its_first_window_starts_anew(begun: RunFolder) -> None:
    killed_after(begun, 0)
    begun.close()
    again = RunFolder(begun.path)
    assert again.collect().num_rows > 0
    before = past(load_run(begun.path))
    assert (before.windows, before.elapsed_s) == ([], 0.0)
    assert before.next_seq == RunFolder.planned_in(begun.path)


def test_a_window_that_felt_an_outage_stays_void_in_a_later_session(begun: RunFolder) -> None:
    """The outage is noticed only when its window is over."""
    outages: list[HostOutage] = []

    def emit(kind: str, /, **facts: Any) -> None:
        begun.event(kind, **facts)
        if kind == "window_done" and facts["index"] == 3:
            at_ns = facts["window"]["window_end_ns"] - NS
            outages.append(HostOutage("load1", "10.0.0.9", False, "", at_ns, at_ns + 1, frozenset({1})))
        if kind == "window" and facts["index"] == 6:
            raise Killed

    drive = driver(begun, emit)
    drive.windows.outages = lambda: outages
    with pytest.raises(Killed):
        sweep(drive)
    ended(drive)
    after = next_session(begun)
    windows = past(load_run(begun.path)).windows
    assert [window.index for window in windows if window.evidence.lost_load_hosts] == [3]
    assert after.windows.outcomes[3].verdict.reason == "load_host_lost"
