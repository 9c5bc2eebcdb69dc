"""Deploys one Serve application, waits until it is ready, watches it, waits for its return, takes it down.

Ready is: exactly so many replicas run, and each has answered requests until its latency was stable. Knows
nothing of what the replicas compute.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.exceptions import RayServeException

from cluster.deployment import warmup as warming
from cluster.deployment.engine_facts import digest, told
from cluster.deployment.failure_text import last_words
from cluster.deployment.removal import remove
from cluster.deployment.serve_state import DeployError, Replica, State, details, metrics_urls, seated, state
from cluster.deployment.warmup import UNNAMED, Warm, Warmer, WarmError, Warmth
from cluster.ray_session.session import last_line

__all__ = ["DeployError", "Deployment", "Warm", "deploy"]

POLL_S = 0.1
REMOVE_TIMEOUT_S = 60.0
PATIENCE_S, AGAIN_S = 5.0, 1.0
"""A service that comes back is looked at again after so long without an answer, and after such a pause."""
FAILED = ("DEPLOY_FAILED", "UNHEALTHY")
"""What a new application does not recover from by itself, as far as is known."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What must stand before the service is ready. `engine` is what is known of it: arguments, weights."""

    app_name: str
    front: str
    replicas: int
    engines: str
    warm: Warm
    per_node: bool
    engine: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running application: where it answers, which replicas stand behind it, and how they got ready.

    `metrics_urls` tells for each replica where it answers /metrics itself; empty where replicas have no
    HTTP port of their own, as behind Serve's Python proxy. After a recovery replicas that stayed keep their
    places among these and among `urls`. `named` is False where answers do not say which replica they come
    from. `described` is what was read back, for the manifest; what is None is unknown.
    """

    app_name: str
    urls: tuple[str, ...]
    state: State
    metrics_urls: dict[str, str]
    named: bool
    described: dict[str, Any]
    _asked: _Asked = field(repr=False)

    @property
    def replica_ids(self) -> frozenset[str]:
        """The ids of the replicas that serve the model."""
        return self.state.replica_ids

    @property
    def replica_nodes(self) -> dict[str, str]:
        """The node of each replica."""
        return {replica.replica_id: replica.node for replica in self.state.engines}

    def healthy(self) -> str | None:
        """None while exactly the replicas of the start run, as the same processes, else what changed."""
        try:
            return self.state.changed(state(self.app_name, self._asked.engines))
        except DeployError as error:
            return str(error)

    def recovered(self, limit_s: float, progress: Progress = lambda _: None) -> "Deployment":
        """Wait until as many replicas as before run again and are warm, and return what stands then.

        Raises DeployError after `limit_s`.
        """
        began_s = time.monotonic()
        while True:
            try:
                return _ready(self._asked, began_s, limit_s, progress, PATIENCE_S, (), self.state.engines)
            except DeployError as error:
                if time.monotonic() - began_s > limit_s:
                    raise _explained(error, self._asked) from error
                progress(f"not yet: {error}")
            time.sleep(AGAIN_S)

    def teardown(self, timeout_s: float = REMOVE_TIMEOUT_S) -> None:
        """Delete the application and wait until nothing of it is left. Raises DeployError."""
        remove(self.app_name, timeout_s)


def deploy(
    app: Application | Callable[[], Application],
    app_name: str,
    url: str,
    model: str,
    replicas: int,
    timeout_s: float = 120.0,
    progress: Progress = lambda _: None,
    *,
    per_node: bool = False,
    engines: str = "",
    warm: Warm | None = None,
    engine: Mapping[str, Any] | None = None,
) -> Deployment:
    """Run `app`, wait until exactly `replicas` replicas run, and warm each; `url` is the front.

    A function `app` is called in the cluster to build the application there.

    `engines` begins the names of the deployments that serve the model; all others must run too. Without
    `warm` each replica answers one token of `model`. `engine` is kept in `described`; its `weight_bytes`, if
    known, are those that each replica loads. `progress` gets one line whenever something changed. With
    `per_node` the deployment's URLs are those of its replicas, one on each node, instead of the front's.
    Raises DeployError.
    """
    shape = warm or warming.small(model)
    asked = _Asked(app_name, url, replicas, engines, shape, per_node, engine or {})
    began_s, since_s = time.monotonic(), time.time()
    try:
        _run(app, app_name, timeout_s)
        return _ready(asked, began_s, timeout_s, progress, patience_s=timeout_s)
    except DeployError as error:
        explained = _explained(error, asked, since_s)
        with suppress(DeployError):  # why it did not come up is what must be known
            remove(app_name, REMOVE_TIMEOUT_S)
        raise explained from error


def _explained(error: DeployError, asked: _Asked, since_s: float = 0.0) -> DeployError:
    """The same error with the cause and the last words since then, which go with the session."""
    environment = {**os.environ, **asked.engine.get("env", {})}
    try:
        words = last_words(details(), asked.app_name, environment, since_s)
    except DeployError:  # Serve itself is gone
        return DeployError(str(error))
    return DeployError(f"{error}; {words.why}" if words.why else str(error), words.lines)


def _run(app: Application | Callable[[], Application], app_name: str, timeout_s: float) -> None:
    try:
        if isinstance(app, Application):
            _start(app, app_name)
        else:
            built = ray.remote(num_cpus=0)(_build_and_start).remote(app, app_name)
            ray.get(built, timeout=timeout_s)
    except (RayError, RayServeException, RuntimeError) as error:
        raise DeployError(f"cannot deploy {app_name}: {last_line(error)}") from error


def _start(app: Application, app_name: str) -> None:
    serve.run_many([serve.RunTarget(app, name=app_name)], wait_for_applications_running=False)


def _build_and_start(build: Callable[[], Application], app_name: str) -> None:
    """In a process of the cluster, where the engine is installed and Serve has the cluster's settings."""
    _start(build(), app_name)


def _ready(
    asked: _Asked,
    began_s: float,
    timeout_s: float,
    progress: Progress,
    patience_s: float,
    failed: Collection[str] = FAILED,
    before: Sequence[Replica] = (),
) -> Deployment:
    """Wait until the replicas run, warm and reach them, and read back what they are.

    They are in the order of `before`, as far as it goes. Raises DeployError, without waiting any longer
    where the application's status is one of `failed`.
    """
    deadline_s = began_s + timeout_s
    now, seen_at = _await_replicas(asked, deadline_s, progress, failed)
    now = replace(now, engines=seated(now.engines, before))
    found = metrics_urls(asked.app_name, now.replica_ids)
    pages = {one.replica_id: found[one.replica_id] for one in now.engines if one.replica_id in found}
    bases = {replica: url.removesuffix("/metrics") for replica, url in pages.items()}
    urls = _node_urls(bases, now) if asked.per_node else (asked.front,)
    try:
        warmths, named = _warm(asked, now, bases, Warmer(asked.warm, deadline_s, patience_s))
    except WarmError as error:
        raise DeployError(str(error)) from error
    if not named:
        progress("answers do not name their replica: whether the front reaches all of them is unknown")
    progress(f"{asked.replicas} replicas warm: {warming.line(warmths)}")
    described = _described(asked, now, bases, warmths, seen_at)
    described["ready_s"] = time.monotonic() - began_s
    return Deployment(asked.app_name, urls, now, pages, named, described, asked)


def _await_replicas(
    asked: _Asked, deadline_s: float, progress: Progress, failed: Collection[str]
) -> tuple[State, dict[str, float]]:
    """Wait until the application runs with exactly the replicas asked for, all of them RUNNING.

    Beside the state: the wall time at which each was first seen running, if it was not from the beginning.
    """
    said, seen_at = "", dict[str, float]()
    ran_before = state(asked.app_name, asked.engines).replica_ids
    while True:
        now = state(asked.app_name, asked.engines)
        for replica_id in now.replica_ids - ran_before:
            seen_at.setdefault(replica_id, time.time())
        line = ", ".join([f"{len(now.engines)} of {asked.replicas} replicas", *now.short]) + " running"
        if line != said:
            progress(said := line)
        if now.trouble is None and now.counts == {"RUNNING": asked.replicas}:
            return now, seen_at
        if now.status in failed:
            raise DeployError(f"{asked.app_name} is {now.status}: {now.message}")
        if time.monotonic() > deadline_s:
            raise DeployError(f"{line} in time; {asked.app_name} is {now.status}: {now.message}")
        time.sleep(POLL_S)


def _warm(
    asked: _Asked, now: State, bases: Mapping[str, str], warmer: Warmer
) -> tuple[dict[str, Warmth], bool]:
    """Warm every replica, at its own port where it has one, and see that the front reaches all of them.

    Beside how each got warm: whether answers name their replica. Raises WarmError.
    """
    if set(bases) != now.replica_ids:
        warmths = warmer.front(asked.front, now.replica_ids)
        return warmths, UNNAMED not in warmths
    warmths = warmer.replicas(bases)
    return warmths, warmer.named if asked.per_node else warmer.reach(asked.front, now.replica_ids)


def _node_urls(bases: Mapping[str, str], now: State) -> tuple[str, ...]:
    """Where the one replica of each node answers, in order. Raises DeployError."""
    if set(bases) != now.replica_ids:
        raise DeployError(f"{len(bases)} of {len(now.engines)} replicas have an address; use another routing")
    hosts = len({replica.node for replica in now.engines})
    if hosts < len(now.engines):
        raise DeployError(
            f"{len(now.engines)} replicas share {hosts} node(s), so no stream is a node's own; use a layout "
            "that fills a node, or another routing"
        )
    return tuple(bases[replica.replica_id] for replica in now.engines)


def _described(
    asked: _Asked,
    now: State,
    bases: Mapping[str, str],
    warmths: Mapping[str, Warmth],
    seen_at: Mapping[str, float],
) -> dict[str, Any]:
    """What was read back: replicas with their processes, times and engines, and the other processes."""
    with ThreadPoolExecutor(warming.MOST_AT_ONCE) as pool:
        says = dict(zip(bases, pool.map(told, bases.values()), strict=True))
    weight_bytes = asked.engine.get("weight_bytes")
    replicas = {}
    for replica in now.engines:
        name = replica.replica_id
        # From the start of its process until it ran; of one that ran before we looked it is unknown.
        load_s = seen_at[name] - replica.started_s if name in seen_at else None
        replicas[name] = {
            **_process(replica),
            "load_s": load_s,
            "weight_bytes_per_s": weight_bytes / load_s if weight_bytes and load_s else None,
            **warming.tree(warmths.get(name)),
            "told": says.get(name) or None,
            "told_sha256": digest(says.get(name, {})),
        }
    return {
        "app_name": asked.app_name,
        "engine": dict(asked.engine),
        "replicas": replicas,
        "others": {replica.replica_id: _process(replica) for replica in now.others},
        "unnamed": warming.tree(warmths[UNNAMED]) if UNNAMED in warmths else None,
        "options_sha256": now.options,
    }


def _process(replica: Replica) -> dict[str, Any]:
    kept = asdict(replica)
    return {key: kept[key] for key in ("deployment", "node", "host", "pid")}
