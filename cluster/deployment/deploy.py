"""Deploys one Serve application, waits until it is ready, checks it, waits for its return, removes it.

Ready means: exactly the expected replicas run, and each has answered requests until its latency was stable.
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

from cluster.deployment import prefill_replicas
from cluster.deployment import warmup as warming
from cluster.deployment.engine_facts import digest, reported_facts
from cluster.deployment.failure_text import last_words
from cluster.deployment.prefill_replicas import ToldPrefill
from cluster.deployment.removal import remove
from cluster.deployment.serve_state import (
    DeployError,
    ServeReplica,
    ServeState,
    details,
    metrics_urls,
    seated,
    state,
)
from cluster.deployment.warmup import UNNAMED, ReplicaWarmer, ReplicaWarmup, WarmupError, WarmupRequests
from cluster.ray_session.session import last_line

__all__ = ["DeployError", "Deployment", "ExpectedService", "deploy"]

POLL_S = 0.25
"""Between looks at Serve's state (our choice): its controller works ten milliseconds for each, while replicas
start."""
REMOVE_TIMEOUT_S = 60.0
PATIENCE_S, AGAIN_S = 5.0, 1.0
"""Seconds that a returning service may stay silent, and the pause before it is checked again."""
FAILED = ("DEPLOY_FAILED", "UNHEALTHY")
"""States that a new application does not leave by itself, as far as is known."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ExpectedService:
    """The service that a deployment waits for: `replicas` warm replicas of one application behind `front`.

    `engines` begins the names of the deployments that serve the model; all others must run too, and `prefill`
    replicas of those whose names begin with `prefill_engines`, if any. `warmup` are the requests that warm
    each replica, and through them the prefill ones. With `per_node` the deployment's URLs are those of its
    replicas, one on each node, instead of the front's. `engine` is kept in `Deployment.described`; its
    `weight_bytes`, if known, are those that each replica loads.
    """

    app_name: str
    front: str
    replicas: int
    warmup: WarmupRequests
    engines: str = ""
    prefill: int = 0
    prefill_engines: str = ""
    per_node: bool = False
    engine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running application: its URLs, the replicas behind them, and how they got ready.

    `metrics_urls` holds each replica's own /metrics URL; it is empty if replicas have no HTTP port of their
    own, as behind Serve's Python proxy. `prefill_urls` are those of the prefill replicas that tell theirs.
    After a recovery, replicas that stayed keep their places here and among `urls`. `named` is False if
    answers do not name their replica. `described` is what was read back, for the manifest; None is unknown.
    """

    app_name: str
    urls: tuple[str, ...]
    state: ServeState
    metrics_urls: dict[str, str]
    prefill_urls: dict[str, str]
    named: bool
    described: dict[str, Any]
    _expected: ExpectedService = field(repr=False)

    @property
    def replica_ids(self) -> frozenset[str]:
        """The ids of the replicas that serve the model."""
        return self.state.replica_ids

    @property
    def replica_nodes(self) -> dict[str, str]:
        """The node of each replica."""
        return {replica.replica_id: replica.node for replica in self.state.engines}

    def healthy(self) -> str | None:
        """None while exactly the replicas of the start run, as the same processes; else the change."""
        try:
            return self.state.changed(state(self.app_name, self._expected.engines))
        except DeployError as error:
            return str(error)

    def recovered(self, limit_s: float, progress: Progress = lambda _: None) -> "Deployment":
        """Wait until as many replicas as before run again and are warm, and return the new deployment.

        Raises DeployError after `limit_s`.
        """
        began_s = time.monotonic()
        while True:
            try:
                return _ready(self._expected, began_s, limit_s, progress, PATIENCE_S, (), self.state.engines)
            except DeployError as error:
                if time.monotonic() - began_s > limit_s:
                    raise _explained(error, self._expected) from error
                progress(f"not yet: {error}")
            time.sleep(AGAIN_S)

    def teardown(self, timeout_s: float = REMOVE_TIMEOUT_S) -> None:
        """Delete the application and wait until nothing is left of it. Raises DeployError."""
        remove(self.app_name, timeout_s)


def deploy(
    app: Application | Callable[[], Application],
    expected: ExpectedService,
    timeout_s: float = 120.0,
    progress: Progress = lambda _: None,
) -> Deployment:
    """Run `app`, wait until exactly the expected replicas run, and warm each.

    A function `app` is called in the cluster to build the application there. `progress` gets one line
    whenever something changed. Raises DeployError.
    """
    began_s, since_s = time.monotonic(), time.time()
    try:
        _run(app, expected.app_name, timeout_s)
        return _ready(expected, began_s, timeout_s, progress, patience_s=timeout_s)
    except DeployError as error:
        explained = _explained(error, expected, since_s)
        with suppress(DeployError):  # why it did not come up is what must be known
            remove(expected.app_name, REMOVE_TIMEOUT_S)
        raise explained from error


def _explained(error: DeployError, expected: ExpectedService, since_s: float = 0.0) -> DeployError:
    """The error with its cause and the last log lines since then, which the session takes with it."""
    environment = {**os.environ, **expected.engine.get("env", {})}
    try:
        words = last_words(details(), expected.app_name, environment, since_s)
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
    """Runs in a process of the cluster, which has the engine and the cluster's settings of Serve."""
    _start(build(), app_name)


def _ready(
    expected: ExpectedService,
    began_s: float,
    timeout_s: float,
    progress: Progress,
    patience_s: float,
    failed: Collection[str] = FAILED,
    before: Sequence[ServeReplica] = (),
) -> Deployment:
    """Wait until the replicas run, warm them, check that the front reaches them, and read their facts.

    Replicas keep the order of `before`. Raises DeployError, at once if the application's status is one of
    `failed`.
    """
    deadline_s = began_s + timeout_s
    now, seen_at = _await_replicas(expected, deadline_s, progress, failed)
    now = replace(now, engines=seated(now.engines, before))
    found = metrics_urls(expected.app_name, now.replica_ids)
    pages = {one.replica_id: found[one.replica_id] for one in now.engines if one.replica_id in found}
    bases = {replica: url.removesuffix("/metrics") for replica, url in pages.items()}
    urls = _node_urls(bases, now) if expected.per_node else (expected.front,)
    warmer = ReplicaWarmer(expected.warmup, deadline_s, patience_s, lambda: _lost(expected, now))
    try:
        warmths, named = _warm(expected, now, bases, warmer)
        prefill = _warm_prefill(expected, now, bases, warmer, deadline_s, progress)
    except WarmupError as error:
        raise DeployError(str(error)) from error
    if not named:
        progress("answers do not name their replica: whether the front reaches all of them is unknown")
    progress(f"{expected.replicas} replicas warm: {warming.line(warmths)}")
    described = _described(expected, now, bases, warmths, seen_at)
    described["prefill"] = _prefill_described(expected, now, prefill)
    described["ready_s"] = time.monotonic() - began_s
    prefill_urls = {name: f"{one.url}/metrics" for name, one in prefill.items()}
    return Deployment(expected.app_name, urls, now, pages, prefill_urls, named, described, expected)


def _await_replicas(
    expected: ExpectedService, deadline_s: float, progress: Progress, failed: Collection[str]
) -> tuple[ServeState, dict[str, float]]:
    """Wait until the application runs with exactly the expected replicas, all of them RUNNING.

    Returns the state, and the wall time at which each replica that did not run before was first seen running.
    """
    said, seen_at = "", dict[str, float]()
    ran_before = state(expected.app_name, expected.engines).replica_ids
    while True:
        now = state(expected.app_name, expected.engines)
        for replica_id in now.replica_ids - ran_before:
            seen_at.setdefault(replica_id, time.time())
        line = ", ".join([f"{len(now.engines)} of {expected.replicas} replicas", *now.short]) + " running"
        if line != said:
            progress(said := line)
        prefill = len(_prefill_replicas(expected, now))
        right = now.counts == {"RUNNING": expected.replicas} and prefill == expected.prefill
        if now.trouble is None and right:
            return now, seen_at
        if now.status in failed:
            raise DeployError(f"{expected.app_name} is {now.status}: {now.message}")
        if time.monotonic() > deadline_s:
            raise DeployError(f"{line} in time; {expected.app_name} is {now.status}: {now.message}")
        time.sleep(POLL_S)


def _warm(
    expected: ExpectedService, now: ServeState, bases: Mapping[str, str], warmer: ReplicaWarmer
) -> tuple[dict[str, ReplicaWarmup], bool]:
    """Warm every replica, at its own port if it has one, and check that the front reaches all of them.

    Returns the warm-up of each, and True if answers name their replica. Raises WarmupError.
    """
    if set(bases) != now.replica_ids:
        warmths = warmer.front(expected.front, now.replica_ids)
        return warmths, UNNAMED not in warmths
    warmths = warmer.replicas(bases)
    return warmths, warmer.named if expected.per_node else warmer.reach(expected.front, now.replica_ids)


def _lost(expected: ExpectedService, began: ServeState) -> str | None:
    """The replicas gone since the warm-up began, in one line; None if none is, or Serve does not say."""
    try:
        now = state(expected.app_name, expected.engines)
    except DeployError:
        return None
    before = {replica.replica_id for replica in (*began.engines, *began.others)}
    gone = before - {replica.replica_id for replica in (*now.engines, *now.others)}
    return f"{len(gone)} of {len(before)} replicas died while they were warmed" if gone else None


def _prefill_replicas(expected: ExpectedService, now: ServeState) -> list[ServeReplica]:
    """The running replicas that only compute prompts."""
    begin = expected.prefill_engines
    return [replica for replica in now.others if begin and replica.deployment.startswith(begin)]


def _warm_prefill(
    expected: ExpectedService,
    now: ServeState,
    bases: Mapping[str, str],
    warmer: ReplicaWarmer,
    deadline_s: float,
    progress: Progress,
) -> dict[str, ToldPrefill]:
    """The prefill replicas as they tell of themselves, once each has computed a prompt.

    Raises WarmupError.
    """
    wanted = {replica.replica_id for replica in _prefill_replicas(expected, now)}
    if not wanted:
        return {}
    # A replica that answers knows them all; with ports of their own the first of these is as good as any.
    url = next(iter(bases.values()), expected.front)
    found = prefill_replicas.warm(url, wanted, lambda: _warm(expected, now, bases, warmer), deadline_s)
    if not found:
        progress("prefill replicas are not told: whether each is warm, and what each does, is unknown")
    return found


def _prefill_described(
    expected: ExpectedService, now: ServeState, told: Mapping[str, ToldPrefill]
) -> dict[str, Any]:
    """The manifest's facts on the prefill replicas: their processes, and what they report of themselves."""
    facts = {name: reported_facts(one.url) for name, one in told.items()}
    return {
        replica.replica_id: {
            **_process(replica),
            "told": facts.get(replica.replica_id) or None,
            "told_sha256": digest(facts.get(replica.replica_id, {})),
        }
        for replica in _prefill_replicas(expected, now)
    }


def _node_urls(bases: Mapping[str, str], now: ServeState) -> tuple[str, ...]:
    """URLs of the one replica of each node, in order. Raises DeployError."""
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
    expected: ExpectedService,
    now: ServeState,
    bases: Mapping[str, str],
    warmths: Mapping[str, ReplicaWarmup],
    seen_at: Mapping[str, float],
) -> dict[str, Any]:
    """The manifest's facts: replicas with their processes, times and engines, and the other processes."""
    with ThreadPoolExecutor(warming.MOST_AT_ONCE) as pool:
        says = dict(zip(bases, pool.map(reported_facts, bases.values()), strict=True))
    weight_bytes = expected.engine.get("weight_bytes")
    replicas = {}
    for replica in now.engines:
        name = replica.replica_id
        # From the start of its process until it ran; unknown if it ran before we looked.
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
        "app_name": expected.app_name,
        "engine": dict(expected.engine),
        "replicas": replicas,
        "others": {
            replica.replica_id: _process(replica)
            for replica in now.others
            if replica not in _prefill_replicas(expected, now)
        },
        "unnamed": warming.tree(warmths[UNNAMED]) if UNNAMED in warmths else None,
        "options_sha256": now.options,
    }


def _process(replica: ServeReplica) -> dict[str, Any]:
    kept = asdict(replica)
    return {key: kept[key] for key in ("deployment", "node", "host", "pid")}
