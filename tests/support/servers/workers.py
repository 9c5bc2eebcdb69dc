"""Workers of this process that play schedules against servers of tests."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from analysis.rows import records
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.worker import Worker
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import ArrivalSchedule
from tests.support.machine.patience import PATIENCE_S
from tests.support.servers.plans import client_plan

Rows = list[dict[str, Any]]


def started(
    urls: Sequence[str], prompts: Prompts, shard: ArrowStream, lead_ns: int = 0, **plan: Any
) -> Worker:
    """A worker whose run begins now, or `lead_ns` later; requests have all the time of a busy machine."""
    health = ArrowStream(shard.path.with_suffix(".health"), records.CLIENTS)
    worker = Worker(0, client_plan(urls, **{"timeout_s": PATIENCE_S, **plan}), prompts, shard, health)
    worker.start(time.monotonic_ns() + lead_ns, time.time_ns() + lead_ns)
    return worker


async def played(
    worker: Worker,
    *schedules: ArrivalSchedule,
    enough: Callable[[Rows, Rows], object] | None = None,
    count: int | None = None,
) -> tuple[Rows, Rows]:
    """Offer schedules; returns the rows that ended and those in flight when there were `enough`.

    By default that is when all, or `count`, have ended.
    """
    for schedule in schedules:
        await worker.offer(schedule)
    count = sum(map(len, schedules)) if count is None else count
    ended: Rows = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            progress = await worker.observe()
            ended += progress.ended.to_pylist()
            pending = progress.pending.to_pylist()
            if enough(ended, pending) if enough else len(ended) >= count:
                return ended, pending
            await asyncio.sleep(0.02)
