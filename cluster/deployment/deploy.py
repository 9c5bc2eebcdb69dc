"""Deploys one Serve application, waits until it is ready, checks it, waits for its return, removes it.

Ready means: exactly the expected replicas run, and each has answered requests until its latency was stable.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.exceptions import RayServeException

from cluster.deployment.serve_state import (
    ServeReplica,
    ServeState,
    Side,
    details,
    in_order,
    last_words,
    metrics_urls,
    remove,
    state,
)
from cluster.deployment.service_reports import reported_facts, warm_prefill
from cluster.deployment.warmup import (
    MOST_AT_ONCE,
    UNNAMED,
    DeployError,
    ReplicaWarmer,
    ReplicaWarmup,
    WarmupRequests,
    warmup_line,
)
from conf.io.one_line import last_line

__all__ = ["DeployError", "Deployment", "ServicePlan", "deploy"]

POLL_S = 0.25
"""Time between queries of Serve's state (our choice): while replicas start, each takes 10 ms of its
controller."""
REMOVE_TIMEOUT_S = 60.0
PATIENCE_S, AGAIN_S = 5.0, 1.0
"""Seconds that a returning service may stay silent, and the pause before the next check."""
FAILED = ("DEPLOY_FAILED", "UNHEALTHY")
"""States that a new application does not leave by itself, as far as is known."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """One application of `replicas` engines that answer: how to build it, and what it is when it is ready.

    `build` makes the application, in a task of the cluster if `built_in_cluster`, else in this process.
    `engines` is the prefix of the deployments that serve the model; all others must run too, and
    `prefill_replicas` of those with the prefix `prefill_engines`. `warmup` are the requests that warm each
    replica, and through them the prefill replicas. With `per_node` the deployment's URLs are those of its
    replicas, one on each node, instead of the front's. `engine` is kept in `Deployment.described`. Serve's
    processes need the variables `environment`, and the application may take `start_s` seconds to start.
    """

    app_name: str
    build: Callable[[], Application]
    replicas: int
    warmup: WarmupRequests
    engines: str = ""
    prefill_replicas: int = 0
    prefill_engines: str = ""
    per_node: bool = False
    built_in_cluster: bool = False
    engine: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 120.0

    def state(self) -> ServeState:
        """The state of the application now. Raises DeployError."""
        return state(self.app_name, self.engines, self.prefill_engines)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running application: its URLs, the replicas behind them, and how they got ready.

    `metrics_urls` holds each replica's own /metrics URL; it is empty if replicas have no HTTP port of their
    own, as behind Serve's Python proxy. `prefill_urls` are those of the prefill replicas that report theirs.
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
    _plan: ServicePlan = field(repr=False)
    _front: str = field(repr=False)

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
            return self.state.changed(self._plan.state())
        except DeployError as error:
            return str(error)

    def recovered(self, limit_s: float, progress: Progress = lambda _: None) -> "Deployment":
        """Wait until as many replicas as before run again and are warm, and return the new deployment.

        Raises DeployError after `limit_s`.
        """
        began_s = time.monotonic()
        start = _Start(self._plan, self._front, began_s, limit_s, progress, self.state.engines)
        while True:
            try:
                return start.ready()
            except DeployError as error:
                if time.monotonic() > start.deadline_s:
                    raise _explained(error, self._plan) from error
                progress(f"not yet: {error}")
            time.sleep(AGAIN_S)

    def teardown(self, timeout_s: float = REMOVE_TIMEOUT_S) -> None:
        """Delete the application and wait until nothing is left of it. Raises DeployError."""
        remove(self.app_name, timeout_s)


def deploy(plan: ServicePlan, front: str, progress: Progress = lambda _: None) -> Deployment:
    """Run the application of `plan` behind the HTTP front of a session, and warm each replica.

    `progress` gets one line whenever something changed. Raises DeployError.
    """
    since_s = time.time()
    start = _Start(plan, front, time.monotonic(), plan.start_s, progress)
    try:
        _run(plan)
        return start.ready()
    except DeployError as error:
        explained = _explained(error, plan, since_s)
        with suppress(DeployError):  # the first error is the one to report
            remove(plan.app_name, REMOVE_TIMEOUT_S)
        raise explained from error


def _explained(error: DeployError, plan: ServicePlan, since_s: float = 0.0) -> DeployError:
    """The error with its cause and the last log lines since then; both are gone once the session ends."""
    environment = {**os.environ, **plan.engine.get("env", {})}
    try:
        why, lines = last_words(details(), plan.app_name, environment, since_s)
    except DeployError:  # Serve itself is gone
        return DeployError(str(error))
    return DeployError(f"{error}; {why}" if why else str(error), lines)


def _run(plan: ServicePlan) -> None:
    try:
        if plan.built_in_cluster:
            # A process there has the engine and the cluster's settings of Serve.
            task = ray.remote(num_cpus=0)(_build_and_start).remote(plan.build, plan.app_name)
            ray.get(task, timeout=plan.start_s)
        else:
            _build_and_start(plan.build, plan.app_name)
    except (RayError, RayServeException, RuntimeError, TimeoutError) as error:
        raise DeployError(f"cannot deploy {plan.app_name}: {last_line(error)}") from error


def _build_and_start(build: Callable[[], Application], app_name: str) -> None:
    # Serve would wait without bound until the application's first deployment is there; `_Start` looks for it.
    serve.run_many(
        [serve.RunTarget(build(), name=app_name)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


@dataclass(frozen=True, slots=True)
class _Start:
    """A wait for a service to get ready, for `timeout_s` from `began_s` (monotonic).

    A service that returns has replicas from `before`, whose order it keeps. No replica of it may stay silent
    for long, and it may leave a failed state by itself.
    """

    plan: ServicePlan
    front: str
    began_s: float
    timeout_s: float
    progress: Progress
    before: Sequence[ServeReplica] = ()

    @property
    def deadline_s(self) -> float:
        return self.began_s + self.timeout_s

    def ready(self) -> Deployment:
        """Wait until the replicas run, warm them, check that the front reaches them, and read their facts.

        Raises DeployError.
        """
        plan = self.plan
        now, seen_at = self._await_replicas()
        others = [replica for replica in now.replicas if replica.side != "engine"]
        now = replace(now, replicas=(*in_order(now.engines, self.before), *others))
        pages = metrics_urls(plan.app_name, [replica.replica_id for replica in now.engines])
        bases = {replica: url.removesuffix("/metrics") for replica, url in pages.items()}
        urls = _node_urls(bases, now) if plan.per_node else (self.front,)
        patience_s = PATIENCE_S if self.before else plan.start_s
        warmer = ReplicaWarmer(plan.warmup, self.deadline_s, patience_s, lambda: self._lost(now))
        warmups, named = self._warm(now, bases, warmer)
        prefill = self._warm_prefill(now, bases, warmer)
        if not named:
            self.progress("answers do not name their replica: unknown whether the front reaches all of them")
        self.progress(f"{plan.replicas} replicas warm: {warmup_line(warmups)}")
        described = self._described(now, bases | prefill, warmups, seen_at)
        prefill_urls = {name: f"{url}/metrics" for name, url in prefill.items()}
        return Deployment(plan.app_name, urls, now, pages, prefill_urls, named, described, plan, self.front)

    def _await_replicas(self) -> tuple[ServeState, dict[str, float]]:
        """Wait until the application runs with exactly the expected replicas, all of them RUNNING.

        Returns the state, and the wall time at which each new replica was first seen running.
        """
        plan, last, seen_at = self.plan, "", dict[str, float]()
        ran_before = plan.state().replica_ids
        while True:
            now = plan.state()
            for replica_id in now.replica_ids - ran_before:
                seen_at.setdefault(replica_id, time.time())
            line = ", ".join([f"{len(now.engines)} of {plan.replicas} replicas", *now.short]) + " running"
            if line != last:
                self.progress(last := line)
            complete = now.counts == {"RUNNING": plan.replicas}
            if now.trouble is None and complete and len(now.of_side("prefill")) == plan.prefill_replicas:
                return now, seen_at
            if now.status in FAILED and not self.before:
                raise DeployError(f"{plan.app_name} is {now.status}: {now.message}")
            if time.monotonic() > self.deadline_s:
                raise DeployError(f"{line} in time; {plan.app_name} is {now.status}: {now.message}")
            time.sleep(POLL_S)

    def _warm(
        self, now: ServeState, bases: Mapping[str, str], warmer: ReplicaWarmer
    ) -> tuple[dict[str, ReplicaWarmup], bool]:
        """Warm every replica, at its own port if it has one, and check that the front reaches all of them.

        Returns the warm-up of each, and True if answers name their replica. Raises DeployError.
        """
        if set(bases) != now.replica_ids:
            warmups = warmer.front(self.front, now.replica_ids)
            return warmups, UNNAMED not in warmups
        warmups, named = warmer.replicas(bases), warmer.named
        if not self.plan.per_node:
            named = UNNAMED not in warmer.front(self.front, now.replica_ids, are_warm=True)
        return warmups, named

    def _lost(self, began: ServeState) -> str | None:
        """The replicas gone since the warm-up began, in one line; None if none is, or Serve does not say."""
        try:
            now = self.plan.state()
        except DeployError:
            return None
        before = {replica.replica_id for replica in began.replicas}
        gone = before - {replica.replica_id for replica in now.replicas}
        return f"{len(gone)} of {len(before)} replicas died while they were warmed" if gone else None

    def _warm_prefill(
        self, now: ServeState, bases: Mapping[str, str], warmer: ReplicaWarmer
    ) -> dict[str, str]:
        """The addresses of the prefill replicas, once each has computed a prompt. Raises DeployError."""
        wanted = {replica.replica_id for replica in now.of_side("prefill")}
        if not wanted:
            return {}
        # Every replica that answers reports all of them.
        url = next(iter(bases.values()), self.front)
        addresses = warm_prefill(url, wanted, lambda: self._warm(now, bases, warmer), self.deadline_s)
        if not addresses:
            self.progress("prefill replicas are not reported: unknown whether each is warm, and its metrics")
        return addresses

    def _described(
        self,
        now: ServeState,
        bases: Mapping[str, str],
        warmups: Mapping[str, ReplicaWarmup],
        seen_at: Mapping[str, float],
    ) -> dict[str, Any]:
        """The manifest's facts: replicas with their processes, times and engines, and the other processes."""
        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            facts = dict(zip(bases, pool.map(reported_facts, bases.values()), strict=True))
        sides: dict[Side, dict[str, dict[str, Any]]] = {"engine": {}, "prefill": {}, "other": {}}
        for replica in now.replicas:
            name = replica.replica_id
            entry = {key: getattr(replica, key) for key in ("deployment", "node", "host", "pid")}
            if replica.side != "other":
                entry["told"] = facts.get(name) or None
            if replica.side == "engine":
                # From the start of its process until it ran; unknown if it ran before the first look.
                entry["load_s"] = seen_at[name] - replica.started_s if name in seen_at else None
                entry |= asdict(warmups.get(name, ReplicaWarmup()))
            sides[replica.side][name] = entry
        return {
            "app_name": self.plan.app_name,
            "engine": dict(self.plan.engine),
            "replicas": sides["engine"],
            "others": sides["other"],
            "prefill": sides["prefill"],
            "ready_s": time.monotonic() - self.began_s,
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
