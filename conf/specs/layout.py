"""Specs of the nodes: machines, accelerators, and the engines of a layout."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from conf.io.check import AtLeastOne, NotNegative, Positive, Range
from conf.specs.model import Constant, Efficiency
from conf.specs.rules import Ruled

MOST_NODES, MOST_GPUS = 100_000, 1024
"""Limits beyond any cluster of today (our choice)."""
MOST_ACTORS, MOST_WARMUP = 10_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes that the experiment runs on; with `engine=external`, those behind the endpoints.

    `session` is `local` (one Ray node on this machine), `fake` (a Ray process group per node, all on this
    machine) or `address` (join the cluster there). A sweep that loses its service waits up to
    `recovery_s` real seconds for its return, which its budget does not count; 0 ends the sweep at once.
    """

    name: str
    session: Literal["local", "fake", "address"] = "local"
    address: str = "auto"
    nodes: Annotated[int, Range(ge=1, le=MOST_NODES)] = 1
    gpus_per_node: Annotated[int, Range(ge=1, le=MOST_GPUS)] = 8
    recovery_s: NotNegative = 300.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator. Unknown figures are null, never zero, and cannot be used.

    `link_bytes_per_s` is one direction of one link; a `mesh` has `links` of them, one per peer;
    behind a `switch` one fat link per GPU is shared by all peers (`links` = 1).
    """

    name: str
    arch: str
    hbm_bytes: Positive
    hbm_bytes_per_s: Positive
    efficiency: Efficiency
    source: str
    bf16_flop_per_s: Positive | None = None
    fp8_flop_per_s: Positive | None = None
    fp4_flop_per_s: Positive | None = None
    topology: Literal["mesh", "switch"] = "mesh"
    links: AtLeastOne = 7
    link_bytes_per_s: Positive | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The load generators: `actors` processes, on Ray with `cpus_per_actor` CPUs each.

    A request fails after `request_timeout_s`; None is `Experiment.request_timeout_s`. Replicas that we deploy
    are warm before the `warmup_requests`.
    """

    name: str
    actors: Annotated[int, Range(ge=1, le=MOST_ACTORS)] = 1
    cpus_per_actor: NotNegative = 1.0
    request_timeout_s: Positive | None = None
    drain_s: Positive = 30.0
    warmup_requests: Annotated[int, Range(ge=1, le=MOST_WARMUP)] = 12
    record_itl: bool = True


REPLICA_CPUS = 0.1
"""Nominal CPU share of a replica in Ray (our choice)."""


@dataclass(frozen=True, slots=True)
class PrefillEngines:
    """Engines of a node that only compute prompts; the KV goes to the layout's own, which only decode.

    Their limits of a step are the engine's own where they are null.
    """

    per_node: AtLeastOne = 1
    tensor_parallel: AtLeastOne = 4
    expert_parallel: bool = True
    max_num_batched_tokens: AtLeastOne | None = None
    max_num_seqs: AtLeastOne | None = None


@dataclass(frozen=True, slots=True)
class TransferTime:
    """Constants of a transfer of KV between two engines.

    Each GPU of the narrower side moves its part at `gpu_bytes_per_s`, one prompt after the other for each
    engine that receives; `latency_ms` is added to each prompt's and delays no other.
    """

    gpu_bytes_per_s: Constant = Constant(
        5e10,
        "bytes per second",
        "assumed: the line rate of a 400 Gb/s adapter per GPU; from 0.4 of it to one xGMI link of the MI325X",
        low=2e10,
        high=6.4e10,
    )
    latency_ms: Constant = Constant(
        5.0, "ms per prompt", "assumed: handshake, notice and a poll of each side", low=1.0, high=25.0
    )


@dataclass(frozen=True, slots=True)
class Layout(Ruled):
    """Independent replicas on the GPUs of a node.

    A replica is `data_parallel` ranks of attention (usually 1), each on `tensor_parallel` GPUs with
    requests and KV of its own; they step together and, with `expert_parallel`, share the experts of all.
    `quick_reduce` is the codec of large all-reduces between the GPUs of a replica (ROCm only); a real
    vLLM takes it from VLLM_ROCM_QUICK_REDUCE_QUANTIZATION. Limits of a step are those of a rank, and the
    engine's own if null.

    With `prefill` the node is split: those engines compute prompts, and the replicas above decode.
    `connector` is vLLM's way for the KV between them. With `transfer_mode` read a decode engine pulls a
    computed prompt; with write the prefill engine pushes layer by layer while it computes.
    """

    name: str
    tensor_parallel: AtLeastOne
    replicas_per_node: AtLeastOne
    expert_parallel: bool
    quick_reduce: Literal["none", "int8", "int6", "int4"] = "none"
    data_parallel: AtLeastOne = 1
    max_num_batched_tokens: AtLeastOne | None = None
    max_num_seqs: AtLeastOne | None = None
    prefill: PrefillEngines | None = None
    connector: Literal["moriio", "nixl"] = "moriio"
    transfer_mode: Literal["read", "write"] = "read"
    transfer: TransferTime = field(default_factory=TransferTime)

    @property
    def gpus_per_replica(self) -> int:
        return self.tensor_parallel * self.data_parallel

    @property
    def replica_resources(self) -> dict[str, float]:
        """Resources of one replica in Ray; its share of a CPU is nominal."""
        return {"GPU": float(self.gpus_per_replica), "CPU": REPLICA_CPUS}

    @property
    def gpus_per_node(self) -> int:
        """GPUs that a node must have, those of prefill engines included."""
        prefill = self.prefill.per_node * self.prefill.tensor_parallel if self.prefill else 0
        return self.replicas_per_node * self.gpus_per_replica + prefill

    @property
    def shape(self) -> str:
        """The engines of a node in words: `2 x TP4/EP4`, or `1 x TP4/EP4 prefill + 1 x TP4/EP4 decode`."""
        own = f"{self.replicas_per_node} x {self._cut}"
        side = self.prefill_side
        return own if side is None else f"{side.shape} prefill + {own} decode"

    @property
    def prefill_side(self) -> "Layout | None":
        """The prefill engines as a layout of their own; None where every engine does both."""
        side = self.prefill
        if side is None:
            return None
        return replace(
            self.decode_side,
            name=f"{self.name} (prefill)",
            tensor_parallel=side.tensor_parallel,
            replicas_per_node=side.per_node,
            expert_parallel=side.expert_parallel,
            max_num_batched_tokens=side.max_num_batched_tokens,
            max_num_seqs=side.max_num_seqs,
        )

    @property
    def decode_side(self) -> "Layout":
        """The engines that answer as a layout of their own: all of them in a layout that is not split."""
        return self if self.prefill is None else replace(self, prefill=None)

    @property
    def step_limits(self) -> dict[str, Any]:
        """The limits of a step that the layout sets, by the engine's names of them."""
        limits = {"max_num_batched_tokens": self.max_num_batched_tokens, "max_num_seqs": self.max_num_seqs}
        return {name: value for name, value in limits.items() if value is not None}

    @property
    def engine_kinds(self) -> list[str]:
        """The kinds of engines, such as TP8/EP8: one, or two of a split layout whose sides differ."""
        return list(dict.fromkeys(side._cut for side in (self.prefill_side, self.decode_side) if side))

    @property
    def _cut(self) -> str:
        ranks = f"DP{self.data_parallel}/" if self.data_parallel > 1 else ""
        experts = f"/EP{self.gpus_per_replica}" if self.expert_parallel else ""
        return f"{ranks}TP{self.tensor_parallel}{experts}"
