"""Replicas behind a balancer on a virtual clock that a caller drives: requests come one by one."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from serve_apps.engine_model.engine.engine import RequestState
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.engine.native import NONE
from serve_apps.engine_model.service.balancer import GIVEN, Balance, Choice, choice
from serve_apps.engine_model.service.service import Replicas, Service

ROOM = 1 << 17
"""Requests of a service."""


class RequestProgress(NamedTuple):
    """A request at the virtual now: its `tokens` emitted so far, and the times of the first and the last.

    `cached_tokens` of its prompt were in its prefill engine's cache; -1 where it has none, or did not begin.
    `queue_s` is its time in the scheduler's queue, told at its end; None where that is not known. Only
    `GapService` tells the quantile of a request's own gaps, their number, and how many were over a bound.
    """

    key: int
    replica: int
    first_token_s: float | None
    last_token_s: float | None
    tokens: int
    finished: bool
    cached_tokens: int = -1
    queue_s: float | None = None
    own_itl_s: float | None = None
    gaps: int | None = None
    gaps_over: int | None = None


class SessionPrompt(NamedTuple):
    """The session of a request, and the pieces that its prompt shares: names, and their last tokens."""

    session: int = -1
    pieces: Sequence[tuple[int, int]] = ()


class _Arrival(NamedTuple):
    at_s: float
    number: int
    replica: int
    session: int


class VirtualService:
    """Replicas behind a balancer; requests come one by one, and one that names its replica bypasses it.

    `policy` is one of `balancer.POLICIES`, or one with its settings; `seed` draws its random choices and the
    engines' noise. Raises ValueError for no engine.
    """

    def __init__(
        self,
        kind: EngineKind,
        replicas: int = 1,
        policy: str | Balance = "leastconn",
        seed: int = 0,
        tokens: bool = False,
    ) -> None:
        if replicas < 1:
            raise ValueError("a service needs at least one engine")
        balance = Balance(policy) if isinstance(policy, str) else policy
        self.service = Service(kind, Replicas(replicas, balance, seed), ROOM, 8 * ROOM, tokens * 64 * ROOM)
        self._arrivals: list[_Arrival] = []
        self._open: dict[int, int] = {}
        self._keys: list[int] = []
        self._routed = 0
        self.now_s = 0.0

    def submit(
        self,
        key: int,
        at_s: float,
        input_tokens: int,
        output_tokens: int,
        replica: int | None = None,
        shared_tokens: int = 0,
        begins: SessionPrompt = SessionPrompt(),  # noqa: B008  # frozen
    ) -> None:
        """Plan an arrival; any order, but not in the past. `key` is unique among open requests.

        The first `shared_tokens` of its prompt are those of every other request; or `begins` says what it
        shares. Raises ValueError for a request that can never be served.
        """
        if at_s < self.now_s:
            raise ValueError(f"arrival at {at_s} s lies before the virtual now, {self.now_s} s")
        number = self.service.count
        self.service.kind.refuse_impossible(f"request {key}", input_tokens, output_tokens)
        pieces = list(begins.pieces) or [(0, shared_tokens)]
        names, ends = (np.array([[each[k]] for each in pieces]) for k in (0, 1))
        self.service.append(np.array([input_tokens]), np.array([output_tokens]), names, ends)
        self._keys.append(key)
        where = NONE if replica is None else replica
        heapq.heappush(self._arrivals, _Arrival(at_s, number, where, begins.session))

    def retract(self, after_s: float) -> None:
        """Forget planned arrivals that are due after `after_s`."""
        self._arrivals = [arrival for arrival in self._arrivals if arrival.at_s <= after_s]
        heapq.heapify(self._arrivals)

    def advance(self, until_s: float) -> None:
        """Run all replicas up to `until_s`, arrivals at that instant included.

        Raises ValueError where prefill and decode engines stand still.
        """
        due: list[_Arrival] = []
        while self._arrivals and self._arrivals[0].at_s <= until_s:
            due.append(heapq.heappop(self._arrivals))
        columns = list(zip(*due, strict=True)) or [(), (), (), ()]
        due_s = np.array(columns[0], np.float64)
        numbers, to, session = (np.array(column, np.int64) for column in columns[1:])
        by, first = self.service.replicas, self._routed
        if (to != NONE).any():
            routed = Choice(GIVEN, to)
        else:
            routed = choice(by.balance, by.count, by.seed, due_s, session, first=first)
            self._routed += len(due)
        self._open |= {self._keys[number]: int(number) for number in numbers}
        self.service.send(numbers, due_s, routed, until_s, first)
        self.now_s = max(self.now_s, until_s)

    def observe(self) -> list[RequestProgress]:
        """All open requests that have arrived, and once those finished since the last call."""
        seen = [self._progress(key, number) for key, number in self._open.items()]
        for progress in seen:
            if progress.finished:
                del self._open[progress.key]
        return seen

    def _progress(self, key: int, number: int) -> RequestProgress:
        service, row = self.service, number * self.service.rows_each
        request, requests = RequestState(service.arrays, row), service.arrays.requests
        tokens, finished = request.emitted, request.finished
        replica = int(requests["engine"][row]) // service.kind.width
        cached = int(requests["cached"][row + 1]) if service.kind.prefill else -1
        queue_s = request.queue_s if finished and not service.kind.prefill else None
        last_s = request.last_token_s if tokens else None
        return RequestProgress(key, replica, request.first_token_s, last_s, tokens, finished, cached, queue_s)
