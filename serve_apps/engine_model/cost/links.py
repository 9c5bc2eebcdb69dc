"""The time of what goes over links: all-reduces, the exchange of ranks, and a prompt's KV between engines."""

import math
from dataclasses import dataclass

from conf.specs.experiment import Hardware, Layout, Model
from serve_apps.engine_model.cost import architecture

ACTIVATION_BYTES = 2
"""All-reduces carry bf16."""
_CODEC_BYTES = {"int8": 2176 / 2048, "int6": 1664 / 2048, "int4": 1152 / 2048}
"""Bytes of a value in quick reduce: the tile of 2048 values of each codec, scales included
(vLLM csrc/quickreduce/quick_reduce_impl.cuh, kRankTileStride)."""
_MIB = 2**20
_QUICK_MIN_BYTES = {
    2: {"int8": 2 * _MIB, "int6": 2 * _MIB, "int4": 1 * _MIB},
    4: {"int8": 16 * _MIB, "int6": 4 * _MIB, "int4": 2 * _MIB},
    8: {"int8": 4 * _MIB, "int6": 4 * _MIB, "int4": 2 * _MIB},
}
"""Smallest message quick reduce takes over, by GPUs and codec, cast to fp16 as by default (vLLM
vllm/distributed/device_communicators/quick_all_reduce.py, _QR_MIN_SIZE)."""


def quick_reduce(model: Model, hardware: Hardware, layout: Layout) -> tuple[float, float]:
    """Bytes of a value in the layout's quick reduce, and the tokens of its smallest message."""
    gpus = layout.tensor_parallel
    if layout.quick_reduce == "none" or gpus == 1:
        return ACTIVATION_BYTES, math.inf
    if hardware.topology != "mesh" or gpus not in _QUICK_MIN_BYTES:
        raise ValueError(
            f"layout.quick_reduce={layout.quick_reduce} is for 2, 4 or 8 GPUs in an xGMI mesh, not TP{gpus} "
            f"on {hardware.name}; set layout.quick_reduce=none"
        )
    smallest = _QUICK_MIN_BYTES[gpus][layout.quick_reduce]
    return _CODEC_BYTES[layout.quick_reduce], math.ceil(smallest / (model.hidden * ACTIVATION_BYTES))


def all_reduce_token_s(model: Model, hardware: Hardware, gpus: int, value_bytes: float) -> float:
    """Two two-shot all-reduces per layer.

    In a mesh each shot sends a `gpus`-th of the activations over every link to a peer; behind a
    switch one link carries the shares of all peers.
    """
    if gpus == 1:
        return 0.0
    shares, link = _way(hardware, gpus)
    shot_bytes = model.hidden * value_bytes / gpus * shares
    return model.layers * 2 * 2 * shot_bytes / link


def ranks_exchange_s(model: Model, hardware: Hardware, layout: Layout) -> float:
    """The time in which the GPUs of a rank send one token of its own; none of it is hidden: assumed.

    Attention, and the FFN of a dense layer, end in an all-reduce within the rank. A layer of experts gathers
    the tokens of all ranks and scatters the sums; then the GPUs of a rank gather theirs.
    """
    width, every = layout.tensor_parallel, layout.gpus_per_replica
    sparse = architecture.expert_layers(model)
    within = _shot_token_s(model, hardware, width, width) if width > 1 else 0.0
    among = _shot_token_s(model, hardware, width, every)
    within_shots = 3 if layout.data_parallel > 1 else 2
    return (model.layers - sparse) * 4 * within + sparse * (within_shots * within + 2 * among)


def _shot_token_s(model: Model, hardware: Hardware, width: int, gpus: int) -> float:
    """One GPU's `width`-th of a token's activations to each of the other `gpus`."""
    shares, link = _way(hardware, gpus)
    return model.hidden * ACTIVATION_BYTES / width * shares / link


def _way(hardware: Hardware, gpus: int) -> tuple[int, float]:
    """The shares of peers that one link carries, and its bytes per second. Raises ValueError for too many."""
    mesh, most = hardware.topology == "mesh", hardware.links
    if mesh and gpus - 1 > most:
        raise ValueError(
            f"{gpus} GPUs need a link to each of {gpus - 1} peers but {hardware.name} has {most}; choose a "
            f"replica of at most {most + 1} GPUs"
        )
    return 1 if mesh else gpus - 1, figure(hardware, "link_bytes_per_s") * hardware.efficiency.link.value


def figure(hardware: Hardware, name: str) -> float:
    """A figure of the hardware; ValueError where it is unknown."""
    value: float | None = getattr(hardware, name)
    if value is None:
        raise ValueError(f"hardware {hardware.name}: {name} is unknown; set hardware.{name}=...")
    return value


@dataclass(frozen=True, slots=True)
class TransferSeconds:
    """Seconds that a transfer works per token, and its latency, which delays no other transfer.

    `last_share` of a prompt's work is left at least when the prompt is computed: less than all of it where KV
    flows layer by layer.
    """

    per_token_s: float
    latency_s: float
    last_share: float = 1.0

    @classmethod
    def of(cls, model: Model, layout: Layout) -> "TransferSeconds":
        """The seconds of a split layout, each GPU of whose narrower side moves its part; else ValueError."""
        if layout.prefill is None:
            raise ValueError(f"layout {layout.name} has no prefill engines: no KV is transferred")
        narrower = min(layout.tensor_parallel, layout.prefill.tensor_parallel)
        bytes_per_token = architecture.kv_bytes_per_token(model, narrower)
        per_token_s = bytes_per_token / layout.transfer.gpu_bytes_per_s.value
        last_share = 1 / model.layers if layout.transfer_mode == "write" else 1.0
        return cls(per_token_s, layout.transfer.latency_ms.value * 1e-3, last_share)

    def work_s(self, tokens: int) -> float:
        """Time for which the KV of so many tokens occupies the link."""
        return tokens * self.per_token_s


def link_free_s(
    free_s: float, work_s: float, last_share: float, begun_s: float, computed_s: float, taken_s: float
) -> float:
    """When a link that is free at `free_s` has carried `work_s` of KV; plain numbers, for numba compiles it.

    Layers are pushed while they are computed, since `begun_s`, and since there are blocks for them, at
    `taken_s`; what flows so hinders no other prompt. At least `last_share` is left at `computed_s`.
    """
    flown_s = max(0.0, computed_s - max(begun_s, taken_s))
    return max(free_s, computed_s, taken_s) + max(work_s - flown_s, work_s * last_share)


class KvLink:
    """The way into one decode engine: prompts come one after the other, in the order of the calls."""

    def __init__(self, seconds: TransferSeconds) -> None:
        self._seconds = seconds
        self._free_s = -math.inf

    def end_s(self, begun_s: float, computed_s: float, taken_s: float, tokens: int) -> float:
        """End of the transfer of a prompt, computed from `begun_s` to `computed_s`, into blocks `taken_s`."""
        work_s, last_share = self._seconds.work_s(tokens), self._seconds.last_share
        self._free_s = link_free_s(self._free_s, work_s, last_share, begun_s, computed_s, taken_s)
        return self._free_s + self._seconds.latency_s
