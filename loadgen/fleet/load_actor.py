"""One load actor: a worker in a process of its own, and how the fleet calls it, wherever it runs."""

import asyncio
import contextlib
import gc
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from analysis.rows import records
from conf import ConfigError
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.http_client import ClientPlan
from loadgen.fleet.process import Limits, limits, raise_files, wall_less_monotonic_ns, whose_clock
from loadgen.fleet.worker import Worker
from loadgen.prompts.bodies import Prompts

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


class ActorError(RuntimeError):
    """A load actor cannot answer any more; the message says why in one line."""


class ActorFailedError(ActorError):
    """A method of a load actor raised; the actor itself lives."""


class ActorUnreachableError(ActorError):
    """A call did not reach a load actor, which may live."""


Reply = Callable[[float], Any]
"""Waits up to so many seconds for the answer to a call. Raises TimeoutError or ActorError."""


class Actor(Protocol):
    """A `LoadActor` in another process."""

    def call(self, method: str, *words: Any) -> Reply:
        """Begin a method of the actor's."""

    def kill(self) -> None:
        """End its process at once."""


class Actors(Protocol):
    """The place where load actors run."""

    def start(self) -> Actor:
        """Begin the process of another one."""

    def fetch_left(self, places: Sequence[Place], folder: Path, timeout_s: float) -> list[str]:
        """Bring the shards of lost load actors into `folder`; returns where those are that cannot be had."""


class LoadActor(Worker):
    """A worker in a process of its own; `prepare` makes the worker."""

    def __init__(self) -> None:
        pass

    async def prepare(self, client_id: int, plan: ClientPlan, folder: Path) -> Place:
        """Build what is slow, freeze the garbage collector, and return where this actor is."""
        node, address = self.node()
        try:
            experiment, model = plan.experiment, plan.experiment.model
            prompts = Prompts(
                experiment.workload, model.served_name, model.vocab, plan.salt, experiment.target
            )
            self._shards = [
                ArrowStream(folder / f"{name(client_id)}.arrow"),
                ArrowStream(folder / f"{name(client_id)}.health.arrow", records.CLIENTS),
            ]
        except ConfigError as error:
            raise ConfigError(f"on node {platform.node()}: {error}") from error
        except OSError as error:
            raise OSError(f"on {platform.node()} ({address}): {error}") from error
        super().__init__(client_id, plan, prompts, *self._shards)
        raise_files()
        plan.driver.watch(self._orphaned)
        # A full collection stops the loop for tens of milliseconds: none during the run.
        gc.collect()
        gc.freeze()
        gc.disable()
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
                await self.finish(0.0)
            finally:
                os._exit(1)

        self._end = asyncio.ensure_future(end())

    async def read_clock(self) -> tuple[int, str]:
        """This process's monotonic clock, and whose clock that is."""
        return time.monotonic_ns(), whose_clock()

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
