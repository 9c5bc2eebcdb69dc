"""Engines at O(1) per step, compiled where numba is installed: whole runs in one call, or step by step.

Knows how requests become the columns of `loop`, and refuses what that may not serve (`Unfit`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine
from serve_apps.engine_model.compiled import loop
from serve_apps.engine_model.compiled.native import NATIVE, plain
from serve_apps.engine_model.cost.architecture import kv_blocks
from serve_apps.engine_model.cost.kernels import steps
from serve_apps.engine_model.cost.noise import Noise
from serve_apps.engine_model.cost.step_time import Roofline
from serve_apps.engine_model.scheduler.kv_cache import Chain

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
COLUMNS = (float, int, int, int, float, int, int, float, float, int)
"""Types of the columns of a request: ready, prompt, output, shared, sent, cached, born, first, last, link."""


class Unfit(ValueError):
    """These requests on this engine need the scheduler that keeps books of every block."""


class Times(NamedTuple):
    """What a run of requests came to, in order of their arrival; seconds on the virtual clock.

    `replica` served it; `cached_tokens` of its prompt were in the prefix cache.
    """

    sent_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    cached_tokens: Ints
    replica: Ints
    work: "Work"


class Work(NamedTuple):
    """What the engines did in all: steps, tokens and pairs as `Batch` counts them, and busy seconds.

    `kv_token_seconds` is the KV held by running requests, in tokens, times how long.
    """

    steps: int
    busy_s: float
    decode_tokens: int
    prefill_tokens: int
    context_tokens: int
    attention_pairs: float
    sequences: int
    kv_token_seconds: float


@dataclass(frozen=True, slots=True)
class Machine:
    """One kind of replica: what the loop needs to know of it. `blocks` hold the KV."""

    spec: SimulatedEngine
    blocks: int
    roofline: Roofline
    front_end_s: float
    latency_s: float = 0.0

    @classmethod
    def of(cls, spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout) -> "Machine":
        """Raises Unfit, or ValueError where the weights do not fit or a figure is unknown."""
        if spec.max_num_seqs > spec.max_num_batched_tokens:
            raise Unfit("more sequences than tokens per step: not every decoder gets its token")
        if spec.long_prefill_token_threshold:
            raise Unfit("long_prefill_token_threshold: several prompts may be prefilled in part")
        if spec.max_num_queued_reqs is not None or spec.max_num_queued_tokens is not None:
            raise Unfit("a limited queue refuses requests")
        blocks = (
            kv_blocks(spec, model, hardware, layout) if spec.num_gpu_blocks is None else spec.num_gpu_blocks
        )
        times = model.step_time
        front_end = times.front_end_ms.value * 1e-3, times.front_end_latency_ms.value * 1e-3
        return cls(spec, blocks, steps(spec, model, hardware, layout), *front_end)

    def limits(self, closed: int = 0, counted: bool = False) -> tuple[int, ...]:
        """What `loop.advance` calls so; `closed` is the number of requests of a closed loop."""
        spec = self.spec
        sizes = spec.max_num_batched_tokens, spec.max_num_seqs, spec.block_size, self.blocks
        return *sizes, int(spec.async_scheduling), closed, int(counted)

    def costs(self, noise: Noise) -> tuple[float, ...]:
        """Seconds, as `loop.advance` wants them."""
        front_end = self.front_end_s, self.latency_s
        return *self.roofline.costs, *front_end, noise.drift_sd, noise.memory_s, float(not noise.silent)

    def shared(self, input_tokens: Ints, shared_tokens: Ints) -> Ints:
        """Tokens of the common prefix that may be cached. Raises Unfit where not all hold the same of it."""
        if not self.spec.enable_prefix_caching:
            return np.zeros_like(shared_tokens)
        if len(shared_tokens) and shared_tokens.min() != shared_tokens.max():
            raise Unfit("prefixes of several lengths age apart in the cache")
        if (shared_tokens > input_tokens).any():
            raise Unfit("a prompt is shorter than the prefix that it shares")
        return shared_tokens

    def refuse_impossible(self, input_tokens: Ints, output_tokens: Ints) -> None:
        """Raise ValueError for requests that can never be served."""
        if len(input_tokens) and min(input_tokens.min(), output_tokens.min()) < 1:
            raise ValueError("a request needs at least one prompt and one output token")
        longest = min(self.spec.max_model_len, self.blocks * self.spec.block_size)
        asked = int((input_tokens + output_tokens).max(initial=0))
        if asked > longest:
            raise ValueError(
                f"a request asks for {asked} tokens but the engine holds {longest}; shorten it, or raise "
                "max_model_len or num_gpu_blocks"
            )


class FastEngine:
    """One replica for requests in order of arrival; raises as `Machine` does.

    `longest_output` (tokens) of any request; `native` False runs the loop as plain Python. Of so many `steps`
    the ends are kept, for `token_times`.
    """

    def __init__(
        self, machine: Machine, longest_output: int, seed: int = 0, native: bool = True, steps: int = 0
    ) -> None:
        self.machine = machine
        self._native = native and NATIVE
        self._advance = loop.advance if self._native else plain(loop.advance)
        self._noise = Noise(machine.spec, seed)
        self._costs = machine.costs(self._noise)
        self._closed = 0
        self._longest_output = longest_output
        ints, floats = states(1)
        floats[0, loop.DRIFT] = self._noise.drift
        self._ints, self._floats = self._column(ints[0]), self._column(floats[0])
        self._ring = tuple(self._column(column[0]) for column in rings(1, longest_output, steps))
        self._requests = tuple(self._column(column[0]) for column in columns(1, 0))
        self._chunk = self._drawn()

    def add(
        self, at_s: float, input_tokens: int, output_tokens: int, shared_tokens: int = 0, chain: Chain = ()
    ) -> int:
        """A request that arrives at `at_s`, not before the last one; returns its number, counted from 0.

        Raises ValueError for a request that can never be served, Unfit for another prefix than the others'.
        """
        if chain:
            raise Unfit("prompts that begin alike in several ways")
        number = int(self._ints[loop.TAIL])
        asked = [np.array([tokens]) for tokens in (input_tokens, output_tokens, shared_tokens)]
        shared_tokens = int(checked(self.machine, asked)[2][0])
        if number and shared_tokens != self._requests[3][0]:
            raise Unfit("prefixes of several lengths age apart in the cache")
        if output_tokens > self._longest_output:
            raise ValueError(f"{output_tokens} output tokens exceed the {self._longest_output} made room for")
        self._reserve(number + 1)
        ready, prompt, output, shared, sent, *_ = self._requests
        self._floats[loop.FRONT_FREE] = max(at_s, self._floats[loop.FRONT_FREE]) + self.machine.front_end_s
        ready[number], sent[number] = self._floats[loop.FRONT_FREE] + self.machine.latency_s, at_s
        prompt[number], output[number], shared[number] = input_tokens, output_tokens, shared_tokens
        self._ints[loop.TAIL] += 1
        self._ints[loop.OPEN] += 1
        return number

    def run(self, until_s: float) -> None:
        """End every step that ends by `until_s`, and begin none there. Raises Unfit if KV might overflow."""
        limits = self.machine.limits(self._closed)
        state = self._ints, self._floats, self._requests, self._ring
        while (why := self._advance(until_s, limits, self._costs, *state, self._chunk)) == loop.OUT_OF_NOISE:
            self._chunk = self._drawn()
            self._ints[loop.DRAWN] = 0
        if why == loop.OUT_OF_KV:
            raise Unfit("the KV cache may overflow")

    @property
    def open_requests(self) -> int:
        return int(self._ints[loop.OPEN])

    def seen(self, number: int) -> tuple[float | None, float | None, int, bool]:
        """First and last token so far (s), how many there are, and whether they are all."""
        output, born, first, last = (self._requests[column][number] for column in (2, 6, 7, 8))
        if not first:
            return None, None, 0, False
        if last:
            return float(first), float(last), int(output), True
        # While a decoder is open steps follow each other: the last one ended when the next began.
        return float(first), float(self._floats[loop.NOW]), int(self._ints[loop.ENDED] - born), False

    def serve(self, sent_s: Floats, asked: Sequence[Ints]) -> Times:
        """All requests at once, to their end; `asked`: prompt, output and shared tokens."""
        count = len(sent_s)
        self._reserve(count)
        # The serial front end: whoever comes while it is busy waits for its end.
        busy_s = self.machine.front_end_s * np.arange(count)
        ready_s = busy_s + np.maximum.accumulate(sent_s - busy_s) + self.machine.front_end_s
        ready_s += self.machine.latency_s
        for place, values in enumerate((ready_s, *asked, sent_s)):
            self._requests[place][:count] = values if self._native else values.tolist()
        self._ints[loop.TAIL] = self._ints[loop.OPEN] = count
        return self._ended()

    def serve_closed(self, concurrency: int, asked: Sequence[Ints]) -> Times:
        """As many requests in flight as `concurrency`, each sent when another ended, till all have."""
        self._closed = len(asked[0])
        self._reserve(self._closed)
        for place, values in enumerate(asked, 1):
            self._requests[place][: self._closed] = values if self._native else values.tolist()
        if concurrency < 1:
            raise ValueError(f"a closed loop of concurrency {concurrency} sends nothing")
        first = min(concurrency, self._closed)
        ready_s = (np.arange(first) + 1) * self.machine.front_end_s + self.machine.latency_s
        self._requests[0][:first] = ready_s if self._native else ready_s.tolist()
        self._floats[loop.FRONT_FREE] = first * self.machine.front_end_s
        self._ints[loop.TAIL] = self._ints[loop.OPEN] = first
        return self._ended()

    def token_times(self, number: int) -> Floats:
        """When each token of a request came (s), of one that has ended within the `steps` that are kept."""
        born, output = int(self._requests[6][number]), int(self._requests[2][number])
        ends = np.asarray(self._ring[3][born : born + output])
        if len(ends) < output or born + output > int(self._ints[loop.ENDED]):
            raise ValueError(f"request {number} has not ended within the steps that are kept")
        return ends

    def _ended(self) -> Times:
        self.run(np.inf)
        seen = [np.asarray(column) for column in self._requests]
        sent, cached, first, last = (seen[place] for place in (4, 5, 7, 8))
        work = worked(np.asarray(self._ints), np.asarray(self._floats))
        return Times(sent, first, last, cached, np.zeros(len(sent), np.int64), work)

    def _column(self, values: Any) -> Any:
        """Arrays are slow to index from Python, lists unknown to numba."""
        return values if self._native else values.tolist()

    def _reserve(self, count: int) -> None:
        """Room for `count` requests in the columns, and for as many again where they come one by one."""
        held = len(self._requests[0])
        if count <= held:
            return
        more = [self._column(column[0]) for column in columns(1, max(count, 2 * held) - held)]
        pairs = zip(self._requests, more, strict=True)
        self._requests = tuple(np.concatenate(pair) if self._native else pair[0] + pair[1] for pair in pairs)

    def _drawn(self) -> Any:
        """The next chunk of noise: factors, stalls and the drift's normals."""
        if self._noise.silent:
            return tuple(self._column(np.zeros(0)) for _ in range(3))
        self._noise.draw()
        drawn = self._noise.factors, self._noise.stalls_s, self._noise.gauss
        return tuple(self._column(column) for column in drawn)


def serve_closed(
    machine: Machine, concurrency: int, asked: Sequence[Ints], seed: int = 0, native: bool = True
) -> Times:
    """A closed loop over one engine: see `FastEngine.serve_closed`. Raises as `serve_open`."""
    asked = checked(machine, asked)
    return FastEngine(machine, int(asked[1].max(initial=1)), seed, native).serve_closed(concurrency, asked)


def checked(machine: Machine, asked: Sequence[Ints]) -> list[Ints]:
    """Prompt, output and shared tokens as the loop wants them. Raises as `Machine` does."""
    prompt, output, shared = (np.ascontiguousarray(column, dtype=np.int64) for column in asked)
    machine.refuse_impossible(prompt, output)
    return [prompt, output, machine.shared(prompt, shared)]


def states(engines: int) -> tuple[Ints, Floats]:
    """Engines that have seen nothing, a row each."""
    ints, floats = np.zeros((engines, loop.INTS), np.int64), np.zeros((engines, loop.FLOATS))
    ints[:, loop.PART] = -1
    return ints, floats


def rings(engines: int, longest_output: int, steps: int = 0) -> tuple[Any, ...]:
    """Buckets for all steps in which a request may leave; two more, for steps begun and scheduled ahead.

    Also room for the ends of the first `steps` steps.
    """
    size = 1 << (longest_output + 2).bit_length()
    buckets = (np.full((engines, size), start, np.int64) for start in (-1, 0, 0))
    return *buckets, np.zeros((engines, steps))


def columns(engines: int, room: int) -> tuple[Any, ...]:
    """Empty columns of requests, with room for so many of each engine."""
    return tuple(np.zeros((engines, room), kind) for kind in COLUMNS)


def worked(ints: Any, floats: Any) -> Work:
    """What an engine, or a sum of engines, did."""
    return Work(
        steps=int(ints[loop.STEP]),
        busy_s=float(floats[loop.BUSY]),
        decode_tokens=int(ints[loop.DECODED]),
        prefill_tokens=int(ints[loop.PREFILLED]),
        context_tokens=int(ints[loop.READ]),
        attention_pairs=float(floats[loop.PAIRS]),
        sequences=int(ints[loop.EMITTED]),
        kv_token_seconds=float(floats[loop.HELD]),
    )
