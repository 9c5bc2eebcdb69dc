"""Nodes of a real cluster: their resources, environment and addresses, and the words of `ray start`."""

import ipaddress
import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass, field

from cluster.ray_session.placement import LOAD_ROLE
from cluster.ray_session.serve_settings import PRIORITY
from conf.specs.experiment import Cluster, Engine, Fleet, Hardware, VllmEngine

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""RFC 1123, for DNS and Kubernetes."""
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*")
_FORMS = {
    "path": (
        re.compile(r"/[A-Za-z0-9._+@-]+(/[A-Za-z0-9._+@-]+)*/?"),
        "an absolute path of letters, digits and ._+@-",
    ),
    "user": (re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,31}"), "a user of letters, digits and ._-"),
    "cluster": (re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"), "at most 63 letters, digits and ._-"),
    "resource": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}"), "at most 63 letters, digits and _.:/-"),
    "variable": (re.compile(r"[A-Za-z_][A-Za-z0-9_]*"), "letters, digits and _"),
    "label": (re.compile(LABEL), "at most 63 of a-z, 0-9 and -"),
    "object": (_SUBDOMAIN, "at most 253 of a-z, 0-9, - and ."),
    "image": (
        re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?(@sha256:[0-9a-f]{64})?"),
        "REPO:TAG@sha256:DIGEST",
    ),
}


def checked_name(form: str, text: str, what: str) -> str:
    """The text, if it is a name of this `form`; `what` is its flag or key."""
    pattern, like = _FORMS[form]
    if not pattern.fullmatch(text) or ".." in text:
        raise ValueError(f"{what}={text!r} is not allowed there; use {like}")
    return text


def host_address(text: str, what: str) -> str:
    """The IP address of a host, without a zone, which may be any text.

    A host name is refused: on its own host it often means 127.0.0.1 or another network (/etc/hosts).
    """
    with suppress(ValueError):
        ipaddress.ip_address(text)
        if "%" not in text:
            return text
    raise ValueError(
        f"{what}={text!r} is no IP address; use the one under which the other hosts reach this host, "
        "as `hostname -I` prints it there"
    )


HEAD = "head"
GPU = "gpu"
GCS_PORT = 6379
DRIVER_CPUS = 1
PORTS = {
    "node-manager-port": 6380,
    "object-manager-port": 6381,
    "runtime-env-agent-port": 6382,
    "dashboard-agent-grpc-port": 6383,
    "metrics-export-port": 6384,
    "dashboard-agent-listen-port": 52365,
    "min-worker-port": 10002,
    "max-worker-port": 19999,
}
"""Ports of Ray, fixed on every node for firewalls; Ray would choose some at random."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """`count` nodes of one role (the value of their label `role`), and the resources that each offers."""

    role: str
    count: int
    cpus: int
    gpus: int = 0
    resources: dict[str, int] = field(default_factory=dict)

    @property
    def kuberay_resources(self) -> dict[str, str]:
        """The resources as KubeRay writes them."""
        gpus = {"GPU": self.gpus} if self.gpus else {}
        return {name: str(amount) for name, amount in ({"CPU": self.cpus} | gpus | self.resources).items()}


HEAD_NODE = NodeGroup(HEAD, 1, 0)
"""The head offers no CPUs: a process that starves it would stop the whole cluster."""


def is_amd(hardware: Hardware) -> bool:
    """True for a GPU with ROCm, by the name of its architecture (CDNA3 gfx942)."""
    return "gfx" in hardware.arch


def nodes_of(
    cluster: Cluster, hardware: Hardware, engine: Engine, fleet: Fleet, load_nodes: int, gpu_cpus: int
) -> tuple[NodeGroup, ...]:
    """Nodes with GPUs, and `load_nodes` for the load actors and the driver of a job; with 0 they share nodes.

    Each node with GPUs has one unit of the engine's `node_resource`, or of a resource named after the
    hardware, because Ray does not recognise every accelerator.
    """
    load_cpus = math.ceil(fleet.actors * fleet.cpus_per_actor)
    named = engine.node_resource if isinstance(engine, VllmEngine) else ""
    resource = named or f"{hardware.name.split()[0].lower()}_node"
    checked_name("resource", resource, "engine.node_resource" if named else "hardware.name")
    shared = 0 if load_nodes else load_cpus + DRIVER_CPUS
    gpu = NodeGroup(GPU, cluster.nodes, gpu_cpus + shared, cluster.gpus_per_node, {resource: 1})
    if not load_nodes:
        return (gpu,)
    # The driver is on one of them; all are equal. The last CPU is for Ray's own processes.
    return gpu, NodeGroup(LOAD_ROLE, load_nodes, math.ceil(load_cpus / load_nodes) + DRIVER_CPUS + 1)


def environment(serve: dict[str, str]) -> dict[str, str]:
    """The environment of every node, equal everywhere because Serve's proxies read it on their own node.

    Raises ValueError for a variable that no file of settings can hold.
    """
    made = {
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": PRIORITY,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **dict(sorted(serve.items())),
    }
    for name, value in made.items():
        checked_name("variable", name, "the environment variable")
        if not value.isprintable():
            raise ValueError(f"{name}={value!r} has a control character; leave it out")
    return made


def ray_start(nodes: NodeGroup, head_address: str, own_address: str) -> list[str]:
    """Words of `ray start` on one of these nodes. The dashboard, on the head, answers on loopback only.

    Without `own_address` Ray would register the address of the default route, or 127.0.0.1 without a route.
    """
    if nodes.role == HEAD:
        own = ["--head", f"--port={GCS_PORT}", "--dashboard-host=127.0.0.1"]
    else:
        host = f"[{head_address}]" if ":" in head_address else head_address
        own = [f"--address={host}:{GCS_PORT}"]
    own += [f"--node-ip-address={own_address}", f"--num-cpus={nodes.cpus}", f"--num-gpus={nodes.gpus}"]
    own.append(f"--labels=role={nodes.role}")
    if nodes.resources:
        own.append(f"--resources={json.dumps(nodes.resources)}")
    return ["ray", "start", *own, *(f"--{name}={port}" for name, port in PORTS.items())]
