"""Worker and shard: one row for every planned request, whatever becomes of it, on disk at once."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis import records
from conf import load
from loadgen import worker as worker_module
from loadgen.arrivals import NS, ArrivalSchedule, Traffic
from loadgen.prompts import Prompts
from loadgen.recorder import Shard
from loadgen.worker import Worker
from tests.mock_server import END, MockServer, Script, answer, event, head, token, usage
from tests.test_recorder import on_disk

WORKLOAD = load(["workload=smoke", "workload.output_tokens.mean=4"]).workload
LEAD_NS = NS // 10


def plan(rate_qps: float, seconds: float, start_ns: int = 0) -> ArrivalSchedule:
    bounds = {"window": (start_ns, start_ns + int(seconds * NS))}
    return Traffic(WORKLOAD).draw(rate_qps, bounds, dwell=0, first_seq=0, seed=1)


async def drive(
    server: MockServer, shard: Path, schedule: ArrivalSchedule, **how: Any
) -> list[dict[str, Any]]:
    """Run a worker over a schedule, retracting after `retract_s` if given; returns the last observation."""
    prompts = Prompts(WORKLOAD, "m", 151936, salt=1)
    worker = Worker(
        0, [server.url], prompts, Shard(shard), record_itl=True, timeout_s=how.get("timeout_s", 5.0)
    )
    worker.start(time.monotonic_ns() + LEAD_NS, time.time_ns() + LEAD_NS)
    await worker.offer(schedule)
    await asyncio.sleep(how["after_s"])
    seen = await worker.observe()
    rows = pa.concat_tables([seen.ended, seen.pending]).to_pylist()
    if how.get("block_s"):
        time.sleep(how["block_s"])  # noqa: ASYNC251  a stalled loop is what is tested
        await asyncio.sleep(0.2)
    await worker.finish(how.get("drain_s", 2.0))
    return rows


def run(
    shard: Path, schedule: ArrivalSchedule, script: Script = answer, **how: Any
) -> tuple[list[dict[str, Any]], pa.Table]:
    async def main() -> list[dict[str, Any]]:
        async with MockServer(script) as server:
            return await drive(server, shard, schedule, **how)

    rows = asyncio.run(main())
    return rows, records.read_shard(shard)


def statuses(table: pa.Table) -> Counter[str]:
    return Counter(table["status"].to_pylist())


def test_every_planned_request_has_one_row_and_times_count_from_due(tmp_path: Path) -> None:
    schedule = plan(40, 1.0)
    _, table = run(tmp_path / "s.arrow", schedule, lambda body: answer(body, 0.005), after_s=1.3)
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


def test_what_was_retracted_keeps_its_row_outside_the_window(tmp_path: Path) -> None:
    schedule = plan(40, 10.0)
    _, table = run(tmp_path / "s.arrow", schedule, after_s=0.6)
    assert sorted(table["seq"].to_pylist()) == schedule.seq.tolist()
    retracted = [row for row in table.to_pylist() if row["status"] == "missed"]
    assert retracted and all(row["phase"] == "retracted" for row in retracted)
    assert statuses(table)["ok"] + len(retracted) == len(schedule)


def test_a_stalled_loop_misses_instead_of_bursting(tmp_path: Path) -> None:
    schedule = plan(40, 2.2)
    _, table = run(tmp_path / "s.arrow", schedule, after_s=0.2, block_s=2.0)
    overdue = [row for row in table.to_pylist() if row["error_kind"] == "overdue"]
    assert overdue and all(row["phase"] == "window" for row in overdue)
    sent = [row["send_offset_ns"] for row in table.to_pylist() if row["send_offset_ns"] is not None]
    assert max(sent) < 1.5 * NS
    assert table.num_rows == len(schedule)


def test_a_closed_loop_keeps_so_many_in_flight_and_counts_from_their_start(tmp_path: Path) -> None:
    schedule = Traffic(WORKLOAD).closed(40, 4, 0, dwell=0, first_seq=10, seed=1)
    _, table = run(tmp_path / "s.arrow", schedule, lambda body: answer(body, 0.01), after_s=1.2)
    rows = sorted(table.to_pylist(), key=lambda row: row["due_ns"])
    assert [row["status"] for row in rows] == ["ok"] * 40
    assert sorted(row["seq"] for row in rows) == list(range(10, 50))
    assert [row["phase"] for row in rows].count("transition") == 4
    starts = [row["due_ns"] + row["send_offset_ns"] for row in rows]
    ends = sorted(row["due_ns"] + row["end_offset_ns"] for row in rows)
    # The k-th request starts when the (k - 4)-th has ended, and is due at that moment.
    assert all(start >= end for start, end in zip(starts[4:], ends, strict=False))
    assert max(row["send_offset_ns"] for row in rows[4:]) < NS // 10


def test_a_retracted_closed_loop_keeps_a_row_for_every_request(tmp_path: Path) -> None:
    schedule = Traffic(WORKLOAD).closed(400, 4, 0, dwell=0, first_seq=0, seed=1)
    _, table = run(tmp_path / "s.arrow", schedule, lambda body: answer(body, 0.01), after_s=0.5)
    states = statuses(table)
    assert table.num_rows == len(schedule) and states["ok"] > 4
    assert {row["phase"] for row in table.to_pylist() if row["status"] == "missed"} == {"retracted"}


def test_a_hung_server_is_seen_pending_and_then_cut(tmp_path: Path) -> None:
    schedule = plan(20, 0.5)
    rows, table = run(
        tmp_path / "s.arrow", schedule, lambda _: [head(), token(), 9.0], after_s=0.8, drain_s=0.1
    )
    assert {row["status"] for row in rows} == {records.PENDING}
    assert all(row["output_tokens"] == 1 and row["first_token_offset_ns"] > 0 for row in rows)
    assert {(row["status"], row["error_kind"]) for row in table.to_pylist()} == {("truncated", "interrupted")}


def test_a_dead_server_gives_rows_too(tmp_path: Path) -> None:
    schedule = plan(20, 0.5)
    _, table = run(tmp_path / "s.arrow", schedule, lambda _: [None], after_s=0.8)
    assert statuses(table) == {"conn_error": len(schedule)}


def test_an_answer_of_strange_types_is_a_row_like_any_other(tmp_path: Path) -> None:
    strange = event({"choices": [], "usage": {"prompt_tokens": "12", "completion_tokens": True}})
    pieces = [head(), token(), strange, usage(3, 1), END]
    schedule = plan(20, 0.5)
    _, table = run(tmp_path / "s.arrow", schedule, lambda _: pieces, after_s=0.8)
    ends = {(row["status"], row["error_kind"], row["prompt_tokens"]) for row in table.to_pylist()}
    assert ends == {("http_error", "bad_event", 3)} and table.num_rows == len(schedule)


def test_refused_connections_were_sent_in_time(tmp_path: Path) -> None:
    schedule = plan(20, 0.5)

    async def main() -> None:
        server = MockServer()
        server.url = "http://127.0.0.1:9"
        await drive(server, tmp_path / "s.arrow", schedule, after_s=0.8)

    asyncio.run(main())
    rows = records.read_shard(tmp_path / "s.arrow").to_pylist()
    assert len(rows) == len(schedule) and all(row["send_offset_ns"] is not None for row in rows)


async def started(server: MockServer, shard: Shard, schedule: ArrivalSchedule) -> Worker:
    """A worker under way with a schedule."""
    worker = Worker(0, [server.url], Prompts(WORKLOAD, "m", 151936, salt=1), shard, record_itl=True)
    worker.start(time.monotonic_ns(), time.time_ns())
    await worker.offer(schedule)
    return worker


@pytest.mark.parametrize("recovers", [True, False])
def test_a_disk_that_stays_full_is_told_and_again_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recovers: bool
) -> None:
    monkeypatch.setattr(worker_module, "FLUSH_S", 0.1)
    monkeypatch.setattr(worker_module, "FULL_DISK_S", 0.2)
    schedule = plan(40, 1.0)
    shard, disk = on_disk(tmp_path / "s.arrow")

    async def main() -> int:
        async with MockServer() as server:
            worker = await started(server, shard, schedule)
            await asyncio.sleep(0.5)
            await worker.observe()
            flushed = records.read_shard(shard.path).num_rows
            disk.room_bytes = 100
            await asyncio.sleep(0.7)
            with pytest.raises(OSError, match="No space"):
                await worker.observe()
            disk.room_bytes = 1 << 30 if recovers else 0
            with pytest.raises(OSError, match="No space"):
                await worker.finish(1.0)
            return flushed

    flushed = asyncio.run(main())
    assert disk.closed and flushed
    seqs = records.read_shard(shard.path)["seq"].to_pylist()
    assert len(seqs) == len(set(seqs)) >= flushed
    assert not recovers or sorted(seqs) == schedule.seq.tolist()


def test_a_disk_that_is_full_for_a_moment_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "FLUSH_S", 0.1)
    schedule = plan(40, 1.0)
    shard, disk = on_disk(tmp_path / "s.arrow")

    async def main() -> None:
        async with MockServer() as server:
            worker = await started(server, shard, schedule)
            await asyncio.sleep(0.3)
            disk.room_bytes = 100
            await asyncio.sleep(0.4)
            await worker.observe()
            disk.room_bytes = 1 << 30
            await asyncio.sleep(0.6)
            await worker.finish(1.0)

    asyncio.run(main())
    assert sorted(records.read_shard(shard.path)["seq"].to_pylist()) == schedule.seq.tolist()


def test_a_broken_send_loop_is_told_and_what_flies_lands(tmp_path: Path) -> None:
    schedule = plan(40, 1.0)

    class Broken(Prompts):
        def body(self, seq: int, *more: Any) -> bytes:
            if seq == 5:
                raise RuntimeError("no such prompt")
            return super().body(seq, *more)

    async def main() -> None:
        async with MockServer(lambda body: answer(body, 0.2)) as server:
            prompts = Broken(WORKLOAD, "m", 151936, salt=1)
            worker = Worker(0, [server.url], prompts, Shard(tmp_path / "s.arrow"), record_itl=True)
            worker.start(time.monotonic_ns(), time.time_ns())
            await worker.offer(schedule)
            await asyncio.sleep(0.5)
            with pytest.raises(RuntimeError, match="no such prompt"):
                await worker.observe()
            with pytest.raises(RuntimeError, match="no such prompt"):
                await worker.finish(5.0)

    asyncio.run(main())
    table = records.read_shard(tmp_path / "s.arrow")
    assert statuses(table) == {"ok": 5, "missed": len(schedule) - 6}
    assert sorted(table["seq"].to_pylist()) == [seq for seq in schedule.seq.tolist() if seq != 5]
