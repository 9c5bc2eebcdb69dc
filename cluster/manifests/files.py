"""Files of a real cluster, from Jinja templates: KubeRay, `ray up` and systemd. No file holds a secret.

Comments on reasons and use are in the templates.
"""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from cluster.manifests.nodes import (
    GPU,
    HEAD_NODE,
    NodeGroup,
    checked_name,
    host_address,
    is_amd,
    ray_start,
)
from cluster.ray_session.placement import LOAD_ROLE
from conf.io.one_line import printable
from conf.ray_patches import RAY_VERSION
from conf.specs.experiment import Hardware


def render(template: str, **values: Any) -> str:
    """The text of a template. Raises jinja2's UndefinedError for a missing value."""
    # No HTML is written: the filters `json`, `quoted` and `comment` escape what stands in YAML and units.
    environment = Environment(
        loader=PackageLoader("cluster.manifests"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {
        "json": json.dumps,
        "quoted": shlex.quote,
        "comment": comment,
        "literal": kubernetes_literal,
        "escaped": lambda value: value.translate(_ESCAPED),
    }
    return environment.get_template(template).render(ray_version=RAY_VERSION, **values)


def comment(text: str) -> str:
    """Text as comment lines, without control characters that would end a line."""
    return "\n".join(f"# {printable(line)}".rstrip() for line in text.splitlines())


def kubernetes_literal(value: str) -> str:
    """The value of an environment variable in which Kubernetes replaces no $(NAME)."""
    return value.replace("$(", "$$(")


NAME = re.compile("[a-z]([-a-z0-9]{0,48}[a-z0-9])?")
"""KubeRay adds to a cluster's name, and Kubernetes ends at 63 letters."""
MEMORY = re.compile("[0-9]+[MGT]i?")
CLAIM = "pvc:"


@dataclass(frozen=True, slots=True)
class KubernetesSite:
    """Facts of one Kubernetes cluster. `weights` is `pvc:NAME` or a folder that is on every node.

    `groups` are the numeric ids of the groups video and render on the nodes (AMD only); `gpu_memory` is
    the limit of a pod with GPUs. `token_secret` is a Secret with the key auth_token; KubeRay makes one if it
    is empty.
    """

    image: str
    weights: str = f"{CLAIM}weights"
    name: str = "maxqps"
    namespace: str = "default"
    token_secret: str = ""
    groups: tuple[int, ...] = (44, 109)
    gpu_memory: str = "512Gi"

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(
                f"--name={self.name} is not allowed in Kubernetes; use at most 50 of a-z, 0-9 and -"
            )
        checked_name("image", self.image, "--image")
        tag = self.image.partition("@")[0].rpartition("/")[2].partition(":")[2]
        if "@sha256:" not in self.image and tag in ("", "latest", "nightly"):
            raise ValueError(
                f"--image={self.image} is another image tomorrow; name a version: REPO:TAG@sha256:DIGEST"
            )
        checked_name("label", self.namespace, "--namespace")
        if self.token_secret:
            checked_name("object", self.token_secret, "--token-secret")
        if self.claim:
            checked_name("object", self.claim, "--weights=pvc")
        elif self.weights.startswith("/"):
            checked_name("path", self.weights, "--weights")
        else:
            raise ValueError(f"--weights={self.weights}: pvc:NAME of a claim, or /FOLDER of every node")
        if min(self.groups, default=0) < 0:
            raise ValueError(f"--groups={self.groups}: ids of groups are not negative")
        if not MEMORY.fullmatch(self.gpu_memory):
            raise ValueError(f"--memory={self.gpu_memory} is no amount of memory; write it as 512Gi")

    @property
    def claim(self) -> str:
        """Name of the PersistentVolumeClaim of the weights; empty for a folder."""
        return self.weights.removeprefix(CLAIM) if self.weights.startswith(CLAIM) else ""

    @property
    def weights_folder(self) -> str:
        """The folder of the weights in a pod: that of the node, or /weights for a claim."""
        return "/weights" if self.claim else self.weights


def kuberay(
    site: KubernetesSite,
    groups: Sequence[NodeGroup],
    hardware: Hardware,
    env: dict[str, str],
    heading: str,
    serve_config: dict[str, Any] | None,
) -> dict[str, str]:
    """File name and text: a RayCluster for sweeps, which deploy their services themselves.

    With Serve's own configuration it is a RayService that keeps its application up, for engine=external.
    """
    name = "raycluster.yaml" if serve_config is None else "rayservice.yaml"
    config = yaml.safe_dump(serve_config, sort_keys=False).rstrip() if serve_config else None
    return {
        name: render(
            "kuberay.yaml.j2",
            site=site,
            groups=groups,
            env=env,
            heading=heading,
            serve_config=config,
            amd=is_amd(hardware),
        )
    }


ETC = "/etc/maxqps"
TOKEN = f"{ETC}/auth_token"


@dataclass(frozen=True, slots=True)
class Hosts:
    """Addresses of the head, of the nodes with GPUs and of those for load, in this order."""

    head: str
    gpu: tuple[str, ...]
    load: tuple[str, ...]

    @property
    def workers(self) -> tuple[str, ...]:
        return self.gpu + self.load


def assign_hosts(addresses: Sequence[str], groups: Sequence[NodeGroup]) -> Hosts:
    """The hosts in the order of the node groups, the head first.

    Raises ValueError for a wrong number of hosts, and for text that is no IP address.
    """
    for address in addresses:
        host_address(address, "--hosts")
    counts = {group.role: group.count for group in groups}
    load = counts.get(LOAD_ROLE, 0)
    needed = 1 + sum(counts.values())
    if len(addresses) != needed or len(set(addresses)) != needed:
        raise ValueError(
            f"--hosts names {len(set(addresses))} hosts but {needed} are needed: the head, "
            f"{needed - 1 - load} with GPUs (cluster.nodes) and {load} for load (--load-nodes)"
        )
    cut = needed - load
    return Hosts(addresses[0], tuple(addresses[1:cut]), tuple(addresses[cut:]))


def ray_up(
    hosts: Hosts,
    groups: Sequence[NodeGroup],
    env: dict[str, str],
    heading: str,
    name: str,
    ssh_user: str,
    venv: str,
) -> dict[str, str]:
    """File name and text for `ray up` with the local provider; every host is installed already.

    Raises ValueError for a malformed name, user or folder.
    """
    checked_name("cluster", name, "--name")
    checked_name("user", ssh_user, "--ssh-user")
    checked_name("path", venv, "--venv")
    starts = {group.role: _shell(ray_start(group, "$RAY_HEAD_IP", "$own")) for group in groups}
    text = render(
        "ray-up.yaml.j2",
        hosts=hosts,
        env=env,
        heading=heading,
        name=name,
        ssh_user=ssh_user,
        venv=venv,
        start_head=_shell(ray_start(HEAD_NODE, hosts.head, hosts.head)),
        start_gpu=starts[GPU],
        start_load=starts.get(LOAD_ROLE),
    )
    return {"ray-up.yaml": text}


def _shell(words: Sequence[str]) -> str:
    """Words quoted for a shell, which still replaces $RAY_HEAD_IP and $own."""
    bare = ("--address=$RAY_HEAD_IP", "--node-ip-address=$own")
    return " ".join(word if word.startswith(bare) else shlex.quote(word) for word in words)


def systemd(
    hosts: Hosts, groups: Sequence[NodeGroup], env: dict[str, str], heading: str, venv: str, amd: bool
) -> dict[str, str]:
    """Unit files by name, one for each role, and the environment of them all.

    The units are systemd's templates: the name of an instance, after the @, is the host's address. Raises
    ValueError for a malformed `venv`.
    """
    checked_name("path", venv, "--venv")
    addresses = {"head": (hosts.head,), GPU: hosts.gpu, LOAD_ROLE: hosts.load}
    files = {"ray.env": render("ray.env.j2", env=env, heading=heading, etc=ETC, token=TOKEN)}
    for group in (HEAD_NODE, *groups):
        unit = f"maxqps-{group.role}"
        words = [f"{venv}/bin/ray", *ray_start(group, hosts.head, "%i")[1:], "--block"]
        files[f"{unit}@.service"] = render(
            "systemd.service.j2",
            nodes=group,
            hosts=addresses[group.role],
            heading=heading,
            unit=unit,
            etc=ETC,
            token=TOKEN,
            venv=venv,
            amd=amd,
            # A word of ExecStart stands in single quotes if it has double quotes of its own.
            start=" ".join(f"'{word}'" if '"' in word else word for word in words),
        )
    return files


_ESCAPED = str.maketrans({letter: f"\\{letter}" for letter in '"\\$`'})
"""Letters with a meaning in double quotes, for systemd and for a shell."""
