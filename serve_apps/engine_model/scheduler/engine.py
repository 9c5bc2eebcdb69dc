"""One engine replica as a state machine: requests in, timed tokens out.

Time is an argument. The tokens of a step exist at the end that `begin_step` returns, when `end_step` is due.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine
from serve_apps.engine_model.cost.architecture import kv_blocks
from serve_apps.engine_model.cost.noise import Noise
from serve_apps.engine_model.cost.step_time import Batch, roofline
from serve_apps.engine_model.scheduler.kv_cache import Chain, KvCache
from serve_apps.engine_model.scheduler.request import Kv, RequestState
from serve_apps.engine_model.scheduler.scheduler import Scheduler

IDLE_POLL_S = 1e-3
"""Sleep of vLLM's core when a step has nothing to compute (engine/core.py, _process_engine_step)."""


class QueueFull(ValueError):
    """A queue limit refuses a request that the engine could serve later; the message is vLLM's."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """`request_id` is unique within one engine; exactly `output_tokens` are emitted.

    `hashes[i]` stands for all prompt tokens up to the end of the i-th full KV block: prompts that begin
    alike have the same ones. Blocks beyond them are not shared. `new_image_tokens` of the prompt are
    images that must be decoded and encoded first.

    With `kv` held the blocks stay after the end until `BlockEngine.release`. With remote the prompt is
    computed elsewhere: the request takes blocks, appears in `BlockEngine.loading` and waits for `kv_arrived`.
    """

    request_id: int
    input_tokens: int
    output_tokens: int
    hashes: Chain = ()
    new_image_tokens: int = 0
    kv: Kv = "own"


class BlockEngine:
    """vLLM's scheduler over a step-time model, behind a serial front end.

    Of a layout with data-parallel ranks it is one rank (`lockstep.LockstepEngine` has them all).
    `scheduler` is to be read only: it counts tokens, preemptions and prefix-cache hits. Raises ValueError
    if the weights do not fit or a needed hardware figure is unknown.
    """

    def __init__(
        self, spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout, seed: int = 0
    ) -> None:
        spec = replace(spec, **layout.step_limits)
        blocks = kv_blocks(spec, model, hardware, layout)
        kv = KvCache(blocks, spec.block_size, spec.enable_prefix_caching)
        self.scheduler = Scheduler(
            kv, spec.max_num_batched_tokens, spec.max_num_seqs, spec.long_prefill_token_threshold
        )
        self._spec = spec
        self._asynchronous = spec.async_scheduling
        self._roofline = roofline(model, hardware, layout, spec.kernel_ratio)
        self._noise = Noise(spec, seed)
        self._front_end_s = model.step_time.front_end_ms.value * 1e-3
        self._latency_s = model.step_time.front_end_latency_ms.value * 1e-3
        self._image_token_s = model.step_time.image_token_us.value * 1e-6
        self._front_end_free_s = -math.inf
        self._arriving: deque[tuple[float, RequestState]] = deque()
        self._open: dict[int, RequestState] = {}
        self._next: Batch | None = None  # scheduled while the last step was computed, if asynchronous
        self._step_end_s = self._idle_until_s = -math.inf
        self._moves = False  # whether KV comes or goes here; an engine of which it does not looks for none
        self._moving: dict[int, RequestState] = {}  # hold blocks for a transfer, by id
        self._ended: list[tuple[float, int, RequestState]] = []  # transfers that no step has looked for yet
        self._seen: dict[
            int, list[RequestState]
        ] = {}  # those that a step in flight will report, by its number
        self._unread: Sequence[RequestState] = ()  # the same of an empty step, still queued
        self._started: list[RequestState] = []
        self._transfers = 0
        self._stalled = False  # nothing happens before the next arrival or end of a transfer

    def add(self, request: GenerateRequest, now_s: float) -> RequestState:
        """Pass the front end, then wait in turn; returns the request's live state, to be read only.

        Raises ValueError for a request that can never be served, or whose id is open already, and
        QueueFull where a queue limit refuses it now.
        """
        if request.request_id in self._open or request.request_id in self._moving:
            raise ValueError(f"request {request.request_id} is open already; ids must be unique")
        self.check(request)
        self._refuse_beyond_limits()
        state = self.scheduler.request(
            request.request_id, request.input_tokens, request.output_tokens, request.hashes, request.kv
        )
        self._moves |= request.kv != "own"
        work_s = self._front_end_s + request.new_image_tokens * self._image_token_s
        self._front_end_free_s = free_again_s(now_s, self._front_end_free_s, work_s)
        self._arriving.append((self._front_end_free_s + self._latency_s, state))
        self._open[request.request_id] = state
        return state

    def check(self, request: GenerateRequest) -> None:
        """Raise ValueError for a request that this engine can never serve."""
        tokens, blocks = (request.input_tokens, request.output_tokens), self.scheduler.kv.blocks
        refuse_impossible(f"request {request.request_id}", *tokens, self._spec, blocks)

    def abort(self, request_id: int) -> None:
        """Drop a request and free its blocks; unknown or finished ids are ignored.

        Blocks for which KV is on its way stay until `kv_arrived`.
        """
        state = self._open.pop(request_id, None)
        if state is None:
            return
        for arrival in self._arriving:
            if arrival[1] is state:
                self._arriving.remove(arrival)
                return
        self.scheduler.abort(state)
        self._stalled = False

    def loading(self) -> list[RequestState]:
        """Requests that took blocks since the last call: the transfer of `tokens_to_load` may begin."""
        started, self._started = self._started, []
        return started

    def kv_arrived(self, request_id: int, at_s: float) -> None:
        """The transfer to a request ends at `at_s`, which may lie ahead; ids that await none are ignored.

        vLLM's workers look for it when a step is handed to them, and its scheduler learns it when that step
        is over (`KVConnectorOutput.finished_recving`).
        """
        self._transfer_ends(request_id, at_s)

    def release(self, request_id: int, at_s: float = -math.inf) -> None:
        """The transfer from a finished `held` request ends at `at_s`; others are ignored.

        Noticed as `kv_arrived` is (`finished_sending`). Raises ValueError for a request that is not finished.
        """
        if request_id in self._open:
            raise ValueError(f"request {request_id} is not finished; release it after its last token")
        self._transfer_ends(request_id, at_s)

    def begin_step(self, now_s: float) -> float | None:
        """Start a step at `now_s`; returns its end, at which `end_step` is due, or None without work.

        With asynchronous scheduling its tokens were chosen when the last step began, unless the engine
        was idle, and those of the following step are chosen now (EngineCore.step_with_batch_queue).
        """
        batch = self.choose(now_s)
        if batch is None:
            return None
        return self.end_at(now_s + self._noise.lengthen(self._roofline.duration_s(batch), now_s))

    def choose(self, now_s: float) -> Batch | None:
        """The first half of `begin_step`: the work of the step, whose end `end_at` is told; None without."""
        scheduler = self.scheduler
        if self._stalled and now_s < self._next_look_s():
            return None
        while self._arriving and self._arriving[0][0] <= now_s:
            state = self._arriving.popleft()[1]
            state.queued_s = now_s
            scheduler.add(state)
        batch = self._next
        if batch is None and now_s >= self._idle_until_s:
            batch = self._scheduled(now_s)
        if batch is not None and self._asynchronous:
            self._next = self._scheduled(now_s)
        return batch

    def _scheduled(self, now_s: float) -> Batch | None:
        """The next step's work; requests that it computes for the first time leave the queue now."""
        batch = self._schedule(now_s) if self._moves else self.scheduler.schedule()
        for state in self.scheduler.admitted:
            if state.scheduled_s is None:
                state.scheduled_s = now_s
        self.scheduler.admitted.clear()
        return batch

    def end_at(self, end_s: float) -> float:
        """The step whose work was chosen last ends then."""
        self._step_end_s = end_s
        return end_s

    def emitting(self) -> list[RequestState]:
        """The requests that get a token from the step begun last; valid until `end_step`."""
        return list(self.scheduler.emitting())

    def end_step(self) -> list[RequestState]:
        """Emit the tokens of the step begun last; returns the requests that finished."""
        finished = self.scheduler.complete(self._step_end_s)
        for state in finished:
            del self._open[state.request_id]
        if self._moves:
            self._moving.update(
                (state.request_id, state) for state in finished if state in self.scheduler.kept
            )
            self._stalled = False
            self._learn(self._seen.pop(self.scheduler.progress.completed, ()))
        if self._asynchronous and self._next is None:
            self._idle_until_s = self._step_end_s + IDLE_POLL_S
        return finished

    def ready_s(self) -> float:
        """Earliest time a step has work: -inf when it is there already, inf when the engine is empty."""
        if self._next is not None:
            return -math.inf
        if self._stalled:
            return self._next_look_s()
        if self.scheduler.running or self.scheduler.waiting or self._awaiting:
            return self._idle_until_s
        return max(self._arriving[0][0], self._idle_until_s) if self._arriving else math.inf

    @property
    def scheduled_ahead(self) -> bool:
        """The step after the one that runs is chosen already."""
        return self._next is not None

    def poll_at_once(self) -> None:
        """Look for work in the next step, as a rank does whose peers are busy, not after `IDLE_POLL_S`."""
        self._idle_until_s = -math.inf

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests in the front end, queued, or without the KV that another engine computes."""
        return len(self._arriving) + len(self.scheduler.waiting) + len(self.scheduler.loading)

    @property
    def kv_blocks(self) -> int:
        return self.scheduler.kv.blocks

    @property
    def block_size(self) -> int:
        """Tokens of a KV block."""
        return self._spec.block_size

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return self.scheduler.kv.usage

    def _schedule(self, now_s: float) -> Batch | None:
        """Choose the next step of an engine that sends or receives KV, empty steps included.

        Workers look for ended transfers when they are handed a step, and the scheduler learns it from that
        step's output. An empty step has its output at once; with asynchronous scheduling it is read after
        the one behind it was chosen (EngineCore.step_with_batch_queue). While a transfer is awaited the core
        goes on with empty steps, a sleep apart.
        """
        scheduler = self.scheduler
        preempted = scheduler.preemptions
        batch = scheduler.schedule()
        for state in scheduler.started:
            self._moving[state.request_id] = state
        self._started += scheduler.started
        scheduler.started.clear()
        seen = []
        while self._ended and self._ended[0][0] <= now_s:
            seen.append(heapq.heappop(self._ended)[2])
        learned, self._unread = self._unread, ()
        if batch is not None:
            self._seen[scheduler.progress.scheduled] = seen
        elif self._asynchronous:
            self._unread = seen
        else:
            learned = seen
        self._learn(learned)
        self._stalled = False
        if batch is None and (self._awaiting or scheduler.waiting or scheduler.running):
            self._idle_until_s = now_s + IDLE_POLL_S
            self._stalled = not learned and not self._unread and scheduler.preemptions == preempted
        return batch

    def _learn(self, ended: Sequence[RequestState]) -> None:
        for state in ended:
            self.scheduler.transferred(state)

    def _transfer_ends(self, request_id: int, at_s: float) -> None:
        state = self._moving.pop(request_id, None)
        if state is not None:
            self._transfers += 1
            heapq.heappush(self._ended, (at_s, self._transfers, state))

    @property
    def _awaiting(self) -> bool:
        """True if blocks are held for a transfer."""
        return bool(self.scheduler.loading or self.scheduler.kept)

    def _next_look_s(self) -> float:
        """The first look of an idle core at which something will have happened."""
        due = [ahead[0][0] for ahead in (self._arriving, self._ended) if ahead]
        if not due:
            return math.inf
        sleeps = math.ceil(max(0.0, min(due) - self._idle_until_s) / IDLE_POLL_S)
        return self._idle_until_s + sleeps * IDLE_POLL_S

    def _refuse_beyond_limits(self) -> None:
        """vLLM's check_admission: all open requests count, and the whole prompts still in prefill."""
        most_requests, most_tokens = self._spec.max_num_queued_reqs, self._spec.max_num_queued_tokens
        if most_requests is not None and len(self._open) >= most_requests:
            raise QueueFull(
                "The engine is currently busy and cannot accept new requests. "
                "Please try again later or on a different instance."
            )
        if most_tokens is not None:
            in_prefill = (state for state in self._open.values() if state.first_token_s is None)
            if sum(state.prompt_tokens for state in in_prefill) >= most_tokens:
                raise QueueFull(
                    "The engine has reached its prefill token backlog limit. "
                    "Please try again later or on a different instance."
                )


def free_again_s(now_s: float, free_s: float, work_s: float) -> float:
    """End of the serial front end's work on a request that comes at `now_s`, while it is busy until `free_s`.

    A function of plain numbers, so that numba can compile it for the fast engine.
    """
    return max(now_s, free_s) + work_s


def refuse_impossible(
    name: str, input_tokens: int, output_tokens: int, spec: SimulatedEngine, blocks: int
) -> None:
    """Raise ValueError for a request that an engine with so many KV `blocks` can never serve."""
    if input_tokens < 1 or output_tokens < 1:
        raise ValueError(f"{name} needs at least one prompt and one output token")
    longest = min(spec.max_model_len, blocks * spec.block_size)
    if input_tokens + output_tokens > longest:
        raise ValueError(
            f"{name} asks for {input_tokens} + {output_tokens} tokens but the engine holds {longest}; "
            "shorten it, or raise max_model_len or num_gpu_blocks"
        )
