"""vLLM V1's scheduling rules: which tokens the next step computes; knows no clock and no durations.

The rules (the engine model, section 1): running requests first, in order; then waiting ones, first
come first served, while token budget and request slots remain; a prompt is admitted only when the
whole of it fits the free blocks, and nobody overtakes one that does not fit; when a running request
lacks a block, the last running one is preempted and recomputed later.
"""

from collections import deque
from dataclasses import dataclass

from serve_apps.engine_model.kv_cache import KvCache
from serve_apps.engine_model.step_time import Batch


@dataclass(slots=True, eq=False)
class RequestState:
    """The state of one request inside an engine.

    `tokens` are known (prompt and emitted ones), `computed` have their KV, `room` tokens fit its
    blocks. `tokens` reaches `final_tokens` with the last emitted one.
    """

    request_id: int
    prompt_tokens: int
    final_tokens: int
    tokens: int
    computed: int = 0
    room: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None

    @property
    def emitted(self) -> int:
        return self.tokens - self.prompt_tokens

    @property
    def finished(self) -> bool:
        return self.tokens == self.final_tokens


class Scheduler:
    """Alternate `schedule` (a step begins) and `complete` (its tokens exist)."""

    def __init__(self, kv: KvCache, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        self.kv = kv
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.running: list[RequestState] = []
        self.waiting: deque[RequestState] = deque()
        self.emitting: list[RequestState] = []
        self.preemptions = 0
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0

    def add(self, request: RequestState) -> None:
        self.waiting.append(request)

    def abort(self, request: RequestState) -> None:
        """Forget a running or waiting request; in the middle of a step it emits nothing more."""
        for queue in (self.running, self.waiting, self.emitting):
            if request in queue:
                queue.remove(request)
        self.kv.free(request.request_id)

    def schedule(self) -> Batch:
        """Choose the tokens of the next step; some are chosen whenever any request is present."""
        batch = Batch()
        before = self.preemptions
        self._continue_running(batch)
        if self.preemptions == before:
            self._admit_waiting(batch)
        batch.sequences = len(self.emitting)
        return batch

    def complete(self, at_s: float) -> list[RequestState]:
        """Emit one token at `at_s` for every request of `emitting`; returns those that finished."""
        finished = []
        for request in self.emitting:
            request.tokens += 1
            request.last_token_s = at_s
            if request.first_token_s is None:
                request.first_token_s = at_s
                self.prompt_tokens_total += request.prompt_tokens
            if request.tokens == request.final_tokens:
                self.kv.free(request.request_id)
                finished.append(request)
        if finished:
            self.running = [request for request in self.running if not request.finished]
        self.generation_tokens_total += len(self.emitting)
        self.emitting = []
        return finished

    def _continue_running(self, batch: Batch) -> None:
        """Every running request gets its missing tokens while the budget lasts.

        Decoders are summed in locals: this loop is the cost of the simulation.
        """
        budget = self.max_num_batched_tokens
        decode_tokens = context_tokens = 0
        emit = self.emitting.append
        for request in self.running:  # preemption pops from its end while we walk
            computed = request.computed
            missing = request.tokens - computed
            new = missing if missing < budget else budget
            if computed + new > request.room and not self._make_room(request, computed + new):
                break
            if missing == 1 and computed >= request.prompt_tokens:
                decode_tokens += 1
                context_tokens += computed
                request.computed = computed + 1
                emit(request)
            else:
                self._compute_chunk(request, new, batch)
            budget -= new
            if not budget:
                break
        batch.decode_tokens += decode_tokens
        batch.context_tokens += context_tokens

    def _make_room(self, request: RequestState, tokens: int) -> bool:
        """Room for `tokens`, at the cost of the last running; False when that is `request` itself."""
        while not (room := self.kv.allocate(request.request_id, tokens)):
            last = self.running.pop()
            self._preempt(last)
            if last is request:
                return False
        request.room = room
        return True

    def _preempt(self, request: RequestState) -> None:
        self.kv.free(request.request_id)
        request.computed = request.room = 0
        self.waiting.appendleft(request)
        self.preemptions += 1

    def _admit_waiting(self, batch: Batch) -> None:
        budget = self.max_num_batched_tokens - batch.decode_tokens - batch.prefill_tokens
        while self.waiting and budget and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if not self.kv.can_hold(request.tokens):
                return
            new = min(request.tokens, budget)
            request.room = self.kv.allocate(request.request_id, new)
            self.running.append(self.waiting.popleft())
            self._compute_chunk(request, new, batch)
            budget -= new

    def _compute_chunk(self, request: RequestState, new: int, batch: Batch) -> None:
        batch.add_chunk(new, request.computed)
        request.computed += new
        if request.computed == request.tokens:
            self.emitting.append(request)
