"""Files of a real cluster, from Jinja templates: KubeRay, `ray up` and systemd. No file holds a secret."""

import ipaddress
import json
import math
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from cluster.ray_session.own_machine import LOAD_ROLE, PRIORITY
from conf.io.one_line import printable
from conf.ray_patches import RAY_VERSION
from conf.specs.experiment import Experiment, Hardware, VllmEngine

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""RFC 1123, for DNS and Kubernetes."""
OBJECT = rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*"
PATH = r"/[A-Za-z0-9._+@-]+(/[A-Za-z0-9._+@-]+)*/?"
CLAIM = "pvc:"
_FORMS = {
    "path": (PATH, "an absolute path of letters, digits and ._+@-"),
    "user": (r"[A-Za-z_][A-Za-z0-9._-]{0,31}", "a user of letters, digits and ._-"),
    "cluster": (r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "at most 63 letters, digits and ._-"),
    # KubeRay adds to a cluster's name, and Kubernetes ends at 63 letters.
    "kuberay": (r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?", "at most 50 of a-z, 0-9 and -"),
    "resource": (r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}", "at most 63 letters, digits and _.:/-"),
    "variable": (r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and _"),
    "label": (LABEL, "at most 63 of a-z, 0-9 and -"),
    "object": (OBJECT, "at most 253 of a-z, 0-9, - and ."),
    "image": (
        r"[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?@sha256:[0-9a-f]{64}|"
        r"[A-Za-z0-9][A-Za-z0-9._:/-]*:(?!(latest|nightly)$)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?",
        "the name of a version, which stays the same: REPO:TAG@sha256:DIGEST",
    ),
    "weights": (rf"{CLAIM}{OBJECT}|{PATH}", "pvc:NAME of a claim, or /FOLDER of every node"),
    "groups": (r"[0-9]{1,9}(,[0-9]{1,9})*", "ids, as `getent group video render` says on the nodes"),
    "memory": (r"[0-9]+[MGT]i?", "an amount of memory, written as 512Gi"),
    "number": (r"[0-9]{1,6}", "a number from 0 on"),
    "count": (r"[1-9][0-9]{0,5}", "a number from 1 on"),
}


def checked_name(form: str, text: str, what: str) -> str:
    """The text, if it is a name of this `form`; `what` is its flag or key."""
    pattern, like = _FORMS[form]
    if not re.fullmatch(pattern, text) or ".." in text:
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


def nodes_of(experiment: Experiment, load_nodes: int, gpu_cpus: int) -> tuple[NodeGroup, ...]:
    """Nodes with GPUs, and `load_nodes` for the load actors and the driver of a job; with 0 they share nodes.

    Each node with GPUs has one unit of the engine's `node_resource`, or of a resource named after the
    hardware, because Ray does not recognise every accelerator.
    """
    cluster, engine, fleet = experiment.cluster, experiment.engine, experiment.fleet
    load_cpus = math.ceil(fleet.actors * fleet.cpus_per_actor)
    named = engine.node_resource if isinstance(engine, VllmEngine) else ""
    resource = named or f"{experiment.hardware.name.split()[0].lower()}_node"
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


def files(target: str, groups: Sequence[NodeGroup], **values: Any) -> dict[str, str]:
    """Text by file name; `values` are the rest of what templates name, as `site`, the flags by their names.

    KubeRay gets a RayCluster for sweeps, which deploy their services themselves, or with a `serve_config` a
    RayService that keeps its application up, for engine=external. For systemd there are a unit for each role
    and the environment of them all.
    """
    # No HTML is written: filters escape what stands in YAML, in units and for a shell.
    templates = Environment(
        loader=PackageLoader("cluster.manifests"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    templates.filters |= {
        "json": json.dumps,
        "yaml": lambda tree: yaml.safe_dump(tree, sort_keys=False).rstrip(),
        "quoted": shlex.quote,
        "shell": shell_words,
        "unit": unit_words,
        "comment": comment,
        "literal": kubernetes_literal,
        "escaped": lambda value: value.translate(_ESCAPED),
        "folder": weights_folder,
    }
    values |= {"groups": groups, "head_node": HEAD_NODE, "ray_start": ray_start, "ray_version": RAY_VERSION}

    def text(template: str, **more: Any) -> str:
        return templates.get_template(template).render(**values, **more)

    if target == "kuberay":
        name = "rayservice.yaml" if values["serve_config"] else "raycluster.yaml"
        return {name: text("kuberay.yaml.j2")}
    if target == "ray-up":
        return {"ray-up.yaml": text("ray-up.yaml.j2")}
    units = {
        f"maxqps-{group.role}@.service": text("systemd.service.j2", nodes=group)
        for group in (HEAD_NODE, *groups)
    }
    return {"ray.env": text("ray.env.j2")} | units


def comment(text: str) -> str:
    """Text as comment lines, without control characters that would end a line."""
    return "\n".join(f"# {printable(line)}".rstrip() for line in text.splitlines())


def kubernetes_literal(value: str) -> str:
    """The value of an environment variable in which Kubernetes replaces no $(NAME)."""
    return value.replace("$(", "$$(")


def weights_folder(weights: str) -> str:
    """The folder of the weights in a pod: that of the node, or /weights for a claim."""
    return "/weights" if weights.startswith(CLAIM) else weights


def assign_hosts(addresses: Sequence[str], groups: Sequence[NodeGroup]) -> dict[str, list[str]]:
    """The hosts of each role in the order of the node groups, the head first.

    Raises ValueError for a wrong number of hosts, and for text that is no IP address.
    """
    for address in addresses:
        host_address(address, "--hosts")
    counts = {HEAD: 1, GPU: 0, LOAD_ROLE: 0} | {group.role: group.count for group in groups}
    needed = sum(counts.values())
    if len(addresses) != needed or len(set(addresses)) != needed:
        raise ValueError(
            f"--hosts names {len(set(addresses))} hosts but {needed} are needed: the head, {counts[GPU]} "
            f"with GPUs (cluster.nodes) and {counts[LOAD_ROLE]} for load (--load-nodes)"
        )
    rest = iter(addresses)
    return {role: list(islice(rest, count)) for role, count in counts.items()}


def shell_words(words: Sequence[str]) -> str:
    """Words quoted for a shell, which still replaces $RAY_HEAD_IP and $own."""
    bare = ("--address=$RAY_HEAD_IP", "--node-ip-address=$own")
    return " ".join(word if word.startswith(bare) else shlex.quote(word) for word in words)


def unit_words(words: Sequence[str]) -> str:
    """Words of ExecStart: one stands in single quotes if it has double quotes of its own."""
    return " ".join(f"'{word}'" if '"' in word else word for word in words)


_ESCAPED = str.maketrans({letter: f"\\{letter}" for letter in '"\\$`'})
"""Letters with a meaning in double quotes, for systemd and for a shell."""
