"""The load fleet: Ray actors around workers, one common clock, one master schedule cut by stride.

Actors are neither restarted nor retried: a repeated task would send its requests twice.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from analysis.rows import records
from conf.io import durable
from loadgen.fleet.client_plan import ClientPlan
from loadgen.fleet.load_actor import LoadActor, Place, name, whose_clock
from loadgen.fleet.os_limits import shortage
from loadgen.fleet.rows import Clock
from loadgen.fleet.target import LostActor, Observation
from loadgen.traffic.schedule import NS, ArrivalSchedule

ROUND_TRIPS = 20
REPLY_TIMEOUT_S = 10.0
LOOK_UP_S = 60.0
"""Longest look-up: a resolver asks up to three servers twice for five seconds each (resolv.conf)."""
READY_TIMEOUT_S = 60.0
LAST_WORDS_S = 3.0
MAX_DOUBT_NS = 50_000_000
"""Largest doubt about a clock's offset with which a common start is made (our choice)."""
MOST_REPLACED = 3
"""Most load actors replaced in one run; if more die, something is wrong with their nodes."""


_NOTHING = records.PROGRESS.empty_table()


class FleetError(RuntimeError):
    """The fleet could not be started; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """An actor's monotonic clock minus the driver's, known to within `doubt_ns`; one clock has no doubt."""

    offset_ns: int
    doubt_ns: int


@dataclass(slots=True)
class Member:
    """One load actor, owner of the requests with seq mod size = `index`."""

    client_id: int
    index: int
    actor: Any
    place: Place | None = None
    offset: ClockOffset = ClockOffset(0, 0)

    def described(self) -> dict[str, Any]:
        """Its place and its clock's offset, for the manifest."""
        clock = {"offset_us": self.offset.offset_ns / 1e3, "within_us": self.offset.doubt_ns / 1e3}
        return {"client_id": self.client_id, **(asdict(self.place) if self.place else {}), **clock}


class LoadFleet:
    """The HTTP target of a sweep: `count` load actors that send one master schedule together.

    The run's clock starts at `from_ns`, which a resumed run sets after everything it has seen, and runs
    `plan.time_scale` times as fast as the real one.
    """

    def __init__(
        self,
        count: int,
        cpus: float,
        plan: ClientPlan,
        folder: Path,
        options: Mapping[str, Any],
        *,
        first_client: int = 0,
        from_ns: int = 0,
    ) -> None:
        remote = ray.remote(max_restarts=0, max_task_retries=0)(LoadActor)
        self._remote = remote.options(num_cpus=cpus, **options)
        self._count, self._plan, self._folder = count, plan, folder
        self._next_client = first_client
        real_ns = int(from_ns / plan.time_scale)
        self._clock = Clock(time.monotonic_ns() - real_ns, time.time_ns() - real_ns, plan.time_scale)
        self.zero_wall_ns = self._clock.wall_ns
        self.members: list[Member] = []
        self.lost: list[LostActor] = []
        self._unreported: list[Member] = []
        self._offers: list[tuple[Member, Any]] = []
        try:
            self._add(range(count))
        except GetTimeoutError as error:
            raise FleetError(
                f"no room for {count} load actors of {cpus:g} CPUs within {READY_TIMEOUT_S:g} s; "
                "lower fleet.actors or fleet.cpus_per_actor"
            ) from error
        except RayError as error:
            raise FleetError(f"load actor failed to start: {_last_line(error)}") from error

    def shortage(self, wanted: int) -> str | None:
        """Reason why the actors cannot hold `wanted` requests in flight, with the remedy; or None."""
        endpoints = len({urlsplit(url).netloc for url in self._plan.urls})
        places = [member.place for member in self._alive() if member.place]
        for place in places:
            sharing = sum(other.host == place.host for other in places)
            reason = shortage(place.limits, endpoints, math.ceil(wanted / len(places)), sharing)
            if reason:
                return reason
        return None

    def now_ns(self) -> int:
        """The run's clock."""
        return self._clock.run_ns(time.monotonic_ns())

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        """Hand out a schedule, wait until `until_ns` on the run's clock, and report."""
        if schedule is not None:
            for member in self._alive():
                shard = schedule.shard(member.index, self._count)
                self._offers.append((member, member.actor.offer.remote(shard)))
        time.sleep(max(0, self._clock.monotonic_ns(until_ns) - time.monotonic_ns()) / NS)
        offers, self._offers = self._offers, []
        self._answers(offers, REPLY_TIMEOUT_S)
        reports: list[Observation] = [report for _, report in self._ask("observe", REPLY_TIMEOUT_S)]
        unreported, self._unreported = self._unreported, []
        return Observation(
            pa.concat_tables(
                [_NOTHING, *(report.ended for report in reports), *map(self._left_by, unreported)]
            ),
            pa.concat_tables([_NOTHING, *(one.pending for one in reports)]),
            [sample for one in reports for sample in one.health],
            list(self.lost),
        )

    def retract(self) -> None:
        """Forget every arrival that is not due yet."""
        self._ask("retract", REPLY_TIMEOUT_S)

    def heal(self) -> bool:
        """Replace lost actors by fresh ones; False if too many were lost or none can be had."""
        alive = {member.index for member in self._alive()}
        if len(self.lost) > MOST_REPLACED:
            return False
        try:
            self._add(index for index in range(self._count) if index not in alive)
        except (RayError, FleetError):
            return False
        return True

    def retarget(self, urls: list[str]) -> None:
        """Send what comes from now on to these URLs, whose names are looked up anew."""
        self._plan = replace(self._plan, urls=urls)
        self._ask("retarget", LOOK_UP_S, urls)

    def finish(self, drain_s: float) -> None:
        """Stop sending, drain for at most `drain_s` of the run's clock, and bring all shards into the folder.

        Ctrl-C cuts what is in flight. An actor that cannot hand its shard over is lost with its requests.
        """
        drain_s /= self._plan.time_scale
        try:
            running = self._call("finish", drain_s)
            try:
                self._answers(running, drain_s + REPLY_TIMEOUT_S)
            except KeyboardInterrupt:
                self._call("cut")
                self._answers(running, REPLY_TIMEOUT_S)
            self._fetch([member for member in self._alive() if not self._shard(member).exists()])
        finally:
            for member in self.members:
                ray.kill(member.actor)

    def _fetch(self, elsewhere: list[Member]) -> None:
        """Write down here the shards of actors whose disk is not ours, and delete them there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        calls = [(member, member.actor.fetch.remote()) for member in elsewhere]
        fetched = self._answers(calls, READY_TIMEOUT_S)
        for _, shards in fetched:
            for file, content in shards.items():
                with durable.replacing(self._folder / file) as opened:
                    opened.write(content)
        for ref in [member.actor.drop.remote() for member, _ in fetched]:
            with suppress(RayError):  # what is left there costs disk, no row
                ray.get(ref, timeout=REPLY_TIMEOUT_S)

    def _add(self, indices: Iterable[int]) -> None:
        new = []
        for index in indices:
            new.append(Member(self._next_client, index, self._remote.remote()))
            self._next_client += 1
        try:
            self._start(new)
        except BaseException:
            for member in new:
                ray.kill(member.actor)
            raise
        self.members += new

    def _start(self, new: list[Member]) -> None:
        refs = [m.actor.prepare.remote(m.client_id, self._plan, self._folder) for m in new]
        for member, place in zip(new, ray.get(refs, timeout=READY_TIMEOUT_S), strict=True):
            member.place, member.offset = place, offset_of(partial(_read_clock, member.actor))
        zero_ns, wall_ns = self._clock.epoch_ns, self._clock.wall_ns
        starts = [m.actor.start.remote(zero_ns + m.offset.offset_ns, wall_ns) for m in new]
        ray.get(starts, timeout=REPLY_TIMEOUT_S)

    def _shard(self, member: Member) -> Path:
        return self._folder / f"{name(member.client_id)}.arrow"

    def _left_by(self, member: Member) -> pa.Table:
        """Rows that a lost actor had written, if its disk is ours."""
        if not self._shard(member).exists():
            return _NOTHING
        return records.read_stream(self._shard(member), records.SHARD).select(records.PROGRESS.names)

    def _alive(self) -> list[Member]:
        gone = {lost.client_id for lost in self.lost}
        return [member for member in self.members if member.client_id not in gone]

    def _ask(self, method: str, timeout_s: float, *words: Any) -> list[tuple[Member, Any]]:
        return self._answers(self._call(method, *words), timeout_s)

    def _call(self, method: str, *words: Any) -> list[tuple[Member, Any]]:
        return [(member, getattr(member.actor, method).remote(*words)) for member in self._alive()]

    def _answers(self, calls: list[tuple[Member, Any]], timeout_s: float) -> list[tuple[Member, Any]]:
        """The answers in time; an actor that died, failed or does not answer is lost from now on."""
        deadline = time.monotonic() + timeout_s
        answers = []
        for member, ref in calls:
            try:
                answers.append((member, ray.get(ref, timeout=max(0.0, deadline - time.monotonic()))))
            except GetTimeoutError:
                self._lose(member, f"no answer within {timeout_s:g} s")
            except RayTaskError as error:
                self._lose(member, _last_line(error), last_words=True)
            except RayError as error:
                self._lose(member, _last_line(error))
        return answers

    def _lose(self, member: Member, reason: str, last_words: bool = False) -> None:
        """Give an actor up: it must not send any more, whatever state it is in.

        One that only failed in its work may still write down what it knows (`last_words`).
        """
        if any(lost.client_id == member.client_id for lost in self.lost):
            return
        self.lost.append(LostActor(member.client_id, member.index, self._count, reason))
        self._unreported.append(member)
        if last_words:
            with suppress(RayError):
                ray.get(member.actor.finish.remote(0.0), timeout=LAST_WORDS_S)
        ray.kill(member.actor)


def offset_of(read_clock: Callable[[], tuple[int, str]]) -> ClockOffset:
    """Compare a clock with this process's monotonic one; `read_clock` returns its time and its name.

    Of twenty round trips the shortest counts: the reading minus the middle of two readings here. No wall
    clock has a say, so that none that is set, or wrong, moves a request. Raises FleetError.
    """
    trips = []
    for _ in range(ROUND_TRIPS):
        before = time.monotonic_ns()
        there_ns, whose = read_clock()
        after = time.monotonic_ns()
        # Half of an odd number of nanoseconds more: a true zero must not lie just outside.
        trips.append(ClockOffset(there_ns - (before + after) // 2, (after - before) // 2 + 1))
    best = min(trips, key=lambda trip: trip.doubt_ns)
    if whose and whose == whose_clock() and abs(best.offset_ns) <= best.doubt_ns:
        return ClockOffset(0, 0)
    if best.doubt_ns > MAX_DOUBT_NS:
        raise FleetError(
            f"the clock of a load actor is known to within {best.doubt_ns / 1e6:.0f} ms only; "
            "run the driver nearer to the load actors, or on a less busy node"
        )
    return best


def _read_clock(actor: Any) -> tuple[int, str]:
    reading: tuple[int, str] = ray.get(actor.read_clock.remote(), timeout=REPLY_TIMEOUT_S)
    return reading


def _last_line(error: Exception) -> str:
    """Last line of an actor's error, or of what Ray says of its end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
