"""Deploys one Serve application, waits until every replica has answered, watches it, takes it down.

Knows Serve's status and the `x-replica-id` header; knows nothing of what the replicas compute.
"""

import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.exceptions import RayServeException

from cluster.session import SERVE_CONTROLLER, last_line

POLL_S = 0.1
WARM_REQUEST_TIMEOUT_S = 30.0
REMOVE_TIMEOUT_S = 60.0
STATE_TIMEOUT_S = 10.0
REPLICA_ID = "x-replica-id"


class DeployError(Exception):
    """The application did not come up or go away; the message is one line."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running application: where it answers and which replicas stand behind it.

    `metrics_urls` tells for each replica where it answers /metrics itself; empty where replicas have no
    HTTP port of their own, as behind Serve's Python proxy.
    """

    app_name: str
    urls: tuple[str, ...]
    replica_ids: frozenset[str]
    replica_nodes: dict[str, str] = field(default_factory=dict)
    metrics_urls: dict[str, str] = field(default_factory=dict)

    def healthy(self) -> str | None:
        """None while exactly the replicas of the start run, else what changed."""
        try:
            state = _state(self.app_name)
        except DeployError as error:
            return str(error)
        if state.replicas != self.replica_ids:
            gone, new = len(self.replica_ids - state.replicas), len(state.replicas - self.replica_ids)
            return f"{gone} of {len(self.replica_ids)} replicas gone, {new} new"
        if state.status != "RUNNING":
            return f"the application is {state.status} {state.message}".rstrip()
        return f"the proxy is {state.proxy}" if state.proxy != "HEALTHY" else None

    def teardown(self, timeout_s: float = REMOVE_TIMEOUT_S) -> None:
        """Delete the application and wait until no replica is left. Raises DeployError."""
        _remove(self.app_name, timeout_s)


def deploy(
    app: Application,
    app_name: str,
    url: str,
    model: str,
    replicas: int,
    timeout_s: float = 120.0,
    progress: Callable[[str], None] = lambda _: None,
    *,
    per_node: bool = False,
) -> Deployment:
    """Run `app`, wait until exactly `replicas` replicas run, and let each answer one request to `model`.

    `progress` gets one line whenever something changed. With `per_node` the deployment's URLs are those of
    its replicas, one on each node, instead of the front's. Raises DeployError.
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        _run(app, app_name)
        state = _await_replicas(app_name, replicas, deadline_s, progress)
        _warm(url, model, state.replicas, deadline_s, progress)
        metrics_urls = _metrics_urls(app_name, state.replicas)
        urls = _node_urls(metrics_urls, state.nodes) if per_node else (url,)
    except DeployError:
        _remove(app_name, REMOVE_TIMEOUT_S)
        raise
    return Deployment(app_name, urls, state.replicas, state.nodes, metrics_urls)


def _run(app: Application, app_name: str) -> None:
    try:
        serve.run_many([serve.RunTarget(app, name=app_name)], wait_for_applications_running=False)
    except (RayError, RayServeException, RuntimeError) as error:
        raise DeployError(f"cannot deploy {app_name}: {last_line(error)}") from error


def _remove(app_name: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    try:
        serve.delete(app_name, _blocking=False)
    except (RayError, RayServeException) as error:
        raise DeployError(f"cannot delete {app_name}: {last_line(error)}") from error
    while (status := _state(app_name).status) != "ABSENT":
        if time.monotonic() > deadline_s:
            raise DeployError(f"{app_name} is {status} {timeout_s:.0f} s after its deletion")
        time.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class _State:
    """What Serve's controller says of one application; `replicas` are those RUNNING."""

    status: str
    message: str
    counts: dict[str, int]
    replicas: frozenset[str]
    nodes: dict[str, str]
    proxy: str


def _ask_controller(method: str, *words: Any) -> Any:
    """The answer of Serve's controller, which may have died with the cluster. Raises DeployError."""
    if not ray.is_initialized():
        raise DeployError("the Ray session has ended")
    try:
        controller = ray.get_actor(*SERVE_CONTROLLER)
        return ray.get(getattr(controller, method).remote(*words), timeout=STATE_TIMEOUT_S)
    except (RayError, ValueError) as error:
        raise DeployError(f"Ray Serve does not answer: {last_line(error)}") from error


def _metrics_urls(app_name: str, replicas: frozenset[str]) -> dict[str, str]:
    """/metrics of each replica at the HTTP port that HAProxy sends it requests to. Raises DeployError.

    Asked for the targets of a proxy, the controller names replicas by their actors, which end in the
    replica's id; without such ports it names the proxy itself.
    """
    groups = _ask_controller("get_target_groups", app_name, True)
    targets = [target for group in groups if _word(group.protocol) == "HTTP" for target in group.targets]
    named = {target.name.rpartition("#")[2]: target for target in targets}
    return {
        replica: f"http://{target.ip}:{target.port}/metrics"
        for replica, target in named.items()
        if replica in replicas
    }


def _node_urls(metrics_urls: dict[str, str], nodes: dict[str, str]) -> tuple[str, ...]:
    """Where the one replica of each node answers, in order of the replicas' ids. Raises DeployError."""
    if set(metrics_urls) != set(nodes):
        raise DeployError(
            f"{len(metrics_urls)} of {len(nodes)} replicas have an address; use another routing"
        )
    hosts = len(set(nodes.values()))
    if hosts < len(nodes):
        raise DeployError(
            f"{len(nodes)} replicas share {hosts} node(s), so no stream is a node's own; use a layout that "
            "fills a node, or another routing"
        )
    return tuple(metrics_urls[replica].removesuffix("/metrics") for replica in sorted(metrics_urls))


def _state(app_name: str) -> _State:
    """What Serve's controller says now. Raises DeployError."""
    details: dict[str, Any] = _ask_controller("get_serve_instance_details")
    app = details["applications"].get(app_name, {"status": "ABSENT", "message": "", "deployments": {}})
    found = [replica for it in app["deployments"].values() for replica in it["replicas"]]
    running = [replica for replica in found if replica["state"] == "RUNNING"]
    proxies = [_word(proxy["status"]) for proxy in details["proxies"].values()]
    return _State(
        status=_word(app["status"]),
        message=" ".join(app["message"].split()),
        counts=dict(Counter(_word(replica["state"]) for replica in found)),
        replicas=frozenset(replica["replica_id"] for replica in running),
        nodes={replica["replica_id"]: replica["node_id"] for replica in running},
        proxy=next((status for status in proxies if status != "HEALTHY"), "HEALTHY") if proxies else "ABSENT",
    )


def _word(value: Any) -> str:
    """The word of one of Serve's enums."""
    return str(value.value if isinstance(value, Enum) else value)


def _await_replicas(
    app_name: str, replicas: int, deadline_s: float, progress: Callable[[str], None]
) -> _State:
    """Wait until the application runs with exactly `replicas` replicas, all of them RUNNING."""
    said = ""
    while True:
        state = _state(app_name)
        line = f"{len(state.replicas)} of {replicas} replicas running"
        if line != said:
            progress(said := line)
        if state.status == "RUNNING" and state.counts == {"RUNNING": replicas}:
            return state
        if state.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            raise DeployError(f"{app_name} is {state.status}: {state.message}")
        if time.monotonic() > deadline_s:
            raise DeployError(f"{line} in time; {app_name} is {state.status}: {state.message}")
        time.sleep(POLL_S)


def _warm(
    url: str, model: str, replicas: frozenset[str], deadline_s: float, progress: Callable[[str], None]
) -> None:
    """Send small requests until every replica has answered one; a proxy learns of replicas late."""
    body = json.dumps({"model": model, "prompt": [0], "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json"}
    waiting = set(replicas)
    answer = "no answer"
    while waiting:
        if time.monotonic() > deadline_s:
            raise DeployError(f"{len(waiting)} of {len(replicas)} replicas never answered at {url}: {answer}")
        request = urllib.request.Request(f"{url}/v1/completions", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=WARM_REQUEST_TIMEOUT_S) as response:
                waiting.discard(response.headers[REPLICA_ID])
        except (urllib.error.URLError, OSError) as error:
            answer = str(error)
            time.sleep(POLL_S)
    progress(f"{len(replicas)} replicas warm")
