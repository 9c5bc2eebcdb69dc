"""Worker and shard: one row for every planned request, whatever becomes of it, on disk at once."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis import records
from conf import load
from loadgen.arrivals import NS, ArrivalSchedule, draw
from loadgen.prompts import Prompts
from loadgen.recorder import Shard
from loadgen.worker import Worker
from tests.mock_server import MockServer, Script, answer, head, token

WORKLOAD = load(["workload=smoke", "workload.output_tokens.mean=4"]).workload
LEAD_NS = NS // 10


def plan(rate_qps: float, seconds: float, start_ns: int = 0) -> ArrivalSchedule:
    bounds = {"window": (start_ns, start_ns + int(seconds * NS))}
    return draw(rate_qps, bounds, WORKLOAD, dwell=0, first_seq=0, seed=1)


async def drive(
    server: MockServer, shard: Path, schedule: ArrivalSchedule, **how: Any
) -> list[dict[str, Any]]:
    """Run a worker over a schedule, retracting after `retract_s` if given; returns the last observation."""
    prompts = Prompts(WORKLOAD, "m", 151936, salt=1)
    worker = Worker(
        0, [server.url], prompts, Shard(shard), record_itl=True, timeout_s=how.get("timeout_s", 5.0)
    )
    worker.start(time.monotonic_ns() + LEAD_NS, time.time_ns() + LEAD_NS)
    worker.offer(schedule)
    await asyncio.sleep(how["after_s"])
    rows = worker.observe()
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


def test_a_cut_shard_gives_back_every_flushed_row(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "s.arrow")
    for seq in range(50):
        shard.append({"seq": seq, "due_ns": seq, "status": "ok", "itl_us": [1, 2]})
        if seq % 10 == 9:
            shard.flush()
    content = shard.path.read_bytes()
    (tmp_path / "cut.arrow").write_bytes(content[:-37])
    assert records.read_shard(tmp_path / "cut.arrow")["seq"].to_pylist() == list(range(40))
    assert records.read_shard(shard.path)["seq"].to_pylist() == list(range(50))
