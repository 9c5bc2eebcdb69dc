"""Checks of nodes, one by one and across all, by the rows of checks.yaml. What could not be read is unknown,
never a pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from cluster.preflight.gpus import Gpu
from cluster.preflight.node_facts import Host
from cluster.ray_session.own_machine import LOAD_ROLE
from conf.io import bounded_yaml

Status = Literal["pass", "warn", "fail", "unknown"]
ALL_NODES, EQUAL = "all nodes", "equal on all nodes"
MOST_NAMES = 3


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
class InspectedNode:
    """A node of Ray with its facts: a name for people, its label `role`, its resource GPU.

    `clock_s` is the node's clock minus the driver's, and half the round trip as its uncertainty. `devices`
    counts the GPUs that PyTorch sees for each id that Ray hands out.
    """

    name: str
    role: str
    ray_gpus: float
    is_head: bool
    host: Host
    clock_s: tuple[float, float] | None = None
    devices: Mapping[str, int | None] | None = None

    @property
    def serves(self) -> bool:
        """True if engines may run here: not on a node for load actors, nor on a head without GPUs."""
        has_gpus = self.ray_gpus > 0 or bool(self.host.gpus) or self.role == "gpu"
        return self.role != LOAD_ROLE and has_gpus

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


@dataclass(frozen=True, slots=True)
class Check:
    """A row of checks.yaml, which says what its keys mean."""

    name: str
    where: Literal["every", "head", "serving", "gpu"]
    remedy: str
    expected: str = EQUAL
    when: str = ""
    amd: bool = False
    strict: bool = False
    bad: Status = "fail"
    least: float | None = None
    most: float | None = None
    equal: str | float | None = None
    figure: str = "{value}"
    unreported: str = ""
    needed_by: str | None = None

    def concerns(self, node: InspectedNode, expected: Expected) -> bool:
        if (self.when and not getattr(expected, self.when)) or (self.amd and not expected.arch):
            return False
        return {"every": True, "head": node.is_head}.get(self.where, node.serves)

    def is_met_by(self, value: Any) -> bool:
        """True if a fact is as the row expects it."""
        if self.equal is not None:
            return bool(value == self.equal)
        return bool(value >= self.least if self.least is not None else value <= self.most)


@cache
def table(kind: Literal["nodes", "across"]) -> tuple[Check, ...]:
    """The checks of every node, or those across all nodes, read once."""
    rows = bounded_yaml.read(Path(__file__).with_suffix(".yaml").read_text())[kind]
    return tuple(Check(name, **row) for name, row in rows.items())


def compare(check: Check, nodes: Sequence[InspectedNode], expected: Expected) -> Finding | None:
    """The finding on a fact that must be equal; None if it concerns no node."""
    concerned = [node for node in nodes if check.concerns(node, expected)]
    names: dict[Any, list[str]] = {}
    for node in concerned:
        names.setdefault(node.host.facts.get(check.name), []).append(node.name)
    if not names:
        return None
    needed = check.needed_by is not None and expected.engine.startswith(check.needed_by)
    status: Status = "pass" if len(names) == 1 else "fail"
    figure, remedy = str(next(iter(names))), "" if status == "pass" else check.remedy
    if status == "fail":
        shares = (_share(value, names[value]) for value in sorted(names, key=str))
        figure = "; ".join(shares)
    elif None in names:
        status, figure = "fail" if needed else "unknown", "reported by no node"
        remedy = check.remedy if needed else check.unreported
    return Finding(status, figure, EQUAL, remedy, check=check.name, node=ALL_NODES)


def _share(value: Any, names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{'nothing' if value is None else value} on {', '.join(names[:MOST_NAMES])}{more}"


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
