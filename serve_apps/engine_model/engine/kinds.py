"""What kinds of engines there are: their limits, KV blocks and step time, and arrays of them that are
empty."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine
from conf.specs.model import StepTime
from serve_apps.engine_model.cost.architecture import kv_blocks
from serve_apps.engine_model.cost.links import TransferSeconds
from serve_apps.engine_model.cost.step_time import Roofline, ranks_time, roofline
from serve_apps.engine_model.engine import state
from serve_apps.engine_model.engine.native import NONE

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EngineKind:
    """Engines of one kind: `width` ranks each, with so many KV `blocks` and such costs of a step.

    `shared_costs` are those of the experts that all ranks share; `step_time` has those of the front end.
    """

    spec: SimulatedEngine
    blocks: int
    width: int
    costs: Roofline
    shared_costs: Roofline
    step_time: StepTime
    prefill: "PrefillKind | None" = None

    @classmethod
    def of(cls, spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout) -> "EngineKind":
        """One replica of `layout`, of a split one a decode engine with its `prefill` engines.

        Raises ValueError if the weights do not fit, a hardware figure that is needed is unknown, or the ranks
        of a model without experts should share some.
        """
        if layout.prefill is not None:
            if layout.connector == "moriio":  # it needs the prefix cache off, on both sides
                spec = replace(spec, enable_prefix_caching=False)
            sides = layout.decode_side, layout.prefill_side or layout
            decode, prompts = (cls.of(spec, model, hardware, side) for side in sides)
            seconds, writes = TransferSeconds.of(model, layout), layout.transfer_mode == "write"
            counts = layout.prefill.per_node, layout.replicas_per_node
            return replace(decode, prefill=PrefillKind(prompts, seconds, writes, *counts))
        spec = replace(spec, **layout.step_limits)
        if layout.data_parallel > 1:
            if spec.prefill_schedule_interval > 1:
                raise ValueError(
                    "engine.prefill_schedule_interval: data-parallel ranks hold prefills back by a counter "
                    "that they share, which is not modelled; leave it out, or take a layout without ranks"
                )
            ranks = ranks_time(model, hardware, layout, spec.kernel_ratio)
            costs = ranks.own, ranks.shared
        else:
            costs = (roofline(model, hardware, layout, spec.kernel_ratio),) * 2
        blocks = kv_blocks(spec, model, hardware, layout)
        return cls(spec, blocks, layout.data_parallel, *costs, model.step_time)

    def refuse_impossible(self, name: str, input_tokens: Ints | int, output_tokens: Ints | int) -> None:
        """Raise ValueError for requests of which such an engine can never serve one."""
        inputs, outputs = np.atleast_1d(input_tokens, output_tokens)
        if np.minimum(inputs, outputs).min(initial=1) < 1:
            raise ValueError(f"{name} needs at least one prompt and one output token")
        longest = min(self.spec.max_model_len, self.blocks * self.spec.block_size)
        for at in np.flatnonzero(outputs > longest - inputs)[:1]:  # a sum might overflow
            raise ValueError(
                f"{name} asks for {inputs[at]} + {outputs[at]} tokens but the engine holds {longest}; "
                "shorten it, or raise max_model_len or num_gpu_blocks"
            )


class PrefillKind(NamedTuple):
    """The engines of a split node that only compute prompts, and the way of the KV from them.

    With `writes` KV flows while its prompt is computed. `per_node` of them stand beside `decode_per_node`.
    """

    engine: EngineKind
    seconds: TransferSeconds
    writes: bool
    per_node: int
    decode_per_node: int


CHUNK_STEPS = 4096


class Noise:
    """Draws of what lengthens steps: `step_noise_cv`, `drift_sd` and `stall_every_steps`; 0 is none.

    Each source has a generator of its own, so that switching one on leaves the others' draws as they were.
    """

    def __init__(self, spec: SimulatedEngine, seed: int) -> None:
        variance = math.log1p(spec.step_noise_cv**2)
        self._mu, self._sigma = -variance / 2, math.sqrt(variance)
        self._stall_share = 1 / spec.stall_every_steps if spec.stall_every_steps else 0.0
        self._stall_s = spec.stall_mean_s
        self._steps, self._drifts, self._stalls = (
            np.random.default_rng([seed, source]) for source in (1, 2, 3)
        )
        self.silent = not (self._sigma or spec.drift_sd or self._stall_share)
        self.drift = spec.drift_sd * float(self._drifts.standard_normal())

    def draw(self, arrays: state.Arrays, g: int) -> None:
        """The noise of the next steps of a replica: factors of durations, stalls, and what drives drift."""
        size = CHUNK_STEPS
        factors = np.exp(self._mu + self._sigma * self._steps.standard_normal(size))
        gauss = self._drifts.standard_normal(size)
        stalls = self._stalls.random(size) < self._stall_share
        stalls_s = np.where(stalls, self._stalls.exponential(self._stall_s, size), 0.0)
        arrays.noise[g], arrays.groups["drawn"][g] = np.column_stack([factors, stalls_s, gauss]), 0


def empty_arrays(
    kinds: Sequence[tuple[EngineKind, int]], seeds: Sequence[int]
) -> tuple[state.Arrays, list[Noise]]:
    """So many replicas of each kind that have seen nothing, without requests, and the noise of each.

    Of two kinds the second one only computes prompts.
    """
    first, last = kinds[0][0], kinds[-1][0]
    widths = np.array([kind.width for kind, count in kinds for _ in range(count)])
    each = [kind for kind, count in kinds for _ in range(count * kind.width)]
    arrays = state.Arrays(service=1, groups=len(widths), engines=len(each), queues=(len(each), state.QUEUES))
    arrays.make(emits=(2 * len(each), 1 + max(kind.spec.max_num_seqs for kind in each)))
    arrays.queues[:] = np.array((NONE, NONE, 0), state.QUEUE)
    arrays.set(costs=np.array([first.costs, last.costs, first.shared_costs], np.float64))
    engines, groups, service = arrays.engines, arrays.groups, arrays.service
    for name in state.SETTINGS.split():
        engines[name] = [getattr(kind.spec, name) for kind in each]
    engines["blocks"] = [kind.blocks for kind in each]
    engines["front_end_s"] = [kind.step_time.front_end_ms.value * 1e-3 for kind in each]
    engines["latency_s"] = [kind.step_time.front_end_latency_ms.value * 1e-3 for kind in each]
    engines["kind"] = np.repeat(range(len(kinds)), [count * kind.width for kind, count in kinds])
    engines["free"] = engines["blank"] = engines["blocks"]
    engines["prefill_step"] = -engines["prefill_schedule_interval"]
    for name in ("front_free_s", "idle_until_s", "link_free_s"):
        engines[name] = -np.inf
    noises = [Noise(first.spec, seed) for seed in seeds]
    groups["width"], groups["first"] = widths, np.cumsum(widths) - widths
    groups["drift"] = [noise.drift for noise in noises]
    groups["drawn"] = chunk = 0 if noises[0].silent else CHUNK_STEPS
    arrays.make(noise=(len(groups), chunk, 3))
    service["drift_sd"], service["drift_memory_s"] = first.spec.drift_sd, first.spec.drift_memory_s
    service["noisy"] = not noises[0].silent
    return arrays, noises
