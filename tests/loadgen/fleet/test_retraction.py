"""loadgen/fleet/worker.py: a worker takes back nothing that was due, however late the worker is."""

import asyncio
import time
from pathlib import Path

import pytest

from analysis.rows import metrics, records
from conf import load
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.rows import NO_GAPS
from loadgen.fleet.worker import Worker
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import NS
from loadgen.traffic.traffic import Traffic
from tests.support.machine.patience import PATIENCE_S
from tests.support.servers.mock_server import MockServer, answer
from tests.support.servers.plans import client_plan

WORKLOAD = load(["workload=smoke", "workload.output_tokens.mean=4"]).workload
pytestmark = pytest.mark.usefixtures("never_overdue")


def test_what_is_due_when_the_rest_is_taken_back_is_sent_with_its_lag(tmp_path: Path) -> None:
    traffic = Traffic(WORKLOAD)
    due = traffic.evenly(10, NS // 20, 0, first_seq=0, seed=1)
    later = traffic.evenly(10, 3600 * NS, 0, first_seq=10, seed=1)

    async def main() -> None:
        async with MockServer(answer) as server:
            prompts, shard = Prompts(WORKLOAD, "m", 151936, 1), ArrowStream(tmp_path / "s.arrow")
            worker = Worker(0, client_plan([server.url], gaps=NO_GAPS), prompts, shard)
            worker.start(began_ns := time.monotonic_ns(), time.time_ns())
            await worker.offer(due.followed_by(later))
            while time.monotonic_ns() < began_ns + 3 * NS // 20:
                pass  # the loop stands still, so that the ten are late
            worker.retract()
            seen = await worker.observe()
            assert seen.ended.num_rows + seen.pending.num_rows == len(due) + len(later)
            await worker.finish(PATIENCE_S)

    asyncio.run(main())
    rows = records.read_shard(tmp_path / "s.arrow").sort_by("seq")
    assert rows["status"].to_pylist() == ["ok"] * len(due) + ["missed"] * len(later)
    assert rows["phase"].to_pylist()[len(due) :] == ["retracted"] * len(later)
    assert min(metrics.send_lag(rows)[: len(due)]) >= 90
