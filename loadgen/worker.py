"""Sends one shard of the schedule on time and keeps what became of every request; plain asyncio, no Ray.

The loop is open: a send waits for its due time and for nothing else. Latency counts from the due
time; how late the send itself was is a column of its own, and it is this client's lateness alone: a
send is the start of the attempt, be it to write or, without an idle connection, to connect.
"""

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from analysis import records
from loadgen.arrivals import NS, PHASES, ArrivalSchedule
from loadgen.client import Client
from loadgen.exchange import Exchange
from loadgen.prompts import Prompts
from loadgen.recorder import Shard

MISSED_AFTER_NS = NS
"""A request overdue by more than this is not sent in a late burst but recorded as missed."""
TICK_S = 0.05
FLUSH_S = 1.0


@dataclass(frozen=True, slots=True)
class Planned:
    """One row of the schedule, as plain numbers."""

    seq: int
    dwell: int
    phase: str
    due_ns: int
    input_tokens: int
    output_tokens: int


class Worker:
    """One load generator: `offer` plans, `observe` reports, `retract` and `finish` end.

    All times are on the run's clock, which starts at the monotonic instant `epoch_ns`; `wall_ns` is
    the wall-clock time of that instant.
    """

    def __init__(
        self,
        client_id: int,
        urls: list[str],
        prompts: Prompts,
        shard: Shard,
        *,
        record_itl: bool,
        **client: Any,
    ) -> None:
        self._client_id = client_id
        self._prompts = prompts
        self._shard = shard
        self._record_itl = record_itl
        self._client = Client(urls, self._ended, **client)
        self._plan: deque[Planned] = deque()
        self._flying: dict[int, tuple[Planned, Exchange]] = {}
        self._ended_rows: list[dict[str, Any]] = []
        self._wake = asyncio.Event()
        self._landed = asyncio.Event()
        self._epoch_ns = self._wall_ns = 0
        self._stall_ns = 0
        self._in_flight: list[int] = []
        self._cpu_mark = (time.process_time_ns(), time.monotonic_ns())
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, epoch_ns: int, wall_ns: int) -> None:
        """Start the run's clock and the loops."""
        self._epoch_ns, self._wall_ns = epoch_ns, wall_ns
        self._tasks = [asyncio.ensure_future(loop()) for loop in (self._send, self._tick)]

    def offer(self, schedule: ArrivalSchedule) -> None:
        """Append this worker's shard of a schedule that lies after everything offered before."""
        columns = zip(
            schedule.seq.tolist(),
            schedule.phase.tolist(),
            schedule.due_ns.tolist(),
            schedule.input_tokens.tolist(),
            schedule.output_tokens.tolist(),
            strict=True,
        )
        for seq, phase, due_ns, input_tokens, output_tokens in columns:
            planned = Planned(seq, schedule.dwell, PHASES[phase], due_ns, input_tokens, output_tokens)
            self._plan.append(planned)
        self._wake.set()

    def retract(self) -> None:
        """Forget what is not due yet; each keeps its row, as missed in the phase `retracted`."""
        while self._plan:
            self._miss(self._plan.popleft(), "retracted", phase="retracted")
        self._wake.set()

    def observe(self) -> list[dict[str, Any]]:
        """Rows that ended since the last call, and the present state of those due and not ended.

        Raises what ended one of the loops (such as OSError of a full disk): from then on nothing is
        sent, or nothing written.
        """
        self._raise_dead()
        ended, self._ended_rows = self._ended_rows, []
        flying = [self._row(planned, exchange) for planned, exchange in self._flying.values()]
        return [{k: v for k, v in row.items() if k != "itl_us"} for row in ended] + flying

    def health(self) -> dict[str, float]:
        """Since the last call: this process's share of a core, the loop's longest stall, mean in flight."""
        cpu_ns, now_ns = time.process_time_ns(), time.monotonic_ns()
        (cpu_was, then), self._cpu_mark = self._cpu_mark, (cpu_ns, now_ns)
        stall_ns, self._stall_ns = self._stall_ns, 0
        samples, self._in_flight = self._in_flight or [len(self._flying)], []
        return {
            "span_s": (now_ns - then) / NS,
            "cpu_share": (cpu_ns - cpu_was) / max(1, now_ns - then),
            "stall_ms": stall_ns / 1e6,
            "in_flight": sum(samples) / len(samples),
        }

    async def finish(self, drain_s: float) -> None:
        """Wait up to `drain_s` for answers, cut the rest as interrupted, and close the shard.

        Raises, after all that, what ended a loop or else what kept the shard from being written.
        """
        self.retract()
        if self._flying:
            self._landed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._landed.wait(), drain_s)
        self._client.cut_all("interrupted")
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            self._shard.close()
        finally:
            self._raise_dead()

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
            wait_ns = self._epoch_ns + self._plan[0].due_ns - time.monotonic_ns()
            if wait_ns <= 0:
                self._launch(self._plan.popleft(), -wait_ns)
            else:
                await asyncio.sleep(min(wait_ns / NS, TICK_S))

    def _launch(self, planned: Planned, late_ns: int) -> None:
        if late_ns > MISSED_AFTER_NS:
            self._miss(planned, "overdue")
            return
        exchange = Exchange(planned.seq, planned.output_tokens)
        body = self._prompts.body(planned.seq, planned.input_tokens, planned.output_tokens)
        self._flying[planned.seq] = (planned, exchange)
        self._client.start(exchange, body)

    async def _tick(self) -> None:
        """Sample stalls of the loop and requests in flight, and flush the shard every second."""
        flush_at = time.monotonic() + FLUSH_S
        woke_ns = time.monotonic_ns()
        while True:
            await asyncio.sleep(TICK_S)
            before_ns, woke_ns = woke_ns, time.monotonic_ns()
            self._stall_ns = max(self._stall_ns, woke_ns - before_ns - int(TICK_S * NS))
            self._in_flight.append(len(self._flying))
            if time.monotonic() >= flush_at:
                self._shard.flush()
                flush_at = time.monotonic() + FLUSH_S

    def _ended(self, exchange: Exchange) -> None:
        planned, _ = self._flying.pop(exchange.seq)
        self._keep(self._row(planned, exchange))
        if not self._flying:
            self._landed.set()

    def _miss(self, planned: Planned, kind: str, phase: str | None = None) -> None:
        exchange = Exchange(planned.seq, planned.output_tokens)
        exchange.fail("missed", kind)
        self._keep(self._row(planned, exchange) | ({"phase": phase} if phase else {}))

    def _keep(self, row: dict[str, Any]) -> None:
        self._ended_rows.append(row)
        self._shard.append(row)

    def _row(self, planned: Planned, exchange: Exchange) -> dict[str, Any]:
        """The record of schema `REQUESTS` of a request, ended or in flight."""
        usage = exchange.usage or {}
        engine = exchange.engine or {}
        zero_ns = self._epoch_ns + planned.due_ns

        def offset(at_ns: int | None) -> int | None:
            return None if at_ns is None else at_ns - zero_ns

        return {
            "seq": planned.seq,
            "client_id": self._client_id,
            "dwell": planned.dwell,
            "phase": planned.phase,
            "status": exchange.status if exchange.end_ns or exchange.status == "missed" else records.PENDING,
            "error_kind": exchange.error_kind,
            "error": exchange.error,
            "http_status": exchange.http_status,
            "finish_reason": exchange.finish_reason,
            "session_id": -1,
            "turn": 0,
            "replica_id": exchange.replica_id,
            "due_ns": planned.due_ns,
            "scheduled_at": (self._wall_ns + planned.due_ns) // 1000,
            "send_offset_ns": offset(exchange.sent_ns),
            "first_byte_offset_ns": offset(exchange.first_byte_ns),
            "first_token_offset_ns": offset(exchange.first_token_ns),
            "last_token_offset_ns": offset(exchange.last_token_ns),
            "end_offset_ns": offset(exchange.end_ns),
            "requested_input_tokens": planned.input_tokens,
            "requested_output_tokens": planned.output_tokens,
            "prompt_tokens": usage.get("prompt_tokens"),
            "cached_tokens": usage.get("cached_tokens"),
            "output_tokens": exchange.tokens if exchange.events else None,
            "events": exchange.events,
            "reads": exchange.reads,
            "engine_steps": engine.get("steps"),
            "engine_late_steps": engine.get("late_steps"),
            "itl_us": self._gaps(exchange) if self._record_itl and exchange.end_ns else None,
        }

    @staticmethod
    def _gaps(exchange: Exchange) -> list[int]:
        reads = exchange.token_reads_ns
        return [(after - before) // 1000 for before, after in zip(reads, reads[1:], strict=False)]
