"""Files of a real cluster as text, with comments on their reasons and use; pure, never a secret."""

import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from cluster.manifests import ray_service
from cluster.manifests import static_hosts as static
from cluster.manifests.node_offers import OPENED, RAY_VERSION, NodeGroup
from cluster.manifests.ray_service import KubernetesSite
from cluster.manifests.static_hosts import Hosts
from conf.io.one_line import printable
from conf.specs.experiment import Hardware

Files = dict[str, str]
"""File name -> its text."""


def heading(typed: Sequence[str], model: str, layout: str) -> str:
    """The first comment of every file: the command, model and layout that it is of."""
    asked = f"python -m cluster {shlex.join(typed)}"
    return f"{asked}\nFor {model}, layout {layout}; render again instead of editing."


TOPOLOGY = """\
One pod, or host, is one node with all its GPUs: of eight MI325X, GPUs 0-3 are in one NUMA node and 4-7 in the
other, so that each TP4 group has its own. NUMA balancing off (kernel.numa_balancing=0), NPS1."""


def kuberay(
    site: KubernetesSite,
    nodes: Sequence[NodeGroup],
    hardware: Hardware,
    env: dict[str, str],
    head: str,
    config: dict[str, Any] | None,
) -> Files:
    """A RayCluster, or with Serve's `config` a RayService, and its NetworkPolicy.

    Raises ValueError for an image whose tag moves.
    """
    _refuse_moving(site.image)
    main = ray_service.ray_object(site, nodes, hardware, env, config)
    what = RAY_CLUSTER if config is None else RAY_SERVICE
    digest = "" if "@sha256:" in site.image else "\nThe image has no digest: add @sha256:..., a tag can move."
    folder, secret = ray_service.weights_folder(site), site.token_secret or site.name
    common = COMMON.format(site=site, version=RAY_VERSION, weights=folder, secret=secret)
    header = f"{head}\n{what}{digest}\n{common}\n{TOPOLOGY}"
    return {f"{main['kind'].lower()}.yaml": dump(header, ray_service.network_policy(site), main)}


def _refuse_moving(image: str) -> None:
    name = image.partition("@")[0].rpartition("/")[2]
    tag = name.partition(":")[2]
    if "@sha256:" not in image and tag in ("", "latest", "nightly"):
        raise ValueError(f"--image={image} is another one tomorrow; name a version: REPO:TAG@sha256:DIGEST")


RAY_CLUSTER = """\
For sweeps: python -m loadgen deploys what it measures, submitted as a job or run in a load pod."""
RAY_SERVICE = """\
Keeps one deployment up, to be measured with engine=external. A sweep of configurations wants a RayCluster.
Serve's host 0.0.0.0 is the pod's: the NetworkPolicy below lets in only pods of this cluster."""
COMMON = """\
Needs KubeRay 1.6 or newer (authOptions, resources and labels of groups) and the device plugin of the GPUs.
Image: FROM vllm/vllm-openai-rocm at a version, then pip install ray[serve]=={version} and this package:
Ray and vLLM are the same on all pods (kuberay #3168).
Weights: {site.weights}, read-only in {weights} of every pod with GPUs: engine.model_path={weights}/FOLDER.
Token: authOptions has KubeRay give every container RAY_AUTH_TOKEN from a Secret; it is in no file. To use it:
  umask 077
  kubectl -n {site.namespace} get secret {secret} -o jsonpath={{.data.auth_token}} | base64 -d > token
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$PWD/token
  kubectl -n {site.namespace} port-forward service/{site.name}-head-svc 8265:8265
  ray job submit --address http://127.0.0.1:8265 --working-dir . --entrypoint-num-cpus 1 \\
    --entrypoint-label-selector '{{"role":"load"}}' -- python -m loadgen sweep ... out=/a/folder/that/stays
The startup probe allows an hour; that replicas are ready is another question, which the sweep asks itself.
/dev/shm counts towards the memory limit of its pod. The device plugin admits to /dev/kfd and /dev/dri; groups
video and render are those of the nodes (getent group video render). The head offers no CPUs: nothing runs
there. Serve's settings are the same on all pods: a proxy reads them where it runs. Within the namespace the
pods listen on 6379, 8265, 10001, 8000, 30000-31000, 8404, 9101 and Ray's own; the NetworkPolicy closes them
to all but this cluster and KubeRay's operator, where the network plugin enforces it."""


def ray_up(
    name: str,
    hosts: Hosts,
    nodes: Sequence[NodeGroup],
    env: dict[str, str],
    head: str,
    ssh_user: str,
    venv: str,
) -> Files:
    """A cluster file for `ray up`."""
    header = f"{head}\n{RAY_UP.format(venv=venv, version=RAY_VERSION)}\n{OPENED}\n{TOPOLOGY}"
    return {"ray-up.yaml": dump(header, static.ray_up(name, hosts, nodes, env, ssh_user, venv))}


RAY_UP = """\
ray up ray-up.yaml; ray down ray-up.yaml. Every host has this package with ray {version} in {venv}, and the
weights.
No file is copied: put one token into ~/.ray/auth_token (mode 0600) of every host yourself, for example with
  umask 077; ray get-auth-token --generate | ssh HOST 'install -D -m 0600 /dev/stdin .ray/auth_token'
The head logs in on the others with its user's own key. --num-gpus and a resource are given by hand: without
amdsmi in Python Ray sees no AMD GPU, and says nothing. Serve's settings are the same on all hosts."""


def systemd(
    hosts: Hosts, nodes: Sequence[NodeGroup], env: dict[str, str], head: str, venv: str, amd: bool
) -> Files:
    """A unit for each role, and the environment of them all."""
    made = static.units(hosts, nodes, venv, amd)
    places = {"head": (hosts.head,), "gpu": hosts.gpu, "load": hosts.load}
    header = _comments(f"{head}\n{OPENED}")
    files = {"ray.env": header + _comments(ENVIRONMENT) + static.environment_file(env)}
    for name, unit in made.items():
        service = name.removesuffix(".service")
        addresses = places[service.removeprefix("maxqps-").removesuffix("@")]
        where = [f"On {each}: systemctl enable --now {service}{each}" for each in addresses]
        text = "\n".join([f"In /etc/systemd/system/{name} of each host below.", *where, UNIT])
        files[name] = header + _comments(text) + "\n" + unit
    return files


ENVIRONMENT = f"""\
On every host as {static.ETC}/ray.env. The token is in {static.TOKEN} (mode 0400, owner ray), the same
on all hosts:
  umask 077; ray get-auth-token --generate | ssh HOST 'install -D -m 0400 -o ray /dev/stdin {static.TOKEN}'"""
UNIT = f"""\
Needs a user ray, {static.ETC}/ray.env and {static.TOKEN}. GPUs and the node's resource are given by
hand: without amdsmi in Python Ray sees no AMD GPU, and says nothing. Behind the @ stands the address under
which Ray registers the host.
{TOPOLOGY}"""


def _comments(text: str) -> str:
    """Text as comment lines, whatever was typed."""
    return "".join(f"# {printable(line)}".rstrip() + "\n" for line in text.splitlines())


class _Plain(yaml.SafeDumper):
    """Dumps no anchors, and text of several lines as a block."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)


def dump(header: str, *objects: dict[str, Any]) -> str:
    """YAML documents with keys in the given order, after `header` as comments."""
    documents = [yaml.dump(each, Dumper=_Plain, sort_keys=False, width=110) for each in objects]
    return _comments(header) + "---\n".join(documents)
