"""Data-parallel ranks of one replica, which step together: requests in, timed tokens out.

Each rank is an engine with requests, KV cache and limits of its own. vLLM's DPEngineCoreProc makes every
rank compute in every step, because the experts of a layer are spread over the GPUs of all.
"""

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine
from serve_apps.engine_model.cost.noise import Noise
from serve_apps.engine_model.cost.step_time import ranks_time
from serve_apps.engine_model.scheduler.engine import BlockEngine, GenerateRequest
from serve_apps.engine_model.scheduler.request import RequestState

PUBLISH_S = 0.1
"""Interval at which the ranks' counts reach the balancer (vLLM v1/engine/coordinator.py,
min_stats_update_interval_ms)."""
KV_PENALTY = 6.0
"""Weight of a waiting request per share of KV in use beyond a half (vLLM v1/engine/core_client.py,
DPLBAsyncMPClient.get_core_engine_for_request)."""


class RankBalancer:
    """vLLM's choice of a rank for a new request, by one front end that sees all requests.

    A rank counts the larger of the requests in flight there and of those that it last published; those it
    has waiting count more where its KV is over half full. Ties go round. What is published are the counts of
    the last step that began or ended before each multiple of `PUBLISH_S`; when exactly vLLM's coordinator
    sends (it waits 50 ms for stragglers) is left out.
    """

    def __init__(self, ranks: int) -> None:
        self.in_flight = [0] * ranks
        self._published: list[tuple[int, int, float]] = [(0, 0, 0.0)] * ranks
        self._sent_since = [0] * ranks
        self._looks = 0.0
        self._start = 0

    def due(self, now_s: float) -> bool:
        """A multiple of `PUBLISH_S` has passed since the last publication."""
        return now_s // PUBLISH_S > self._looks

    def publish(self, now_s: float, counts: list[tuple[int, int, float]]) -> None:
        """`counts` (waiting, running, share of KV in use) have held since the last change, and up to now."""
        self._looks = now_s // PUBLISH_S
        self._published, self._sent_since = counts, [0] * len(counts)

    def choose(self) -> int:
        """The rank of the next request, which is in flight from now on."""
        ranks = len(self.in_flight)
        found = min(((self._start + i) % ranks for i in range(ranks)), key=self._score)
        self._start = (self._start + 1) % ranks
        self._sent_since[found] += 1
        self.in_flight[found] += 1
        return found

    def _score(self, rank: int) -> float:
        waiting, running, usage = self._published[rank]
        waiting += self._sent_since[rank]
        most = max(self.in_flight[rank], waiting + running)
        return most + waiting * KV_PENALTY * max(0.0, usage - 0.5)


class LockstepEngine:
    """`BlockEngine`'s interface for the ranks of a layout with data_parallel > 1.

    Limits of the step, of the queue and the KV blocks are those of each rank, and so is the front end.
    `scheduler` is to be read only. Raises ValueError as `BlockEngine` does, and for a model without experts.
    """

    def __init__(
        self, spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout, seed: int = 0
    ) -> None:
        self._time = ranks_time(model, hardware, layout, spec.kernel_ratio)
        self._noise = Noise(spec, seed)
        self._ranks = [BlockEngine(spec, model, hardware, layout, seed) for _ in range(layout.data_parallel)]
        self._balancer = RankBalancer(layout.data_parallel)
        self._rank_of: dict[int, int] = {}
        self._stepping: list[BlockEngine] = []
        self._end_s = 0.0
        self.scheduler = RankCounters(self._ranks)

    def add(self, request: GenerateRequest, now_s: float) -> RequestState:
        """Choose a rank and hand it the request; raises as `BlockEngine.add` does."""
        if request.request_id in self._rank_of:
            raise ValueError(f"request {request.request_id} is open already; ids must be unique")
        self._look(now_s)
        rank = self._balancer.choose()
        try:
            state = self._ranks[rank].add(request, now_s)
        except ValueError:
            self._balancer.in_flight[rank] -= 1
            raise
        self._rank_of[request.request_id] = rank
        return state

    def check(self, request: GenerateRequest) -> None:
        """Raise ValueError for a request that no rank can ever serve."""
        self._ranks[0].check(request)

    def abort(self, request_id: int) -> None:
        """Drop a request and free its blocks; unknown or finished ids are ignored."""
        rank = self._rank_of.pop(request_id, None)
        if rank is not None:
            self._balancer.in_flight[rank] -= 1
            self._ranks[rank].abort(request_id)

    def begin_step(self, now_s: float) -> float | None:
        """Start a step of all ranks; returns its end, at which `end_step` is due, or None without work.

        A rank without work takes part all the same. After the last request vLLM's ranks go on so for up to
        `dp_sync_interval` steps; that a request may then wait for the end of one is left out.
        """
        self._look(now_s)
        batches = [rank.choose(now_s) for rank in self._ranks]
        self._stepping = [rank for rank, batch in zip(self._ranks, batches, strict=True) if batch]
        if not self._stepping:
            return None
        self._end_s = now_s + self._noise.lengthen(self._time.duration_s(batches), now_s)
        for rank in self._stepping:
            rank.end_at(self._end_s)
        return self._end_s

    def emitting(self) -> list[RequestState]:
        """The requests that get a token from the step begun last; valid until `end_step`."""
        return [state for rank in self._stepping for state in rank.emitting()]

    def end_step(self) -> list[RequestState]:
        """Emit the tokens of the step begun last; returns the requests that finished."""
        self._look(self._end_s)
        finished = [state for rank in self._stepping for state in rank.end_step()]
        for state in finished:
            self._balancer.in_flight[self._rank_of.pop(state.request_id)] -= 1
        if any(rank.scheduled_ahead for rank in self._ranks):
            for rank in self._ranks:
                rank.poll_at_once()
        return finished

    def ready_s(self) -> float:
        """Earliest time a step has work: -inf when it is there already, inf when all ranks are empty."""
        return min(rank.ready_s() for rank in self._ranks)

    @property
    def running(self) -> int:
        return sum(rank.running for rank in self._ranks)

    @property
    def waiting(self) -> int:
        """Requests that hold no blocks yet, in the front ends or queued."""
        return sum(rank.waiting for rank in self._ranks)

    @property
    def kv_blocks(self) -> int:
        """KV blocks of one rank, which a request must fit."""
        return self._ranks[0].kv_blocks

    @property
    def block_size(self) -> int:
        """Tokens of a KV block."""
        return self._ranks[0].block_size

    @property
    def kv_usage(self) -> float:
        """Share of all ranks' KV blocks in use, 0 to 1."""
        return sum(rank.kv_usage for rank in self._ranks) / len(self._ranks)

    def rank_of(self, request_id: int) -> int | None:
        """The rank of an open request."""
        return self._rank_of.get(request_id)

    def _look(self, now_s: float) -> None:
        if self._balancer.due(now_s):
            counts = [(len(it.scheduler.waiting), it.running, it.kv_usage) for it in self._ranks]
            self._balancer.publish(now_s, counts)


class RankCounters:
    """The counters of `Scheduler`, summed over ranks."""

    def __init__(self, ranks: list[BlockEngine]) -> None:
        self._ranks = ranks

    @property
    def preemptions(self) -> int:
        return sum(rank.scheduler.preemptions for rank in self._ranks)

    @property
    def prompt_tokens_total(self) -> int:
        return sum(rank.scheduler.prompt_tokens_total for rank in self._ranks)

    @property
    def generation_tokens_total(self) -> int:
        return sum(rank.scheduler.generation_tokens_total for rank in self._ranks)

    @property
    def prefix_queries(self) -> int:
        return sum(rank.scheduler.prefix_queries for rank in self._ranks)

    @property
    def prefix_hits(self) -> int:
        return sum(rank.scheduler.prefix_hits for rank in self._ranks)


AnyEngine = BlockEngine | LockstepEngine


def engine_of(
    spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout, seed: int = 0
) -> AnyEngine:
    """The engine of one replica of `layout`; raises as its class does."""
    kind = LockstepEngine if layout.data_parallel > 1 else BlockEngine
    return kind(spec, model, hardware, layout, seed)
