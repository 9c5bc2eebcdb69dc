"""Services of a few lines on a virtual clock: one serves a request at a time, one fails some."""

import math
from dataclasses import dataclass, field
from heapq import heappop

import numpy as np
import pyarrow as pa

from loadgen.fleet.target import Observation
from loadgen.traffic.schedule import ArrivalSchedule
from tests.support.virtual.shared_processor import Answer, Arrivals
from tests.support.virtual.virtual_target import Service, VirtualTarget

FAILED = "http_error"


@dataclass(slots=True)
class OneAtATime(Arrivals):
    """Serves each request alone for `service_s`, over which its tokens are spread: an M/D/1 queue."""

    service_s: float
    _begun: list[tuple[float, Answer]] = field(default_factory=list)
    _free_s: float = 0.0
    _told_s: float = 0.0

    def advance(self, until_s: float) -> None:
        """Let everyone who is due by `until_s` join the queue."""
        self._told_s = until_s
        while self._due and self._due[0][0] <= until_s:
            at_s, _, answer = heappop(self._due)
            begin_s = max(at_s, self._free_s)
            self._free_s = begin_s + self.service_s
            self._begun.append((begin_s, answer))

    def observe(self) -> list[Answer]:
        """Answers that ended since the last call, each once, and those in the system."""
        for begin_s, answer in self._begun:
            each_s = self.service_s / answer.wanted
            answer.tokens = min(max(int((self._told_s - begin_s) / each_s), 0), answer.wanted)
            if answer.tokens:
                answer.first_token_s = begin_s + each_s
                answer.last_token_s = begin_s + answer.tokens * each_s
        seen = [answer for _, answer in self._begun]
        self._begun = [one for one in self._begun if not one[1].finished]
        return seen


def waits_longer(rate_qps: float, service_s: float, seconds: float) -> float:
    """P(a request of an M/D/1 queue waits longer), by Erlang's formula: Crommelin (1932) with one server.

    Its terms alternate and grow: good for waits of up to some ten services.
    """
    if seconds < 0:
        return 1.0
    terms = range(int(seconds // service_s) + 1)
    past = [rate_qps * (k * service_s - seconds) for k in terms]
    waits_less = math.fsum(x**k / math.factorial(k) * math.exp(-x) for k, x in zip(terms, past, strict=True))
    return 1 - (1 - rate_qps * service_s) * waits_less


class Failing(VirtualTarget):
    """A node that spoils a constant share of its answers: they are served and end in an error."""

    def __init__(self, service: Service, share: float, seed: int) -> None:
        super().__init__(service)
        self._share, self._chance = share, np.random.default_rng([seed, 4])
        self._spoilt: set[int] = set()

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        if schedule is not None:
            self._spoilt |= set(schedule.seq[self._chance.random(len(schedule)) < self._share].tolist())
        progress = super().run(schedule, until_ns)
        return Observation(self._with_errors(progress.ended), progress.pending)

    def _with_errors(self, ended: pa.Table) -> pa.Table:
        """The rows with what became of the spoilt ones: an error instead of tokens."""
        spoilt = [seq in self._spoilt for seq in ended["seq"].to_pylist()]
        if not any(spoilt):
            return ended
        columns = ended.to_pydict()
        for at in np.flatnonzero(spoilt).tolist():
            columns["status"][at], columns["error_kind"][at] = FAILED, "http_500"
            for name in ("first_token_offset_ns", "last_token_offset_ns", "output_tokens"):
                columns[name][at] = None
        return pa.table(columns, schema=ended.schema)
