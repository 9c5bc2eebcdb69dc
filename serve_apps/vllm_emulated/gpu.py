"""The GPU that an emulated vLLM pretends to have: step times and memory for KV. Imports no vLLM, reads no
clock."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from conf.constants import fingerprint
from conf.kernels import backend_ratio
from conf.specs.experiment import EmulatedEngine, Hardware, Layout, Model, VllmEngine
from serve_apps.engine_model.cost.architecture import weight_bytes_on_gpu
from serve_apps.engine_model.cost.links import TransferSeconds
from serve_apps.engine_model.cost.step_time import Batch, Roofline, roofline
from serve_apps.vllm_emulated.platform_plugin import CONNECTORS, ENVIRONMENT, GPU_BYTES
from serve_apps.vllm_recipes.recipes import Recipe

KEY = "emu"
"""Our part of vLLM's additional_config, which reaches its core and is hashed as JSON: plain values only."""
_ENDLESS = "quick_reduce_tokens"
"""Infinite where there is no quick reduce; JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class EmulatedGpu:
    """One GPU of a replica, and the steps of all of them together.

    `costs` are the simulated engine's without its front end (`front_end_ms`, `front_end_latency_ms`), for
    vLLM's own is real here: tokeniser, API server and transfer between processes take the time they take on
    this machine. The rest of a step stays whole, launches (`step_ms`, `layer_us`) and the time per sequence
    (`host_per_sequence_us`) included: with asynchronous scheduling the device waits for none of vLLM's real
    host work, which happens while the step before is being computed. Without it that work comes on top, so
    that `synchronous` costs leave `host_per_sequence_us` out.
    """

    costs: Roofline
    tensor_parallel: int
    hbm_bytes: float
    weight_bytes: float
    activation_bytes: float
    constants: str
    """Fingerprint of the constants that the costs were computed from."""
    transfer: TransferSeconds | None = None
    """The transfer of KV between the engines of a split layout; None in any other."""

    @classmethod
    def from_specs(
        cls,
        engine: EmulatedEngine,
        model: Model,
        hardware: Hardware,
        layout: Layout,
        backend: str = "",
        split: Layout | None = None,
    ) -> "EmulatedGpu":
        """The GPU that `hardware` describes, with the step time of `model` and of the attention `backend`.

        If the speed of that backend is unknown, it is that of the fit's own. `split` is the layout of which
        `layout` is one side.

        Raises ValueError for a model with latent attention, and as `roofline` does.
        """
        if model.kv_lora_rank:
            raise ValueError(
                f"engine=vllm_emulated has no KV cache of latent attention (MLA), which {model.name} needs; "
                "use engine=simulated"
            )
        return cls(
            roofline(model, hardware, layout, backend_ratio(backend)),
            layout.tensor_parallel,
            hardware.hbm_bytes,
            weight_bytes_on_gpu(model, layout),
            engine.activation_bytes,
            fingerprint(model, hardware),
            None if split is None else TransferSeconds.of(model, split),
        )

    @classmethod
    def read(cls, additional_config: Mapping[str, Any]) -> "EmulatedGpu":
        """The GPU that `written` put into vLLM's additional_config. Raises ValueError if there is none."""
        tree = additional_config.get(KEY)
        if not isinstance(tree, Mapping):
            raise ValueError(
                f"an emulated GPU needs --additional-config '{{\"{KEY}\": ...}}', which is missing"
            )
        costs = dict(tree["costs"])
        costs[_ENDLESS] = math.inf if costs[_ENDLESS] is None else costs[_ENDLESS]
        transfer = tree["transfer"] and TransferSeconds(**tree["transfer"])
        return cls(**{**tree, "costs": Roofline(**costs), "transfer": transfer})

    def written(self) -> dict[str, Any]:
        """vLLM's additional_config of this GPU, in plain values."""
        tree = asdict(self) | {"costs": self.costs._asdict()}
        if math.isinf(self.costs.quick_reduce_tokens):
            tree["costs"][_ENDLESS] = None
        return {KEY: tree}

    def synchronous(self) -> "EmulatedGpu":
        """The same without asynchronous scheduling: the host's real time per sequence is not hidden."""
        return replace(self, costs=self.costs._replace(host_sequence_s=0.0))

    def kv_bytes(self, gpu_memory_utilization: float) -> int:
        """Bytes left for KV on each GPU, as the simulated engine has them. Raises ValueError for none."""
        left = gpu_memory_utilization * self.hbm_bytes - self.weight_bytes - self.activation_bytes
        if left <= 0:
            raise ValueError(
                f"weights of {self.weight_bytes / 1e9:.1f} GB and activations of "
                f"{self.activation_bytes / 1e9:.1f} GB per GPU leave no KV of "
                f"{gpu_memory_utilization * self.hbm_bytes / 1e9:.1f} GB; choose a larger tensor_parallel"
            )
        return int(left)


def emulated(recipe: Recipe, engine: VllmEngine, model: Model, hardware: Hardware, layout: Layout) -> Recipe:
    """`recipe`, and for an emulated engine what switches emulation on, on both sides of a split layout.

    The layout's limits of a step come before the engine's, as with the simulated engine, and its connector
    becomes ours of the same name. Raises as `EmulatedGpu.from_specs`.
    """
    if not isinstance(engine, EmulatedEngine):
        return recipe
    answers = _switched(recipe, engine, model, hardware, layout, layout.decode_side)
    if recipe.prefill is None or layout.prefill_side is None:
        return answers
    prefill = _switched(recipe.prefill, engine, model, hardware, layout, layout.prefill_side)
    return replace(answers, prefill=prefill)


def _switched(
    recipe: Recipe, engine: EmulatedEngine, model: Model, hardware: Hardware, layout: Layout, side: Layout
) -> Recipe:
    """The recipe of the engines of one side of `layout`."""
    gpu = EmulatedGpu.from_specs(
        engine, model, hardware, side, recipe.attention, layout if layout.prefill else None
    )
    own = {**recipe.args.get("additional_config", {}), **gpu.written()}
    args = {**recipe.args, **side.step_limits, "additional_config": own}
    if transfer := args.get("kv_transfer_config"):
        args["kv_transfer_config"] = {**transfer, "kv_connector_module_path": CONNECTORS}
    env = {**recipe.env, **ENVIRONMENT, GPU_BYTES: str(int(gpu.hbm_bytes))}
    return replace(recipe, args=args, env=env)


class StepPart(NamedTuple):
    """One request's part of a step: `new` tokens after `computed` ones; `known` are those that exist by then.

    `known` counts outputs that are still being computed too; once all have their KV, the step samples. Tokens
    beyond `prompt` are decoded.
    """

    request_id: str
    computed: int
    new: int
    prompt: int
    known: int

    @property
    def decodes(self) -> bool:
        return self.new == 1 and self.computed >= self.prompt

    @property
    def samples(self) -> bool:
        return self.computed + self.new >= self.known


class Steps:
    """Turns vLLM's scheduler output into the work of a step; remembers prompts of unfinished requests."""

    def __init__(self) -> None:
        self._prompts: dict[str, int] = {}
        self._received: set[str] = set()

    def received(self, names: set[str]) -> None:
        """The prompts of these requests were computed elsewhere: their last token here is as one decoded."""
        self._received |= names

    def parts(self, scheduled: Any) -> list[StepPart]:
        """The part of each request in a `SchedulerOutput` (vLLM v1/core/sched/output.py).

        A preempted request stays known until it is finished. It comes back among the cached ones (model
        runner V1) or as a new one with the tokens to compute again (V2, `prefill_token_ids`).
        """
        for name in scheduled.finished_req_ids:
            self._prompts.pop(name, None)
            self._received.discard(name)
        new, parts = scheduled.num_scheduled_tokens, []
        for request in scheduled.scheduled_new_reqs:
            name, again = request.req_id, getattr(request, "prefill_token_ids", None)
            prompt = self._prompts.setdefault(name, len(request.prompt_token_ids))
            known = len(again) if again else prompt
            own = prompt - (name in self._received)
            parts.append(StepPart(name, request.num_computed_tokens, new[name], own, known))
        cached = scheduled.scheduled_cached_reqs
        of_cached = zip(cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True)
        for name, computed, outputs in of_cached:
            prompt = self._prompts[name]
            parts.append(StepPart(name, computed, new[name], prompt, prompt + outputs))
        return parts


def batch(parts: list[StepPart]) -> Batch:
    """The work of one step, as the simulated engine counts it."""
    work = Batch(sequences=sum(part.samples for part in parts))
    for part in parts:
        if part.decodes:
            work.decode_tokens += 1
            work.context_tokens += part.computed
        else:
            work.add_chunk(part.new, part.computed)
    return work
