"""The load fleet: actors around workers, one common clock, one master schedule cut by stride.

Actors are neither restarted nor retried: a repeated call would send its requests twice. An actor whose
host has no network for a while is waited for: it goes on sending, and reports all of it when it is back.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from analysis.rows import records
from conf.io import durable
from loadgen.fleet.http_client import ClientPlan
from loadgen.fleet.load_actor import (
    Actor,
    ActorError,
    ActorFailedError,
    Actors,
    ActorUnreachableError,
    Place,
    Reply,
    name,
)
from loadgen.fleet.process import ClockOffset
from loadgen.fleet.rows import Clock
from loadgen.fleet.target import FleetError, HostSource, LostActor, NoHosts, Observation
from loadgen.traffic.schedule import NS, ArrivalSchedule

REPLY_TIMEOUT_S = 10.0
LOOK_UP_S = 60.0
"""Longest look-up: a resolver asks up to three servers twice for five seconds each (resolv.conf)."""
READY_TIMEOUT_S = 60.0
LAST_WORDS_S = 3.0
POLL_S = 0.5
MOST_REPLACED = 3
"""Most times that one load actor is replaced in a run; if it dies more often, something is wrong with the
nodes. A host that dies takes several with it."""


_NOTHING = records.PROGRESS.empty_table()


@dataclass(slots=True)
class Member:
    """One load actor, owner of the requests with seq mod size = `index`; it answered last at `answered_ns`.

    It began at `began_ns` (monotonic) and was given up at `lost_ns`. `observing` is a report on its way since
    `called_ns`; `is_received` is False until it came, `pending` has the rows in flight by the last one.
    """

    client_id: int
    index: int
    actor: Actor
    place: Place | None = None
    offset: ClockOffset = ClockOffset(0, 0)
    began_ns: int = field(default_factory=time.monotonic_ns)
    lost_ns: int | None = None
    answered_ns: int = field(default_factory=time.monotonic_ns)
    silent: bool = False
    observing: Reply | None = None
    called_ns: int = 0
    is_received: bool = True
    pending: pa.Table = field(default_factory=records.PROGRESS.empty_table)

    def described(self) -> dict[str, Any]:
        """Its place and its clock's offset, for the manifest."""
        clock = {"offset_us": self.offset.offset_ns / 1e3, "within_us": self.offset.doubt_ns / 1e3}
        return {"client_id": self.client_id, **(asdict(self.place) if self.place else {}), **clock}


class LoadFleet:
    """The HTTP target of a sweep: `count` load actors that send one master schedule together.

    The run's clock starts at `from_ns`, which a resumed run sets after everything it has seen, and runs
    `time_scale` times as fast as the real one. An actor that does not answer is waited for, as long as
    `hosts` says, if its host could not be reached meanwhile; else it is lost. `cannot_start` gets each new
    reason why its replacement does not start yet.
    """

    def __init__(
        self,
        count: int,
        actors: Actors,
        plan: ClientPlan,
        folder: Path,
        *,
        first_client: int = 0,
        from_ns: int = 0,
    ) -> None:
        self.hosts: HostSource = NoHosts()
        self.cannot_start: Callable[[str], None] = lambda _: None
        self._count, self._actors, self._plan, self._folder = count, actors, plan, folder
        self._next_client = first_client
        real_ns = int(from_ns / (scale := plan.experiment.time_scale))
        self._clock = Clock(time.monotonic_ns() - real_ns, time.time_ns() - real_ns, scale)
        self.zero_wall_ns = self._clock.wall_ns
        self.members: list[Member] = []
        self.left_behind: list[str] = []
        self.lost: list[LostActor] = []
        self._unreported: list[Member] = []
        self._late: list[Observation] = []
        self._offers: list[tuple[Member, Reply]] = []
        try:
            self._add(range(count))
        except TimeoutError as error:
            raise FleetError(
                f"no room for {count} load actors within {READY_TIMEOUT_S:g} s; lower fleet.actors or "
                "fleet.cpus_per_actor"
            ) from error
        except ActorError as error:
            raise FleetError(f"load actor failed to start: {error}") from error

    def shortage(self, wanted: int) -> str | None:
        """Reason why the actors cannot hold `wanted` requests in flight, with the remedy; or None."""
        endpoints = len({urlsplit(url).netloc for url in self._plan.urls})
        places = [member.place for member in self._alive() if member.place]
        for place in places:
            sharing = sum(other.host == place.host for other in places)
            reason = place.limits.shortage(endpoints, math.ceil(wanted / len(places)), sharing)
            if reason:
                return reason
        return None

    def now_ns(self) -> int:
        """The run's clock."""
        return self._clock.run_ns(time.monotonic_ns())

    def run_ns(self, monotonic_ns: int) -> int:
        """The run's clock at an instant of this process's monotonic one."""
        return self._clock.run_ns(monotonic_ns)

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        """Hand out a schedule, wait until `until_ns` on the run's clock, and report."""
        if schedule is not None:
            for member in self._answering():
                shard = schedule.shard(member.index, self._count)
                self._offers.append((member, member.actor.call("offer", shard)))
        time.sleep(max(0, self._clock.monotonic_ns(until_ns) - time.monotonic_ns()) / NS)
        offers, self._offers = self._offers, []
        self._answers(offers, REPLY_TIMEOUT_S)
        self._observe()
        reports, self._late = self._late, []
        unreported, self._unreported = self._unreported, []
        return Observation(
            pa.concat_tables([_NOTHING, *(each.ended for each in reports), *map(self._left_by, unreported)]),
            pa.concat_tables([_NOTHING, *(member.pending for member in self._alive())]),
            [sample for each in reports for sample in each.health],
            list(self.lost),
            [f"load actor {member.client_id} on {_host(member)}" for member in self._silent()],
        )

    def _observe(self) -> None:
        """Ask every actor for its report; one that was silent and answers now takes part again."""
        for member in self._alive():
            # A call that was under way when its network was cut may stay without any answer.
            waited_s = (time.monotonic_ns() - member.called_ns) / NS
            if member.observing is None or (member.silent and waited_s > REPLY_TIMEOUT_S):
                member.observing = member.actor.call("observe", member.is_received)
                member.is_received, member.called_ns = False, time.monotonic_ns()
        self._take(self._answers(_observing(self._answering()), REPLY_TIMEOUT_S))
        back = self._answers(_observing(self._silent()), 0.0)
        self._take(back)
        for member, _ in back:
            member.silent = False
            # It has what was offered before, and may still have the addresses of another deployment.
            calls = member.actor.call("retract"), member.actor.call("retarget", self._plan.urls)
            self._answers([(member, call) for call in calls], LOOK_UP_S)

    def _take(self, answers: list[tuple[Member, Any]]) -> None:
        for member, report in answers:
            member.observing, member.is_received, member.pending = None, True, report.pending
            self._late.append(report)

    def retract(self) -> None:
        """Forget every arrival that is not due yet."""
        self._answers(self._call("retract"), REPLY_TIMEOUT_S)

    def heal(self) -> bool:
        """Wait for silent actors and replace lost ones, within the fleet's patience; False if that failed."""
        deadline = time.monotonic() + self.hosts.patience_s
        self._await_silent(deadline)
        for member in self._silent():
            self._lose(member, f"its host cannot be reached for {self.hosts.patience_s:g} s")
        if max(Counter(actor.index for actor in self.lost).values(), default=0) > MOST_REPLACED:
            return False
        missing = sorted(set(range(self._count)) - {member.index for member in self._alive()})
        reasons = set[str]()
        while missing:
            try:
                self._add(missing[:1])
                del missing[0]
            except (ActorError, TimeoutError, FleetError) as error:  # a host that is back soon has room
                if (reason := str(error) or f"no room within {READY_TIMEOUT_S:g} s") not in reasons:
                    reasons.add(reason)
                    self.cannot_start(reason)
                missing.append(missing.pop(0))  # a host that takes none must not hinder the others
                if time.monotonic() > deadline:
                    return False
                time.sleep(POLL_S)
        return True

    def _await_silent(self, deadline: float) -> None:
        """Wait until no actor is silent, and the host of none is seen as silent."""
        while time.monotonic() < deadline:
            out = {outage.address for outage in self.hosts.outages() if outage.until_ns is None}
            if not any(member.silent or _address(member) in out for member in self._alive()):
                return
            self._observe()
            time.sleep(POLL_S)

    def retarget(self, urls: list[str]) -> None:
        """Send what comes from now on to these URLs, whose names are looked up anew."""
        self._plan = replace(self._plan, urls=urls)
        self._answers(self._call("retarget", urls), LOOK_UP_S)

    def finish(self, drain_s: float) -> None:
        """Stop sending, drain for at most `drain_s` of the run's clock, and bring all shards into the folder.

        Ctrl-C cuts what is in flight. An actor that cannot hand its shard over is lost with its requests.
        """
        drain_s /= self._plan.experiment.time_scale
        try:
            with suppress(KeyboardInterrupt):  # which ends this wait alone
                self._await_silent(time.monotonic() + self.hosts.patience_s)
            running = self._call("finish", drain_s)
            try:
                self._answers(running, drain_s + REPLY_TIMEOUT_S)
                silent = [call for call in running if call[0].silent]
                for member, _ in self._answers(silent, self.hosts.patience_s):
                    member.silent = False
            except KeyboardInterrupt:
                self._call("cut")
                self._answers(running, REPLY_TIMEOUT_S)
            self._fetch([member for member in self._answering() if not self._shard(member).exists()])
            gone = [one.place for one in self.members if one.place and not self._shard(one).exists()]
            self.left_behind = self._actors.fetch_left(gone, self._folder, READY_TIMEOUT_S)
        finally:
            for member in self.members:
                member.actor.kill()

    def _fetch(self, elsewhere: list[Member]) -> None:
        """Write down here the shards of actors whose disk is not ours, and delete them there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        calls = [(member, member.actor.call("fetch")) for member in elsewhere]
        fetched = self._answers(calls, READY_TIMEOUT_S)
        for _, shards in fetched:
            for file, content in shards.items():
                with durable.replacing(self._folder / file) as opened:
                    opened.write(content)
        for reply in [member.actor.call("drop") for member, _ in fetched]:
            with suppress(ActorError, TimeoutError):  # what is left there costs disk, no row
                reply(REPLY_TIMEOUT_S)

    def _add(self, indices: Iterable[int]) -> None:
        new = []
        for index in indices:
            new.append(Member(self._next_client, index, self._actors.start()))
            self._next_client += 1
        try:
            self._start(new)
        except BaseException:
            for member in new:
                member.actor.kill()
            raise
        self.members += new

    def _start(self, new: list[Member]) -> None:
        preparing = [m.actor.call("prepare", m.client_id, self._plan, self._folder) for m in new]
        for member, place in zip(new, _results(preparing, READY_TIMEOUT_S), strict=True):
            member.place, member.offset = place, ClockOffset.measured(partial(_read_clock, member.actor))
        zero_ns, wall_ns = self._clock.epoch_ns, self._clock.wall_ns
        starts = [m.actor.call("start", zero_ns + m.offset.offset_ns, wall_ns) for m in new]
        _results(starts, REPLY_TIMEOUT_S)

    def _shard(self, member: Member) -> Path:
        return self._folder / f"{name(member.client_id)}.arrow"

    def _left_by(self, member: Member) -> pa.Table:
        """Rows that a lost actor had written, if its disk is ours."""
        if not self._shard(member).exists():
            return _NOTHING
        return records.read_stream(self._shard(member), records.SHARD).select(records.PROGRESS.names)

    def _alive(self) -> list[Member]:
        return [member for member in self.members if member.lost_ns is None]

    def _silent(self) -> list[Member]:
        return [member for member in self._alive() if member.silent]

    def _answering(self) -> list[Member]:
        return [member for member in self._alive() if not member.silent]

    def _was_out(self, member: Member) -> bool:
        """True if the host of an actor could not be reached at some time since it answered last."""
        now_ns = time.monotonic_ns()
        return any(
            outage.address == _address(member) and outage.lasted_at(member.answered_ns, now_ns)
            for outage in self.hosts.outages()
        )

    def _call(self, method: str, *words: Any) -> list[tuple[Member, Reply]]:
        return [(member, member.actor.call(method, *words)) for member in self._answering()]

    def _answers(self, calls: Sequence[tuple[Member, Reply]], timeout_s: float) -> list[tuple[Member, Any]]:
        """The answers in time; an actor without one is lost, or silent if its host cannot be reached."""
        deadline = time.monotonic() + timeout_s
        answers = []
        for member, reply in calls:
            try:
                answers.append((member, reply(max(0.0, deadline - time.monotonic()))))
                member.answered_ns = time.monotonic_ns()
            except TimeoutError:
                self._miss(member, f"no answer within {timeout_s:g} s")
            except ActorUnreachableError as error:
                member.observing = None  # the call failed, and the actor may live
                self._miss(member, str(error))
            except ActorError as error:
                self._lose(member, str(error), last_words=isinstance(error, ActorFailedError))
        return answers

    def _miss(self, member: Member, reason: str) -> None:
        """An actor did not answer: it is silent for as long as its host may be the cause."""
        member.silent = member.silent or self._was_out(member)
        if not member.silent:
            self._lose(member, reason)

    def _lose(self, member: Member, reason: str, last_words: bool = False) -> None:
        """Give an actor up; one that only failed in its work may write down what it knows (`last_words`)."""
        if member.lost_ns is not None:
            return
        member.lost_ns = time.monotonic_ns()
        self.lost.append(LostActor(member.client_id, member.index, self._count, reason, _host(member)))
        self._unreported.append(member)
        if last_words:
            with suppress(ActorError, TimeoutError):
                member.actor.call("finish", 0.0)(LAST_WORDS_S)
        member.actor.kill()


def _observing(members: Iterable[Member]) -> list[tuple[Member, Reply]]:
    """The reports that are on their way."""
    return [(member, member.observing) for member in members if member.observing is not None]


def _results(replies: Iterable[Reply], timeout_s: float) -> list[Any]:
    """All results, or TimeoutError after so many seconds, or ActorError."""
    deadline = time.monotonic() + timeout_s
    return [reply(max(0.0, deadline - time.monotonic())) for reply in replies]


def _read_clock(actor: Actor) -> tuple[int, str]:
    reading: tuple[int, str] = actor.call("read_clock")(REPLY_TIMEOUT_S)
    return reading


def _address(member: Member) -> str | None:
    return member.place.address if member.place else None


def _host(member: Member) -> str:
    """The host of a load actor as a user reads it."""
    return f"{member.place.host} ({member.place.address})" if member.place else ""
