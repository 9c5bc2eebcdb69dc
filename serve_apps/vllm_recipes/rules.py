"""Refusals and notes for a real vLLM by the rules of rules.yaml, and the facts of a deployment in them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from conf.io import bounded_yaml
from conf.specs.experiment import Layout, Model, VllmEngine
from serve_apps.vllm_recipes import vllm_flags
from serve_apps.vllm_recipes.vllm_flags import Version, text

FP8_BLOCK = 128
"""Width of a block of the FP8 checkpoints of Qwen3 and DeepSeek: config.json, weight_block_size."""

PAPER: Version = (0, 14, 1)
REFINED: Version = (0, 29, 0)
"""From here on FP8 blocks are refined and MLA heads padded, by its source; versions between are unchecked."""
MORIIO: Version = (0, 15, 0)
"""The first version whose documentation lists the connector; older ones were not read for it."""
EXTRA = "kv_connector_extra_config"

UNNAMED = "of vLLM's own choice"
NUMBERS = ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size", "gpu_memory_utilization")


@dataclass(frozen=True, slots=True)
class VllmDeployment:
    """One engine of an experiment with its resolved arguments and environment, on AMD GPUs if `amd`.

    Of a split layout (`split`) it is an engine of one side, which is then `layout`, and `own_transfer` are
    the user's words on the transfer of KV. `deployed` is false for commands that a person starts.
    """

    engine: VllmEngine
    model: Model
    layout: Layout
    version: Version
    args: Mapping[str, Any]
    env: Mapping[str, str]
    amd: bool = True
    split: Layout | None = None
    own_transfer: Mapping[str, Any] = field(default_factory=dict)
    deployed: bool = True

    @property
    def moriio(self) -> bool:
        return self.split is not None and self.split.connector == "moriio"

    @property
    def nixl(self) -> bool:
        return self.split is not None and self.split.connector == "nixl"

    @property
    def extra_transfer(self) -> Mapping[str, Any]:
        """The user's words on the connector's own settings."""
        return self.own_transfer.get(EXTRA) or {}

    @property
    def tps(self) -> tuple[int, int]:
        """GPUs of a prefill engine and of a decode engine; twice the same if one engine does both."""
        whole = self.split or self.layout
        return (whole.prefill_side or whole).tensor_parallel, whole.tensor_parallel

    @property
    def tp(self) -> int:
        return self.layout.tensor_parallel

    @property
    def ep(self) -> int:
        """GPUs over which experts are spread or cut: those of all data-parallel ranks."""
        return self.layout.gpus_per_replica

    @property
    def vllm(self) -> str:
        return f"vLLM {text(self.version)}"

    @property
    def mla(self) -> bool:
        return self.model.kv_lora_rank > 0

    @property
    def aiter(self) -> bool:
        """True if AMD's AITER kernels are deployment for; vLLM's default is 0."""
        return self.amd and is_on(self.env.get("VLLM_ROCM_USE_AITER", "0"))

    @property
    def aiter_mla(self) -> bool:
        return self.aiter and self.mla and is_on(self.env.get("VLLM_ROCM_USE_AITER_MLA", "1"))

    @property
    def offloads(self) -> bool:
        return self.has("kv_offloading_backend") or self.has("kv_offloading_size")

    @property
    def heads_per_gpu(self) -> float:
        return self.model.heads / self.tp

    @property
    def expert_columns(self) -> float:
        """Width of the part of an expert on each GPU."""
        return self.model.expert_intermediate / (1 if self.layout.expert_parallel else self.ep)

    @property
    def cuts_fp8_blocks(self) -> bool:
        """True if experts in FP8 are split within a block, whose one scale then belongs to two GPUs."""
        fp8_experts = self.model.experts > 0 and self.model.weights == "fp8"
        return fp8_experts and self.expert_columns % FP8_BLOCK != 0

    @property
    def checkpoint(self) -> str:
        """Quantisation by config.json of the published checkpoint; empty if that is unknown.

        The weights of a named folder may have been quantised again.
        """
        if self.engine.model_path:
            return ""
        if self.model.weights == "int4_experts":
            return "compressed-tensors"
        if self.model.weights != "fp8":
            return ""
        return "fbgemm_fp8" if self.model.served_name.startswith("meta-llama/") else "fp8"

    @property
    def quantised_otherwise(self) -> bool:
        """True if the FP8 quantisation that is deployment for is not the checkpoint's."""
        deployment = str(self.args.get("quantization"))
        return bool(self.checkpoint) and deployment.startswith("fp8") and deployment != self.checkpoint

    @property
    def kv_copies(self) -> float:
        """Copies of the same KV on the GPUs of a replica; each of them has the whole of a latent one."""
        return self.tp if self.mla else max(1.0, self.tp / self.model.kv_heads)

    @property
    def unknown_variables(self) -> list[str]:
        return vllm_flags.unknown_variables(self.env, self.version)

    def has(self, name: str) -> bool:
        return self.args.get(name) not in (None, False)

    @property
    def forced_executor(self) -> str:
        """The only executor that Ray's LLM library takes: vllm_models.py of ray 2.60."""
        return "ray" if self.engine.kind == "vllm" else "mp"

    @property
    def texts(self) -> list[str]:
        """Arguments that are text and should be numbers."""
        return [name for name in NUMBERS if isinstance(self.args.get(name), str)]

    def number(self, name: str, otherwise: float) -> float:
        """An argument that is a number; `otherwise` if vLLM chooses it."""
        value = self.args.get(name)
        return value if isinstance(value, (int, float)) else otherwise

    def is_a(self, name: str) -> bool:
        """True for a model of this family, which its architecture does not show."""
        return name in f"{self.model.name} {self.model.served_name}".lower()


Condition = Callable[[VllmDeployment], object]
"""True for a deployment to which a rule applies."""
REFUSED: Mapping[str, Condition] = {
    "split-process": lambda d: d.split is not None and d.deployed and d.engine.server == "process",
    "split-published": lambda d: d.split is not None and d.engine.recipe == "published",
    "moriio-amd": lambda d: d.moriio and (not d.amd or d.engine.kind == "vllm_cpu"),
    "moriio-version": lambda d: d.moriio and d.version < MORIIO,
    "moriio-prefix-cache": lambda d: d.moriio and d.args.get("enable_prefix_caching") is not False,
    "tp-multiple": lambda d: d.split is not None and max(d.tps) % min(d.tps) != 0,
    "moriio-tp": lambda d: d.moriio and len(set(d.tps)) > 1 and not d.mla and min(d.tps) < d.model.kv_heads,
    "nixl-tp": lambda d: d.nixl and d.tps[0] > d.tps[1] and not d.mla and d.tps[0] > d.model.kv_heads,
    "split-offload": lambda d: d.split is not None and d.offloads,
    "own-connector": lambda d: (
        d.split is not None
        and (
            "kv_connector" in d.own_transfer or "kv_role" in d.own_transfer or "read_mode" in d.extra_transfer
        )
    ),
    "shared-ports": lambda d: (
        d.split is not None
        and (
            "VLLM_NIXL_SIDE_CHANNEL_PORT" in d.env
            or any(name in d.extra_transfer for name in ("handshake_port", "notify_port", "http_port"))
        )
    ),
    "cpu-one-device": lambda d: d.engine.kind == "vllm_cpu" and (d.tp > 1 or d.layout.expert_parallel),
    "heads": lambda d: d.model.heads % d.tp != 0,
    "layout-tp": lambda d: d.args.get("tensor_parallel_size", 1) != d.tp,
    "layout-ep": lambda d: d.has("enable_expert_parallel") != d.layout.expert_parallel,
    "data-parallel-dense": lambda d: d.layout.data_parallel > 1 and not d.model.experts,
    "data-parallel-cpu": lambda d: d.layout.data_parallel > 1 and d.engine.kind == "vllm_cpu",
    "data-parallel-emulated": lambda d: d.layout.data_parallel > 1 and d.engine.kind == "vllm_emulated",
    "data-parallel": lambda d: (
        d.args.get("data_parallel_size", 1) != d.layout.data_parallel
        or any(
            name.startswith("data_parallel") and name not in ("data_parallel_size", "data_parallel_backend")
            for name in d.args
        )
    ),
    "more-gpus": lambda d: (
        d.args.get("pipeline_parallel_size", 1) != 1 or d.args.get("prefill_context_parallel_size", 1) != 1
    ),
    "fp8-blocks": lambda d: d.cuts_fp8_blocks and d.version < REFINED,
    "mla-fp8-kv": lambda d: d.mla and str(d.args.get("kv_cache_dtype")).startswith("fp8"),
    "mla-offload": lambda d: d.mla and d.offloads and d.version <= PAPER,
    "kimi-aiter": lambda d: d.aiter and d.is_a("kimi-k2.5"),
    "aiter-mla-heads": lambda d: d.aiter_mla and d.heads_per_gpu not in (16, 128) and d.version < REFINED,
    "aiter-mla-block": lambda d: d.aiter_mla and d.version <= PAPER and d.args.get("block_size") != 1,
    "rocm-block-size": lambda d: (
        d.args.get("attention_backend") in ("ROCM_AITER_FA", "ROCM_ATTN")
        and (
            d.number("block_size", 16) % 16 != 0
            if d.version >= REFINED
            else d.number("block_size", 16) not in (16, 32)
        )
    ),
    "vision-fp8": lambda d: (
        "fp8" in str(d.args.get("quantization")) and d.model.weights == "bf16" and d.is_a("qwen3-vl")
    ),
    "quantised-otherwise": lambda d: d.quantised_otherwise and d.version >= REFINED,
    "fbgemm-deprecated": lambda d: (
        d.checkpoint == "fbgemm_fp8" and d.version >= REFINED and not d.has("allow_deprecated_quantization")
    ),
    "executor": lambda d: (
        d.engine.server == "ray_llm"
        and d.args.get("distributed_executor_backend", d.forced_executor) != d.forced_executor
    ),
    "accelerator-type": lambda d: d.engine.kind != "vllm" and bool(d.engine.accelerator_type),
    "ours-to-set": lambda d: any(
        d.has(name) for name in ("model", "model_tag", "served_model_name", "host", "port", "uds")
    ),
    "plain-numbers": lambda d: bool(d.texts),
    "metrics-on": lambda d: d.has("disable_log_stats"),
    "rocr-alone": lambda d: "ROCR_VISIBLE_DEVICES" in d.env and "HIP_VISIBLE_DEVICES" not in d.env,
    "hip-cuda-differ": lambda d: (
        "HIP_VISIBLE_DEVICES" in d.env
        and d.env.get("CUDA_VISIBLE_DEVICES", d.env["HIP_VISIBLE_DEVICES"]) != d.env["HIP_VISIBLE_DEVICES"]
    ),
    "devices-shared": lambda d: (
        d.layout.replicas_per_node > 1
        and any(f"{maker}_VISIBLE_DEVICES" in d.env for maker in ("HIP", "CUDA", "ROCR"))
    ),
    "unknown-variable": lambda d: d.has("fail_on_environ_validation") and bool(d.unknown_variables),
    "step-budget": lambda d: d.number("max_num_batched_tokens", float("inf")) < d.number("max_num_seqs", 0),
    "context": lambda d: d.number("max_model_len", 0) > d.model.max_context_tokens,
}
NOTED: Mapping[str, Condition] = {
    "fp8-blocks-refined": lambda d: d.cuts_fp8_blocks and d.version >= REFINED,
    "kv-duplicated": lambda d: d.kv_copies > 1,
    "mla-offload-unchecked": lambda d: d.mla and d.offloads and d.version > PAPER,
    "deepseek-vskip": lambda d: d.aiter and d.is_a("deepseek") and d.env.get("AITER_ENABLE_VSKIP") != "0",
    "quantised-otherwise-unchecked": lambda d: d.quantised_otherwise and d.version < REFINED,
    "kimi-remote-code": lambda d: d.is_a("kimi-k2.5") and not d.has("trust_remote_code"),
    "fp8-redundant": lambda d: d.args.get("quantization") == "fp8" and d.checkpoint == "fp8",
    "attention-default": lambda d: (
        d.aiter and not d.mla and not d.has("attention_backend") and d.version >= REFINED
    ),
    "moriio-rdma": lambda d: d.moriio and "backend" not in d.extra_transfer and d.engine.kind == "vllm",
    "nixl-rocm": lambda d: d.nixl and d.amd and d.engine.kind == "vllm",
}


@cache
def texts() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """The `message` and the `source` of each rule by its name, of those `refused` and of those `noted`."""
    tree: Mapping[str, Any] = bounded_yaml.read(Path(__file__).with_suffix(".yaml").read_text())
    return tree


def messages(kind: Literal["refused", "noted"], deployment: VllmDeployment) -> list[str]:
    """The messages of the rules of a kind that apply to a deployment."""
    facts = {name: getattr(deployment, name) for name in dir(deployment) if not name.startswith("_")}
    conditions = REFUSED if kind == "refused" else NOTED
    applying = (name for name, when in conditions.items() if when(deployment))
    return [texts()[kind][name]["message"].format_map(facts) for name in applying]


def refuse(deployment: VllmDeployment) -> None:
    """Raise ValueError with the first contradiction in one line: what, why and the remedy."""
    lines = messages("refused", deployment)
    lines += vllm_flags.rejected(deployment.args, deployment.version)
    lines += filter(None, [vllm_flags.misspelt(deployment.args, deployment.version)])
    if lines:
        raise ValueError(lines[0])


def notes(deployment: VllmDeployment) -> list[str]:
    """Lines about a deployment that is served nevertheless."""
    ignored = vllm_flags.ignored(deployment.args, deployment.env, deployment.version)
    read = vllm_flags.text(vllm_flags.NEWEST_READ)
    newer = [
        f"engine.args.{name} is no argument of vLLM {read}, the newest that was read: vLLM's parser judges it"
        for name in vllm_flags.unread(deployment.args)
    ]
    return ignored + newer + messages("noted", deployment)


def is_on(value: str) -> bool:
    """True for a switch that vLLM reads as on."""
    return value.strip().lower() in ("1", "true")


def backend_of(deployment: VllmDeployment) -> str:
    """vLLM's name of the attention backend, or `UNNAMED`; empty if the engine model has no figure for it.

    It has none for latent attention, GPUs of another maker and a CPU. Up to 0.14.1 the environment chooses
    (rocm.py of 0.14); from 0.29 on ROCM_ATTN is the default; versions between are unchecked.
    """
    early = deployment.version <= PAPER
    named = deployment.args.get("attention_backend") or (
        early and deployment.env.get("VLLM_ATTENTION_BACKEND")
    )
    if named:
        return str(named).upper()
    if deployment.mla or not deployment.amd or deployment.engine.kind == "vllm_cpu":
        return ""
    if deployment.version >= REFINED:
        return "ROCM_ATTN"
    if not early:
        return UNNAMED

    def chosen(name: str, otherwise: str) -> bool:
        return is_on(deployment.env.get(name, otherwise))

    if deployment.aiter and chosen("VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION", "0"):
        return "ROCM_AITER_UNIFIED_ATTN"
    if deployment.aiter and chosen("VLLM_ROCM_USE_AITER_MHA", "1"):
        return "ROCM_AITER_FA"
    return "ROCM_ATTN" if chosen("VLLM_V1_USE_PREFILL_DECODE_ATTENTION", "0") else "TRITON_ATTN"
