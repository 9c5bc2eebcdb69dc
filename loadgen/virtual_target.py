"""The virtual target: the same seam as the HTTP fleet, over engines on a virtual clock.

Knows how progress becomes request rows; the engines behind it are injected by a composition root.
No time passes: an hour of traffic takes as long as its arithmetic.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from analysis import records
from loadgen.arrivals import NS, PHASES, ArrivalSchedule
from loadgen.target import Observation
from loadgen.worker import Planned


class Progress(Protocol):
    """How far a request has come; times are seconds on the virtual clock, None where nothing came."""

    @property
    def key(self) -> int: ...
    @property
    def replica(self) -> int: ...
    @property
    def first_token_s(self) -> float | None: ...
    @property
    def last_token_s(self) -> float | None: ...
    @property
    def tokens(self) -> int: ...
    @property
    def finished(self) -> bool: ...


class Service(Protocol):
    """Engines behind a balancer on one virtual clock."""

    def submit(self, key: int, at_s: float, input_tokens: int, output_tokens: int) -> None: ...
    def retract(self, after_s: float) -> None: ...
    def advance(self, until_s: float) -> None: ...
    def observe(self) -> Iterable[Progress]: ...


class VirtualTarget:
    """Drives a `Service`; sends are never late and nothing fails."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._now_ns = 0
        self._planned: dict[int, Planned] = {}

    def now_ns(self) -> int:
        """The virtual clock."""
        return self._now_ns

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        """Submit a schedule, advance to `until_ns` and report."""
        if schedule is not None:
            self._submit(schedule)
        self._now_ns = max(self._now_ns, until_ns)
        self._service.advance(self._now_ns / NS)
        return Observation([self._row(progress) for progress in self._service.observe()], {}, [])

    def retract(self) -> None:
        """Forget every arrival that is not due yet."""
        self._service.retract(self._now_ns / NS)
        self._planned = {
            seq: planned for seq, planned in self._planned.items() if planned.due_ns <= self._now_ns
        }

    def _submit(self, schedule: ArrivalSchedule) -> None:
        columns = (
            schedule.seq,
            schedule.phase,
            schedule.due_ns,
            schedule.input_tokens,
            schedule.output_tokens,
        )
        for seq, phase, due_ns, inputs, outputs in zip(*(c.tolist() for c in columns), strict=True):
            self._planned[seq] = Planned(seq, schedule.dwell, PHASES[phase], due_ns, inputs, outputs)
            self._service.submit(seq, due_ns / NS, inputs, outputs)

    def _row(self, progress: Progress) -> dict[str, Any]:
        planned = self._planned[progress.key]
        if progress.finished:
            del self._planned[progress.key]

        def offset(at_s: float | None) -> int | None:
            return None if at_s is None else round(at_s * NS) - planned.due_ns

        last = offset(progress.last_token_s)
        return {
            "seq": planned.seq,
            "client_id": 0,
            "dwell": planned.dwell,
            "phase": planned.phase,
            "status": records.OK if progress.finished else records.PENDING,
            "replica_id": str(progress.replica),
            "due_ns": planned.due_ns,
            "send_offset_ns": 0,
            "first_token_offset_ns": offset(progress.first_token_s),
            "last_token_offset_ns": last,
            "end_offset_ns": last if progress.finished else None,
            "requested_input_tokens": planned.input_tokens,
            "requested_output_tokens": planned.output_tokens,
            "prompt_tokens": planned.input_tokens,
            "output_tokens": progress.tokens or None,
        }
