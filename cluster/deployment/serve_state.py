"""The state of one application by Serve's controller, the last log lines of a failure, and its removal."""

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import ray
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from cluster.deployment.warmup import DeployError
from cluster.ray_session.own_machine import LOOPBACK, Process, running, with_descendants
from cluster.ray_session.session import SERVE_CONTROLLER, gather, on_node, serve_actor_lives
from conf.io import bounded_yaml
from conf.io.one_line import last_line, one_line
from conf.io.secret import masked
from conf.ray_patches import begin_deletion, logs_folder

STATE_TIMEOUT_S = 10.0


Side = Literal["engine", "prefill", "other"]


@dataclass(frozen=True, slots=True)
class ServeReplica:
    """A running replica: its id, its process and its node; `started_s` is on the controller's clock.

    `side` is engine if it serves the model, prefill if it only computes prompts, other for routers and
    ingresses.
    """

    replica_id: str
    deployment: str
    node: str
    host: str
    pid: int | None
    actor: str
    started_s: float
    side: Side = "engine"


@dataclass(frozen=True, slots=True)
class ServeState:
    """The state of one application, with its running `replicas`.

    `counts` has all replicas of the engines by state, `short` the other deployments that do not run as
    targeted. `proxy` is the status of the first front that is not healthy; `fronts`, `controller` and
    `options` name the actors of the fronts, the controller's process and the deployments' options.
    """

    status: str
    message: str
    counts: dict[str, int]
    replicas: tuple[ServeReplica, ...]
    short: tuple[str, ...]
    proxy: str
    fronts: tuple[str, ...]
    controller: str
    options: str

    def of_side(self, side: Side) -> tuple[ServeReplica, ...]:
        return tuple(replica for replica in self.replicas if replica.side == side)

    @property
    def replica_ids(self) -> frozenset[str]:
        """The ids of the replicas that serve the model."""
        return frozenset(replica.replica_id for replica in self.engines)

    @property
    def engines(self) -> tuple[ServeReplica, ...]:
        return self.of_side("engine")

    @property
    def trouble(self) -> str | None:
        """The fault of the application itself, apart from its replicas, in one line; None without a fault."""
        if self.status != "RUNNING":
            return f"the application is {self.status} {self.message}".rstrip()
        if self.short:
            return f"{', '.join(self.short)} running"
        return None if self.proxy == "HEALTHY" else f"the proxy is {self.proxy}"

    def changed(self, now: "ServeState") -> str | None:
        """The difference between this state and a later one, in one line; None if the service is the same.

        Arguments of an engine live as long as its process: the same process has the same.
        """
        if now.replica_ids != self.replica_ids:
            gone, new = len(self.replica_ids - now.replica_ids), len(now.replica_ids - self.replica_ids)
            return f"{gone} of {len(self.replica_ids)} replicas gone, {new} new"
        if now.trouble:
            return now.trouble
        later = {replica.replica_id: replica for replica in now.replicas}
        for before in self.replicas:
            after = later.get(before.replica_id)
            if after is None or (before.pid, before.node) != (after.pid, after.node):
                return f"{before.deployment} {before.replica_id} is another process now"
        if len(later) != len(self.replicas):
            return f"{len(later) - len(self.replicas)} replicas more than at the start"
        if self.fronts != now.fronts:
            return "the proxy was replaced"
        if self.controller != now.controller:
            return "Serve's controller was restarted"
        return None if self.options == now.options else "the deployment's options were changed"


def in_order(now: Iterable[ServeReplica], before: Sequence[ServeReplica]) -> tuple[ServeReplica, ...]:
    """Replicas in the order of those `before`: one that stayed keeps its place, a new one fills a gap.

    A new replica takes the place of an old one on the same node if it can, so that URLs keep their nodes.
    """
    rest = sorted(now, key=lambda replica: replica.replica_id)
    places: list[ServeReplica | None] = [None] * len(before)
    for keys in (("replica_id",), ("node",), ()):  # the same replica, else one on the same node, else any
        for place, old in enumerate(before):
            fitting = (new for new in rest if all(getattr(new, key) == getattr(old, key) for key in keys))
            replica = next(fitting, None) if places[place] is None else None
            if replica is not None:
                places[place] = replica
                rest.remove(replica)
    return (*(replica for replica in places if replica is not None), *rest)


def state(app_name: str, engines: str = "", prefill: str = "") -> ServeState:
    """The state now; the names of deployments that serve the model, or compute prompts, begin so.

    Raises DeployError.
    """
    return read(details(), app_name, engines, prefill)


def details() -> dict[str, Any]:
    """The controller's tree of details of all applications. Raises DeployError."""
    tree: dict[str, Any] = _ask_controller("get_serve_instance_details")
    return tree


def read(details: dict[str, Any], app_name: str, engines: str = "", prefill: str = "") -> ServeState:
    """The state of an application in the controller's tree of details."""
    app = details["applications"].get(app_name, {"status": "ABSENT", "message": "", "deployments": {}})
    counts, replicas, short = Counter[str](), list[ServeReplica](), list[str]()
    for name, deployment in app["deployments"].items():
        side: Side = "prefill" if prefill and name.startswith(prefill) else "other"
        side = "engine" if name.startswith(engines) else side
        states, target = Counter[str](), deployment["target_num_replicas"]
        for row in deployment["replicas"]:
            states[word(row["state"])] += 1
            if word(row["state"]) == "RUNNING":
                process = row["node_id"], row["node_ip"], row["pid"], row["actor_name"], row["start_time_s"]
                replicas.append(ServeReplica(row["replica_id"], name, *process, side))
        if side == "engine":
            counts += states
        elif states["RUNNING"] != target:
            short.append(f"{states['RUNNING']} of {target} {name}")
    configs = {name: deployment["deployment_config"] for name, deployment in app["deployments"].items()}
    fronts = list(details["proxies"].values())
    statuses = [word(front["status"]) for front in fronts]
    unhealthy = next((status for status in statuses if status != "HEALTHY"), "HEALTHY")
    return ServeState(
        status=word(app["status"]),
        message=one_line(app["message"]),
        counts=dict(counts),
        replicas=tuple(replicas),
        short=tuple(short),
        proxy=unhealthy if fronts else "ABSENT",
        fronts=tuple(sorted(str(front["actor_id"]) for front in fronts)),
        controller=str(details["controller_info"]["worker_id"]),
        options=hashlib.sha256(json.dumps(configs, sort_keys=True, default=str).encode()).hexdigest(),
    )


def metrics_urls(app_name: str, replicas: Sequence[str]) -> dict[str, str]:
    """The /metrics URL of each of `replicas`, at the HTTP port that HAProxy uses. Raises DeployError.

    The controller names a proxy's targets by their actors, whose names end in the replica's id; without such
    ports it names the proxy itself.
    """
    groups = _ask_controller("get_target_groups", app_name, True)
    targets = [target for group in groups if word(group.protocol) == "HTTP" for target in group.targets]
    urls = {target.name.rpartition("#")[2]: f"http://{target.ip}:{target.port}/metrics" for target in targets}
    return {replica: urls[replica] for replica in replicas if replica in urls}


def _ask_controller(method: str, *words: Any) -> Any:
    """The answer of Serve's controller, which may have died with the cluster. Raises DeployError."""
    if not ray.is_initialized():
        raise DeployError("the Ray session has ended")
    try:
        controller = ray.get_actor(*SERVE_CONTROLLER)
        return ray.get(getattr(controller, method).remote(*words), timeout=STATE_TIMEOUT_S)
    except (RayError, ValueError) as error:
        raise DeployError(f"Ray Serve does not answer: {last_line(error)}") from error


def word(value: Any) -> str:
    """The text of a value of one of Serve's enums."""
    return str(value.value if isinstance(value, Enum) else value)


LINES, LETTERS = 200, 400
"""Most lines of a process, more than Python's stack of a crash, and letters of a line (our choice)."""
TAIL_BYTES = 2**16
NEWEST = 3
"""Most processes of an application that are read on a node (our choice)."""
NODES, NODE_TIMEOUT_S = 8, 30.0
"""Most nodes that are asked for logs, and the seconds they may take together (our choice)."""
NAMED = ":actor_name:ServeReplica:{app_name}:"
"""Ray's line about the actor in such a file, before what the actor itself writes."""
MARK = re.compile(r":(job_id|actor_name|task_name):")

CAUSES = Path(__file__).with_name("causes.yaml")
SAYS_WHY = re.compile(r"^[\w.]*(Error|Exception|Exit)\b.*\S|Fatal Python error|\*\*\* SIG[A-Z]+ received")
NO_CAUSE = re.compile(
    r"Some common causes include|See (the )?(stack trace|root cause|controller logs)|: Traceback \("
)
"""Ray lists possible causes, memory among them, for every death, and wraps one traceback in another."""


def last_words(
    details: Mapping[str, Any], app_name: str, environment: Mapping[str, str], since_s: float = 0.0
) -> tuple[str, tuple[str, ...]]:
    """The cause in one line, and log lines, from Serve's tree of details and the logs on the nodes.

    The lines are printable and bounded, each source below a line that names it. A log that was not written to
    since `since_s` (wall clock) belongs to an earlier application of the same name. Secrets in `environment`,
    and text that looks like a key, are masked.
    """
    deployments = details.get("applications", {}).get(app_name, {}).get("deployments", {})
    # Serve's message on a deployment is the traceback if its constructor raised.
    messages = {f"Ray Serve on {name}": str(row.get("message", "")) for name, row in deployments.items()}
    sources = {source: text.splitlines() for source, text in messages.items()} | _logs(app_name, since_s)
    kept = {
        source: [one_line(masked(line, environment), LETTERS) for line in lines if line.strip()][-LINES:]
        for source, lines in sources.items()
    }
    lines = tuple(line for source, own in kept.items() if own for line in (f"--- {source}", *own))
    return why([line for own in kept.values() for line in own]), lines


def why(lines: Sequence[str]) -> str:
    """The usual cause that the lines show, with the line that shows it; else the last line with an error."""
    relevant = [line for line in lines if not NO_CAUSE.search(line)]
    for each in bounded_yaml.read(CAUSES.read_text()):
        shown = [line for line in relevant if re.search(each["words"], line, re.IGNORECASE)]
        if shown:
            return f"{each['cause']} ({shown[-1]})"
    return next((line for line in reversed(relevant) if SAYS_WHY.search(line)), "")


def _logs(app_name: str, since_s: float) -> dict[str, list[str]]:
    """Last lines of the newest logs of the application's replicas on each node; empty if none answers."""
    try:
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]][:NODES]
        tasks = {
            node: on_node(node, lambda: read_logs(logs_folder(), app_name, since_s)).remote()
            for node in nodes
        }
        logs_by_node, _ = gather(tasks, NODE_TIMEOUT_S, force=True)
    except (RayError, RuntimeError, ValueError):  # the cluster is gone
        return {}
    return {name: lines for logs in logs_by_node.values() for name, lines in logs.items()}


def read_logs(folder: Path, app_name: str, since_s: float = 0.0) -> dict[str, list[str]]:
    """The last lines of the newest files of each kind in a folder of Ray's logs, by the file's name.

    Several, because Serve may already have started a replacement of the replica that failed.
    """
    named, logs = NAMED.format(app_name=app_name).encode(), {}
    for kind in (".err", ".out"):
        kept = 0
        files = sorted(folder.glob(f"worker-*{kind}"), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in [file for file in files if file.stat().st_mtime >= since_s]:
            with file.open("rb") as log:
                ours = named in log.read(TAIL_BYTES)
                log.seek(max(0, file.stat().st_size - TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
            lines = [line for line in lines if line.strip() and not MARK.match(line)]
            if ours and lines:
                logs[file.name] = lines[-LINES:]
                kept += 1
            if kept == NEWEST:
                break
    return logs


POLL_S = 0.1


def remove(app_name: str, timeout_s: float) -> None:
    """Delete an application and wait until nothing is left of it. Raises DeployError."""
    deadline_s = time.monotonic() + timeout_s
    now = state(app_name)
    replicas = now.replicas
    here = LOOPBACK, ray.util.get_node_ip_address()
    processes = with_descendants({each.pid for each in replicas if each.pid and each.host in here})
    try:
        begin_deletion(app_name)
    except (RayError, RayServeException) as error:
        raise DeployError(f"cannot delete {app_name}: {last_line(error)}") from error
    while left := _left(app_name, replicas, processes):
        if time.monotonic() > deadline_s:
            raise DeployError(f"{left} {timeout_s:.0f} s after the deletion of {app_name}")
        time.sleep(POLL_S)


def _left(app_name: str, replicas: Iterable[ServeReplica], processes: Collection[Process]) -> str | None:
    """The first thing that is left of the application, or None."""
    status = state(app_name).status
    if status != "ABSENT":
        return f"{app_name} is {status}"
    if actors := [replica.actor for replica in replicas if serve_actor_lives(replica.actor)]:
        return f"{len(actors)} replica actors still live ({', '.join(sorted(actors))})"
    if left := sorted(pid for pid, _ in running(processes)):
        return f"{len(left)} processes still run (pids {', '.join(map(str, left))})"
    return None
