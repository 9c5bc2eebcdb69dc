"""Makes request rows from plans and exchanges, column by column: rows would cost a tenth of a request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.rows import records
from analysis.rows.parquet import BoundedWords
from analysis.stats.quantiles import quantile
from conf.specs.bounds import Slo, metric_of
from loadgen.fleet.exchange import Exchange
from loadgen.traffic.schedule import OPTIONAL, PHASES, ArrivalSchedule, Planned

MOST_US = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class GapRecord:
    """The gaps that rows keep: all if `kept`, their quantile `within` an answer, the number over `most_ms`.

    Figures are made where the gaps are, since reports on a run carry no lists.
    """

    kept: bool = True
    within: float | None = None
    most_ms: float | None = None

    @classmethod
    def from_bounds(cls, slo: Slo, kept: bool) -> "GapRecord":
        """The gaps with the figures that bounds need."""
        own = any(metric_of(limit) == "itl" for limit in slo.limits)
        return cls(kept, slo.itl_within if own else None, slo.strictest_ms("itl_pooled"))

    @property
    def figures(self) -> "GapRecord":
        """The same without the gaps themselves, as reports carry them."""
        return replace(self, kept=False)

    def columns(self, exchanges: Sequence[Exchange], scale: float) -> dict[str, Any]:
        """The columns `itl_us`, `own_itl_us`, `gaps`, `gaps_over`: null in flight or if disabled."""
        unknown = [None] * len(exchanges)
        columns: dict[str, Any] = dict.fromkeys(("itl_us", "own_itl_us", "gaps", "gaps_over"), unknown)
        if self.kept:
            columns["itl_us"] = _gaps(exchanges, scale)
        if self.within is None and self.most_ms is None:
            return columns
        each = [
            None
            if exchange.end_ns is None
            else np.frombuffer(exchange.gaps_us, dtype=np.int32) * np.float64(scale)
            for exchange in exchanges
        ]
        if self.within is not None:
            own_us = [None if gaps is None else quantile(gaps, self.within) for gaps in each]
            columns["own_itl_us"] = [None if gap is None else min(round(gap), MOST_US) for gap in own_us]
        if self.most_ms is not None:
            most_us = 1e3 * self.most_ms
            columns["gaps"] = [None if gaps is None else len(gaps) for gaps in each]
            columns["gaps_over"] = [
                None if gaps is None else int(np.count_nonzero(gaps > most_us)) for gaps in each
            ]
        return columns


def _gaps(exchanges: Sequence[Exchange], scale: float) -> pa.Array:
    """The gaps of each request as one list column, their bytes copied once; null while in flight."""
    ends = np.cumsum([0, *(len(exchange.gaps_us) for exchange in exchanges)], dtype=np.int32)
    gaps_us = np.frombuffer(b"".join(exchange.gaps_us for exchange in exchanges), dtype=np.int32)
    if scale != 1:
        gaps_us = np.minimum(np.rint(gaps_us * scale), MOST_US).astype(np.int32)
    open_ = np.array([exchange.end_ns is None for exchange in exchanges], dtype=np.bool_)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(gaps_us), mask=pa.array(open_))


COLUMNS = {
    name: {"session_id": "session"}.get(name, name.removeprefix("requested_")) for name in records.PLAN.names
}
"""Columns of a request's row that its plan says, and their names in `Planned` and in a schedule."""
Words = Mapping[str, BoundedWords]
"""Words in the servers' answers so far, by column."""
LAST_TURN = 2**15 - 1
"""A record has 16 bits for the turn; whatever comes later counts as this one."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The run's clock: zero at `epoch_ns` (monotonic) and `wall_ns`, `scale` times as fast as real time."""

    epoch_ns: int
    wall_ns: int
    scale: float = 1.0

    def run_ns(self, monotonic_ns: int) -> int:
        """The run's time at a monotonic instant."""
        return int((monotonic_ns - self.epoch_ns) * self.scale)

    def monotonic_ns(self, run_ns: int) -> int:
        """The monotonic instant of a time of the run."""
        return self.epoch_ns + int(run_ns / self.scale)


def plan_table(schedule: ArrivalSchedule) -> pa.Table:
    """The schedule as a table of schema `PLAN`."""
    count = len(schedule)
    columns: dict[str, Any] = {}
    for name, own in COLUMNS.items():
        values = getattr(schedule, own)
        values = OPTIONAL[own] if values is None else values
        columns[name] = pa.nulls(count) if values is None else np.broadcast_to(values, count)
    columns["phase"] = [PHASES[phase] for phase in schedule.phase.tolist()]
    columns["turn"] = np.minimum(columns["turn"], LAST_TURN)
    return pa.table(columns, schema=records.PLAN)


def plan_columns(plans: Sequence[Planned]) -> dict[str, Any]:
    """The columns of request rows that the plans say, in the types of schema `SHARD`."""
    columns = {name: list(map(attrgetter(own), plans)) for name, own in COLUMNS.items()}
    columns["turn"] = [min(turn, LAST_TURN) for turn in columns["turn"]]
    return {name: pa.array(values, records.SHARD.field(name).type) for name, values in columns.items()}


def batch(
    ends: Sequence[Exchange], clock: Clock, client_id: int, gaps: GapRecord, words: Words
) -> pa.RecordBatch:
    """Rows of schema `SHARD` for requests that ended, or are in flight (`pending`)."""
    plans = [exchange.plan for exchange in ends]
    counted = [
        exchange.text.counts(exchange.tokens) if exchange.events else (None, None) for exchange in ends
    ]
    columns = plan_columns(plans)
    due_ns = columns["due_ns"].to_numpy()
    columns |= {
        "client_id": np.full(len(plans), client_id, dtype=np.int16),
        # An outcome counts once the exchange has ended; a request that was missed never began.
        "status": [
            end.status if end.end_ns is not None or end.status == "missed" else records.PENDING
            for end in ends
        ],
        "error_kind": [exchange.error_kind for exchange in ends],
        "error": [exchange.error for exchange in ends],
        "http_status": [exchange.http_status for exchange in ends],
        "finish_reason": [words["finish_reason"].kept(exchange.finish_reason) for exchange in ends],
        "replica_id": [words["replica_id"].kept(exchange.replica_id) for exchange in ends],
        "scheduled_at": ((due_ns / clock.scale).astype(np.int64) + clock.wall_ns) // 1000,
        "prompt_tokens": [(exchange.usage or {}).get("prompt_tokens") for exchange in ends],
        "cached_tokens": [(exchange.usage or {}).get("cached_tokens") for exchange in ends],
        "output_tokens": [exchange.tokens if exchange.events else None for exchange in ends],
        "events": [exchange.text.events for exchange in ends],
        "reads": [exchange.reads for exchange in ends],
        "first_read_tokens": [first_read for first_read, _ in counted],
        "streamed_tokens": [streamed for _, streamed in counted],
        "engine_steps": [(exchange.engine or {}).get("steps") for exchange in ends],
        "engine_late_steps": [(exchange.engine or {}).get("late_steps") for exchange in ends],
        "time_scale": np.full(len(plans), clock.scale),
        **{f"engine_{which}_token_ns": _engine_ns(ends, which) for which in ("first", "last")},
        "queue_us": [None if end.queue_ms is None else round(1e3 * end.queue_ms) for end in ends],
        **gaps.columns(ends, clock.scale),
    }
    columns["turn_blocked_ns"] = pa.array(
        [None if plan.free_ns is None else plan.free_ns - plan.due_ns for plan in plans], pa.int64()
    )
    for event in ("sent", "first_byte", "first_token", "last_token", "end"):
        at_ns = [getattr(exchange, f"{event}_ns") for exchange in ends]
        name = "send_offset_ns" if event == "sent" else f"{event}_offset_ns"
        columns[name] = _offsets(at_ns, due_ns, clock)
    arrays = (
        values if isinstance(values := columns[column.name], pa.Array) else pa.array(values).cast(column.type)
        for column in records.SHARD
    )
    return pa.record_batch(list(arrays), schema=records.SHARD)


def _engine_ns(exchanges: Sequence[Exchange], which: str) -> list[int | None]:
    """The engine's times of the `first` or `last` token, since it had the request; None if unknown."""
    times_us = [(exchange.engine or {}).get(f"{which}_token_us") for exchange in exchanges]
    return [None if at_us is None else at_us * 1000 for at_us in times_us]


def _offsets(at_ns: list[int | None], due_ns: NDArray[np.int64], clock: Clock) -> pa.Array:
    """Monotonic instants on the run's clock, from each row's due time; null where the event never came."""
    missing = np.array([at is None for at in at_ns], dtype=np.bool_)
    real_ns = np.array([0 if at is None else at - clock.epoch_ns for at in at_ns], dtype=np.int64)
    run_ns = real_ns if clock.scale == 1 else np.rint(real_ns * clock.scale).astype(np.int64)
    return pa.array(run_ns - due_ns, mask=missing)
