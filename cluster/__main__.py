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
import csv
import json
import shlex
import signal
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from cluster.manifests.files import (
    assign_hosts,
    checked_name,
    environment,
    files,
    is_amd,
    nodes_of,
    weights_folder,
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
from conf.io.one_line import OneLineParser, hint, nearest
from conf.specs.experiment import VllmEngine
from conf.words import groups

EXIT_OK, EXIT_USAGE, EXIT_CLUSTER = 0, 2, 5
TARGETS = ("kuberay", "ray-up", "systemd")


class Flag(NamedTuple):
    """A row of manifests/flags.csv: a flag of `render` and the targets that use it.

    Without a metavar it takes no value. Its text has a `form` of `manifests.files`.
    """

    names: str
    targets: str
    metavar: str
    default: str
    form: str
    help: str

    @property
    def long(self) -> str:
        return self.names.split()[0]

    @property
    def key(self) -> str:
        return self.long.removeprefix("--").replace("-", "_")


with resources.files("cluster.manifests").joinpath("flags.csv").open() as _rows:
    FLAGS = tuple(Flag(**row) for row in csv.DictReader(_rows))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    typed = sys.argv[1:] if argv is None else list(argv)
    arguments = parser(__doc__).parse_intermixed_args(typed, argparse.Namespace(typed=typed))
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.default_int_handler)

    def act() -> int:
        target = _target(arguments)
        return _render(arguments, target) if target else preflight(arguments)

    # A ConfigError is a ValueError.
    ours = (PlacementError, EXIT_CLUSTER), (SessionError, EXIT_CLUSTER)
    return terminal.exit_code(act, *ours, (ValueError, EXIT_USAGE))


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
        kind = {"metavar": flag.metavar} if flag.metavar else {"action": "store_true"}
        group.add_argument(*flag.names.split(), help=flag.help, **kind)
    return top


def _target(arguments: argparse.Namespace) -> str:
    """The target of `render`, which is removed from the words; empty for `preflight`.

    The flags of the target get their defaults. Raises ValueError for a flag that has no effect on it, and for
    one whose text is not of its form.
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
        text, users = getattr(arguments, flag.key), flag.targets.split()
        if text and target not in users:
            raise ConfigError(f"{flag.long} belongs to {' and '.join(users)}; leave it out")
        if text and flag.form:
            form = target if flag.key == "name" and target == "kuberay" else flag.form
            checked_name(form, text, flag.long)
        setattr(arguments, flag.key, text or flag.default)
    if arguments.json and target:
        raise ConfigError("--json belongs to preflight; render prints files")
    return str(target)


def _render(arguments: argparse.Namespace, target: str) -> int:
    """Print or write the files of a real cluster."""
    from serve_apps.vllm_engine import config_file

    experiment = load(arguments.words)
    engine, routing = experiment.engine, experiment.routing
    nodes = nodes_of(experiment, int(arguments.load_nodes), int(arguments.gpu_node_cpus))
    real = config_file.environment(engine, routing) if isinstance(engine, VllmEngine) else {}
    values: dict[str, Any] = {"site": vars(arguments), "amd": is_amd(experiment.hardware)}
    values["env"] = environment(serve_environment(routing) | real)
    heading = f"python -m cluster {shlex.join(arguments.typed)}\nFor {experiment.model.served_name}, layout "
    heading += f"{experiment.layout.name}; render again instead of editing."
    if target == "kuberay":
        _require_names(arguments)
        config, notes = _serve_config(experiment, arguments.weights) if arguments.service else (None, ())
        heading = "\n".join([heading, *(f"Note: {note}" for note in notes)])
        values["serve_config"] = config
    elif arguments.hosts:
        values["hosts"] = assign_hosts([host for host in arguments.hosts.split(",") if host], nodes)
    else:
        raise ConfigError(
            f"render {target} needs --hosts A,B,...: IP addresses of head, GPU nodes, load nodes"
        )
    return _deliver(files(target, nodes, heading=heading, **values), arguments.out)


def _require_names(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for a name that a Kubernetes cluster needs and has no default."""
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


def _serve_config(experiment: Experiment, weights: str) -> tuple[dict[str, Any], Sequence[str]]:
    """Serve's own configuration of the deployment, and its notes, as `serve_apps render` prints them."""
    from serve_apps.vllm_engine import rendering
    from serve_apps.vllm_engine.config_file import VllmService

    engine = experiment.engine
    if not isinstance(engine, VllmEngine) or engine.kind != "vllm":
        raise ConfigError(
            f"--service keeps a real deployment up, not engine={engine.kind}; add engine=vllm, or leave "
            "--service out: a sweep deploys by itself on a RayCluster"
        )
    folder = weights_folder(weights)
    if not engine.model_path.startswith(folder):
        raise ConfigError(
            f"--service loads its weights from {folder}, where pods find --weights={weights}; "
            f"add engine.model_path={folder}/FOLDER"
        )
    # The version installed here need not be that of the image.
    rendered = rendering.render(VllmService(experiment, ""))
    if rendered.application is None:
        raise ConfigError(rendered.notes[-1])
    # KubeRay asks every pod's own front whether the pod is ready.
    http = {**rendered.application["http_options"], "host": "0.0.0.0"}
    return {**rendered.application, "proxy_location": "EveryNode", "http_options": http}, rendered.notes


def _deliver(texts: dict[str, str], out: str) -> int:
    """Write the files into a folder, or print them, with their names if there are several."""
    if not out:
        for name, text in texts.items():
            terminal.data((f"# ---- {name}\n{text}" if len(texts) > 1 else text).removesuffix("\n"))
        return EXIT_OK
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
        terminal.tell(str(folder / name))
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
    from serve_apps.vllm_engine.config_file import VllmService

    if not isinstance(experiment.engine, VllmEngine):
        return {}
    return dict(VllmService(experiment, installed_vllm()).recipe().env)


if __name__ == "__main__":
    sys.exit(main())
