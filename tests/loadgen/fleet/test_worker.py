"""loadgen/fleet/worker.py: one row for each planned request, whatever becomes of it, on disk at once;
a turn waits for the one of its session before it, and for nothing else."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis.capacity.checks import sent as share_sent
from analysis.rows import metrics, records, routing_spread
from conf import load
from loadgen.fleet import worker as worker_module
from loadgen.fleet import worker_log
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.worker import Worker
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import NS, ArrivalSchedule
from loadgen.traffic.traffic import Traffic
from tests.support.machine.patience import PATIENCE_S
from tests.support.runs.run_folders import facts, on_disk
from tests.support.servers.mock_server import MockServer, Script, answer, head, token
from tests.support.servers.workers import Rows, played, started

WORKLOAD = load(["workload=smoke", "workload.output_tokens.mean=4"]).workload
PROMPTS = Prompts(WORKLOAD, "m", 151936, salt=1)
pytestmark = pytest.mark.usefixtures("never_overdue")
LEAD_NS = NS // 10


def plan(rate_qps: float, seconds: float, start_ns: int = 0) -> ArrivalSchedule:
    bounds = {"window": (start_ns, start_ns + int(seconds * NS))}
    return Traffic(WORKLOAD).draw(rate_qps, bounds, window_index=0, first_seq=0, seed=1)


def run(
    path: Path,
    *schedules: ArrivalSchedule,
    script: Script = answer,
    prompts: Prompts = PROMPTS,
    enough: Callable[[Rows, Rows], object] | None = None,
    goes_on: bool = False,
    retract: bool = False,
    later: Sequence[ArrivalSchedule] = (),
    lead_ns: int = LEAD_NS,
    drain_s: float = PATIENCE_S,
    timeout_s: float = PATIENCE_S,
) -> tuple[Rows, pa.Table]:
    """The rows that a worker told until there were `enough`, by default all ended, and its shard in the end.

    Then it is to `retract`; if it `goes_on`, until all have ended, and what comes `later` too.
    """

    async def main() -> Rows:
        async with MockServer(script) as server:
            worker = started([server.url], prompts, ArrowStream(path), lead_ns, timeout_s=timeout_s)
            ended, pending = await played(worker, *schedules, enough=enough)
            if retract:
                worker.retract()
            if goes_on:
                await played(worker, count=sum(map(len, schedules)) - len(ended))
                await played(worker, *later)
            await worker.finish(drain_s)
            return ended + pending

    return asyncio.run(main()), records.read_shard(path)


def statuses(table: pa.Table) -> Counter[str]:
    return Counter(table["status"].to_pylist())


def test_every_planned_request_has_one_row_and_times_count_from_due(tmp_path: Path) -> None:
    schedule = plan(150, 0.3)
    _, table = run(tmp_path / "s.arrow", schedule, script=lambda body: answer(body, 0.005))
    assert sorted(table["seq"].to_pylist()) == schedule.seq.tolist()
    assert statuses(table) == {"ok": len(schedule)}
    assert table.schema == records.REQUESTS
    by_seq = table.sort_by("seq")
    assert by_seq["due_ns"].to_pylist() == schedule.due_ns.tolist()
    sent = np.array(by_seq["send_offset_ns"].to_pylist())
    first = np.array(by_seq["first_token_offset_ns"].to_pylist())
    last = np.array(by_seq["last_token_offset_ns"].to_pylist())
    assert np.all(sent >= -NS // 1000) and np.all(first > sent) and np.all(last > first)
    gaps_us = [sum(gaps) for gaps in by_seq["itl_us"].to_pylist()]
    assert np.allclose(np.array(gaps_us) * 1000, last - first, atol=10_000)


@pytest.mark.parametrize(
    "schedule",
    [plan(40, 60.0), Traffic(WORKLOAD).closed(1000, 4, 0, window_index=0, first_seq=0, seed=1)],
    ids=["open", "closed"],
)
def test_what_is_retracted_has_its_row_outside_the_window(tmp_path: Path, schedule: ArrivalSchedule) -> None:
    _, table = run(
        tmp_path / "s.arrow",
        schedule,
        script=lambda body: answer(body, 0.01),
        enough=lambda ended, _: len(ended) > 5,
    )
    assert sorted(table["seq"].to_pylist()) == schedule.seq.tolist()
    retracted = [row for row in table.to_pylist() if row["status"] == "missed"]
    assert retracted and all(row["phase"] == "retracted" for row in retracted)
    assert statuses(table)["ok"] + len(retracted) == len(schedule)


def test_what_is_long_overdue_is_missed_and_not_sent_in_a_burst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "MISSED_AFTER_NS", NS)
    schedule = plan(20, 2.5)
    rows, _ = run(tmp_path / "s.arrow", schedule, lead_ns=-3 * NS)
    overdue = [row for row in rows if row["due_ns"] < 2 * NS]
    assert {(row["status"], row["error_kind"], row["phase"]) for row in overdue} == {
        ("missed", "overdue", "window")
    }
    assert len(rows) == len(schedule)


def test_a_closed_loop_keeps_so_many_in_flight_and_counts_from_their_start(tmp_path: Path) -> None:
    schedule = Traffic(WORKLOAD).closed(40, 4, 0, window_index=0, first_seq=10, seed=1)
    _, table = run(tmp_path / "s.arrow", schedule, script=lambda body: answer(body, 0.004))
    rows = sorted(table.to_pylist(), key=lambda row: row["due_ns"])
    assert [row["status"] for row in rows] == ["ok"] * 40
    assert sorted(row["seq"] for row in rows) == list(range(10, 50))
    assert [row["phase"] for row in rows].count("transition") == 4
    starts = [row["due_ns"] + row["send_offset_ns"] for row in rows]
    ends = sorted(row["due_ns"] + row["end_offset_ns"] for row in rows)
    # The k-th request starts when the (k - 4)-th has ended, and is due at that moment.
    assert all(start >= end for start, end in zip(starts[4:], ends, strict=False))
    assert max(row["send_offset_ns"] for row in rows[4:]) < NS


def test_a_closed_loop_that_starts_late_is_played_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever begins late begins; his lateness is in his row, and everybody after him is in time."""
    monkeypatch.setattr(worker_module, "MISSED_AFTER_NS", NS)

    schedule = Traffic(WORKLOAD).closed(20, 4, 0, window_index=0, first_seq=0, seed=1)
    rows, _ = run(tmp_path / "s.arrow", schedule, lead_ns=-3 * NS // 2)
    assert sorted(row["seq"] for row in rows) == list(range(20))
    assert {row["status"] for row in rows} == {"ok"}
    first, rest = [row for row in rows if row["seq"] < 4], [row for row in rows if row["seq"] >= 4]
    assert all(row["due_ns"] == 0 and row["send_offset_ns"] >= 3 * NS // 2 for row in first)
    assert all(row["due_ns"] > 3 * NS // 2 for row in rest)


def test_only_the_end_of_a_closed_loops_own_request_starts_the_next(tmp_path: Path) -> None:
    """An answer that another window waited for is nobody's in the loop."""
    flying, most = 0, 0
    others = Traffic(WORKLOAD).evenly(8, 0, 1, first_seq=100, seed=1)
    schedule = Traffic(WORKLOAD).closed(16, 2, 1, window_index=1, first_seq=0, seed=1)
    rows, _ = run(tmp_path / "s.arrow", others, schedule, script=lambda body: answer(body, 0.01))
    loop = [row for row in rows if row["window_index"] == 1]
    steps = [(row["due_ns"] + row["send_offset_ns"], 1) for row in loop]
    steps += [(row["due_ns"] + row["end_offset_ns"], -1) for row in loop]
    for _, step in sorted(steps):
        flying += step
        most = max(most, flying)
    assert len(loop) == 16 and most == 2


def test_a_retraction_holds_for_what_was_offered_before_it_only(tmp_path: Path) -> None:
    """It comes while a long schedule is being taken, and the next schedule right behind it."""
    long = plan(2000, 2.0, 3600 * NS)
    short = Traffic(WORKLOAD).evenly(3, 0, 1, first_seq=len(long), seed=1)

    async def main() -> None:
        async with MockServer(answer) as server:
            worker = started([server.url], PROMPTS, ArrowStream(tmp_path / "s.arrow"))
            first = asyncio.ensure_future(worker.offer(long))
            await asyncio.sleep(0)
            assert not first.done()
            worker.retract()
            await worker.offer(short)
            await first
            await played(worker, count=len(long) + len(short))
            await worker.finish(PATIENCE_S)

    asyncio.run(main())
    rows = records.read_shard(tmp_path / "s.arrow").to_pylist()
    assert {row["phase"] for row in rows if row["seq"] < len(long)} == {"retracted"}
    assert [row["status"] for row in rows if row["seq"] >= len(long)] == ["ok"] * 3


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_patience_with_a_full_disk_begins_with_its_first_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    """However rare writes are: on a slow clock more time than that lies between two of them."""
    monkeypatch.setattr(worker_module, "FLUSH_S", 0.3 * scale)
    monkeypatch.setattr(worker_log, "FULL_DISK_S", 0.2)
    monkeypatch.setattr(worker_module, "TICK_S", 0.01)
    shard, disk = on_disk(tmp_path / "s.arrow")

    async def main() -> None:
        async with MockServer() as server:
            worker = started([server.url], PROMPTS, shard, time_scale=scale)
            disk.room_bytes = 0
            await worker.offer(Traffic(WORKLOAD).evenly(4, -10 * NS, 1, first_seq=0, seed=1))
            await until(lambda: disk.refused)
            await worker.observe()
            disk.room_bytes = 1 << 30
            await worker.finish(1.0)

    asyncio.run(main())
    assert records.read_shard(tmp_path / "s.arrow").num_rows == 4


def test_a_hung_server_is_seen_pending_and_then_cut(tmp_path: Path) -> None:
    schedule = plan(50, 0.2)
    count = len(schedule)
    rows, table = run(
        tmp_path / "s.arrow",
        schedule,
        script=lambda _: [head(), token(), 600.0],
        enough=lambda _, pending: [row["output_tokens"] for row in pending] == [1] * count,
        drain_s=0.1,
    )
    assert {row["status"] for row in rows} == {records.PENDING}
    assert all(row["output_tokens"] == 1 and row["first_token_offset_ns"] > 0 for row in rows)
    assert {(row["status"], row["error_kind"]) for row in table.to_pylist()} == {("truncated", "interrupted")}


async def until(seen: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not seen():  # noqa: ASYNC110  a file knows no events
            await asyncio.sleep(0.02)


async def observed(worker: Worker) -> None:
    """Observe until that fails."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await worker.observe()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("recovers", [True, False])
def test_a_disk_that_stays_full_is_told_and_again_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recovers: bool
) -> None:
    monkeypatch.setattr(worker_module, "FLUSH_S", 0.05)
    monkeypatch.setattr(worker_log, "FULL_DISK_S", 0.2)
    schedule = plan(40, 120.0)
    shard, disk = on_disk(tmp_path / "s.arrow")

    async def main() -> int:
        async with MockServer() as server:
            worker = started([server.url], PROMPTS, shard)
            await worker.offer(schedule)
            await until(lambda: records.read_shard(shard.path).num_rows)
            await worker.observe()
            flushed = records.read_shard(shard.path).num_rows
            disk.room_bytes = 100
            with pytest.raises(OSError, match="No space"):
                await observed(worker)
            disk.room_bytes = 1 << 30 if recovers else 0
            with pytest.raises(OSError, match="No space"):
                await worker.finish(1.0)
            return flushed

    flushed = asyncio.run(main())
    assert disk.closed and flushed
    seqs = records.read_shard(shard.path)["seq"].to_pylist()
    assert len(seqs) == len(set(seqs)) >= flushed
    assert not recovers or sorted(seqs) == schedule.seq.tolist()


def test_a_broken_send_loop_is_told_and_what_flies_lands(tmp_path: Path) -> None:
    schedule = plan(100, 0.3)

    class Broken(Prompts):
        def body(self, seq: int, *more: Any) -> bytes:
            if seq == 5:
                raise RuntimeError("no such prompt")
            return super().body(seq, *more)

    async def main() -> None:
        async with MockServer(lambda body: answer(body, 0.05)) as server:
            prompts = Broken(WORKLOAD, "m", 151936, salt=1)
            worker = started([server.url], prompts, ArrowStream(tmp_path / "s.arrow"))
            await worker.offer(schedule)
            with pytest.raises(RuntimeError, match="no such prompt"):
                await observed(worker)
            with pytest.raises(RuntimeError, match="no such prompt"):
                await worker.finish(PATIENCE_S)

    asyncio.run(main())
    table = records.read_shard(tmp_path / "s.arrow")
    assert statuses(table) == {"ok": 5, "missed": len(schedule) - 6}
    assert sorted(table["seq"].to_pylist()) == [seq for seq in schedule.seq.tolist() if seq != 5]


def test_what_is_due_when_the_rest_is_taken_back_is_sent_with_its_lag(tmp_path: Path) -> None:
    traffic = Traffic(WORKLOAD)
    due = traffic.evenly(10, NS // 20, 0, first_seq=0, seed=1)
    later = traffic.evenly(10, 3600 * NS, 0, first_seq=10, seed=1)

    async def main() -> None:
        async with MockServer(answer) as server:
            worker = started([server.url], PROMPTS, ArrowStream(tmp_path / "s.arrow"))
            began_ns = time.monotonic_ns()
            await worker.offer(due.followed_by(later))
            while time.monotonic_ns() < began_ns + 3 * NS // 20:
                pass  # the loop stands still, so that the ten are late
            worker.retract()
            progress = await worker.observe()
            assert progress.ended.num_rows + progress.pending.num_rows == len(due) + len(later)
            await worker.finish(PATIENCE_S)

    asyncio.run(main())
    rows = records.read_shard(tmp_path / "s.arrow").sort_by("seq")
    assert rows["status"].to_pylist() == ["ok"] * len(due) + ["missed"] * len(later)
    assert rows["phase"].to_pylist()[len(due) :] == ["retracted"] * len(later)
    assert min(metrics.send_lag(rows)[: len(due)]) >= 90


TALKS = load(["workload=character"]).workload
TALK_PROMPTS = Prompts(TALKS, "m", 151936, 1)
MS = NS // 1000


def chat(*rows: tuple[int, int, int]) -> ArrivalSchedule:
    """A schedule of (seq, due in ms, session): three tokens out, forty in."""
    seq, due_ms, session = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    ones = np.ones_like(seq)
    return ArrivalSchedule(
        window_index=0,
        seq=seq,
        due_ns=due_ms * MS,
        phase=3 * ones,
        input_tokens=40 * ones,
        output_tokens=3 * ones,
        shared_tokens=4 * ones,
        session=session,
        turn=0 * ones,
        character=session,
        character_tokens=14 * ones,
        persona_tokens=10 * ones,
        history_cut=0 * ones,
    )


def talked(
    folder: Path, schedule: ArrivalSchedule, script: Script, goes_on: bool = True, **how: Any
) -> tuple[pa.Table, Rows]:
    """The rows of chats by seq, and those that were told when there were `enough`."""
    path = folder / "s.arrow"
    seen, rows = run(path, schedule, script=script, prompts=TALK_PROMPTS, lead_ns=0, goes_on=goes_on, **how)
    return rows.sort_by("seq"), seen


def column(rows: pa.Table, name: str) -> list[Any]:
    return list(rows[name].to_pylist())


def at_ns(rows: pa.Table, event: str) -> list[int]:
    """When that happened to each request, on the run's clock."""
    offsets = column(rows, f"{event}_offset_ns")
    return [due + offset for due, offset in zip(column(rows, "due_ns"), offsets, strict=True)]


def test_a_turn_is_sent_when_the_one_before_has_ended_and_nobody_else_waits(tmp_path: Path) -> None:
    held = True

    def all_in_flight(_: Rows, pending: Rows) -> bool:
        nonlocal held
        held = len(pending) < 4
        return not held

    def script(body: dict[str, Any]) -> Iterator[Any]:
        """No answer begins before all are in flight: then the other session's request did not wait."""
        while held:
            yield 0.01
        yield from answer(body)

    schedule = chat((0, 0, 7), (1, 50, 7), (2, 60, 8), (3, 70, 7))
    rows, seen = talked(tmp_path, schedule, script, enough=all_in_flight, later=[chat((4, 80, 7))])
    assert column(rows, "status") == ["ok"] * 5
    ends, starts = (at_ns(rows, event) for event in ("end", "send"))
    blocked = column(rows, "turn_blocked_ns")
    assert [each is None for each in blocked] == [True, False, True, False, True]
    for turn, before in ((1, 0), (3, 1)):
        assert ends[before] <= column(rows, "due_ns")[turn] + blocked[turn] <= starts[turn]
    # Held chat are in flight for whoever watches, and not yet talked.
    sends = {row["seq"]: row["send_offset_ns"] for row in seen}
    assert [seq for seq, offset_ns in sorted(sends.items()) if offset_ns is None] == [1, 3]
    assert sorted(sends) == [0, 1, 2, 3]


def test_a_turn_follows_a_failure_too(tmp_path: Path) -> None:
    def script(_: dict[str, Any]) -> list[Any]:
        return [head(), token(), 0.2, None]

    rows, _ = talked(tmp_path, chat((0, 0, 7), (1, 20, 7)), script)
    assert column(rows, "status") == ["truncated", "truncated"]
    assert column(rows, "turn_blocked_ns")[1] > 50 * MS


def test_what_was_never_sent_holds_nobody(tmp_path: Path) -> None:
    schedule = chat((0, 0, 7), (1, 600_000, 7))
    rows, _ = talked(tmp_path, schedule, answer, enough=lambda ended, _: ended, retract=True)
    assert column(rows, "status") == ["ok", "missed"]
    assert column(rows, "turn_blocked_ns") == [None, None]


def test_who_waits_as_long_as_a_request_may_last_has_gone(tmp_path: Path) -> None:
    hung = [head(), token(), 600.0]
    schedule = chat((0, 0, 7), (1, 150, 7), (2, 160, 7))
    rows, _ = talked(tmp_path, schedule, lambda _: hung, timeout_s=0.2)
    assert column(rows, "status") == ["timeout"] * 3
    assert rows.num_rows == 3 and column(rows, "error_kind")[2] == "turn_blocked"
    assert column(rows, "send_offset_ns")[2] is None
    assert np.all(np.isinf(metrics.ttft(rows)))
    # The client did its part: what is void is another thing.
    assert share_sent(facts(rows)) == 1 and np.all(np.isfinite(metrics.send_lag(rows)[:2]))


def test_a_run_that_ends_has_a_row_for_who_waits(tmp_path: Path) -> None:
    hung = [head(), token(), 600.0]
    rows, _ = talked(
        tmp_path,
        chat((0, 0, 7), (1, 20, 7)),
        lambda _: hung,
        enough=lambda _, pending: len(pending) == 2,
        goes_on=False,
        drain_s=0.1,
    )
    assert column(rows, "error_kind") == ["interrupted", "interrupted"]


def test_on_a_fast_clock_the_wait_was_the_engine_s() -> None:
    """Engine 0.5 s after a wait of 1 s, and 20 ms of path: 0.2 s on a clock ten times as fast."""
    row = {
        "status": "ok",
        "time_scale": 10.0,
        "turn_blocked_ns": NS,
        "send_offset_ns": NS + 10 * MS,
        "first_token_offset_ns": NS + 700 * MS,
        "engine_first_token_ns": 500 * MS,
    }
    rows = records.table([row])
    assert metrics.ttft(rows)[0] == 1520
    assert metrics.path(rows)[0] == 20
    assert metrics.send_lag(rows)[0] == 1
    told = {name: value for name, value in row.items() if "engine" not in name and name != "time_scale"}
    assert metrics.ttft(records.table([told]))[0] == 1700, "without a word of the engine too"


def test_how_many_turns_waited_is_told_and_the_longest() -> None:
    waits = [None, 200 * MS, None, 1500 * MS]
    turns_ = [{"session_id": i, "status": "ok", "turn_blocked_ns": wait} for i, wait in enumerate(waits)]
    rows = records.table([*turns_, {"session_id": -1, "status": "ok"}])
    assert (routing_spread.turns_blocked(rows), routing_spread.longest_block_ms(rows)) == (0.5, 1500)
    alone = records.table([{"session_id": -1, "status": "ok"}])
    assert routing_spread.turns_blocked(alone) is None and routing_spread.longest_block_ms(alone) is None
