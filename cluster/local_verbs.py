"""The verbs of a cluster on this machine: up, status and down. Ray is imported where a verb needs it."""

import argparse
import json
import shlex
from collections.abc import Sequence
from typing import Any

from cluster.command_line import EXIT_CLUSTER, EXIT_OK
from cluster.ray_session.placement import SessionError
from conf import ConfigError, Experiment, load
from conf.io import terminal
from conf.specs.experiment import Cluster


def load_cpus(experiment: Experiment) -> float:
    """CPUs of all load actors."""
    return experiment.fleet.actors * experiment.fleet.cpus_per_actor


def up(arguments: argparse.Namespace) -> int:
    """Start the cluster on this machine, or report that it is up."""
    from cluster.ray_session import up as local

    experiment = load(arguments.words)
    cluster = experiment.cluster
    if cluster.session == "address":
        raise ConfigError(
            f"cluster={cluster.name} is joined, not started; use cluster=laptop or laptop_4n here, and "
            "python -m cluster render for real nodes"
        )
    with terminal.own_stdout():
        standing = local.start(cluster, experiment.routing, load_cpus(experiment))
    text = json.dumps(_shown(standing), indent=2) if arguments.json else None
    terminal.data(text or "\n".join(_how_to_use(standing, arguments.words)))
    return EXIT_OK


def _shown(standing: Any) -> dict[str, Any]:
    return {
        "address": standing.address,
        "dashboard": standing.dashboard_url,
        "environment": standing.environment,
        "environment_file": str(standing.environment_file),
        "cluster": standing.cluster,
    }


def _how_to_use(standing: Any, typed: Sequence[str]) -> list[str]:
    cluster = Cluster(**standing.cluster)
    others = [word for word in typed if not word.startswith("cluster.session=")]
    words = shlex.join([*others, "cluster.session=address"])
    # The only node of a `local` cluster is a node with GPUs.
    chosen = """ --entrypoint-label-selector '{"role":"load"}'""" if cluster.session == "fake" else ""
    return [
        f"up           {cluster.name}: {cluster.nodes} x {cluster.gpus_per_node} pretended GPUs, on loopback",
        f"address      {standing.address}",
        f"dashboard    {standing.dashboard_url}",
        f"environment  {standing.environment_file}   names the token's file; source it to join",
        "use          source it, then one of",
        f"  python -m loadgen sweep {words}",
        f"  ray job submit --working-dir . --entrypoint-num-cpus 1{chosen} -- "
        f'python -m loadgen sweep {words} out="$PWD/runs"',
        "  python -m cluster status; python -m cluster down",
    ]


def status(arguments: argparse.Namespace) -> int:
    """Show nodes, resources and applications of the local cluster, or of one joined by its address."""
    from cluster.ray_session import up as local
    from cluster.ray_session.session import open_session

    cluster = load(arguments.words).cluster
    if arguments.words and cluster.session == "address":
        with terminal.own_stdout(), open_session(cluster, None):
            tree = {"address": cluster.address, **local.survey()}
    else:
        tree = _survey_here()
    if arguments.json:
        terminal.data(json.dumps(tree, indent=2))
    else:
        terminal.tell("\n".join(_status_lines(tree)))
    dead = [node for node in tree["nodes"] if not node["alive"]]
    return EXIT_CLUSTER if dead or tree.get("processes_ended") else EXIT_OK


def _survey_here() -> dict[str, Any]:
    """The local cluster as plain data. Raises SessionError if none is up, or all of it has ended."""
    from cluster.ray_session import up as local
    from cluster.ray_session.session import forget_settings, in_environment, loopback_only, open_session

    standing = local.standing()
    if standing is None:
        raise SessionError("no cluster is up here; start one with python -m cluster up cluster=laptop_4n")
    ended = len(standing.processes) - len(standing.alive)
    if ended == len(standing.processes):
        raise SessionError("the cluster that was up here has ended; clear up: python -m cluster down")
    here = Cluster("here", session="address", address=standing.address)
    with in_environment(standing.environment), loopback_only():
        forget_settings()
        with terminal.own_stdout(), open_session(here, None):
            return {**_shown(standing), "processes_ended": ended, **local.survey()}


def _status_lines(tree: dict[str, Any]) -> list[str]:
    lines = [f"address      {tree['address']}"]
    if tree.get("dashboard"):
        lines.append(f"dashboard    {tree['dashboard']}")
    for node in tree["nodes"]:
        role = node["role"] or "no role"
        has = ", ".join(f"{name} {amount:g}" for name, amount in node["resources"].items()) or "nothing"
        lines.append(
            f"node         {node['address']:<16} {role:<8} {'alive' if node['alive'] else 'DEAD':<6} {has}"
        )
    for name, application in tree["applications"].items():
        replicas = ", ".join(f"{count} {state}" for state, count in application["replicas"].items())
        lines.append(f"application  {name:<20} {application['status']} {replicas}")
    if not tree["applications"]:
        lines.append("application  none")
    if tree.get("processes_ended"):
        lines.append(f"warning      {tree['processes_ended']} of its first processes have ended")
    return lines


def down(arguments: argparse.Namespace) -> int:
    """End the cluster that `up` started here."""
    from cluster.ray_session import up as local

    standing, left = local.stop()
    name = standing.cluster["name"] if standing else None
    if arguments.json:
        terminal.data(json.dumps({"stopped": name, "left": left}))
    else:
        terminal.tell(f"down         {name}" if name else "down         no cluster was up here")
        terminal.tell("\n".join(f"left         {line}" for line in left) or "left         nothing")
    return EXIT_CLUSTER if left else EXIT_OK
