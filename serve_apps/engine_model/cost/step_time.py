"""Duration of one engine step: an additive roofline (docs/engine_model.md)."""

import math
from dataclasses import astuple, dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

from conf.specs.experiment import Hardware, KernelRatio, Layout, Model
from serve_apps.engine_model.cost import architecture, links


@dataclass(slots=True)
class Batch:
    """Work of one step, summed over its requests.

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


class Roofline(NamedTuple):
    """Seconds of one replica per unit of work; `expert_miss` is the chance that a token avoids an expert.

    `expert_read_s` reads all experts; where every GPU has some of its own, `expert_skew_s` is what the
    fullest one adds (`_expert_skew`). The first `prefill_rise_tokens` prefill tokens of a step cost
    `prefill_rise_s` more in all. Steps of at least `quick_reduce_tokens` tokens pay `quick_reduce_token_s`
    for their all-reduces.
    """

    launch_s: float = 0.0
    weight_read_s: float = 0.0
    expert_read_s: float = 0.0
    expert_miss: float = 0.0
    decode_gemm_token_s: float = 0.0
    prefill_gemm_token_s: float = 0.0
    all_reduce_token_s: float = 0.0
    context_token_s: float = 0.0
    attention_pair_s: float = 0.0
    host_sequence_s: float = 0.0
    prefill_rise_s: float = 0.0
    prefill_rise_tokens: float = 1.0
    quick_reduce_token_s: float = 0.0
    quick_reduce_tokens: float = math.inf
    expert_skew_s: float = 0.0

    def duration_s(self, batch: Batch) -> float:
        """Seconds of the step: the sum of its terms."""
        return total_s(self.terms(batch))

    def terms(self, batch: Batch) -> tuple[float, ...]:
        """The additive step time, term by term."""
        return step_terms(self, *astuple(batch))

    def scaled(self, factor: float) -> "Roofline":
        """The same step, with all its times multiplied."""
        times = {name: value * factor for name, value in self._asdict().items() if name.endswith("_s")}
        return self._replace(**times)

    def with_kernels(self, ratio: KernelRatio | None) -> "Roofline":
        """The step time with another release or other kernels than those of the fit."""
        if ratio is None:
            return self
        changed = self._replace(
            launch_s=self.launch_s * ratio.launch.value,
            context_token_s=self.context_token_s * ratio.kv_read.value,
            attention_pair_s=self.attention_pair_s * ratio.attention.value,
        )
        return changed.scaled(ratio.step.value)


def step_terms(
    costs: tuple[float, ...],
    decode_tokens: int,
    prefill_tokens: int,
    context_tokens: int,
    attention_pairs: float,
    sequences: int,
) -> tuple[float, ...]:
    """Seconds of a step by what they are spent on; of plain numbers, so that numba can compile it.

    They are launch, weight read, expert read, GEMM of decode and of prefill tokens, what the first prefill
    tokens cost more, all-reduce, KV read, attention and host. `costs` are those of `Roofline`.
    Experts are read as the tokens touch them, on the GPU that reads most. The linear layers of prefill tokens
    go down from decode's marginal cost to prefill's.
    """
    launch, weights, experts, miss, decode, prefill, reduce, read, pair, host = costs[:10]
    rise, rise_tokens, quick_reduce, quick_tokens, skew = costs[10:]
    tokens = decode_tokens + prefill_tokens
    missed = miss**tokens
    return (
        launch,
        weights,
        min(experts, experts * (1 - missed) + skew * math.sqrt(missed * (1 - missed))),
        decode * decode_tokens,
        prefill * prefill_tokens,
        rise * (1 - math.exp(-prefill_tokens / rise_tokens)) if prefill_tokens else 0.0,
        (reduce if tokens < quick_tokens else quick_reduce) * tokens,
        read * context_tokens,
        pair * attention_pairs,
        host * sequences,
    )


def total_s(terms: tuple[float, ...]) -> float:
    """The sum of the terms, in their order; compiled too, so that both engines agree to the last digit."""
    launch, weights, experts, decode, prefill, rise, reduce, read, pair, host = terms
    return launch + weights + experts + decode + prefill + rise + reduce + read + pair + host


def roofline(
    model: Model, hardware: Hardware, layout: Layout, kernels: KernelRatio | None = None
) -> Roofline:
    """The step time of `model` on one replica of `layout`, with other attention `kernels` than the fit's.

    Where the layout has data-parallel ranks, all have equal shares of the step's work
    (`ranks_time` has each with its own). Raises ValueError when a figure of the hardware that is needed is
    unknown, or its GPUs cannot do what the layout asks.
    """
    if layout.data_parallel > 1:
        return ranks_time(model, hardware, layout, kernels).balanced
    gpus = layout.tensor_parallel
    hardware, pace = _at_pace(model, hardware)
    constants, reached = model.step_time, hardware.efficiency
    bandwidth = gpus * hardware.hbm_bytes_per_s
    read_bytes = architecture.step_bytes_per_gpu(model, gpus)
    gemm_s = _gemm_token_s(model, hardware, layout)
    decode_s, prefill_s = gemm_s / constants.gemm_decode.value, gemm_s / constants.gemm_prefill.value
    rise_tokens = constants.gemm_rise_tokens.value
    mixed_s = model.layers * constants.prefill_layer_us.value * 1e-6
    expert_read_s = architecture.routed_bytes(model) / (bandwidth * constants.expert_read.value)
    quick_bytes, quick_tokens = links.quick_reduce(model, hardware, layout)
    roof = Roofline(
        launch_s=constants.step_ms.value * 1e-3 + model.layers * constants.layer_us.value * 1e-6,
        weight_read_s=read_bytes / (hardware.hbm_bytes_per_s * reached.hbm.value),
        expert_read_s=expert_read_s,
        expert_miss=_expert_miss(model),
        decode_gemm_token_s=decode_s,
        prefill_gemm_token_s=prefill_s + constants.prefill_token_us.value * 1e-6 / pace,
        all_reduce_token_s=links.all_reduce_token_s(model, hardware, gpus, links.ACTIVATION_BYTES),
        context_token_s=architecture.kv_bytes_per_token(model, gpus)
        / (hardware.hbm_bytes_per_s * reached.kv_read.value),
        attention_pair_s=_pair_s(model, hardware, gpus) / reached.attention.value,
        host_sequence_s=constants.host_per_sequence_us.value * 1e-6,
        prefill_rise_s=(decode_s - prefill_s) * rise_tokens + mixed_s,
        prefill_rise_tokens=rise_tokens or 1.0,
        quick_reduce_token_s=links.all_reduce_token_s(model, hardware, gpus, quick_bytes),
        quick_reduce_tokens=quick_tokens,
        expert_skew_s=expert_read_s * _expert_skew(model, layout),
    )
    scale = constants.deployment_scale.value * constants.layout_scale.value
    return roof.scaled(scale).with_kernels(kernels)


@dataclass(frozen=True)
class RanksTime:
    """Step time of data-parallel ranks that step together: each rank's `own` part and the `shared` experts.

    A step lasts as long as its slowest rank's own part and the experts of all ranks' tokens. A rank without
    work computes one token (vLLM, DPEngineCoreProc.execute_dummy_batch).
    """

    own: Roofline
    shared: Roofline
    ranks: int

    @property
    def balanced(self) -> Roofline:
        """The step time by the work of all ranks together, of which each has an equal share."""
        own, shared, ranks = self.own, self.shared, self.ranks
        per_unit = (
            *("decode_gemm_token_s", "prefill_gemm_token_s", "all_reduce_token_s", "context_token_s"),
            *("attention_pair_s", "host_sequence_s", "quick_reduce_token_s"),
        )
        each = {name: getattr(own, name) / ranks + getattr(shared, name) for name in per_unit}
        # The rise of the shared part is over sooner, by tokens; it is the smaller one and drawn out here.
        return own._replace(
            **each,
            expert_read_s=shared.expert_read_s,
            expert_miss=shared.expert_miss,
            expert_skew_s=shared.expert_skew_s,
            prefill_rise_s=own.prefill_rise_s + shared.prefill_rise_s,
            prefill_rise_tokens=own.prefill_rise_tokens * ranks,
            quick_reduce_tokens=own.quick_reduce_tokens * ranks,
        )


def ranks_time(
    model: Model, hardware: Hardware, layout: Layout, kernels: KernelRatio | None = None
) -> RanksTime:
    """The step time of a replica of data-parallel ranks. Raises ValueError as `roofline` does."""
    if not model.experts:
        raise ValueError(
            f"layout {layout.name}: data_parallel={layout.data_parallel} is for models with experts; vLLM "
            f"runs the ranks of {model.name} as engines of their own: use layout.replicas_per_node"
        )
    if layout.quick_reduce != "none":
        raise ValueError(
            f"layout.quick_reduce={layout.quick_reduce} is not modelled between data-parallel ranks; set "
            "layout.quick_reduce=none"
        )
    rank, all_gpus = replace(layout, data_parallel=1), layout.gpus_per_replica
    plain, constants = roofline(model, hardware, rank), model.step_time
    hardware, pace = _at_pace(model, hardware)
    scale = constants.deployment_scale.value * constants.layout_scale.value
    reads = architecture.routed_bytes(model) / (all_gpus * hardware.hbm_bytes_per_s)
    expert_read_s = scale * reads / constants.expert_read.value
    decode_s, prefill_s, own_decode_s, own_prefill_s = (
        scale * peak_s / efficiency.value
        for peak_s in (
            _routed_token_s(model, hardware, layout),
            _gemm_token_s(model, hardware, rank) - _routed_token_s(model, hardware, rank),
        )
        for efficiency in (constants.gemm_decode, constants.gemm_prefill)
    )
    rise_tokens = constants.gemm_rise_tokens.value
    token_s = scale * constants.prefill_token_us.value * 1e-6 / pace
    mixed_s = scale * model.layers * constants.prefill_layer_us.value * 1e-6
    own = plain._replace(
        expert_read_s=0.0,
        expert_skew_s=0.0,
        decode_gemm_token_s=own_decode_s,
        prefill_gemm_token_s=own_prefill_s + token_s,
        prefill_rise_s=(own_decode_s - own_prefill_s) * rise_tokens + mixed_s,
        all_reduce_token_s=scale * links.ranks_exchange_s(model, hardware, layout),
    )
    shared = Roofline(
        expert_read_s=expert_read_s,
        expert_miss=plain.expert_miss,
        expert_skew_s=expert_read_s * _expert_skew(model, layout),
        decode_gemm_token_s=decode_s,
        prefill_gemm_token_s=prefill_s,
        prefill_rise_s=(decode_s - prefill_s) * rise_tokens,
        prefill_rise_tokens=plain.prefill_rise_tokens,
    )
    return RanksTime(own.with_kernels(kernels), shared.with_kernels(kernels), layout.data_parallel)


def _at_pace(model: Model, hardware: Hardware) -> tuple[Hardware, float]:
    """The hardware with its peaks at the pace of its clocks, and that pace: 1 where the model was fitted."""
    fit = model.posterior
    own = 1.0 if hardware.name in fit.hardware[:1] else hardware.efficiency.compute.value
    pace = fit.paces.get(hardware.name, own)
    peaks = {
        name: peak * pace
        for name in ("fp8_flop_per_s", "bf16_flop_per_s")
        if (peak := getattr(hardware, name)) is not None
    }
    return replace(hardware, **peaks), pace


def _gemm_token_s(model: Model, hardware: Hardware, layout: Layout) -> float:
    """Linear layers of one token, each at the peak of its weights' type; int4 weights compute in bf16."""
    peak, gpus = _peak(model, hardware), layout.tensor_parallel
    routed, fullest = _routed_flop(model, layout, gpus)
    flop = architecture.linear_flop_per_gpu(model, gpus) - routed + fullest
    kept = architecture.bf16_flop_per_gpu(model, gpus) if model.weights == "fp8" else 0.0
    slower = kept / links.figure(hardware, "bf16_flop_per_s") - kept / peak if kept else 0.0
    return flop / peak + slower


def _routed_token_s(model: Model, hardware: Hardware, layout: Layout) -> float:
    """The routed experts' part of `_gemm_token_s`, of a token of any rank, on the fullest GPU of all."""
    return _routed_flop(model, layout, layout.gpus_per_replica)[1] / _peak(model, hardware)


def _peak(model: Model, hardware: Hardware) -> float:
    return links.figure(hardware, "fp8_flop_per_s" if model.weights == "fp8" else "bf16_flop_per_s")


def _routed_flop(model: Model, layout: Layout, gpus: int) -> tuple[float, float]:
    """Products of a token with routed experts, of each GPU on average and of the fullest one.

    Without expert parallelism each holds a slice of all experts.
    """
    mean = 2 * architecture.picked_parameters(model) / gpus
    return mean, mean * (model.step_time.expert_imbalance.value if layout.expert_parallel else 1.0)


def _pair_s(model: Model, hardware: Hardware, gpus: int) -> float:
    """Attention of one pair at the BF16 peak, and the indexer's score of it at the FP8 peak."""
    peak = gpus * links.figure(hardware, "bf16_flop_per_s")
    attention_s = architecture.attention_flop_per_pair(model) / peak
    if not model.index_heads:
        return attention_s
    return attention_s + architecture.index_flop_per_pair(model) / links.figure(hardware, "fp8_flop_per_s")


def _expert_miss(model: Model) -> float:
    """Chance that one token avoids one expert; tokens of equal prompts route alike and so count as fewer."""
    if not model.experts:
        return 0.0
    chance: float = (1 - model.experts_per_token / model.experts) ** model.step_time.expert_spread.value
    return chance


def _expert_skew(model: Model, layout: Layout) -> float:
    """Factor of the extra experts that the fullest GPU reads, times sd over mean of the touched share.

    The touched ones among the experts of a GPU are taken as binomial, and the fullest of g GPUs as the
    largest of g normals (Blom's approximation). Drawn with uniform routing of Qwen3's 8 of 128 experts over 8
    GPUs the fullest reads 2.48, 1.26 and 1.02 times the mean at 1, 16 and 64 tokens; by this it is 2.4, 1.27
    and 1.02.
    """
    gpus = layout.gpus_per_replica
    if not (layout.expert_parallel and model.experts and gpus > 1):
        return 0.0
    return NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25)) / math.sqrt(model.experts / gpus)


def forward_s(model: Model, hardware: Hardware, layout: Layout, batch: Batch) -> float:
    """Seconds of the layers of one step, as `vllm bench forward` times them.

    Left out of the step time are its fixed part, the read of the output projection, and the host. Raises
    ValueError as `roofline` does.
    """
    cost, constants = roofline(model, hardware, layout), model.step_time
    scale = constants.deployment_scale.value * constants.layout_scale.value
    head_bytes = 2.0 * model.vocab * model.hidden / layout.tensor_parallel
    head_s = scale * head_bytes / (hardware.hbm_bytes_per_s * hardware.efficiency.hbm.value)
    terms = cost.terms(batch)
    return total_s(terms) - scale * constants.step_ms.value * 1e-3 - head_s - terms[-1]
