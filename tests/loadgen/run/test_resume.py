"""loadgen/run/resumption.py: a run that was cut short goes on, with nothing twice and nothing forgotten."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analysis import load_run
from analysis.capacity.posterior import posterior
from analysis.capacity.window_counts import LOOK_AHEAD, LOOK_BACK, Window
from analysis.rows import records
from conf import load
from conf.host_outage import HostOutage
from loadgen.drive.driver import Driver
from loadgen.drive.load_feed import Past
from loadgen.drive.programs import sweep
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.target import Observation
from loadgen.run.resumption import past
from loadgen.run.run_folder import RunFolder
from loadgen.search.policy import prior
from loadgen.search.window_plan import MeasuredWindow, Start
from loadgen.traffic.schedule import NS, ArrivalSchedule
from tests.support.search.searches import swept
from tests.support.virtual.virtual_drivers import engines, plan
from tests.support.virtual.virtual_target import VirtualTarget

EXPERIMENT = load(["search=quick", "search.budget_s=400"])


class Killed(BaseException):
    """The process is gone."""


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


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
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


def test_a_restored_search_has_the_posterior_it_had(folder: RunFolder) -> None:
    before = killed_after(folder, 4)
    folder.close()
    again = RunFolder(folder.path)
    again.collect()
    after = driver(again, again.event, past(load_run(folder.path)))
    # The kill took answers of the last window with it, so that one is measured again.
    before.windows.outcomes.pop()
    assert [nearby(outcome) for outcome in after.windows.outcomes] == [
        nearby(outcome) for outcome in before.windows.outcomes
    ]
    assert capacity(after) == capacity(before)
    assert after.elapsed_s() > 100


def test_finished_windows_stay_valid_although_the_service_was_deployed_anew(folder: RunFolder) -> None:
    killed_after(folder, 3)
    folder.close()
    again = RunFolder(folder.path)
    again.collect()
    after = driver(again, again.event, past(load_run(folder.path)), frozenset({"another"}))
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
    folder: RunFolder, row: dict[str, Any]
) -> None:
    killed_after(folder, 3)
    folder.collect()
    before = past(load_run(folder.path))
    cut(folder.path, before.windows[-1].counts, **row)
    after = past(load_run(folder.path))
    assert len(after.windows) == len(before.windows) - 1
    assert after.windows == before.windows[:-1] and after.elapsed_s < before.elapsed_s
    assert after.next_seq == before.next_seq


@pytest.mark.slow
def test_what_was_measured_while_the_service_died_is_measured_again(folder: RunFolder) -> None:
    killed_after(folder, 3)
    folder.collect()
    before = past(load_run(folder.path))
    folder.event("target_lost", text="gone", last=3)
    assert past(load_run(folder.path)).windows == before.windows[:3]


@pytest.mark.slow
def test_a_resumed_run_ends_like_any_other_with_one_row_for_every_request(folder: RunFolder) -> None:
    killed_after(folder, 3)
    folder.close()
    again = RunFolder(folder.path)
    first = again.collect()
    drive = driver(again, again.event, past(load_run(folder.path)))
    result = swept(drive)
    assert result.capacity is not None and result.capacity.low < 3.35 < result.capacity.high
    assert result.elapsed_s <= EXPERIMENT.search.budget_s + 60
    ended(drive)
    rows = again.collect()
    seqs = rows["seq"].to_pylist()
    assert len(seqs) == len(set(seqs)) == RunFolder.planned_in(again.path) > first.num_rows
    assert [row["due_ns"] for row in rows.to_pylist()] == sorted(rows["due_ns"].to_pylist())
    events = load_run(folder.path).events()
    assert [e["text"] for e in events if e["event"] == "warm"] == ["warm-up: 4 requests, 4 ok"] * 2
    indices = [event["index"] for event in events if event["event"] == "window_done"]
    assert sorted(set(indices)) == list(range(len(drive.windows.outcomes))), (
        "the last window was measured again"
    )


def test_a_run_killed_before_its_first_window_starts_anew(folder: RunFolder) -> None:
    killed_after(folder, 0)
    folder.close()
    again = RunFolder(folder.path)
    assert again.collect().num_rows > 0
    before = past(load_run(folder.path))
    assert (before.windows, before.elapsed_s) == ([], 0.0)
    assert before.next_seq == RunFolder.planned_in(folder.path)


def test_a_window_that_felt_an_outage_stays_void_in_a_later_session(folder: RunFolder) -> None:
    """The outage is noticed only when its window is over."""
    outages: list[HostOutage] = []

    def emit(kind: str, /, **facts: Any) -> None:
        folder.event(kind, **facts)
        if kind == "window_done" and facts["index"] == 3:
            at_ns = facts["window"]["window_end_ns"] - NS
            outages.append(HostOutage("load1", "10.0.0.9", False, "", at_ns, at_ns + 1, frozenset({1})))
        if kind == "window" and facts["index"] == 6:
            raise Killed

    drive = driver(folder, emit)
    drive.windows.outages = lambda: outages
    with pytest.raises(Killed):
        sweep(drive)
    ended(drive)
    folder.close()
    again = RunFolder(folder.path)
    again.collect()
    windows = past(load_run(folder.path)).windows
    assert [window.index for window in windows if window.evidence.lost_load_hosts] == [3]
    after = driver(again, again.event, past(load_run(folder.path)))
    assert after.windows.outcomes[3].verdict.reason == "load_host_lost"
