"""Arguments of `python -m cluster`: verbs, words and flags, and which target of `render` takes each flag."""

import argparse
from pathlib import Path
from typing import Any

from conf import ConfigError
from conf.io.one_line import OneLineParser, hint, nearest
from conf.words import groups

EXIT_OK, EXIT_INTERNAL, EXIT_USAGE, EXIT_CLUSTER, EXIT_INTERRUPTED = 0, 1, 2, 5, 130
TARGETS = ("kuberay", "ray-up", "systemd")
FLAGS = {
    "image": ("kuberay",),
    "weights": ("kuberay",),
    "service": ("kuberay",),
    "namespace": ("kuberay",),
    "token_secret": ("kuberay",),
    "groups": ("kuberay",),
    "memory": ("kuberay",),
    "hosts": ("ray-up", "systemd"),
    "ssh_user": ("ray-up",),
    "venv": ("ray-up", "systemd"),
    "name": ("kuberay", "ray-up"),
    "load_nodes": TARGETS,
    "gpu_node_cpus": TARGETS,
    "out": TARGETS,
}
"""Flag of `render` -> the targets that use it."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """The parser: a verb, words `key=value` in any order, and flags."""
    choices = "\n".join(f"  {group}=  {', '.join(names)}" for group, names in groups().items())
    top = OneLineParser(
        prog="python -m cluster",
        allow_abbrev=False,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="The words are those of python -m loadgen: a bare group name chooses a file, a dotted key "
        f"sets a value.\n{choices}\n\nexit codes: 0 done; 1 internal error; 2 wrong usage; 5 the cluster "
        "failed, or a check did; 130 interrupted",
    )
    top.add_argument("verb", choices=("preflight", "render"), help="check nodes; print files")
    top.add_argument("words", nargs="*", metavar="key=value", help=f"render: first {' or '.join(TARGETS)}")
    top.add_argument("--json", action="store_true", help="preflight: one JSON document on stdout")
    _add_render_flags(top.add_argument_group("render"))
    return top


def _add_render_flags(group: Any) -> None:
    add = group.add_argument
    add("--out", "-o", type=Path, metavar="DIR", help="write files there; by default they are printed")
    add(
        "--load-nodes",
        type=int,
        metavar="N",
        help="nodes for load only (1); 0: load and replicas share nodes",
    )
    add("--gpu-node-cpus", type=int, metavar="N", help="CPUs of a node with GPUs for Ray to give away (64)")
    add("--name", metavar="NAME", help="name of the cluster (maxqps)")
    add("--image", metavar="IMAGE", help="kuberay: pinned, best by digest: REPO:TAG@sha256:DIGEST")
    add("--weights", metavar="WHERE", help="kuberay: pvc:NAME (pvc:weights), or a folder on every node")
    add("--service", action="store_true", help="kuberay: a RayService that keeps one deployment up")
    add("--namespace", metavar="NAME", help="kuberay: namespace of the objects (default)")
    add("--token-secret", metavar="NAME", help="kuberay: Secret with the key auth_token (KubeRay makes one)")
    add("--groups", metavar="GID,GID", help="kuberay: ids of the nodes' groups video and render (44,109)")
    add("--memory", metavar="SIZE", help="kuberay: memory of a pod with GPUs, /dev/shm included (512Gi)")
    add("--hosts", metavar="A,B,...", help="ray-up, systemd: IP addresses of head, GPU nodes, load nodes")
    add("--ssh-user", metavar="USER", help="ray-up: user that logs in on all hosts (ray)")
    add("--venv", metavar="DIR", help="ray-up, systemd: environment with this package there (/opt/maxqps)")


def target_of(arguments: argparse.Namespace) -> str:
    """The target of `render`, which is removed from the words; empty for other verbs."""
    if arguments.verb != "render":
        return ""
    targets = [word for word in arguments.words if word in TARGETS]
    if len(targets) != 1:
        near = hint([name for word in arguments.words for name in nearest(word, TARGETS)])
        raise ConfigError(
            f"render needs one of {', '.join(TARGETS)}: python -m cluster render kuberay ...{near}"
        )
    arguments.words.remove(targets[0])
    return str(targets[0])


def refuse_unused_flags(arguments: argparse.Namespace, target: str) -> None:
    """Raise ConfigError for a flag that has no effect on this verb and target."""
    for flag, targets in FLAGS.items():
        if getattr(arguments, flag) not in (None, False) and target not in targets:
            raise ConfigError(f"--{flag.replace('_', '-')} belongs to {' and '.join(targets)}; leave it out")
    if arguments.json and target:
        raise ConfigError("--json belongs to preflight; render prints files")
