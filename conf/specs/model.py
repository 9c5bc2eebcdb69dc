"""The spec of a model: its architecture and the constants of its step time."""

from dataclasses import dataclass
from typing import Literal

from conf.io.check import require
from conf.specs.ranges import AtLeastOne, Whole
from conf.specs.step_time import Posterior, StepTime


@dataclass(frozen=True, slots=True)
class Model:
    """Architecture facts of a checkpoint, named as in its config.json, and its fitted constants.

    `kv_lora_rank > 0` means multi-head latent attention (MLA), whose KV is one latent of
    `kv_lora_rank + rope_dim` per token and layer. `index_heads > 0` means an indexer (DeepSeek V3.2), which
    scores the context by keys of `index_head_dim`; attention reads the best `index_topk` tokens of it.
    `experts == 0` means a dense model; in a mixture the first `first_dense` layers are dense with
    `intermediate` width. `image_token_px` is the side in pixels of the square of an image that becomes one
    prompt token; 0 of a model that sees no images. Linear layers are stored as `weights` says, int4 with a
    bf16 scale for every `int4_group` weights (0: for a channel); `bf16_attention` leaves all attention
    projections in bf16, `bf16_layers` so many whole layers of a dense model. `config_json` is the file of a
    checkpoint whose facts replace those of the chosen model; its constants stay, as those of a relative. They
    are those of the kernels that they were `fitted_with`.
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

    def __post_init__(self) -> None:
        if self.experts:
            self._require_some("model.experts", "experts_per_token", "expert_intermediate")
        if self.first_dense or not self.experts:
            self._require_some("dense layers", "intermediate")
        grouped = f"model.kv_heads={self.kv_heads} must divide model.heads={self.heads}"
        require(self.heads % self.kv_heads == 0, grouped)
        parts = (("experts_per_token", "experts"), ("first_dense", "layers"), ("bf16_layers", "layers"))
        for part, whole in parts:
            most = getattr(self, whole)
            value = getattr(self, part)
            require(value <= most, f"model.{part}={value} must be at most model.{whole}={most}")
        latent = f"model.index_heads={self.index_heads} needs latent attention: model.kv_lora_rank above 0"
        require(not self.index_heads or self.kv_lora_rank > 0, latent)
        if self.index_heads:
            self._require_some("model.index_heads", "index_head_dim", "index_topk", "q_lora_rank")
        dense_only = f"model.bf16_layers={self.bf16_layers} is for a dense model, which has no model.experts"
        require(not (self.bf16_layers and self.experts), dense_only)

    def _require_some(self, what: str, *names: str) -> None:
        """Raise ValueError for a field that is 0 though the model has `what`, which needs it."""
        for name in names:
            require(getattr(self, name) > 0, f"model.{name}=0 must be at least 1 for {what}")
