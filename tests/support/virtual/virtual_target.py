"""A target of the load generator whose engines run on a virtual clock: an hour of traffic takes seconds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.rows import records
from loadgen.fleet.rows import plan_columns
from loadgen.fleet.target import Observation
from loadgen.traffic.schedule import NS, ArrivalSchedule, Planned, planned

Service = Any
"""Engines behind a balancer on one virtual clock: `VirtualService`, or a toy with its methods `submit`,
`retract`, `advance` and `observe`; the latter returns as much of `RequestProgress` as it knows."""


class VirtualTarget:
    """Drives a `Service`; sends are never late and nothing fails."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._now_ns = 0
        self._planned: dict[int, Planned] = {}

    def now_ns(self) -> int:
        return self._now_ns

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        """Submit a schedule, advance to `until_ns` and report."""
        if schedule is not None:
            self._submit(schedule)
        self._now_ns = max(self._now_ns, until_ns)
        self._service.advance(self._now_ns / NS)
        seen = [(self._planned[progress.key], progress) for progress in self._service.observe()]
        done = [flight for flight in seen if flight[1].finished]
        for plan, _ in done:
            del self._planned[plan.seq]
        pending = [flight for flight in seen if not flight[1].finished]
        rows = _table([*done, *pending]) if seen else NONE  # a table costs more than its rows
        return Observation(rows.slice(0, len(done)), rows.slice(len(done)))

    def retract(self) -> None:
        """Forget every arrival that is not due yet."""
        self._service.retract(self._now_ns / NS)
        self._planned = {seq: plan for seq, plan in self._planned.items() if plan.due_ns <= self._now_ns}

    def heal(self) -> bool:
        """Nothing is lost on a virtual clock."""
        return False

    def _submit(self, schedule: ArrivalSchedule) -> None:
        for plan in planned(schedule):
            self._planned[plan.seq] = plan
            at_s = plan.due_ns / NS
            lengths = plan.input_tokens, plan.output_tokens
            self._service.submit(plan.seq, at_s, *lengths, plan.stream, plan.shared_tokens)


NONE = records.PROGRESS.empty_table()


class Faster:
    """A service that is `factor` times as fast in everything."""

    def __init__(self, inner: Any, factor: float) -> None:
        self._inner, self._factor = inner, factor

    def submit(self, key: int, at_s: float, *more: Any) -> None:
        self._inner.submit(key, at_s * self._factor, *more)

    def retract(self, after_s: float) -> None:
        self._inner.retract(after_s * self._factor)

    def advance(self, until_s: float) -> None:
        self._inner.advance(until_s * self._factor)

    def observe(self) -> list[Any]:
        scaled = lambda at_s: None if at_s is None else at_s / self._factor  # noqa: E731
        return [
            one._replace(first_token_s=scaled(one.first_token_s), last_token_s=scaled(one.last_token_s))
            for one in self._inner.observe()
        ]


def _table(flights: Sequence[tuple[Planned, Any]]) -> pa.Table:
    """Rows of schema `PROGRESS`: sent in time, and ended with the last token."""
    plans = [plan for plan, _ in flights]
    columns = plan_columns(plans)
    due_ns = columns["due_ns"].to_numpy()
    finished = np.array([progress.finished for _, progress in flights], dtype=np.bool_)
    last = _offsets([progress.last_token_s for _, progress in flights], due_ns)
    columns |= {
        "client_id": np.zeros(len(plans), dtype=np.int16),
        "status": [records.OK if it else records.PENDING for it in finished.tolist()],
        "replica_id": [str(progress.replica) for _, progress in flights],
        "send_offset_ns": np.zeros(len(plans), dtype=np.int64),
        "first_token_offset_ns": _offsets([progress.first_token_s for _, progress in flights], due_ns),
        "last_token_offset_ns": last,
        "end_offset_ns": pc.if_else(pa.array(finished), last, None),
        "prompt_tokens": columns["requested_input_tokens"],
        "output_tokens": [progress.tokens or None for _, progress in flights],
        "own_itl_us": [_us(progress, "own_itl_s") for _, progress in flights],
        "queue_us": [_us(progress, "queue_s") for _, progress in flights],
        "gaps": [getattr(progress, "gaps", None) for _, progress in flights],
        "gaps_over": [getattr(progress, "gaps_over", None) for _, progress in flights],
    }
    return pa.table(records.empty(records.PROGRESS, len(plans)) | columns, schema=records.PROGRESS)


def _us(progress: Any, name: str) -> int | None:
    """A figure in microseconds; None where the service does not tell it, or not yet."""
    seconds = getattr(progress, name, None) if progress.finished else None
    return None if seconds is None else round(1e6 * seconds)


def _offsets(at_s: list[float | None], due_ns: Any) -> pa.Array:
    """Seconds on the virtual clock as ns from due; null where nothing came."""
    missing = np.array([at is None for at in at_s], dtype=np.bool_)
    at_ns = np.rint(np.array([at or 0.0 for at in at_s]) * NS).astype(np.int64)
    return pa.array(at_ns - due_ns, mask=missing)
