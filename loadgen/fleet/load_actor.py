"""One load actor: a worker in a process of its own."""

import asyncio
import contextlib
import gc
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from analysis.rows import time_series
from conf import ConfigError
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.http_client import ClientPlan
from loadgen.fleet.process import Limits, limits, raise_files, wall_less_monotonic_ns, whose_clock
from loadgen.fleet.target import Observation
from loadgen.fleet.worker import Worker
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import ArrivalSchedule

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Place:
    """Node, host and process of a load actor. The host's wall clock less its monotonic one was `wall_ns`."""

    client_id: int
    node: str
    host: str
    address: str
    pid: int
    wall_ns: int
    limits: Limits


class LoadActor:
    """One worker in a process of its own; the methods are its worker's, on the run's clock."""

    async def prepare(self, client_id: int, plan: ClientPlan, folder: Path) -> Place:
        """Build what is slow, freeze the garbage collector, and return where this actor is."""
        try:
            prompts = Prompts(plan.workload, plan.model, plan.vocab, plan.salt, plan.target)
        except ConfigError as error:
            raise ConfigError(f"on node {platform.node()}: {error}") from error
        self._shards = [
            ArrowStream(folder / f"{name(client_id)}.arrow"),
            ArrowStream(folder / f"{name(client_id)}.health.arrow", time_series.CLIENTS),
        ]
        self._worker = Worker(client_id, plan, prompts, *self._shards)
        raise_files()
        plan.driver.watch(self._orphaned)
        # A full collection stops the loop for tens of milliseconds: none during the run.
        gc.collect()
        gc.freeze()
        gc.disable()
        node, address = self.node()
        return Place(
            client_id, node, platform.node(), address, os.getpid(), wall_less_monotonic_ns(), limits()
        )

    def node(self) -> tuple[str, str]:
        """Ray's id of this node, empty without Ray, and its address."""
        return "", LOOPBACK

    def _orphaned(self) -> None:
        """Write what is known and exit: the driver is dead, and nobody wants these requests any more."""

        async def end() -> None:
            try:
                await self._worker.finish(0.0)
            finally:
                os._exit(1)

        self._end = asyncio.ensure_future(end())

    async def read_clock(self) -> tuple[int, str]:
        """This process's monotonic clock, and whose clock that is."""
        return time.monotonic_ns(), whose_clock()

    async def start(self, epoch_ns: int, wall_ns: int) -> None:
        """Start the run's clock: zero is `epoch_ns` on this process's monotonic clock, `wall_ns` on the
        driver's wall clock, which only dates rows.
        """
        self._worker.start(epoch_ns, wall_ns)

    async def offer(self, schedule: ArrivalSchedule) -> None:
        await self._worker.offer(schedule)

    async def retarget(self, urls: list[str]) -> None:
        await self._worker.retarget(urls)

    async def retract(self) -> None:
        self._worker.retract()

    async def observe(self, received: bool) -> Observation:
        return await self._worker.observe(received)

    async def finish(self, drain_s: float) -> None:
        """Drain for so many real seconds and close the shards."""
        await self._worker.finish(drain_s)

    async def cut(self) -> None:
        """End every request in flight, so that a `finish` under way returns."""
        self._worker.cut()

    async def fetch(self) -> dict[str, bytes]:
        """The closed shards by file name, for a driver that does not see this node's disk."""
        return {shard.path.name: shard.path.read_bytes() for shard in self._shards}

    async def drop(self) -> None:
        """Delete the closed shards, which the driver has by now, and their folders where those are empty."""
        for shard in self._shards:
            shard.delete()
        shards = self._shards[0].path.parent
        for folder in (shards, shards.parent):
            with contextlib.suppress(OSError):  # others' files are in it, or it is gone
                folder.rmdir()


def name(client_id: int) -> str:
    """A load actor's name, as in its shard's file name."""
    return f"client-{client_id:02d}"
