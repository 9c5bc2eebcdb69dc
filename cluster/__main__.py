"""Check the nodes of a cluster, and write the files that start a real one.

examples:
  python -m cluster preflight                                  this machine as the nodes of cluster=laptop
  python -m cluster preflight cluster=mi325x_4n engine=vllm                  the cluster of RAY_ADDRESS
  python -m cluster render kuberay cluster=mi325x_4n --image registry/maxqps:1@sha256:... --out k8s
  python -m cluster render kuberay --service engine=vllm engine.model_path=/weights/qwen3 cluster=mi325x_4n \\
      --image registry/maxqps:1@sha256:... --token-secret ray-token
  python -m cluster render ray-up cluster=mi325x_1n --hosts 10.0.0.1,10.0.0.2,10.0.0.3
  python -m cluster render systemd cluster=mi325x_1n --hosts 10.0.0.1,10.0.0.2,10.0.0.3 --out units
"""

# The composition root of this package: the only file that may import serve_apps.

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cluster.manifests.files import (
    KubernetesSite,
    assign_hosts,
    environment,
    is_amd,
    kuberay,
    nodes_of,
    ray_up,
    systemd,
)
from cluster.ray_session.own_machine import (
    NO_CLUSTER,
    PlacementError,
    SessionError,
    head_is_missing,
    serve_environment,
)
from conf import ConfigError, Experiment, load
from conf.io import terminal
from conf.io.one_line import OneLineParser, hint, nearest, reason
from conf.specs.experiment import VllmEngine
from conf.words import groups

EXIT_OK, EXIT_INTERNAL, EXIT_USAGE, EXIT_CLUSTER, EXIT_INTERRUPTED = 0, 1, 2, 5, 130
KUBERAY, RAY_UP, HOSTS = ("kuberay",), ("ray-up",), ("ray-up", "systemd")
TARGETS = KUBERAY + HOSTS


class Flag(NamedTuple):
    """A flag of `render`, and the targets that use it; without a metavar it takes no value."""

    names: str
    targets: tuple[str, ...]
    metavar: str
    help: str
    type: Callable[[str], Any] = str

    def value(self, arguments: argparse.Namespace) -> Any:
        return getattr(arguments, self.names.split()[0].removeprefix("--").replace("-", "_"))


FLAGS = (
    Flag("--out -o", TARGETS, "DIR", "write files there; by default they are printed", Path),
    Flag("--load-nodes", TARGETS, "N", "nodes for load only (1); 0: load and replicas share nodes", int),
    Flag("--gpu-node-cpus", TARGETS, "N", "CPUs of a node with GPUs for Ray to give away (64)", int),
    Flag("--name", KUBERAY + RAY_UP, "NAME", "name of the cluster (maxqps)"),
    Flag("--image", KUBERAY, "IMAGE", "kuberay: pinned, best by digest: REPO:TAG@sha256:DIGEST"),
    Flag("--weights", KUBERAY, "WHERE", "kuberay: pvc:NAME (pvc:weights), or a folder on every node"),
    Flag("--service", KUBERAY, "", "kuberay: a RayService that keeps one deployment up"),
    Flag("--namespace", KUBERAY, "NAME", "kuberay: namespace of the objects (default)"),
    Flag("--token-secret", KUBERAY, "NAME", "kuberay: Secret with the key auth_token (KubeRay makes one)"),
    Flag("--groups", KUBERAY, "GID,GID", "kuberay: ids of the nodes' groups video and render (44,109)"),
    Flag("--memory", KUBERAY, "SIZE", "kuberay: memory of a pod with GPUs, /dev/shm included (512Gi)"),
    Flag("--hosts", HOSTS, "A,B,...", "ray-up, systemd: IP addresses of head, GPU nodes, load nodes"),
    Flag("--ssh-user", RAY_UP, "USER", "ray-up: user that logs in on all hosts (ray)"),
    Flag("--venv", HOSTS, "DIR", "ray-up, systemd: environment with this package there (/opt/maxqps)"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    typed = sys.argv[1:] if argv is None else list(argv)
    arguments = parser(__doc__).parse_intermixed_args(typed, argparse.Namespace(typed=typed))
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.default_int_handler)
    try:
        target = _target(arguments)
        return _render(arguments, target) if target else preflight(arguments)
    except (PlacementError, SessionError) as error:
        terminal.error(error)
        return EXIT_CLUSTER
    except ValueError as error:  # ConfigError is one
        terminal.error(error)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone.
        terminal.give_up_stdout()
        return EXIT_INTERNAL
    except OSError as error:
        terminal.error(reason(error))
        return EXIT_INTERNAL


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
    group: Any = top.add_argument_group("render")
    for flag in FLAGS:
        kind = {"type": flag.type, "metavar": flag.metavar} if flag.metavar else {"action": "store_true"}
        group.add_argument(*flag.names.split(), help=flag.help, **kind)
    return top


def _target(arguments: argparse.Namespace) -> str:
    """The target of `render`, which is removed from the words; empty for `preflight`.

    Raises ConfigError for a flag that has no effect on it.
    """
    targets = [word for word in arguments.words if word in TARGETS]
    target = targets[0] if targets and arguments.verb == "render" else ""
    if arguments.verb == "render":
        if len(targets) != 1:
            near = hint([name for word in arguments.words for name in nearest(word, TARGETS)])
            raise ConfigError(
                f"render needs one of {', '.join(TARGETS)}: python -m cluster render kuberay ...{near}"
            )
        arguments.words.remove(target)
    for flag in FLAGS:
        if flag.value(arguments) not in (None, False) and target not in flag.targets:
            raise ConfigError(
                f"{flag.names.split()[0]} belongs to {' and '.join(flag.targets)}; leave it out"
            )
    if arguments.json and target:
        raise ConfigError("--json belongs to preflight; render prints files")
    return str(target)


def _render(arguments: argparse.Namespace, target: str) -> int:
    """Print or write the files of a real cluster."""
    from serve_apps.vllm_engine import config_file

    experiment = load(arguments.words)
    engine, routing = experiment.engine, experiment.routing
    load_nodes = 1 if arguments.load_nodes is None else arguments.load_nodes
    gpu_cpus = 64 if arguments.gpu_node_cpus is None else arguments.gpu_node_cpus
    if load_nodes < 0 or gpu_cpus < 1:
        raise ConfigError(
            f"--load-nodes={load_nodes} must not be negative, and --gpu-node-cpus={gpu_cpus} at least 1"
        )
    parts = experiment.cluster, experiment.hardware, engine, experiment.fleet
    nodes = nodes_of(*parts, load_nodes, gpu_cpus)
    real = config_file.environment(engine, routing) if isinstance(engine, VllmEngine) else {}
    env = environment(serve_environment(routing) | real)
    heading = f"python -m cluster {shlex.join(arguments.typed)}\nFor {experiment.model.served_name}, layout "
    heading += f"{experiment.layout.name}; render again instead of editing."
    name, venv = arguments.name or "maxqps", arguments.venv or "/opt/maxqps"
    if target == "kuberay":
        site = _site(arguments)
        config, notes = _serve_config(experiment, site) if arguments.service else (None, ())
        heading = "\n".join([heading, *(f"Note: {note}" for note in notes)])
        return _deliver(kuberay(site, nodes, experiment.hardware, env, heading, config), arguments.out)
    if not arguments.hosts:
        raise ConfigError(
            f"render {target} needs --hosts A,B,...: IP addresses of head, GPU nodes, load nodes"
        )
    hosts = assign_hosts([host for host in arguments.hosts.split(",") if host], nodes)
    if target == "ray-up":
        files = ray_up(hosts, nodes, env, heading, name, arguments.ssh_user or "ray", venv)
    else:
        files = systemd(hosts, nodes, env, heading, venv, is_amd(experiment.hardware))
    return _deliver(files, arguments.out)


def _site(arguments: argparse.Namespace) -> KubernetesSite:
    if not arguments.image:
        raise ConfigError(
            "render kuberay needs --image REPO:TAG@sha256:DIGEST: vllm/vllm-openai-rocm with ray 2.60.0 and "
            "this package"
        )
    if arguments.service and not arguments.token_secret:
        raise ConfigError(
            "render kuberay --service needs --token-secret NAME (key auth_token): KubeRay would name its own "
            "after each cluster that it makes for the service"
        )
    keys = "name", "weights", "namespace", "token_secret", "memory"
    given: dict[str, Any] = {key: word for key in keys if (word := getattr(arguments, key))}
    if arguments.groups:
        try:
            given["groups"] = tuple(map(int, arguments.groups.split(",")))
        except ValueError as error:
            raise ConfigError(
                f"--groups={arguments.groups}: ids, as `getent group video render` says on the nodes"
            ) from error
    return KubernetesSite(arguments.image, **given)


def _serve_config(experiment: Experiment, site: KubernetesSite) -> tuple[dict[str, Any], Sequence[str]]:
    """Serve's own configuration of the deployment, and its notes, as `serve_apps render` prints them."""
    from serve_apps.vllm_engine import rendering

    engine = experiment.engine
    if not isinstance(engine, VllmEngine) or engine.kind != "vllm":
        raise ConfigError(
            f"--service keeps a real deployment up, not engine={engine.kind}; add engine=vllm, or leave "
            "--service out: a sweep deploys by itself on a RayCluster"
        )
    folder = site.weights_folder
    if not engine.model_path.startswith(folder):
        raise ConfigError(
            f"--service loads its weights from {folder}, where pods find --weights={site.weights}; "
            f"add engine.model_path={folder}/FOLDER"
        )
    # The version installed here need not be that of the image.
    rendered = rendering.render(_recipe_input(experiment, engine, ""))
    if rendered.application is None:
        raise ConfigError(rendered.notes[-1])
    # KubeRay asks every pod's own front whether the pod is ready.
    http = {**rendered.application["http_options"], "host": "0.0.0.0"}
    return {**rendered.application, "proxy_location": "EveryNode", "http_options": http}, rendered.notes


def _recipe_input(experiment: Experiment, engine: VllmEngine, installed: str) -> Any:
    """The input of a vLLM recipe, for the installed version, else that of the words, else the newest."""
    from serve_apps.vllm_engine import rendering
    from serve_apps.vllm_recipes import vllm_flags

    version = installed or engine.vllm_version or vllm_flags.text(vllm_flags.NEWEST)
    return rendering.RenderingInput(experiment, version)


def _deliver(files: dict[str, str], out: Path | None) -> int:
    """Write the files into a folder, or print them, with their names if there are several."""
    if out is None:
        for name, text in files.items():
            terminal.data((f"# ---- {name}\n{text}" if len(files) > 1 else text).removesuffix("\n"))
        return EXIT_OK
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (out / name).write_text(text)
        terminal.tell(str(out / name))
    return EXIT_OK


def preflight(arguments: argparse.Namespace) -> int:
    """Check every node of the joined cluster, or of a session of our own."""
    experiment = load(arguments.words)
    if experiment.engine.kind == "external":
        raise ConfigError("engine=external deploys nothing, so there are no nodes to check; leave it out")
    if experiment.cluster.session == "address" and head_is_missing(experiment.cluster.address):
        raise SessionError(NO_CLUSTER)
    from cluster.preflight.preflight import expected_of, inspect
    from cluster.ray_session.session import open_session

    expected = expected_of(experiment, _recipe_environment(experiment))
    real = experiment.engine.kind == "vllm"
    load_cpus = experiment.fleet.actors * experiment.fleet.cpus_per_actor
    with terminal.own_stdout(), open_session(experiment.cluster, None, load_cpus, real_gpus=real):
        report = inspect(expected)
    if arguments.json:
        terminal.data(json.dumps(report.tree(), indent=2))
    else:
        terminal.tell("\n".join(report.lines()))
    return report.exit_code


def _recipe_environment(experiment: Experiment) -> dict[str, str]:
    """Variables that engines get on top of their nodes' own. Raises ValueError for a contradiction."""
    from serve_apps.vllm_emulated.platform_plugin import installed_vllm

    engine = experiment.engine
    if not isinstance(engine, VllmEngine):
        return {}
    return dict(_recipe_input(experiment, engine, installed_vllm()).recipe().env)


if __name__ == "__main__":
    sys.exit(main())
