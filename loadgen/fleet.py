"""The load fleet: Ray actors around workers, one common clock, one master schedule cut by stride.

Knows Ray and the run's clock; knows URLs, but nothing of what serves them. Actors are neither
restarted nor retried: a repeated task would send its requests twice.
"""

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from conf.schema import Workload
from loadgen.arrivals import NS, ArrivalSchedule
from loadgen.prompts import Prompts
from loadgen.recorder import Shard
from loadgen.target import Observation
from loadgen.worker import Worker

ROUND_TRIPS = 20
LEAD_S = 0.5
REPLY_TIMEOUT_S = 10.0
READY_TIMEOUT_S = 60.0
MAX_OFFSET_NS = 50_000_000
"""Clocks further apart than this void the common start."""


class FleetError(RuntimeError):
    """The fleet could not be started; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What every actor needs to know before the start."""

    urls: list[str]
    workload: Workload
    model: str
    vocab: int
    salt: int
    timeout_s: float
    record_itl: bool
    api_key: str | None = field(default=None, repr=False)


class LoadActor:
    """One worker in a process of its own; the methods are its worker's, on the run's clock."""

    async def prepare(self, client_id: int, plan: FleetPlan, folder: Path) -> str:
        """Build what is slow, freeze the garbage collector, and return where this actor runs."""
        prompts = Prompts(plan.workload, plan.model, plan.vocab, plan.salt)
        shard = Shard(folder / f"{_name(client_id)}.arrow")
        self._path = shard.path
        self._worker = Worker(
            client_id,
            plan.urls,
            prompts,
            shard,
            record_itl=plan.record_itl,
            timeout_s=plan.timeout_s,
            api_key=plan.api_key,
        )
        # A full collection stops the loop for tens of milliseconds: none during the run.
        gc.collect()
        gc.freeze()
        gc.disable()
        return str(ray.get_runtime_context().get_node_id())

    async def wall_ns(self) -> int:
        return time.time_ns()

    async def start(self, start_wall_ns: int, offset_ns: int) -> float:
        """Start the run's clock at the driver's wall-clock instant; returns the ms until then."""
        ahead_ns = start_wall_ns + offset_ns - time.time_ns()
        self._worker.start(time.monotonic_ns() + ahead_ns, start_wall_ns)
        return ahead_ns / 1e6

    async def offer(self, schedule: ArrivalSchedule) -> None:
        self._worker.offer(schedule)

    async def retract(self) -> None:
        self._worker.retract()

    async def observe(self) -> tuple[list[dict[str, Any]], dict[str, float]]:
        return self._worker.observe(), self._worker.health()

    async def finish(self, drain_s: float) -> None:
        """Drain and close the shard."""
        await self._worker.finish(drain_s)

    async def fetch(self) -> bytes:
        """The closed shard, for a driver that does not see this node's disk."""
        return self._path.read_bytes()


class Fleet:
    """The HTTP target of a sweep: `len(actors)` load actors that send one master schedule together."""

    def __init__(
        self, count: int, cpus: float, plan: FleetPlan, folder: Path, options: Mapping[str, Any]
    ) -> None:
        remote = ray.remote(max_restarts=0, max_task_retries=0)(LoadActor)
        self._actors = [remote.options(num_cpus=cpus, **options).remote() for _ in range(count)]
        self._folder = folder
        self._lost: list[int] = []
        refs = [a.prepare.remote(i, plan, folder) for i, a in enumerate(self._actors)]
        try:
            self.nodes = ray.get(refs, timeout=READY_TIMEOUT_S)
            self.offsets = [self._offset(actor) for actor in self._actors]
            self._start()
        except GetTimeoutError as error:
            raise FleetError(
                f"no room for {count} load actors of {cpus:g} CPUs within {READY_TIMEOUT_S:g} s; "
                "lower fleet.actors or fleet.cpus_per_actor"
            ) from error
        except (RayActorError, RayTaskError) as error:
            raise FleetError(f"load actor failed to start: {str(error).splitlines()[-1]}") from error

    def now_ns(self) -> int:
        """The run's clock."""
        return time.monotonic_ns() - self._epoch_ns

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        """Hand out a schedule, wait until `until_ns` on the run's clock, and report."""
        if schedule is not None:
            count = len(self._actors)
            for i, actor in self._alive():
                actor.offer.remote(schedule.shard(i, count))
        time.sleep(max(0, until_ns - self.now_ns()) / NS)
        rows: list[dict[str, Any]] = []
        health = {}
        for i, reply in self._ask("observe", REPLY_TIMEOUT_S):
            rows += reply[0]
            health[_name(i)] = reply[1]
        return Observation(rows, health, [_name(i) for i in self._lost])

    def retract(self) -> None:
        """Forget every arrival that is not due yet."""
        self._ask("retract", REPLY_TIMEOUT_S)

    def finish(self, drain_s: float) -> None:
        """Stop sending, drain for at most `drain_s`, and bring every shard into this run's folder.

        An actor that cannot hand its shard over is lost, and so are its requests; the others' are not.
        """
        self._ask("finish", drain_s + REPLY_TIMEOUT_S, drain_s)
        elsewhere = [i for i, _ in self._alive() if not self._shard(i).exists()]
        for i, content in self._ask("fetch", READY_TIMEOUT_S) if elsewhere else []:
            if i in elsewhere:
                self._shard(i).write_bytes(content)
        for _, actor in self._alive():
            ray.kill(actor)

    def _start(self) -> None:
        lead_ns = int(LEAD_S * NS)
        self._epoch_ns = time.monotonic_ns() + lead_ns
        self.start_wall_ns = time.time_ns() + lead_ns
        refs = [
            a.start.remote(self.start_wall_ns, o.offset_ns)
            for a, o in zip(self._actors, self.offsets, strict=True)
        ]
        behind = min(ray.get(refs, timeout=REPLY_TIMEOUT_S))
        if behind <= 0:
            raise FleetError(
                f"a load actor got the start signal {-behind:.0f} ms late; the machine is too busy"
            )

    def _shard(self, i: int) -> Path:
        return self._folder / f"{_name(i)}.arrow"

    def _alive(self) -> list[tuple[int, Any]]:
        return [(i, actor) for i, actor in enumerate(self._actors) if i not in self._lost]

    def _ask(self, method: str, timeout_s: float, *words: Any) -> list[tuple[int, Any]]:
        """The answers of all living actors; one that died, failed or does not answer is lost from now on."""
        refs = [(i, getattr(actor, method).remote(*words)) for i, actor in self._alive()]
        deadline = time.monotonic() + timeout_s
        answers = []
        for i, ref in refs:
            try:
                answers.append((i, ray.get(ref, timeout=max(0.0, deadline - time.monotonic()))))
            except (RayActorError, RayTaskError, GetTimeoutError):
                self._lost.append(i)
        return answers

    @staticmethod
    def _offset(actor: Any) -> "Offset":
        """Best of twenty round trips: the actor's wall clock minus the middle of two readings here."""
        trips = []
        for _ in range(ROUND_TRIPS):
            before = time.time_ns()
            remote = ray.get(actor.wall_ns.remote(), timeout=REPLY_TIMEOUT_S)
            after = time.time_ns()
            trips.append(Offset(remote - (before + after) // 2, after - before))
        best = min(trips, key=lambda trip: trip.round_trip_ns)
        if abs(best.offset_ns) > MAX_OFFSET_NS:
            raise FleetError(
                f"clocks differ by {best.offset_ns / 1e6:.0f} ms; synchronise the nodes (chrony)"
            )
        return best


@dataclass(frozen=True, slots=True)
class Offset:
    """An actor's wall clock minus the driver's, known to within half of `round_trip_ns`."""

    offset_ns: int
    round_trip_ns: int


def _name(i: int) -> str:
    return f"client-{i:02d}"
