"""Engines at O(1) per step, compiled: whole runs in one call."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine
from serve_apps.engine_model.compiled import loop
from serve_apps.engine_model.compiled.loop import EngineArrays, EngineLimits, EngineSeconds
from serve_apps.engine_model.cost.architecture import kv_blocks
from serve_apps.engine_model.cost.noise import Noise
from serve_apps.engine_model.cost.step_time import Roofline, roofline
from serve_apps.engine_model.scheduler.engine import refuse_impossible

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OVERFLOW = "the KV cache may overflow"
SEVERAL_LENGTHS = "prefixes of several lengths age apart in the cache"


class UnsupportedByFastPath(ValueError):
    """The fast path cannot serve these requests on this engine; the block-by-block scheduler can."""


class Times(NamedTuple):
    """Times of requests, in order of their arrival; seconds on the virtual clock.

    `replica` served it; `cached_tokens` of its prompt were in the prefix cache. Of split engines `work` is
    that of those that answer, and `prefill_work` that of the others. `queue_s` is how long each waited to be
    first scheduled once the scheduler had seen it, None where that is not known.
    """

    sent_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    cached_tokens: Ints
    replica: Ints
    work: "Work"
    prefill_work: "Work | None" = None
    queue_s: Floats | None = None


class Work(NamedTuple):
    """Work of all engines together: steps, tokens and pairs as `Batch` counts them, and busy seconds.

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
class FastSpec:
    """One kind of engine for the fast path: its KV `blocks`, its step time and its front end (s)."""

    spec: SimulatedEngine
    blocks: int
    roofline: Roofline
    front_end_s: float
    latency_s: float = 0.0

    @classmethod
    def of(cls, spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout) -> "FastSpec":
        """Raises UnsupportedByFastPath, or ValueError where the weights do not fit or a figure is unknown."""
        if layout.data_parallel > 1:
            raise UnsupportedByFastPath("data-parallel ranks step together")
        return cls.with_step(
            roofline(model, hardware, layout, spec.kernel_ratio), spec, model, hardware, layout
        )

    @classmethod
    def with_step(
        cls, step: Roofline, spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout
    ) -> "FastSpec":
        """`of` with another step time; one rank of a layout that has several. Raises as `of` does."""
        spec = replace(spec, **layout.step_limits)
        if spec.max_num_seqs > spec.max_num_batched_tokens:
            raise UnsupportedByFastPath(
                "more sequences than tokens per step: not every decoder gets its token"
            )
        if spec.long_prefill_token_threshold:
            raise UnsupportedByFastPath(
                "long_prefill_token_threshold: several prompts may be prefilled in part"
            )
        if spec.max_num_queued_reqs is not None or spec.max_num_queued_tokens is not None:
            raise UnsupportedByFastPath("a limited queue refuses requests")
        blocks = kv_blocks(spec, model, hardware, layout)
        times = model.step_time
        front_end = times.front_end_ms.value * 1e-3, times.front_end_latency_ms.value * 1e-3
        return cls(spec, blocks, step, *front_end)

    def arrays(self, engines: int, room: int, longest_output: int, counted: bool = False) -> EngineArrays:
        """Engines of this kind that have seen nothing and draw no noise, with room for requests of each.

        `longest_output` is in tokens; `counted` as `EngineLimits` has it.
        """
        spec = self.spec
        sizes = spec.max_num_batched_tokens, spec.max_num_seqs, spec.block_size, self.blocks
        states = np.zeros(engines, loop.STATE)
        states["part"] = -1
        # Buckets for all steps in which a request may leave; two more, for steps begun and scheduled ahead.
        ring = np.zeros((engines, 1 << (longest_output + 2).bit_length()), loop.BUCKET)
        ring["leaver"] = -1
        return EngineArrays(
            EngineLimits(*sizes, int(spec.async_scheduling), 0, int(counted)),
            EngineSeconds(self.roofline.costs, self.front_end_s, self.latency_s, 0.0, 1.0, 0),
            states,
            np.zeros((engines, room), loop.REQUEST),
            ring,
            np.zeros((engines, 0)),
            np.zeros(0, loop.NOISE),
        )

    def shared(self, input_tokens: Ints, shared_tokens: Ints) -> Ints:
        """Tokens of the common prefix that may be cached.

        Raises UnsupportedByFastPath where prompts have prefixes of several lengths.
        """
        if not self.spec.enable_prefix_caching:
            return np.zeros_like(shared_tokens)
        if len(shared_tokens) and shared_tokens.min() != shared_tokens.max():
            raise UnsupportedByFastPath(SEVERAL_LENGTHS)
        if (shared_tokens > input_tokens).any():
            raise UnsupportedByFastPath("a prompt is shorter than the prefix that it shares")
        return shared_tokens

    def refuse_impossible(self, input_tokens: Ints, output_tokens: Ints) -> None:
        """Raise ValueError for requests that can never be served."""
        if len(input_tokens):
            shortest, longest = np.minimum(input_tokens, output_tokens), input_tokens + output_tokens
            for at in (int(shortest.argmin()), int(longest.argmax())):
                tokens = int(input_tokens[at]), int(output_tokens[at])
                refuse_impossible("a request", *tokens, self.spec, self.blocks)


class FastEngine:
    """One replica for requests in order of arrival; raises as `FastSpec` does.

    `longest_output` (tokens) of any request. The ends of the first `steps` steps are kept, for `token_times`.
    """

    def __init__(self, spec: FastSpec, longest_output: int, seed: int = 0, steps: int = 0) -> None:
        self._spec = spec
        self._noise = noise = Noise(spec.spec, seed)
        arrays = spec.arrays(1, 0, longest_output)
        arrays.states["drift"] = noise.drift
        costs = arrays.costs._replace(
            drift_sd=noise.drift_sd, drift_memory_s=noise.memory_s, noisy=int(not noise.silent)
        )
        self._arrays = arrays._replace(costs=costs, ends_s=np.zeros((1, steps)))
        self._state = arrays.states[0]
        if not noise.silent:
            self._draw()

    def run(self, until_s: float) -> None:
        """End every step that ends by `until_s`, and begin none there.

        Raises UnsupportedByFastPath if the KV cache might overflow.
        """
        while (why := loop.advance(until_s, self._arrays, 0)) == loop.OUT_OF_NOISE:
            self._draw()
        if why == loop.OUT_OF_KV:
            raise UnsupportedByFastPath(OVERFLOW)

    def serve(self, sent_s: Floats, asked: Sequence[Ints]) -> Times:
        """All requests at once, to their end; `asked`: prompt, output and shared tokens."""
        self._fill(asked)
        self._arrays.requests["sent_s"] = sent_s
        work_s = self._spec.front_end_s
        busy_s = work_s * np.arange(len(sent_s), dtype=np.float64)
        # `free_again_s` of all requests at once, each with the same work.
        return self._served(busy_s + np.maximum.accumulate(sent_s - busy_s) + work_s)

    def serve_closed(self, concurrency: int, asked: Sequence[Ints]) -> Times:
        """Serve all with `concurrency` requests in flight: each further one is sent when another ends."""
        if concurrency < 1:
            raise ValueError(f"a closed loop of concurrency {concurrency} sends nothing")
        count = len(asked[0])
        self._fill(asked)
        self._arrays = self._arrays._replace(limits=self._arrays.limits._replace(closed=count))
        burst = np.arange(1, min(concurrency, count) + 1, dtype=np.float64)
        return self._served(burst * self._spec.front_end_s)

    def token_times(self, number: int) -> Floats:
        """Time of each token of a request (s), which must have ended within the `steps` that are kept."""
        request = self._arrays.requests[0, number]
        born, output = int(request["born"]), int(request["output"])
        ends: Floats = self._arrays.ends_s[0, born : born + output]
        if len(ends) < output or born + output > int(self._state["ended"]):
            raise ValueError(f"request {number} has not ended within the steps that are kept")
        return ends

    def _fill(self, asked: Sequence[Ints]) -> None:
        requests = np.zeros((1, len(asked[0])), loop.REQUEST)
        for name, values in zip(("prompt", "output", "shared"), asked, strict=True):
            requests[name] = values
        self._arrays = self._arrays._replace(requests=requests)

    def _served(self, through_s: Floats) -> Times:
        """Serve to the end the requests whose front-end times are given, and those that follow them."""
        count, requests = len(through_s), self._arrays.requests[0]
        requests["ready_s"][:count] = through_s + self._spec.latency_s
        self._state["front_free_s"] = through_s[-1] if count else 0.0
        self._state["added"] = self._state["open"] = count
        self.run(np.inf)
        return times(requests, np.zeros(len(requests), np.int64), self._arrays.states)

    def _draw(self) -> None:
        """The next chunk of noise."""
        noise = self._noise
        noise.draw()
        chunk = np.zeros(len(noise.factors), loop.NOISE)
        chunk["factor"], chunk["stall_s"], chunk["gauss"] = noise.factors, noise.stalls_s, noise.gauss
        self._arrays = self._arrays._replace(noise=chunk)
        self._state["drawn"] = 0


def serve_closed(spec: FastSpec, concurrency: int, asked: Sequence[Ints], seed: int = 0) -> Times:
    """A closed loop over one engine: see `FastEngine.serve_closed`. Raises as `routed.serve_open`."""
    asked = checked(spec, asked)
    return FastEngine(spec, int(asked[1].max(initial=1)), seed).serve_closed(concurrency, asked)


def checked(spec: FastSpec, asked: Sequence[Ints]) -> list[Ints]:
    """Prompt, output and shared tokens as the loop wants them. Raises as `FastSpec` does."""
    prompt, output, shared = (np.ascontiguousarray(column, dtype=np.int64) for column in asked)
    spec.refuse_impossible(prompt, output)
    return [prompt, output, spec.shared(prompt, shared)]


def times(requests: NDArray[np.void], replica: Ints, states: NDArray[np.void]) -> Times:
    """Times of requests from their records, with the work of all engines from theirs."""
    sent_s, first_s, last_s = (requests[name] for name in ("sent_s", "first_s", "last_s"))
    queue_s = requests["scheduled_s"] - requests["queued_s"]
    return Times(sent_s, first_s, last_s, requests["cached"], replica, worked(states), queue_s=queue_s)


def worked(states: NDArray[np.void]) -> Work:
    """Work of all engines, from their records."""
    return Work(*(states[name].sum().item() for name in Work._fields))
