"""A RayCluster or RayService of KubeRay, with its NetworkPolicy; the template has the reasons."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from cluster.manifests import names
from cluster.manifests.nodes import NodeGroup, is_amd
from cluster.manifests.templates import render
from conf.specs.experiment import Hardware

NAME = re.compile("[a-z]([-a-z0-9]{0,48}[a-z0-9])?")
"""KubeRay adds to a cluster's name, and Kubernetes ends at 63 letters."""
MEMORY = re.compile("[0-9]+[MGT]i?")
CLAIM = "pvc:"


@dataclass(frozen=True, slots=True)
class KubernetesSite:
    """Facts of one Kubernetes cluster. `weights` is `pvc:NAME` or a folder that is on every node.

    `groups` are the numeric ids of the groups video and render on the nodes (AMD only); `gpu_memory` and
    `load_memory` are memory limits of a pod. `token_secret` is a Secret with the key auth_token; KubeRay
    makes one if it is empty.
    """

    image: str
    weights: str = f"{CLAIM}weights"
    name: str = "maxqps"
    namespace: str = "default"
    token_secret: str = ""
    groups: tuple[int, ...] = (44, 109)
    gpu_memory: str = "512Gi"
    load_memory: str = "16Gi"

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(
                f"--name={self.name} is not allowed in Kubernetes; use at most 50 of a-z, 0-9 and -"
            )
        names.checked("image", self.image, "--image")
        tag = self.image.partition("@")[0].rpartition("/")[2].partition(":")[2]
        if "@sha256:" not in self.image and tag in ("", "latest", "nightly"):
            raise ValueError(
                f"--image={self.image} is another image tomorrow; name a version: REPO:TAG@sha256:DIGEST"
            )
        names.checked("label", self.namespace, "--namespace")
        if self.token_secret:
            names.checked("object", self.token_secret, "--token-secret")
        if self.claim:
            names.checked("object", self.claim, "--weights=pvc")
        elif self.weights.startswith("/"):
            names.checked("path", self.weights, "--weights")
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
