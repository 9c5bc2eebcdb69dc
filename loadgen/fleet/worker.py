"""Sends one shard of the schedule on time and keeps what became of every request; plain asyncio, no Ray.

The loop is open: a send waits for its due time and for nothing else, except that a turn waits for the turn of
its session before it. Latency counts from the due time all the same. The lag of a send is this client's
lateness alone: a send is the start of the attempt, be it to write or, without an idle connection, to connect.
"""

import asyncio
import contextlib
import math
import time
from collections import deque

from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.http_client import Client, ClientPlan
from loadgen.fleet.rows import Clock
from loadgen.fleet.target import Observation
from loadgen.fleet.worker_log import HealthSampler, RequestLog, reported
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import NS, ArrivalSchedule, Planned, planned


class SessionTurns:
    """Sessions with a turn in flight, each with the turns that wait for it to end, in order."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[Planned]] = {}

    def may_start(self, turn: Planned) -> bool:
        """True if its session has no turn in flight; otherwise the turn waits from now on."""
        if turn.session in self._waiting:
            self._waiting[turn.session].append(turn)
            return False
        self._waiting[turn.session] = deque()
        return True

    def waiting(self) -> list[Planned]:
        """All turns that are due and wait."""
        return [turn for turns in self._waiting.values() for turn in turns]

    def next_of(self, session: int) -> Planned | None:
        """The turn to send when the one in flight has ended; None if none waits."""
        if not self._waiting[session]:
            del self._waiting[session]
            return None
        return self._waiting[session].popleft()

    def take_older(self, than_ns: float, session: int | None = None) -> list[Planned]:
        """Remove and return the turns (of one session) that were due before an instant."""
        turns = self.waiting() if session is None else self._waiting[session]
        old = [turn for turn in turns if turn.due_ns < than_ns]
        for turn in old:
            self._waiting[turn.session].remove(turn)
        return old


MISSED_AFTER_NS = NS
"""A request overdue by more than this is not sent in a late burst but recorded as missed.

Only a closed loop sends it all the same: without it, whatever follows it would never start.
"""
TICK_S = 0.05
LEAST_SLEEP_S = 0.001
"""uvloop sleeps whole milliseconds: asked for less it does not sleep at all, and the loop spins."""
FLUSH_S = 1.0
SLICE = 500
"""Rows that are made at once: some 3 ms, in which nothing can be sent."""


class Worker:
    """One load generator: `offer` plans, `observe` reports, `retract` and `finish` end.

    All times are on the run's clock, which `start` sets; drains are real. `shard` takes one row for every
    request, `health_shard` one row of this worker's health a second.
    """

    def __init__(
        self,
        client_id: int,
        plan: ClientPlan,
        prompts: Prompts,
        shard: ArrowStream,
        health_shard: ArrowStream,
    ) -> None:
        self._client_id, self._time_scale, self._prompts = client_id, plan.experiment.time_scale, prompts
        self._log = RequestLog(client_id, plan, shard, health_shard)
        self._client = Client(plan, self._ended, prompts.path)
        self._plan: deque[Planned] = deque()
        self._closed: deque[Planned] = deque()
        self._in_flight: dict[int, Exchange] = {}
        self._turns = SessionTurns()
        self._patience_ns = int(plan.experiment.request_timeout_s * NS)
        self._retractions = 0
        self._taking = asyncio.Lock()
        self._wake, self._empty = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, epoch_ns: int, wall_ns: int) -> None:
        """Start the loops and the run's clock, whose zero is `epoch_ns` (monotonic) and `wall_ns`."""
        self._clock = Clock(epoch_ns, wall_ns, self._time_scale)
        self._log.start(self._clock)
        self._sampler = HealthSampler(self._client_id, self._clock)
        self._tasks = [asyncio.ensure_future(loop()) for loop in (self._send, self._tick)]

    async def offer(self, schedule: ArrivalSchedule) -> None:
        """Append a shard of a schedule that follows all others; a closed loop starts with a part of it."""
        closed, retractions = schedule.concurrency > 0, self._retractions
        async with self._taking:
            for start in range(0, len(schedule), SLICE):
                for row in planned(schedule.where(slice(start, start + SLICE))):
                    row.closed = closed
                    (self._closed if closed else self._plan).append(row)
                if retractions != self._retractions:
                    self._forget()  # it came while this schedule was being taken, and holds for all of it
                self._wake.set()
                await asyncio.sleep(0)
            for _ in range(min(schedule.concurrency, len(self._closed))):
                self._plan.append(self._closed.popleft())
            self._wake.set()

    async def retarget(self, urls: list[str]) -> None:
        """Send what comes from now on elsewhere, or to the addresses that the same names have now."""
        await self._client.retarget(urls)

    def retract(self) -> None:
        """Forget what is not due yet; each keeps its row, as missed in the phase `retracted`.

        What is due is sent at once: its lag is this worker's, and no part of the retraction.
        """
        self._retractions += 1
        self._send_due()
        self._forget()

    def _forget(self) -> None:
        for plan in (self._plan, self._closed):
            while plan:
                row = plan.popleft()
                row.phase = "retracted"
                self._refuse(row, "missed", "retracted")
        self._wake.set()

    async def observe(self, received: bool = True) -> Observation:
        """Report what ended since the last call, and what is due and has not ended.

        Unless the last report was `received`, this one repeats it. Raises what ended one of the loops.
        """
        self._raise_dead()
        ended, samples = self._log.take(received)
        waiting = map(Exchange, self._turns.waiting())
        in_flight, pending = [*self._in_flight.values(), *waiting], []
        for start in range(0, len(in_flight), SLICE):
            pending.append(self._log.rows(in_flight[start : start + SLICE]))
            await asyncio.sleep(0)
        return Observation(reported(ended), reported(pending), samples)

    async def finish(self, drain_s: float) -> None:
        """Wait up to `drain_s` for answers, cut the rest as interrupted, and close the shards.

        Raises, after all that, what ended a loop or else what kept a shard from being written.
        """
        self._retractions += 1
        self._forget()
        async with self._taking:
            pass  # what was being taken is retracted by now
        if self._in_flight:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), drain_s)
        self.cut()
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            self._log.close()
        finally:
            self._raise_dead()

    def cut(self) -> None:
        """End every request in flight or held now, so that a `finish` under way need not wait for it."""
        for plan in self._turns.take_older(math.inf):
            self._refuse(plan, "conn_error", "interrupted")
        self._client.cut_all("interrupted")
        self._empty.set()

    def _raise_dead(self) -> None:
        for task in self._tasks:
            error = task.exception() if task.done() and not task.cancelled() else None
            if error is not None:
                raise error

    async def _send(self) -> None:
        """The open loop. uvloop's timers may fire a millisecond early, hence the loop around the sleep."""
        while True:
            wait_ns = self._send_due()
            if wait_ns is None:
                self._wake.clear()
                await self._wake.wait()
            else:
                await asyncio.sleep(min(max(wait_ns / NS, LEAST_SLEEP_S), TICK_S))

    def _send_due(self) -> int | None:
        """Send all that is due; returns the real nanoseconds until more is, None if nothing is planned."""
        while self._plan:
            wait_ns = self._clock.monotonic_ns(self._plan[0].due_ns) - time.monotonic_ns()
            if wait_ns > 0:
                return wait_ns
            self._launch(self._plan.popleft(), -wait_ns)
        return None

    def _launch(self, plan: Planned, late_ns: int) -> None:
        if late_ns > MISSED_AFTER_NS and not plan.closed:
            self._refuse(plan, "missed", "overdue")
        elif plan.character < 0 or self._turns.may_start(plan):
            self._start(plan)

    def _start(self, plan: Planned) -> None:
        exchange = Exchange(plan)
        session = None if plan.session < 0 else plan.session
        # Without a body it is never in flight: nobody would end it.
        if plan.character >= 0:
            body = self._prompts.turn(plan)
        else:
            tokens = plan.input_tokens, plan.output_tokens, plan.shared_tokens
            body = self._prompts.body(plan.seq, *tokens, session, plan.image_tokens, plan.begins)
        self._in_flight[plan.seq] = exchange
        self._client.start(exchange, body)
        if exchange.sent_ns is not None:
            ready_ns = plan.due_ns if plan.free_ns is None else plan.free_ns
            self._sampler.second.lags_ns.append(exchange.sent_ns - self._clock.monotonic_ns(ready_ns))

    def _give_up_waiting(self, session: int | None = None) -> None:
        """End turns that waited for as long as a request may last: their users have gone."""
        oldest_ns = self._clock.run_ns(time.monotonic_ns()) - self._patience_ns
        for plan in self._turns.take_older(oldest_ns, session):
            self._refuse(plan, "timeout", "turn_blocked")

    def _refuse(self, plan: Planned, status: str, kind: str) -> None:
        """Record a request that is not sent: missed, or a turn that no longer waits."""
        exchange = Exchange(plan)
        exchange.fail(status, kind)
        if status != "missed":
            exchange.end_ns = time.monotonic_ns()
            plan.free_ns = self._clock.run_ns(exchange.end_ns)
        elif kind != "retracted":
            self._sampler.second.missed += 1
        self._log.add(exchange)

    async def _tick(self) -> None:
        """Watch the loop's own punctuality, and every second of the run sample it and write the log."""
        with self._sampler.watch_gc():
            period_s = FLUSH_S / self._time_scale
            sample_at = time.monotonic() + period_s
            woke_ns = time.monotonic_ns()
            while True:
                await asyncio.sleep(TICK_S)
                before_ns, woke_ns = woke_ns, time.monotonic_ns()
                in_flight = len(self._in_flight) + len(self._turns.waiting())
                self._sampler.woke(woke_ns - before_ns - int(TICK_S * NS), in_flight)
                if time.monotonic() >= sample_at:
                    self._give_up_waiting()
                    self._log.write(self._sampler.sample())
                    sample_at = time.monotonic() + period_s

    def _ended(self, exchange: Exchange) -> None:
        plan = exchange.plan
        del self._in_flight[plan.seq]
        self._log.add(exchange)
        second = self._sampler.second
        second.reads += exchange.reads
        second.events += exchange.events
        second.missed += exchange.status == "missed"  # out of files or ports
        if plan.character >= 0:
            self._give_up_waiting(plan.session)
            if (turn := self._turns.next_of(plan.session)) is not None:
                turn.free_ns = self._clock.run_ns(time.monotonic_ns())
                self._start(turn)
        if plan.closed and self._closed:
            follower = self._closed.popleft()
            follower.due_ns = self._clock.run_ns(time.monotonic_ns())
            self._launch(follower, 0)
        if not self._in_flight:
            self._empty.set()
