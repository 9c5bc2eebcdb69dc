"""The spec of a model: its architecture, and the constants of its step time with their evidence."""

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

from conf.io.check import AtLeastOne, Whole, require
from conf.specs.rules import Ruled

Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Constant:
    """A number with its evidence, exact or with a 95 % interval from `low` to `high`.

    An uncertain constant is normal in ln, with an sd of its own to each side of `value`.
    """

    value: float
    unit: str
    source: str
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        text = f"value={self.value:g} {self.unit}"
        require(0 <= self.value < math.inf, f"{text}: a constant must be finite and not negative")
        if self.is_share:
            require(0 < self.value <= 1, f"{text}: a share must be above 0 and at most 1")
        require((self.low is None) == (self.high is None), f"{text}: give low and high together, or neither")
        if self.low is not None and self.high is not None:
            require(
                0 < self.low <= self.value <= self.high < math.inf,
                f"{text} must lie between low={self.low:g} and high={self.high:g}, which are positive",
            )

    @property
    def is_share(self) -> bool:
        """True for a share, which is above 0 and at most 1."""
        return self.unit.startswith("share")

    @property
    def least(self) -> float:
        """The lower limit of its value: 1 for a ratio of the fullest to the mean, else 0."""
        return 1.0 if self.unit.endswith("of at least 1") else 0.0

    @property
    def ln_sd(self) -> tuple[float, float]:
        """Standard deviations of ln value below and above `value`; both 0 if it is exact."""
        if self.low is None or self.high is None:
            return 0.0, 0.0
        return math.log(self.value / self.low) / Z95, math.log(self.high / self.value) / Z95


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Reached share of the peak (0 to 1) of each resource of the accelerator, and its pace.

    `compute` is how much faster it multiplies matrices than the accelerator of the model's fit, at equal
    peaks of the data sheet: a higher power limit, for example, keeps clocks up.
    """

    hbm: Constant
    kv_read: Constant
    attention: Constant
    link: Constant
    compute: Constant = Constant(1.0, "ratio", "none in runs saved before it was known")


@dataclass(frozen=True, slots=True)
class StepTime:
    """Constants of the step-time model that belong to a model (engine-model equation terms).

    Prefill tokens reach `gemm_prefill` after about `gemm_rise_tokens` of a step, the first at
    `gemm_decode`. Prefill makes a step longer by `prefill_layer_us` for each layer, which sets in over
    the same tokens, and by `prefill_token_us` for each token, however many GPUs share the work.
    `expert_spread` is the share of tokens that choose their experts independently. The front end needs
    `front_end_ms` for each request, one after the other, and adds `front_end_latency_ms` to each, which
    delays no other; an image that is in no cache takes `image_token_us` per image token.
    `deployment_scale` multiplies every step: another deployment (GPU, vLLM version, team) over the fitted
    ones; so does `layout_scale`: a layout over the time from the constants.
    """

    step_ms: Constant
    layer_us: Constant
    gemm_decode: Constant
    gemm_prefill: Constant
    expert_read: Constant
    expert_imbalance: Constant
    host_per_sequence_us: Constant
    front_end_ms: Constant
    gemm_rise_tokens: Constant = Constant(0.0, "tokens", "none in runs saved before it was known")
    expert_spread: Constant = Constant(1.0, "share of tokens", "unique prompts route independently")
    image_token_us: Constant = Constant(0.0, "us per image token", "a model without vision")
    prefill_layer_us: Constant = Constant(0.0, "us per layer", "none in runs saved before it was known")
    prefill_token_us: Constant = Constant(0.0, "us per token", "none in runs saved before it was known")
    front_end_latency_ms: Constant = Constant(0.0, "ms per request", "none in runs saved before it was known")
    deployment_scale: Constant = Constant(1.0, "ratio", "none in runs saved before it was known")
    layout_scale: Constant = Constant(1.0, "ratio", "none in runs saved before it was known")


SAME = Constant(1.0, "ratio", "as in the fit")


@dataclass(frozen=True, slots=True)
class KernelRatio:
    """Time with another engine release or other kernels over that with those of the constants' fit.

    `kv_read` multiplies reads of KV, `attention` the attention of prefill, `launch` the fixed time of a step,
    and `step` then the whole step.
    """

    step: Constant = SAME
    kv_read: Constant = SAME
    attention: Constant = SAME
    launch: Constant = SAME


@dataclass(frozen=True, slots=True)
class Posterior:
    """The evidence of a fit, and the correlations between its constants.

    `model` is what was measured, `layouts` the kinds of engines (TP8/EP8), `engines` the software with
    its minor version (vLLM 0.16), `weights` and `kv_cache` the precision, `hardware` the GPUs, the first
    one those of the measurements. Whatever else is predicted with these constants is a transfer.
    `releases` are engines of which other rows were published, by name or minor version: low, value and
    high of `launch` and `step` of their `KernelRatio`. `paces` replaces `hardware.efficiency.compute` on
    GPUs that others were compared with (by default 1 on the first GPU of the fit, else its own value).
    `correlations[a][j]` is that of the normals behind ln of the constants with config key a and the j-th
    key; those of hardware hold on the named `hardware` only.
    """

    rests_on: str = ""
    hardware: list[str] = field(default_factory=list)
    correlations: dict[str, list[float]] = field(default_factory=dict)
    model: str = ""
    layouts: list[str] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)
    weights: str = ""
    kv_cache: str = ""
    releases: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    paces: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Model(Ruled):
    """Architecture facts of a checkpoint, named as in its config.json, and its fitted constants.

    `kv_lora_rank > 0` means multi-head latent attention (MLA), whose KV is one latent of `kv_lora_rank +
    rope_dim` per token and layer; `index_heads > 0` an indexer (DeepSeek V3.2), which scores the context
    by keys of `index_head_dim`, so that attention reads the best `index_topk` tokens. `experts == 0`
    means a dense model; in a mixture the first `first_dense` layers are dense with `intermediate` width.
    `image_token_px` is the side of the square of pixels that becomes one prompt token; 0 without vision.
    Linear layers are stored as `weights` says, int4 with a bf16 scale for every `int4_group` weights (0:
    for a channel); `bf16_attention` leaves all attention projections in bf16, `bf16_layers` so many whole
    layers of a dense model. `config_json` is a checkpoint's file whose facts replace those of the chosen
    model; its constants stay, as those of a relative, with the kernels that they were `fitted_with`.
    """

    name: str
    served_name: str
    layers: AtLeastOne
    hidden: AtLeastOne
    heads: AtLeastOne
    kv_heads: AtLeastOne
    head_dim: AtLeastOne
    vocab: AtLeastOne
    max_context_tokens: AtLeastOne
    weights: Literal["fp8", "bf16", "int4", "int4_experts"]
    kv_cache: Literal["fp8", "bf16"]
    step_time: StepTime
    source: str
    intermediate: Whole = 0
    experts: Whole = 0
    experts_per_token: Whole = 0
    shared_experts: Whole = 0
    expert_intermediate: Whole = 0
    first_dense: Whole = 0
    q_lora_rank: Whole = 0
    kv_lora_rank: Whole = 0
    rope_dim: Whole = 0
    index_heads: Whole = 0
    index_head_dim: Whole = 0
    index_topk: Whole = 0
    image_token_px: Whole = 0
    bf16_attention: bool = False
    bf16_layers: Whole = 0
    int4_group: Whole = 32
    config_json: str = ""
    fitted_with: Literal["aiter", "triton", "unknown"] = "unknown"
    posterior: Posterior = Posterior()
