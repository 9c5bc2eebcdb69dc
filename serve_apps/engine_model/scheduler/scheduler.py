"""vLLM V1's scheduling rules: which tokens the next step computes.

The rules (docs/engine_model.md, section 1): running requests first, in order; then waiting ones, first
come first served, while token budget and request slots remain; a prompt is admitted only when the
whole of it fits the free blocks, and nobody overtakes one that does not fit; when a running request
lacks a block, the last running one is preempted and recomputed later.

A prompt whose KV comes from another engine takes all its blocks and waits beside the queue, without a
slot; once its KV is known to be there it comes before all that wait. On an engine that receives KV no
block is freed under a step that may still write it: nobody is preempted whose tokens are being computed.

Decoders are not touched one by one: each gets a token per step, so their number, the sum of their
contexts, the steps in which they end and the steps in which they need a block say all. They are
walked through, as vLLM does in every step, only where the order of the running requests can matter.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import chain

from serve_apps.engine_model.cost.step_time import Batch
from serve_apps.engine_model.scheduler.kv_cache import Chain, Hit, KvCache
from serve_apps.engine_model.scheduler.request import Kv, RequestState, StepProgress


class _Step:
    """A step whose tokens do not exist yet: requests that get their first or last one, or left since."""

    __slots__ = ("emits", "ending", "firsts", "left", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.emits = 0
        self.firsts: list[RequestState] = []
        self.ending: Sequence[RequestState] = ()
        self.left: list[RequestState] = []


class _Decoders:
    """All decoders as one: how many, the sum of their contexts, and the steps in which something changes.

    `contexts` leaves out the tokens of the steps scheduled so far, one of each decoder. `needing_block`
    counts decoders by the step, modulo the block size, that opens a block; `ending` has them by their last
    step.
    """

    __slots__ = ("contexts", "ending", "needing_block", "number")

    def __init__(self, block_size: int) -> None:
        self.number = self.contexts = 0
        self.needing_block = [0] * block_size
        self.ending: defaultdict[int, list[RequestState]] = defaultdict(list)

    def add(self, request: RequestState) -> None:
        self._count(request, 1)
        self.ending[request.output_tokens - request._ahead].append(request)

    def remove(self, request: RequestState) -> None:
        """Stop counting a request; one that ends is no longer in `ending`."""
        self._count(request, -1)
        if request._most < request.output_tokens:
            self.ending[request.output_tokens - request._ahead].remove(request)

    def _count(self, request: RequestState, one: int) -> None:
        base = request.prompt_tokens + request._ahead - 1
        self.number += one
        self.contexts += one * base
        self.needing_block[-base % len(self.needing_block)] += one


class Scheduler:
    """Alternate `schedule` (a step is chosen) and `complete` (its tokens exist).

    A second step may be scheduled before the first is complete, as vLLM's asynchronous scheduling does.
    A request is `long` beyond `long_prefill_tokens` missing ones (0: never) and then gets no more in a step.
    """

    def __init__(
        self, kv: KvCache, max_num_batched_tokens: int, max_num_seqs: int, long_prefill_tokens: int = 0
    ) -> None:
        self.kv = kv
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.long_prefill_tokens = long_prefill_tokens
        self.progress = StepProgress()
        self.running: dict[RequestState, None] = {}
        self.waiting: deque[RequestState] = deque()
        self.loading: dict[RequestState, None] = {}
        """Requests that hold blocks for the KV of another engine, in the order in which they took them."""
        self.kept: dict[RequestState, None] = {}
        """Requests that are over and hold their blocks until a transfer ends."""
        self.started: list[RequestState] = []
        """Those of `loading` that came since the list was last emptied."""
        self.admitted: list[RequestState] = []
        """Requests that were given their first place in a step since the list was last emptied."""
        self.preemptions = self.prompt_tokens_total = self.generation_tokens_total = 0
        self.prefix_queries = self.prefix_hits = 0
        self._admitted = 0
        self._in_flight: deque[_Step] = deque()
        # Running, but neither decoding nor at their end; True where prompt or recomputation is not complete.
        self._partial: dict[RequestState, bool] = {}
        self._loaded: set[RequestState] = set()  # of `loading`, those whose KV is known to be there
        self._receives = False
        self._decoders = _Decoders(kv.block_size)

    def request(
        self, request_id: int, prompt: int, output: int, hashes: Chain = (), kv: Kv = "own"
    ) -> RequestState:
        """A request that is not queued yet; `hashes` are those of its first full prompt blocks."""
        hashes = hashes[: prompt // self.kv.block_size]
        return RequestState(request_id, prompt, output, self.progress, hashes, kv)

    def add(self, request: RequestState) -> None:
        self._receives |= request.kv == "remote"
        self.waiting.append(request)

    def abort(self, request: RequestState) -> None:
        """Forget a running or waiting request; in the middle of a step it emits nothing more.

        Blocks that a transfer still writes are kept until it ends.
        """
        self._drop_emissions(request)
        if request in self.running:
            del self.running[request]
            self._release(request)
        elif request in self.loading:
            del self.loading[request]
            self.kept[request] = None
            if request in self._loaded:
                self._loaded.remove(request)
                self.transferred(request)
        else:
            self.waiting.remove(request)
        request._most = request.emitted

    def _drop_emissions(self, request: RequestState) -> None:
        """The steps in flight emit nothing of this request."""
        for step in self._in_flight:
            step.emits -= request._emits_in(step.number)

    def transferred(self, request: RequestState) -> None:
        """A transfer to or from this request is known to be over: it may be computed, or its blocks go."""
        if request in self.loading:
            self._loaded.add(request)
        elif request in self.kept:
            del self.kept[request]
            self.kv.free(request._held, request._computed // self.kv.block_size)

    def schedule(self) -> Batch | None:
        """Choose the tokens of the next step; None where nothing can be computed."""
        batch, preemptions = Batch(), self.preemptions
        step = _Step(self.progress.scheduled + 1)
        if not self._continue_all(batch, step):
            self._walk(batch, step)
        if (self.waiting or self._loaded) and self.preemptions == preemptions:
            self._admit(batch, step)
        if not batch.decode_tokens + batch.prefill_tokens:
            return None
        self.progress.scheduled += 1
        batch.sequences = step.emits
        step.ending = self._decoders.ending.pop(step.number, ())
        for request in step.ending:
            self._leave(request)
        self._in_flight.append(step)
        return batch

    def complete(self, at_s: float) -> list[RequestState]:
        """The oldest scheduled step ends at `at_s`: its tokens exist; returns the requests that finished."""
        step = self._in_flight.popleft()
        self.progress.completed = step.number
        self.progress.at_s = at_s
        self.generation_tokens_total += step.emits
        for request in step.firsts:
            if request._first_s is None and request._most:  # 0: aborted
                request._first_s = at_s
                self.prompt_tokens_total += request.prompt_tokens
        for request in step.left:
            request._last_s = at_s
        if not step.ending:
            return []
        finished = [each for each in step.ending if each._most == each.output_tokens]  # less: aborted
        finished.sort(key=lambda request: request._order)
        for request in finished:
            request._last_s = at_s
            if request in self.running:
                del self.running[request]
                if request.kv == "held":
                    self.kept[request] = None
                else:
                    self.kv.free(request._held, request._computed // self.kv.block_size)
            else:  # preempted while its last token was computed
                self.waiting.remove(request)
        return finished

    def emitting(self) -> Iterator[RequestState]:
        """The requests that get a token when the oldest scheduled step completes."""
        step = self._in_flight[0]
        present = dict.fromkeys(chain(self.running, step.left, step.ending))
        return (request for request in present if request._emits_in(step.number))

    def _continue_all(self, batch: Batch, step: _Step) -> bool:
        """Schedule all decoders at once, then the prompt that the last step's budget has cut, if any.

        Returns False, and does nothing, where not all requests fit, so that order matters.
        """
        steps, decoders, kv = self.progress.scheduled, self._decoders, self.kv
        budget = self.max_num_batched_tokens - decoders.number
        if self.long_prefill_tokens or budget < 0 or len(self._partial) > 1:
            return False
        needed = opened = decoders.needing_block[steps % kv.block_size]
        for request in self._partial:
            new = min(request._missing, budget)
            needed += kv.blocks_for(request._computed + new) - request._held.blocks
        if needed > kv.free_blocks:
            return False
        batch.decode_tokens = step.emits = decoders.number
        batch.context_tokens = decoders.contexts + steps * decoders.number
        if opened:
            kv.take(opened)
        if self._partial and budget:
            (request,) = self._partial
            self._compute(request, min(request._missing, budget), batch, step)
        return True

    def _walk(self, batch: Batch, step: _Step) -> None:
        """Schedule the missing tokens of one running request after the other, while the budget lasts."""
        budget, limit = self.max_num_batched_tokens, self._long_prefill_limit()
        for request in list(self.running):
            if request not in self.running:
                return  # preempted, as all after it
            missing = 1 if request._decoding else request._missing
            new = min(missing, limit, budget)
            if request._scheduled == request.output_tokens:
                continue
            if new and not self._make_room(request, new):
                self._pause_from(request)
                return
            if not request._decoding:
                if new:
                    self._compute(request, new, batch, step)
            elif new:
                batch.decode_tokens += 1
                batch.context_tokens += request._context
                self.kv.take(self._blocks_lacking(request, 1))
                step.emits += 1
            else:
                self._pause(request)
            budget -= new

    def _make_room(self, request: RequestState, new: int) -> bool:
        """Free blocks for `new` tokens at the cost of the last running; False if that is `request` itself.

        False also where a step in flight writes the blocks of the last, and the engine receives KV.
        """
        while self._blocks_lacking(request, new) > self.kv.free_blocks:
            if self._receives and self._in_a_step(next(reversed(self.running))):
                return False
            last, _ = self.running.popitem()
            self._preempt(last)
            if last is request:
                return False
        return True

    def _in_a_step(self, request: RequestState) -> bool:
        """True if a running request has tokens in a step that is not complete."""
        last = self.progress.scheduled if request._decoding else request._last_step
        return last > self.progress.completed

    def _pause_from(self, request: RequestState) -> None:
        """Compute nothing of a running request in this step, nor of those behind it."""
        if request not in self.running:
            return  # preempted, as all behind it
        reached = False
        for each in self.running:
            reached |= each is request
            if reached and each._decoding:
                self._pause(each)

    def _pause(self, request: RequestState) -> None:
        """Give a decoder no token in this step."""
        self._leave(request)
        self._partial[request] = False

    def _preempt(self, request: RequestState) -> None:
        """Return a request to the queue; its blocks keep their hashes, so that it may find them again."""
        self.kv.name_all(request._held, request._hashed(self.kv.block_size))
        self._release(request)
        if request.kv == "held":  # KV that is to be handed on is gone: tokens in flight count for nothing
            self._drop_emissions(request)
            request._most = request.emitted
        request._computed = 0
        self.waiting.appendleft(request)
        self.preemptions += 1

    def _admit(self, batch: Batch, step: _Step) -> None:
        budget, limit = self.max_num_batched_tokens, self._long_prefill_limit()
        budget -= batch.decode_tokens + batch.prefill_tokens
        kv = self.kv
        if self._loaded:
            budget = self._admit_loaded(budget, batch, step)
        while self.waiting and budget and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            held = request._held
            tokens = request.prompt_tokens + request._most
            hits = kv.find(held.chain, (tokens - 1) // kv.block_size) if held.chain else []
            found = hits[-1].end if hits else 0
            idle = sum([hit.end - hit.start for hit in hits if not hit.run.holders])
            needed = kv.blocks_for(tokens) - found + idle
            if request.kv == "remote":
                if needed + self._reserved_blocks() > kv.free_blocks:
                    return
                self._load(self.waiting.popleft(), hits)
                continue
            if needed > kv.free_blocks:
                return
            self.waiting.popleft()
            self.running[request] = None
            self._admitted += 1
            request._order = self._admitted
            request.first_step = step.number
            self.admitted.append(request)
            if hits:
                kv.hold(held, hits)
            request._computed = found * kv.block_size
            if request.cached_tokens < 0:
                request.cached_tokens = request._computed
                if kv.caching:
                    self.prefix_queries += tokens
                    self.prefix_hits += request._computed
            new = min(tokens - request._computed, limit, budget)
            self._compute(request, new, batch, step)
            budget -= new

    def _load(self, request: RequestState, hits: list[Hit]) -> None:
        """Take blocks for the whole prompt and wait for what is not cached."""
        kv, held = self.kv, request._held
        if hits:
            kv.hold(held, hits)
        request._computed = held.blocks * kv.block_size
        request.tokens_to_load = request.prompt_tokens - request._computed
        blocks = kv.blocks_for(request.prompt_tokens)
        kv.take(blocks - held.blocks)
        held.blocks = blocks
        if kv.caching:
            self.prefix_queries += request.prompt_tokens
            self.prefix_hits += request._computed
        request.kv = "own"
        self.loading[request] = None
        self.started.append(request)

    def _admit_loaded(self, budget: int, batch: Batch, step: _Step) -> int:
        """Compute the last token of the prompts whose KV is there; returns what is left of the budget."""
        for request in [each for each in self.loading if each in self._loaded]:
            if not budget or len(self.running) >= self.max_num_seqs:
                break
            del self.loading[request]
            self._loaded.remove(request)
            self.running[request] = None
            self._admitted += 1
            request._order = self._admitted
            request.first_step = step.number
            request.cached_tokens = request._computed = request._own_tokens = request.prompt_tokens - 1
            self._compute(request, 1, batch, step)
            budget -= 1
        return budget

    def _reserved_blocks(self) -> int:
        """Blocks that the prompts in computation still need, which a transfer must leave them."""
        return sum(
            self.kv.blocks_for(request.prompt_tokens + request._most) - request._held.blocks
            for request, incomplete in self._partial.items()
            if incomplete
        )

    def _compute(self, request: RequestState, new: int, batch: Batch, step: _Step) -> None:
        """Compute `new` of the missing tokens, for which there are blocks."""
        before = request._computed
        request._last_step = step.number
        if new == 1 and before >= request._own_tokens:
            batch.decode_tokens += 1
            batch.context_tokens += before
        else:
            batch.add_chunk(new, before)
        request._computed = computed = before + new
        self.kv.extend(request._held, computed)
        if computed < request.prompt_tokens + request._most:
            self._partial[request] = True
            return
        if self._partial:
            self._partial.pop(request, None)
        self._join(request, step)

    def _join(self, request: RequestState, step: _Step) -> None:
        """The request's next token is computed in this step, and one more in each that follows."""
        request._decode_from(step.number)
        step.firsts.append(request)
        step.emits += 1
        self._decoders.add(request)

    def _leave(self, request: RequestState) -> None:
        """The request gets no token beyond those already scheduled."""
        progress = self.progress
        if request._ahead + progress.completed > request._joined:
            request._last_s = progress.at_s
        request._most = request._ahead + progress.scheduled
        request._decoding = False
        request._last_step = progress.scheduled
        request._computed = request.prompt_tokens + request._most - 1
        request._held.blocks = self.kv.blocks_for(request._computed)
        if self._in_flight and request._emits_in(self._in_flight[-1].number):
            self._in_flight[-1].left.append(request)
        self._decoders.remove(request)

    def _release(self, request: RequestState) -> None:
        """Give back the blocks of a request that runs no longer."""
        hashed = request._hashed(self.kv.block_size)
        if request._decoding:
            self._leave(request)
        self._partial.pop(request, None)
        self.kv.free(request._held, hashed)

    def _blocks(self, request: RequestState) -> int:
        return self.kv.blocks_for(request._context) if request._decoding else request._held.blocks

    def _blocks_lacking(self, request: RequestState, new: int) -> int:
        has = request._context if request._decoding else request._computed
        return self.kv.blocks_for(has + new) - self._blocks(request)

    def _long_prefill_limit(self) -> int:
        """Tokens of one prompt per step; a request that is alone may have all."""
        alone = len(self.running) + len(self.waiting) + len(self.loading) <= 1
        return (
            self.max_num_batched_tokens if alone or not self.long_prefill_tokens else self.long_prefill_tokens
        )
