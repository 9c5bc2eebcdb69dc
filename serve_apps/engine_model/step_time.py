"""Duration of one engine step: an additive roofline; knows no requests, blocks or clocks.

Memory time and compute time are added, not maximised: the sum fits measured decode steps better.
Prefill and decode tokens have GEMM efficiencies of their own in every step; there is no threshold
at which one replaces the other.
"""

from dataclasses import dataclass
from typing import NamedTuple

from conf.schema import Hardware, Layout, Model
from serve_apps.engine_model import architecture

_ACTIVATION_BYTES = 2
"""All-reduces carry bf16."""


@dataclass(slots=True)
class Batch:
    """What one step computes, summed over its requests.

    `context_tokens` are tokens whose KV is read, `attention_pairs` new x context tokens of prefill,
    `sequences` those that emit a token.
    """

    decode_tokens: int = 0
    prefill_tokens: int = 0
    context_tokens: int = 0
    attention_pairs: float = 0.0
    sequences: int = 0

    def add_chunk(self, new: int, context: int) -> None:
        """Prefill of `new` tokens after `context` tokens that have their KV."""
        self.prefill_tokens += new
        self.context_tokens += context
        self.attention_pairs += new * (context + new / 2)


class StepTerms(NamedTuple):
    """Where the time of a step goes; the sum is its duration."""

    launch_s: float
    weight_read_s: float
    expert_read_s: float
    decode_gemm_s: float
    prefill_gemm_s: float
    all_reduce_s: float
    kv_read_s: float
    attention_s: float
    host_s: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """Seconds per unit of work of one replica; `expert_miss` is the chance that a token avoids an expert."""

    launch_s: float
    weight_read_s: float
    expert_read_s: float
    expert_miss: float
    decode_gemm_token_s: float
    prefill_gemm_token_s: float
    all_reduce_token_s: float
    context_token_s: float
    attention_pair_s: float
    host_sequence_s: float

    def terms(self, batch: Batch) -> StepTerms:
        """The additive step time, the engine model, section 2, term by term."""
        tokens = batch.decode_tokens + batch.prefill_tokens
        return StepTerms(
            self.launch_s,
            self.weight_read_s,
            self.expert_read_s * (1 - self.expert_miss**tokens),
            self.decode_gemm_token_s * batch.decode_tokens,
            self.prefill_gemm_token_s * batch.prefill_tokens,
            self.all_reduce_token_s * tokens,
            self.context_token_s * batch.context_tokens,
            self.attention_pair_s * batch.attention_pairs,
            self.host_sequence_s * batch.sequences,
        )

    def duration_s(self, batch: Batch) -> float:
        return sum(self.terms(batch))


def roofline(model: Model, hardware: Hardware, layout: Layout) -> Roofline:
    """The step time of `model` on one replica of `layout`.

    Raises ValueError when a figure of the hardware that is needed is unknown.
    """
    gpus = layout.tensor_parallel
    constants, reached = model.step_time, hardware.efficiency
    bandwidth = gpus * hardware.hbm_bytes_per_s
    experts = architecture.expert_layers(model) * model.experts * architecture.expert_bytes(model)
    pair_flop = architecture.attention_flop_per_pair(model)
    gemm_s = _gemm_token_s(model, hardware, layout)
    return Roofline(
        launch_s=constants.step_ms.value * 1e-3 + model.layers * constants.layer_us.value * 1e-6,
        weight_read_s=architecture.step_bytes(model) / (bandwidth * reached.hbm.value),
        expert_read_s=experts / (bandwidth * constants.expert_read.value) * _imbalance(model, layout),
        expert_miss=1 - model.experts_per_token / model.experts if model.experts else 0.0,
        decode_gemm_token_s=gemm_s / constants.gemm_decode.value,
        prefill_gemm_token_s=gemm_s / constants.gemm_prefill.value,
        all_reduce_token_s=_all_reduce_token_s(model, hardware, gpus),
        context_token_s=architecture.kv_bytes_per_token(model, gpus)
        / (hardware.hbm_bytes_per_s * reached.kv_read.value),
        attention_pair_s=pair_flop / (gpus * _known(hardware, "bf16_flop_per_s") * reached.attention.value),
        host_sequence_s=constants.host_per_sequence_us.value * 1e-6,
    )


def _gemm_token_s(model: Model, hardware: Hardware, layout: Layout) -> float:
    """Linear layers of one token at the peak of the weights' type; int4 experts compute in bf16."""
    peak = _known(hardware, "fp8_flop_per_s" if model.weights == "fp8" else "bf16_flop_per_s")
    linear = architecture.linear_flop_per_token(model)
    picked = architecture.expert_layers(model) * model.experts_per_token
    routed = 2 * picked * architecture.expert_parameters(model)
    flop = linear - routed + routed * _imbalance(model, layout)
    return flop / (layout.tensor_parallel * peak)


def _imbalance(model: Model, layout: Layout) -> float:
    """Load of the fullest GPU over the mean; without expert parallelism every GPU holds a slice of all."""
    return model.step_time.expert_imbalance.value if layout.expert_parallel else 1.0


def _all_reduce_token_s(model: Model, hardware: Hardware, gpus: int) -> float:
    """Two two-shot all-reduces per layer.

    In a mesh each shot sends a `gpus`-th of the activations over every link to a peer; behind a
    switch one link carries the shares of all peers.
    """
    if gpus == 1:
        return 0.0
    if hardware.topology == "mesh" and gpus - 1 > hardware.links:
        raise ValueError(
            f"TP{gpus} needs a link to each of {gpus - 1} peers but {hardware.name} has {hardware.links}; "
            f"choose a tensor_parallel of at most {hardware.links + 1}"
        )
    shares = 1 if hardware.topology == "mesh" else gpus - 1
    link = _known(hardware, "link_bytes_per_s") * hardware.efficiency.link.value
    shot_bytes = model.hidden * _ACTIVATION_BYTES / gpus * shares
    return model.layers * 2 * 2 * shot_bytes / link


def _known(hardware: Hardware, figure: str) -> float:
    value: float | None = getattr(hardware, figure)
    if value is None:
        raise ValueError(f"hardware {hardware.name}: {figure} is unknown; set hardware.{figure}=...")
    return value
