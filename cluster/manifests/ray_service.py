"""KubeRay objects of a real cluster, as plain data in the order of the YAML; pure, and never a secret."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from cluster.manifests import names
from cluster.manifests.node_offers import GPU, RAY_VERSION, NodeGroup, is_amd
from conf.specs.experiment import Hardware

Tree = dict[str, Any]

STARTUP_S = 1800
"""Least time for a start in seconds: large models load for 30 minutes or more."""
PROBE_PERIOD_S = 10
AGENT_PORT = 52365
"""Port of Ray's dashboard agent, which answers /api/healthz without a token."""
SHARED_MEMORY = "128Gi"
"""Shared memory of a node with GPUs, for the object store and between the processes of RCCL and vLLM."""
SHARED_MEMORY_REST = "6Gi"
"""Shared memory of other pods: Ray's object store takes 30 % of their 16 GiB, or goes to disk."""
NAME = re.compile("[a-z]([-a-z0-9]{0,48}[a-z0-9])?")
"""KubeRay adds to a cluster's name, and Kubernetes ends at 63 letters."""
MEMORY = re.compile("[0-9]+[MGT]i?")
POD_IP = "POD_IP"
OWN_ADDRESS = {"node-ip-address": f"${POD_IP}"}
"""Words of `ray start` in every pod, whose shell replaces the variable. KubeRay passes no address by itself,
and Ray would take that of the default route, which may be another network of the pod."""
PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001, "serve": 8000}


@dataclass(frozen=True, slots=True)
class KubernetesSite:
    """Facts of one Kubernetes cluster. `image` is pinned; `weights` is `pvc:NAME` or a folder on every node.

    `groups` are the numeric ids of the groups video and render on the nodes (AMD only); `gpu_memory` and
    `load_memory` are memory limits of a pod. `token_secret` is a Secret with the key auth_token; without
    one, KubeRay makes it.
    """

    image: str
    weights: str = "pvc:weights"
    name: str = "maxqps"
    namespace: str = "default"
    token_secret: str = ""
    groups: tuple[int, ...] = (44, 109)
    gpu_memory: str = "512Gi"
    load_memory: str = "16Gi"

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"--name={self.name} is none for Kubernetes; use at most 50 of a-z, 0-9 and -")
        names.checked("image", self.image, "--image")
        names.checked("label", self.namespace, "--namespace")
        if self.token_secret:
            names.checked("object", self.token_secret, "--token-secret")
        if self.weights.startswith("pvc:"):
            names.checked("object", self.weights.removeprefix("pvc:"), "--weights=pvc")
        elif self.weights.startswith("/"):
            names.checked("path", self.weights, "--weights")
        else:
            raise ValueError(f"--weights={self.weights}: pvc:NAME of a claim, or /FOLDER of every node")
        if min(self.groups, default=0) < 0:
            raise ValueError(f"--groups={self.groups}: ids of groups are not negative")
        if not MEMORY.fullmatch(self.gpu_memory):
            raise ValueError(f"--memory={self.gpu_memory} is no amount of memory; write it as 512Gi")


def ray_object(
    site: KubernetesSite,
    nodes: Sequence[NodeGroup],
    hardware: Hardware,
    env: dict[str, str],
    config: Tree | None,
) -> Tree:
    """A RayCluster for sweeps, which deploy their services themselves.

    With `config` (Serve's own format) it is a RayService that keeps its application up, for engine=external.
    """
    spec = _cluster_spec(site, nodes, hardware, env)
    if config is None:
        return _object("ray.io/v1", "RayCluster", site.name, site, spec)
    service = {
        "serveConfigV2": yaml.safe_dump(config, sort_keys=False),
        # The default, NewCluster, wants as many GPUs again whenever the manifest changes.
        "upgradeStrategy": {"type": "None"},
        "rayClusterConfig": spec,
    }
    return _object("ray.io/v1", "RayService", site.name, site, service)


def network_policy(site: KubernetesSite) -> Tree:
    """Opens the ports to the cluster's pods and KubeRay's operator alone; people `kubectl port-forward`."""
    own = {"matchLabels": _own(site)}
    operator = {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}}
    spec = {
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": own}]},
            {"from": [{"namespaceSelector": {}, "podSelector": operator}]},
        ],
    }
    return _object("networking.k8s.io/v1", "NetworkPolicy", f"{site.name}-own-pods-only", site, spec)


def _object(api: str, kind: str, name: str, site: KubernetesSite, spec: Tree) -> Tree:
    metadata = {"name": name, "namespace": site.namespace}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def _cluster_spec(
    site: KubernetesSite, nodes: Sequence[NodeGroup], hardware: Hardware, env: dict[str, str]
) -> Tree:
    auth: Tree = {"mode": "token"}
    if site.token_secret:
        auth["secretName"] = site.token_secret
    return {
        "rayVersion": RAY_VERSION,
        "authOptions": auth,
        "headGroupSpec": {
            # Nothing is placed on the head: what starves it stops the whole cluster.
            "resources": {"CPU": "0"},
            "labels": {"role": "head"},
            "rayStartParams": {"dashboard-host": "0.0.0.0", **OWN_ADDRESS},
            "template": {"metadata": {"labels": _own(site)}, "spec": _head_pod(site, env)},
        },
        "workerGroupSpecs": [_worker_group(each, site, hardware, env) for each in nodes],
    }


def _head_pod(site: KubernetesSite, env: dict[str, str]) -> Tree:
    ports = [{"containerPort": port, "name": name} for name, port in PORTS.items()]
    container = _container(site, env, {"cpu": "4"}, {"memory": "16Gi"})
    return {"containers": [{**container, "ports": ports}], "volumes": [_memory(SHARED_MEMORY_REST)]}


def _worker_group(nodes: NodeGroup, site: KubernetesSite, hardware: Hardware, env: dict[str, str]) -> Tree:
    resources = {"CPU": str(nodes.cpus)}
    if nodes.gpus:
        resources["GPU"] = str(nodes.gpus)
    pod = _gpu_pod(nodes, site, hardware, env) if nodes.gpus else _load_pod(nodes, site, env)
    return {
        "groupName": nodes.role,
        "replicas": nodes.count,
        "minReplicas": nodes.count,
        "maxReplicas": nodes.count,
        "resources": {**resources, **{name: str(amount) for name, amount in nodes.resources.items()}},
        "labels": {"role": nodes.role},
        "rayStartParams": dict(OWN_ADDRESS),
        "template": {"metadata": {"labels": _own(site)}, "spec": pod},
    }


def _load_pod(nodes: NodeGroup, site: KubernetesSite, env: dict[str, str]) -> Tree:
    """A pod of a node without GPUs: a load actor beside a replica would take its CPU."""
    container = _container(
        site, env, {"cpu": str(nodes.cpus)}, {"cpu": str(nodes.cpus), "memory": site.load_memory}
    )
    apart = {
        "labelSelector": {"matchLabels": {**_own(site), "ray.io/group": GPU}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "containers": [container],
        "volumes": [_memory(SHARED_MEMORY_REST)],
    }


def _gpu_pod(nodes: NodeGroup, site: KubernetesSite, hardware: Hardware, env: dict[str, str]) -> Tree:
    """One pod is one node: it takes all GPUs, so that TP groups keep to the NUMA nodes as on bare metal."""
    amd = is_amd(hardware)
    resource = "amd.com/gpu" if amd else "nvidia.com/gpu"
    limits = {"memory": site.gpu_memory, resource: str(nodes.gpus)}
    container = _container(site, env, {"cpu": str(nodes.cpus)}, limits)
    container["volumeMounts"].append({"name": "weights", "mountPath": weights_folder(site), "readOnly": True})
    # Debuggers and py-spy, and the peer-to-peer handles that RCCL opens between processes.
    container["securityContext"] = {
        "capabilities": {"add": ["SYS_PTRACE"]},
        "seccompProfile": {"type": "Unconfined"},
    }
    volumes = [_memory(SHARED_MEMORY), _weights(site)]
    pod: Tree = {
        "tolerations": [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": volumes,
    }
    if amd:
        for name, kind in (("kfd", "CharDevice"), ("dri", "Directory")):
            container["volumeMounts"].append({"name": name, "mountPath": f"/dev/{name}"})
            volumes.append({"name": name, "hostPath": {"path": f"/dev/{name}", "type": kind}})
        pod["securityContext"] = {"supplementalGroups": list(site.groups)}
    return pod


def _container(site: KubernetesSite, env: dict[str, str], requests: Tree, limits: Tree) -> Tree:
    # Kubernetes would replace $(NAME) by another variable's value.
    settings: list[Tree] = [
        {"name": name, "value": value.replace("$(", "$$(")} for name, value in env.items()
    ]
    return {
        "name": "ray",
        "image": site.image,
        "env": [{"name": POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}, *settings],
        "resources": {"requests": {**limits, **requests}, "limits": limits},
        "startupProbe": {
            "httpGet": {"path": "/api/healthz", "port": AGENT_PORT},
            "periodSeconds": PROBE_PERIOD_S,
            "timeoutSeconds": 5,
            "failureThreshold": 2 * STARTUP_S // PROBE_PERIOD_S,
        },
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }


def _own(site: KubernetesSite) -> dict[str, str]:
    """The label of all pods; KubeRay's own, ray.io/cluster, differs for each cluster of a RayService."""
    return {"app.kubernetes.io/instance": site.name}


def _memory(size: str) -> Tree:
    return {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}


def weights_folder(site: KubernetesSite) -> str:
    """The folder of the weights in a pod: that of the node, or /weights for a claim."""
    return "/weights" if site.weights.startswith("pvc:") else site.weights


def _weights(site: KubernetesSite) -> Tree:
    if site.weights.startswith("pvc:"):
        claim = {"claimName": site.weights.removeprefix("pvc:"), "readOnly": True}
        return {"name": "weights", "persistentVolumeClaim": claim}
    return {"name": "weights", "hostPath": {"path": site.weights, "type": "Directory"}}
