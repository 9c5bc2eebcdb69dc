"""Replicas behind a balancer on one virtual clock: hours of service in seconds.

Between two arrivals the replicas are independent, so each runs on its own to the next one.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from serve_apps.engine_model.scheduler.engine import GenerateRequest
from serve_apps.engine_model.scheduler.kv_cache import Chain
from serve_apps.engine_model.scheduler.lockstep import AnyEngine
from serve_apps.engine_model.scheduler.request import RequestState
from serve_apps.engine_model.service.balancer import Balance, Balancer


class RequestProgress(NamedTuple):
    """A request at the virtual now: its `tokens` emitted so far, and the times of the first and the last.

    `cached_tokens` of its prompt were in its prefill engine's cache; -1 where it has none, or did not begin.
    `queue_s` is its time in the scheduler's queue, told at its end; None where that is not known.
    """

    key: int
    replica: int
    first_token_s: float | None
    last_token_s: float | None
    tokens: int
    finished: bool
    cached_tokens: int = -1
    queue_s: float | None = None


class SessionPrompt(NamedTuple):
    """The session of a request, and the hashes of its prompt's blocks: equal ones begin prompts alike."""

    session: int = -1
    chain: Chain = ()


class _Arrival(NamedTuple):
    at_s: float
    order: int
    key: int
    input_tokens: int
    output_tokens: int
    replica: int | None
    shared_tokens: int
    begins: SessionPrompt


class VirtualService:
    """`engines` behind a balancer; a request that names its replica bypasses it.

    `policy` is one of `balancer.POLICIES`, or one with its settings; `seed` draws its random choices.
    Raises ValueError for an unknown one, or no engine.
    """

    def __init__(
        self,
        engines: Sequence["AnyEngine | Stepped"],
        policy: str | Balance = "leastconn",
        seed: int = 0,
    ) -> None:
        if not engines:
            raise ValueError("a service needs at least one engine")
        self._replicas = [Stepped(each) if isinstance(each, AnyEngine) else each for each in engines]
        balance = Balance(policy) if isinstance(policy, str) else policy
        self._balancer = Balancer(balance, len(engines), seed)
        self._arrivals: list[_Arrival] = []
        self._submitted = 0
        self._open: dict[int, tuple[int, int]] = {}
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

        The first `shared_tokens` of its prompt are those of every other request; or `begins` has the
        hashes of what it shares.
        """
        if at_s < self.now_s:
            raise ValueError(f"arrival at {at_s} s lies before the virtual now, {self.now_s} s")
        lengths = input_tokens, output_tokens
        heapq.heappush(
            self._arrivals, _Arrival(at_s, self._submitted, key, *lengths, replica, shared_tokens, begins)
        )
        self._submitted += 1

    def retract(self, after_s: float) -> None:
        """Forget planned arrivals that are due after `after_s`."""
        self._arrivals = [arrival for arrival in self._arrivals if arrival.at_s <= after_s]
        heapq.heapify(self._arrivals)

    def advance(self, until_s: float) -> None:
        """Run all replicas up to `until_s`, arrivals at that instant included.

        Raises ValueError, from the engine, for a request that can never be served.
        """
        while self._arrivals and self._arrivals[0].at_s <= until_s:
            arrival = heapq.heappop(self._arrivals)
            self._run(arrival.at_s)
            self._route(arrival)
        self._run(until_s)

    def observe(self) -> list[RequestProgress]:
        """All open requests that have arrived, and once those finished since the last call."""
        places = self._open.items()
        seen = [RequestProgress(key, at, *self._replicas[at].seen(number)) for key, (at, number) in places]
        for progress in seen:
            if progress.finished:
                del self._open[progress.key]
        return seen

    def _run(self, until_s: float) -> None:
        for replica in self._replicas:
            replica.run(until_s)
        self.now_s = max(self.now_s, until_s)

    def _route(self, arrival: _Arrival) -> None:
        index = arrival.replica
        if index is None:
            index = self._balancer.choose(arrival.begins.session, [it.open_requests for it in self._replicas])
        asked = arrival.input_tokens, arrival.output_tokens, arrival.shared_tokens, arrival.begins.chain
        self._open[arrival.key] = index, self._replicas[index].add(arrival.at_s, *asked)


class Stepped:
    """An engine as a replica: the end of its step in flight, and the states of its requests."""

    def __init__(self, engine: AnyEngine) -> None:
        self.engine = engine
        self._free_s = 0.0
        self._end_s: float | None = None
        self._added = 0
        self._states: dict[int, RequestState] = {}

    def add(
        self, at_s: float, input_tokens: int, output_tokens: int, shared_tokens: int, chain: Chain = ()
    ) -> int:
        """Raises ValueError for a request that can never be served."""
        number = self._added
        blocks = chain or tuple(range(shared_tokens // self.engine.block_size))
        self._states[number] = self.engine.add(
            GenerateRequest(number, input_tokens, output_tokens, blocks), at_s
        )
        self._added += 1
        return number

    def seen(self, number: int) -> tuple[float | None, float | None, int, bool, int, float | None]:
        """First and last token so far (s), their number, and whether they are all; then it is forgotten.

        The two others are of `RequestProgress` too.
        """
        state = self._states[number]
        emitted, finished = state.emitted, state.finished
        if finished:
            del self._states[number]
        queue_s = state.queue_s if finished else None
        return state.first_token_s, state.last_token_s, emitted, finished, -1, queue_s

    @property
    def open_requests(self) -> int:
        return self.engine.running + self.engine.waiting

    def run(self, until_s: float) -> None:
        """End every step that ends by `until_s`; begin none there, as arrivals of that instant join it."""
        engine = self.engine
        while True:
            if self._end_s is not None:
                if self._end_s > until_s:
                    return
                engine.end_step()
                self._free_s = self._end_s
            start_s = max(self._free_s, engine.ready_s())
            if start_s >= until_s:
                self._end_s = None
                return
            self._end_s = engine.begin_step(start_s)
