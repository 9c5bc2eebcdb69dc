"""Sends one shard of the schedule on time and keeps what became of every request; plain asyncio, no Ray.

The loop is open: a send waits for its due time and for nothing else, but for one thing: nobody answers
before the answer has come, so a turn waits for the turn of its session before it. Latency counts from the due
time all the same; how late the send itself was is a column of its own, and it is this client's lateness
alone: a send is the start of the attempt, be it to write or, without an idle connection, to connect.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from analysis.rows import records, time_series
from loadgen.fleet.arrow_stream import Shard
from loadgen.fleet.health import Pulse
from loadgen.fleet.http_client import TIMEOUT_S, Client
from loadgen.fleet.rows import Clock, Flight, Planned, Said, batch, planned
from loadgen.fleet.sse import Exchange
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import NS, ArrivalSchedule

MISSED_AFTER_NS = NS
"""A request overdue by more than this is not sent in a late burst but recorded as missed.

Only a closed loop sends it all the same: without it, whatever follows it would never start.
"""
TICK_S = 0.05
LEAST_SLEEP_S = 0.001
"""uvloop sleeps whole milliseconds: asked for less it does not sleep at all, and the loop spins."""
FLUSH_S = 1.0
FULL_DISK_S = 5.0
"""A shard that cannot be written for so long ends the worker; until then its rows are kept.

Seconds count from the first write that failed. On a slow clock, whose writes are rarer, they are the run's.
"""
SLICE = 500
"""Rows that are made at once: some 3 ms, in which nothing can be sent."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a load actor tells: requests that ended since the last report, those in flight, its health.

    `ended` and `pending` are of schema `records.PROGRESS`, `health` is rows of `series.CLIENTS`.
    """

    ended: pa.Table
    pending: pa.Table
    health: list[dict[str, Any]]


class Worker:
    """One load generator: `offer` plans, `observe` reports, `retract` and `finish` end.

    All times are on the run's clock, which `start` sets and which runs `time_scale` times as fast as the
    real one; timeouts and drains are real. `shard` takes one row for every request,
    `pulse_shard` one row of this worker's health a second.
    """

    def __init__(
        self,
        client_id: int,
        urls: list[str],
        prompts: Prompts,
        shard: Shard,
        pulse_shard: Shard | None = None,
        *,
        record_itl: bool,
        time_scale: float = 1.0,
        **client: Any,
    ) -> None:
        self._client_id = client_id
        self._time_scale = time_scale
        self._prompts = prompts
        self._shard = shard
        self._pulse_shard = pulse_shard
        self._shards = [each for each in (shard, pulse_shard) if each is not None]
        self._full_since: float | None = None
        self._record_itl = record_itl
        self._said = Said()
        self._client = Client(urls, self._ended, time_scale=time_scale, **client)
        self._plan: deque[Planned] = deque()
        self._closed: deque[Planned] = deque()
        self._flying: dict[int, Flight] = {}
        # Sessions with a turn in flight, and the turns that wait for it to end, in order.
        self._talking: dict[int, deque[Planned]] = {}
        self._patience_ns = int(client.get("timeout_s", TIMEOUT_S) * time_scale * NS)
        self._retractions = 0
        self._taking = asyncio.Lock()
        self._landed: list[Flight] = []
        self._unseen: list[pa.RecordBatch] = []
        self._beats: list[dict[str, Any]] = []
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        # The first conversions import what pyarrow loads lazily: now, not in the middle of a run.
        warm = Planned(0, 0, "warmup", 0, 1, 1), Exchange(0, 1)
        batch([warm], Clock(0, 0), client_id, record_itl, Said())
        pa.RecordBatch.from_pylist([{"at": 0}], schema=time_series.CLIENTS)

    def start(self, epoch_ns: int, wall_ns: int) -> None:
        """Start the run's clock, whose zero is `epoch_ns` (monotonic) and `wall_ns`, and the loops."""
        self._clock = Clock(epoch_ns, wall_ns, self._time_scale)
        self._pulse = Pulse(self._client_id, self._clock)
        self._tasks = [asyncio.ensure_future(loop()) for loop in (self._send, self._tick)]

    async def offer(self, schedule: ArrivalSchedule) -> None:
        """Append this worker's shard of a schedule that lies after everything offered before.

        Of a closed loop only as many requests are due as may be in flight; each that ends starts the next.
        """
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
        """Forget what is not due yet; each keeps its row, as missed in the phase `retracted`."""
        self._retractions += 1
        self._forget()

    def _forget(self) -> None:
        for plan in (self._plan, self._closed):
            while plan:
                row = plan.popleft()
                row.phase = "retracted"
                self._miss(row, "retracted")
        self._wake.set()

    async def observe(self) -> Report:
        """What ended since the last call, and the present state of what is due and has not ended.

        Raises what ended one of the loops (such as OSError of a full disk): from then on nothing is
        sent, or nothing written.
        """
        self._raise_dead()
        self._roll()
        unseen, self._unseen = self._unseen, []
        beats, self._beats = self._beats, []
        flying, pending = [*self._flying.values(), *map(_unsent, self._held())], []
        for start in range(0, len(flying), SLICE):
            pending.append(self._rows(flying[start : start + SLICE], record_itl=False))
            await asyncio.sleep(0)
        return Report(_progress(unseen), _progress(pending), beats)

    async def finish(self, drain_s: float) -> None:
        """Wait up to `drain_s` for answers, cut the rest as interrupted, and close the shards.

        Raises, after all that, what ended a loop or else what kept a shard from being written.
        """
        self.retract()
        async with self._taking:
            pass  # what was being taken is retracted by now
        if self._flying:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), drain_s)
        self.cut()
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._roll()
        try:
            self._close_shards()
        finally:
            self._raise_dead()

    def cut(self) -> None:
        """End every request in flight or held now, so that a `finish` under way need not wait for it."""
        for plan in self._held():
            self._give_up(plan, "conn_error", "interrupted")
        self._client.cut_all("interrupted")
        self._empty.set()

    def _close_shards(self) -> None:
        """Close every shard, also when one cannot be written."""
        with contextlib.ExitStack() as stack:
            for shard in self._shards:
                stack.callback(shard.close)

    def _raise_dead(self) -> None:
        """Raise the exception of a loop that ended by one."""
        for task in self._tasks:
            error = task.exception() if task.done() and not task.cancelled() else None
            if error is not None:
                raise error

    async def _send(self) -> None:
        """The open loop. uvloop's timers may fire a millisecond early, hence the loop around the sleep."""
        while True:
            if not self._plan:
                self._wake.clear()
                await self._wake.wait()
                continue
            wait_ns = self._clock.monotonic_ns(self._plan[0].due_ns) - time.monotonic_ns()
            if wait_ns <= 0:
                self._launch(self._plan.popleft(), -wait_ns)
            else:
                await asyncio.sleep(min(max(wait_ns / NS, LEAST_SLEEP_S), TICK_S))

    def _launch(self, plan: Planned, late_ns: int) -> None:
        if late_ns > MISSED_AFTER_NS and not plan.closed:
            self._miss(plan, "overdue")
        elif plan.character >= 0 and plan.session in self._talking:
            self._talking[plan.session].append(plan)
        else:
            if plan.character >= 0:
                self._talking[plan.session] = deque()
            self._start(plan)

    def _start(self, plan: Planned) -> None:
        exchange = Exchange(plan.seq, plan.output_tokens)
        session = None if plan.session < 0 else plan.session
        body = self._body(plan)  # what has no body does not fly: nobody would end it
        self._flying[plan.seq] = (plan, exchange)
        self._client.start(exchange, body, plan.stream, session)
        if exchange.sent_ns is not None:
            ready_ns = plan.due_ns if plan.free_ns is None else plan.free_ns
            self._pulse.sent(exchange.sent_ns - self._clock.monotonic_ns(ready_ns))

    def _body(self, plan: Planned) -> bytes:
        if plan.character >= 0:
            levels = plan.shared_tokens, plan.character_tokens, plan.persona_tokens
            names = plan.character, plan.session, plan.history_cut
            return self._prompts.turn(plan.input_tokens, plan.output_tokens, levels, names)
        session = None if plan.session < 0 else plan.session
        return self._prompts.body(
            plan.seq, plan.input_tokens, plan.output_tokens, plan.shared_tokens, session, plan.image_tokens
        )

    def _held(self) -> list[Planned]:
        """The turns that are due and wait for the turn of their session before them."""
        return [plan for waiting in self._talking.values() for plan in waiting]

    def _answered(self, session: int) -> None:
        """Send the next turn of a session whose turn in flight has ended, if one waits."""
        self._give_up_waiting(self._talking[session])
        if not self._talking[session]:
            del self._talking[session]
            return
        plan = self._talking[session].popleft()
        plan.free_ns = self._clock.run_ns(time.monotonic_ns())
        self._start(plan)

    def _give_up_waiting(self, turns: Iterable[Planned]) -> None:
        """A turn waits no longer than a request may last: its user has gone."""
        oldest_ns = self._clock.run_ns(time.monotonic_ns()) - self._patience_ns
        for plan in [turn for turn in turns if turn.due_ns < oldest_ns]:
            self._give_up(plan, "timeout", "turn_blocked")

    def _give_up(self, plan: Planned, status: str, kind: str) -> None:
        """End a turn that waits, unsent."""
        self._talking[plan.session].remove(plan)
        _, exchange = _unsent(plan)
        plan.free_ns = self._clock.run_ns(time.monotonic_ns())
        exchange.fail(status, kind)
        exchange.end_ns = time.monotonic_ns()
        self._landed.append((plan, exchange))

    async def _tick(self) -> None:
        """Watch the loop's own punctuality, and every second of the run record it and flush the shards."""
        with self._pulse.watch_gc():
            period_s = FLUSH_S / self._time_scale
            beat_at = time.monotonic() + period_s
            woke_ns = time.monotonic_ns()
            while True:
                await asyncio.sleep(TICK_S)
                before_ns, woke_ns = woke_ns, time.monotonic_ns()
                self._pulse.woke(
                    woke_ns - before_ns - int(TICK_S * NS), len(self._flying) + len(self._held())
                )
                if time.monotonic() >= beat_at:
                    self._beat()
                    beat_at = time.monotonic() + period_s

    def _beat(self) -> None:
        self._give_up_waiting(self._held())
        self._roll()
        self._beats.append(self._pulse.beat())
        if self._pulse_shard is not None:
            self._pulse_shard.append(pa.RecordBatch.from_pylist(self._beats[-1:], schema=time_series.CLIENTS))
        try:
            self._flush()
        except OSError:
            now_s = time.monotonic()
            if self._full_since is None:
                self._full_since = now_s
            elif now_s > self._full_since + FULL_DISK_S / min(1.0, self._time_scale):
                raise

    def _flush(self) -> None:
        """Write what the shards keep. Raises OSError; what could not be written is kept."""
        for shard in self._shards:
            shard.flush()
        self._full_since = None

    def _ended(self, exchange: Exchange) -> None:
        flight = self._flying.pop(exchange.seq)
        self._landed.append(flight)
        self._pulse.ended(exchange.reads, exchange.events)
        if exchange.status == "missed":  # out of files or ports
            self._pulse.missed()
        if flight[0].character >= 0:
            self._answered(flight[0].session)
        if flight[0].closed and self._closed:
            follower = self._closed.popleft()
            follower.due_ns = self._clock.run_ns(time.monotonic_ns())
            self._launch(follower, 0)
        if not self._flying:
            self._empty.set()

    def _miss(self, plan: Planned, kind: str) -> None:
        exchange = Exchange(plan.seq, plan.output_tokens)
        exchange.fail("missed", kind)
        self._landed.append((plan, exchange))
        if kind != "retracted":
            self._pulse.missed()

    def _roll(self) -> None:
        """Turn what ended since the last call into rows, once for the disk and for the driver."""
        landed, self._landed = self._landed, []
        if landed:
            rows = self._rows(landed, self._record_itl)
            self._shard.append(rows)
            self._unseen.append(rows)

    def _rows(self, flights: list[Flight], record_itl: bool) -> pa.RecordBatch:
        return batch(flights, self._clock, self._client_id, record_itl, self._said)


def _unsent(plan: Planned) -> Flight:
    """A request that waits for the turn before it."""
    return plan, Exchange(plan.seq, plan.output_tokens)


def _progress(batches: list[pa.RecordBatch]) -> pa.Table:
    """Rows without their gaps: those are many, and only for the disk."""
    rows = pa.Table.from_batches(batches, schema=records.SHARD)
    return rows.select(records.PROGRESS.names).combine_chunks()
