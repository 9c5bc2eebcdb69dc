"""Specs of the engines that serve the model: simulated, real vLLM, emulated vLLM, or external endpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from conf.io.check import AtLeastOne, BelowOne, NotNegative, Positive, Range, Whole, require
from conf.io.secret import require_public
from conf.specs.model import KernelRatio
from conf.specs.rules import check_rules


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that serves the model; `kind` selects the subclass."""

    kind: str


SCHEDULER_VERSION = "0.33.0"
"""The vLLM whose scheduling rules the simulated engine follows, the newest that a recipe is for."""
FITTED_BACKEND = "ROCM_AITER_FA"
"""The attention backend of the default model's constants."""
LEAST_TIME_SCALE, MAX_TIME_SCALE = 0.1, 10.0
"""Limits of `time_scale` (our choice): at 10 a timer that fires 1 ms late is a third of a 30 ms step, and at
0.1 a minute of load takes ten."""


@dataclass(frozen=True, slots=True)
class SimulatedEngine(Engine):
    """vLLM's V1 scheduler over a step-time model; no GPU, no weights. Without noise it is deterministic.

    `step_noise_cv` is the coefficient of variation of each step's seeded lognormal factor; `drift_sd` is
    the sd of ln slowness that wanders with a memory of `drift_memory_s`; one step in `stall_every_steps`,
    on average, lasts longer by an exponential time of mean `stall_mean_s`. After a step with prefill the
    next `prefill_schedule_interval` - 1 steps compute none while others decode and no request is left
    waiting. `constants` names a calibration, whose values replace those of the model and the hardware;
    its covariance is saved here. `version` (`vLLM 0.33.0`, `SGLang 0.5.9`), `kernels` and
    `attention_backend` (vLLM's names) are the release and kernels whose speed is predicted, by default
    those of the fit; `kernel_ratio` holds their times over the fit's. The engine and its load run
    `time_scale` times as fast as the real clock, and all seconds of budgets, windows and time-outs are
    the engine's: above 1 saves time, below 1 lets a small machine hold the requests of many nodes.
    `defect` is the share of positions whose token and log probabilities are wrong where an answer shows
    them, for comparisons of answers to find; it changes no latency.
    """

    kind: Literal["simulated"] = "simulated"
    max_num_batched_tokens: AtLeastOne = 8192
    max_num_seqs: AtLeastOne = 1024
    max_model_len: AtLeastOne = 32768
    block_size: AtLeastOne = 16
    gpu_memory_utilization: Annotated[float, Range(gt=0, le=1)] = 0.90
    activation_bytes: NotNegative = 8e9
    num_gpu_blocks: AtLeastOne | None = None
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    long_prefill_token_threshold: Whole = 0
    prefill_schedule_interval: AtLeastOne = 1
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    step_noise_cv: NotNegative = 0.0
    drift_sd: BelowOne = 0.0
    drift_memory_s: Positive = 120.0
    stall_every_steps: Whole = 0
    stall_mean_s: Positive = 1.0
    time_scale: Annotated[float, Range(ge=LEAST_TIME_SCALE, le=MAX_TIME_SCALE)] = 1.0
    defect: Annotated[float, Range(ge=0, le=1)] = 0.0
    constants: str = ""
    constants_covariance: dict[str, list[float]] = field(default_factory=dict)
    version: str = ""
    kernels: Literal["fitted", "aiter", "triton"] = "fitted"
    attention_backend: str = FITTED_BACKEND
    kernel_ratio: KernelRatio | None = None

    def __post_init__(self) -> None:
        require(
            self.attention_backend.isidentifier() and self.attention_backend.isupper(),
            f"engine.attention_backend={self.attention_backend} is no name of vLLM's, which are in capitals, "
            f"such as {FITTED_BACKEND}",
        )
        check_rules(self)


@dataclass(frozen=True, slots=True)
class VllmEngine(Engine):
    """Real vLLM: `vllm` on GPUs, `vllm_cpu` its CPU build.

    `recipe` chooses the other flags, `modern` or `published` for the model and layout; `profile` is a
    scheduling profile of the MI325X paper. `args` are vLLM's engine arguments by their Python names and
    `env` its environment, both over the recipe; null removes one. Both are saved, so neither may hold
    secrets. `vllm_version` is checked against the installed version, its default. `model_path` is a
    folder with the weights on every node; if empty, vLLM looks the model up by its name. `server` is
    Ray's LLM application, or vLLM's own server `process` behind a plain replica. `node_resource` is a
    custom resource of the nodes to use, one unit a node, for accelerators that Ray does not recognise.
    """

    kind: Literal["vllm", "vllm_cpu", "vllm_emulated"] = "vllm"
    recipe: Literal["modern", "published"] = "modern"
    profile: Literal["none", "low_latency", "balanced", "high_throughput", "maximum"] = "none"
    vllm_version: str = ""
    model_path: str = ""
    server: Literal["ray_llm", "process"] = "ray_llm"
    accelerator_type: str = ""
    node_resource: str = ""
    start_timeout_s: Positive = 3600.0
    args: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_public("engine.env.", self.env)
        require_public("engine.args.", self.args)


@dataclass(frozen=True, slots=True)
class EmulatedEngine(VllmEngine):
    """Unmodified vLLM on GPUs that do not exist: its steps last as long as in the step-time model.

    `constants` and `constants_covariance` are those of a calibration, as for the simulated engine.
    `activation_bytes` of each GPU hold no KV; vLLM's own `gpu_memory_utilization` limits the memory.
    """

    kind: Literal["vllm_emulated"] = "vllm_emulated"
    activation_bytes: NotNegative = 8e9
    constants: str = ""
    constants_covariance: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExternalEngine(Engine):
    """Endpoints that are not deployed here; `target.urls` names them."""

    kind: Literal["external"] = "external"


ENGINES: Mapping[str, type[Engine]] = {
    "simulated": SimulatedEngine,
    "vllm": VllmEngine,
    "vllm_cpu": VllmEngine,
    "vllm_emulated": EmulatedEngine,
    "external": ExternalEngine,
}
"""The spec of each kind."""


class ByKind:
    """Annotation of an engine: pydantic takes the class that `ENGINES` has for its `kind`."""

    def __get_pydantic_core_schema__(self, _source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema  # only where a tree is read: it takes a tenth of a second

        return core_schema.tagged_union_schema(
            {kind: handler.generate_schema(spec) for kind, spec in ENGINES.items()}, "kind"
        )
