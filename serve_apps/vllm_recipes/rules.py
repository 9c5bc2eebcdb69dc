"""Refusals and notes for a real vLLM by the rules of rules.yaml, and the facts of a deployment in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conf.specs.experiment import Layout, Model, VllmEngine
from conf.specs.rules import broken_rules, check_rules
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
    def decode_tp(self) -> int:
        return (self.split or self.layout).tensor_parallel

    @property
    def prefill_tp(self) -> int:
        """GPUs of a prefill engine; those of a decode engine if one engine does both."""
        whole = self.split or self.layout
        return (whole.prefill_side or whole).tensor_parallel

    @property
    def wider_tp(self) -> int:
        return max(self.prefill_tp, self.decode_tp)

    @property
    def narrower_tp(self) -> int:
        return min(self.prefill_tp, self.decode_tp)

    @property
    def has_own_connector(self) -> bool:
        """True if the user's words say, or take away, what the layout says of the connector."""
        return (
            bool({"kv_connector", "kv_role"} & self.own_transfer.keys()) or "read_mode" in self.extra_transfer
        )

    @property
    def has_shared_ports(self) -> bool:
        ports = {"handshake_port", "notify_port", "http_port"}
        return "VLLM_NIXL_SIDE_CHANNEL_PORT" in self.env or bool(ports & self.extra_transfer.keys())

    @property
    def is_cut(self) -> bool:
        return self.tp > 1 or self.layout.expert_parallel

    @property
    def has_other_tp(self) -> bool:
        return bool(self.args.get("tensor_parallel_size", 1) != self.tp)

    @property
    def has_other_ep(self) -> bool:
        return self.has("enable_expert_parallel") != self.layout.expert_parallel

    @property
    def has_other_ranks(self) -> bool:
        """True if arguments say of data-parallel ranks what the layout does not."""
        own = {name for name in self.args if name.startswith("data_parallel")}
        ranks = self.args.get("data_parallel_size", 1)
        return ranks != self.layout.data_parallel or bool(
            own - {"data_parallel_size", "data_parallel_backend"}
        )

    @property
    def has_odd_blocks(self) -> bool:
        """True for a size of KV blocks that AMD's attention kernels do not take."""
        size = self.number("block_size", 16)
        return size % 16 != 0 if self.is_refined else size not in (16, 32)

    @property
    def is_early(self) -> bool:
        return self.version <= PAPER

    @property
    def is_refined(self) -> bool:
        return self.version >= REFINED

    @property
    def knows_moriio(self) -> bool:
        return self.version >= MORIIO

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
    def on_amd(self) -> bool:
        return self.amd and self.engine.kind != "vllm_cpu"

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
    def no_numbers(self) -> list[str]:
        """Arguments that should be numbers and are something else, as 32k is text."""
        return [name for name in NUMBERS if type(self.args.get(name, 0)) not in (int, float)]

    def number(self, name: str, otherwise: float) -> float:
        """An argument that is a number; `otherwise` if vLLM chooses it."""
        value = self.args.get(name)
        return value if isinstance(value, (int, float)) else otherwise

    @property
    def family(self) -> str:
        """Names of the model, which say its family where its architecture does not show it."""
        return f"{self.model.name} {self.model.served_name}".lower()


RULES = Path(__file__).with_suffix(".yaml")


def refuse(deployment: VllmDeployment) -> None:
    """Raise ValueError with the first contradiction in one line: what, why and the remedy."""
    check_rules(deployment, RULES, "refused")
    lines = vllm_flags.rejected(deployment.args, deployment.version)
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
    return ignored + newer + list(broken_rules(deployment, RULES, "noted"))


def is_on(value: str) -> bool:
    """True for a switch that vLLM reads as on."""
    return value.strip().lower() in ("1", "true")


def backend_of(deployment: VllmDeployment) -> str:
    """vLLM's name of the attention backend, or `UNNAMED`; empty if the engine model has no figure for it.

    It has none for latent attention, GPUs of another maker and a CPU. Up to 0.14.1 the environment chooses
    (rocm.py of 0.14); from 0.29 on ROCM_ATTN is the default; versions between are unchecked.
    """
    early = deployment.is_early
    named = deployment.args.get("attention_backend") or (
        early and deployment.env.get("VLLM_ATTENTION_BACKEND")
    )
    if named:
        return str(named).upper()
    if deployment.mla or not deployment.on_amd:
        return ""
    if deployment.is_refined:
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
