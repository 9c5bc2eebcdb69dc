"""Kinds of checks, on one node or across all nodes. What could not be read is unknown, never a pass."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from cluster.preflight.gpus import Gpu
from cluster.preflight.node_facts import Host, Weights
from cluster.ray_session.own_machine import LOAD_ROLE

Status = Literal["pass", "warn", "fail", "unknown"]
Where = Literal["every", "head", "serving", "gpu"]

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Expected:
    """The nodes that an experiment expects.

    `hardware` begins with the GPU's name; `arch` is the gfx name of an AMD GPU and else empty; `hbm_bytes` is
    the memory of a GPU. `env` are the engines' variables on top of the nodes' own. `http_port` 0 leaves
    Serve's port unchecked. A node has `node_timeout_s` to answer: more than its tools' time-outs together, so
    that a hung tool does not lose it.
    """

    engine: str
    nodes: int
    gpus_per_node: int
    hardware: str = ""
    arch: str = ""
    hbm_bytes: float = 0.0
    model_path: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    http_port: int = 0
    node_timeout_s: float = 240.0

    @property
    def needs_gpus(self) -> bool:
        """True for an engine that computes on the GPUs; for others a node's GPUs are pretended."""
        return self.engine == "vllm"

    @property
    def gpu_name(self) -> str:
        """The first word of `hardware`: MI325X."""
        return self.hardware.split(" ")[0]


@dataclass(frozen=True, slots=True)
class Node:
    """A node of Ray: a name for people, its label `role`, its resource GPU."""

    name: str
    role: str
    ray_gpus: float
    is_head: bool


@dataclass(frozen=True, slots=True)
class NodeClock:
    """The node's clock minus the driver's, and half the round trip as its uncertainty."""

    offset_s: float
    uncertainty_s: float


@dataclass(frozen=True, slots=True)
class InspectedNode:
    """One node with its facts. `devices` counts the GPUs that PyTorch sees for each id that Ray hands out."""

    node: Node
    host: Host
    clock: NodeClock | None = None
    devices: Mapping[str, int | None] | None = None

    @property
    def serves(self) -> bool:
        """True if engines may run here: not on a node for load actors, nor on a head without GPUs."""
        has_gpus = self.node.ray_gpus > 0 or bool(self.host.gpus) or self.node.role == "gpu"
        return self.node.role != LOAD_ROLE and has_gpus

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The real GPUs, without those pretended to Ray."""
        return self.host.gpus or ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A figure judged against the expected one; the remedy is one line, empty if it passes."""

    check: str = field(default="", kw_only=True)
    node: str = field(default="", kw_only=True)
    status: Status
    figure: str
    expected: str
    remedy: str = ""


Judge = Callable[[InspectedNode, Expected], Finding | None]
"""Judges a node's facts; names of the check and of the node are added later."""


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """One row of a table of checks; `amd` ones concern nodes of AMD's GPUs alone.

    If no engine needs GPUs, a failure only warns, unless it is `strict`.
    """

    name: str
    where: Where
    judge: Judge
    amd: bool = False
    strict: bool = False


def judged(figure: str | None, expected: str, good: bool, remedy: str, bad: Status = "fail") -> Finding:
    """Pass or `bad`; unknown without a figure."""
    if figure is None:
        return Finding("unknown", "not reported here", expected, "")
    return Finding("pass", figure, expected) if good else Finding(bad, figure, expected, remedy)


def check_node(check: NodeCheck, node: InspectedNode, expected: Expected) -> Finding | None:
    """The finding of a check on a node; None if it does not concern the node."""
    concerned = {"every": True, "head": node.node.is_head}.get(check.where, node.serves)
    if not concerned or (check.amd and not expected.arch):
        return None
    finding: Finding | None = Finding("unknown", without_gpus(node, expected), "")
    if check.where != "gpu" or node.gpus:
        finding = check.judge(node, expected)
    if finding is None:
        return None
    softer = finding.status == "fail" and not (check.strict or expected.needs_gpus)
    status: Status = "warn" if softer else finding.status
    return replace(finding, check=check.name, node=node.node.name, status=status)


def without_gpus(node: InspectedNode, expected: Expected) -> str:
    """Reason why a node reports no GPU."""
    if not expected.arch:
        return "only AMD's GPUs are read"
    return "a driver, but no AMD GPU is reported" if node.host.gpus is None else "no GPU here"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A fact that must be equal on all nodes that it concerns.

    Engines whose kind begins with `needed_by` need it (all: empty, none: None); others may do without. With
    `of_model` it only matters if a folder of weights is named. `unreported` is the remedy if no node has it.
    """

    name: str
    where: Where
    read: Callable[[InspectedNode], str | None]
    remedy: str
    needed_by: str | None = None
    of_model: bool = False
    unreported: str = ""


ALL_NODES = "all nodes"
MOST_NAMES = 3


def compare(comparison: Comparison, nodes: Sequence[InspectedNode], expected: Expected) -> Finding | None:
    """The finding on a fact that must be equal; None if it concerns no node."""
    concerned = [node for node in nodes if comparison.where == "every" or node.serves]
    values = {node.node.name: comparison.read(node) for node in concerned}
    if not values or (comparison.of_model and not expected.model_path):
        return None
    needed = comparison.needed_by is not None and expected.engine.startswith(comparison.needed_by)
    return replace(_equal(comparison, values, needed), check=comparison.name, node=ALL_NODES)


def _equal(comparison: Comparison, values: Mapping[str, str | None], needed: bool) -> Finding:
    distinct = sorted(set(values.values()), key=str)
    if distinct == [None]:
        status: Status = "fail" if needed else "unknown"
        remedy = comparison.remedy if needed else comparison.unreported
        return Finding(status, "reported by no node", "equal on all nodes", remedy)
    if len(distinct) == 1:
        return Finding("pass", str(distinct[0]), "equal on all nodes")
    shares = []
    for value in distinct:
        names = [name for name in values if values[name] == value]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        shares.append(f"{'nothing' if value is None else value} on {', '.join(names[:MOST_NAMES])}{more}")
    return Finding("fail", "; ".join(shares), "equal on all nodes", comparison.remedy)


def _version(name: str, where: Where, remedy: str, needed_by: str | None = None) -> Comparison:
    return Comparison(name, where, lambda node: node.host.versions.get(name), remedy, needed_by)


def _weights_digest(node: InspectedNode) -> str | None:
    folder = node.host.weights
    return f"digest {folder.digest}" if isinstance(folder, Weights) else None


def _gpu_kind(node: InspectedNode) -> str | None:
    kinds = sorted({gpu.kind for gpu in node.gpus})
    return f"{len(node.gpus)} x {', '.join(kinds)}" if kinds else None


_SAME_IMAGE = "start all nodes from one image"
_NO_MIXTURE = "one kind of GPU per run: leave the odd node out"
_NO_DIGEST = "set MAXQPS_IMAGE_DIGEST in the containers"
COMPARISONS = (
    _version("python", "every", _SAME_IMAGE, needed_by=""),
    _version("ray", "every", _SAME_IMAGE, needed_by=""),
    _version("maxqps", "every", "install one wheel on all nodes, or submit the folder", needed_by=""),
    _version("vllm", "serving", "install the same vLLM on all serving nodes", needed_by="vllm"),
    _version("torch", "serving", _SAME_IMAGE, needed_by="vllm"),
    _version("ROCm", "serving", _SAME_IMAGE),
    _version("GPU driver", "serving", "install the same driver on all hosts"),
    Comparison("GPUs equal", "serving", _gpu_kind, _NO_MIXTURE),
    Comparison("image", "serving", lambda node: node.host.image, _SAME_IMAGE, unreported=_NO_DIGEST),
    Comparison("weights equal", "serving", _weights_digest, "copy or mount one revision", of_model=True),
)


def environments(nodes: Sequence[InspectedNode]) -> Finding | None:
    """The finding on variables that engines read, which must be equal on all serving nodes."""
    reported = [node.host.environment for node in nodes if node.serves]
    if not reported:
        return None
    names = sorted(set().union(*reported))
    differ = [name for name in names if len({environment.get(name) for environment in reported}) > 1]
    figure = f"{', '.join(differ)} differ" if differ else f"{len(names)} variables"
    remedy = "start Ray with one environment on all nodes" if differ else ""
    status: Status = "fail" if differ else "pass"
    return Finding(status, figure, "equal on all nodes", remedy, check="environment", node=ALL_NODES)


def size(size_bytes: float) -> str:
    """Bytes in GiB or MiB, for people."""
    if math.isinf(size_bytes):
        return "unlimited"
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
