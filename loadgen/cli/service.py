"""The service under test: an endpoint that runs already, or ours (`deployment`). A composition root.

Ray is imported only for a service of ours and for a cluster that is joined.
"""

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from cluster.deployment.warmup import DeployError, ReplicaWarmer, WarmupRequests
from cluster.ray_session.host_watch import HostWatch
from cluster.ray_session.own_machine import PlacementError, SessionError
from conf import Experiment
from conf.io.http_get import Access
from loadgen.fleet.load_actor import Actors
from loadgen.fleet.local_actors import LocalActors
from loadgen.prompts.bodies import Prompts
from loadgen.run.endpoint import READY_TIMEOUT_S, TargetError, access_to, models_of
from loadgen.run.jobs import Service
from loadgen.run.progress import Emit

WARM_OUTPUT_TOKENS = 8
"""Output tokens of the requests that warm a replica: enough for decode steps of every kind (our choice)."""
NOT_OURS = "engine=external deploys nothing, so that nothing reads its nodes"
LEAST_ASK_S = 1.0
"""Least time for an endpoint's list of models, even if its first answer took all the time (our choice)."""


@contextmanager
def service(experiment: Experiment, emit: Emit) -> Iterator[Service]:
    """The service under test; everything started for it ends with the block. Raises TargetError."""
    up = _external
    if experiment.engine.kind != "external":
        # Ray, Serve and the engines take longer to import than all else; an endpoint needs none of them.
        from loadgen.cli.deployment import deployed as up
    try:
        with up(experiment, emit) as served:
            yield served
    except (PlacementError, SessionError) as error:
        raise TargetError(str(error)) from error


def watched(experiment: Experiment) -> AbstractContextManager[HostWatch]:
    """Watches hosts within the block, once it follows some."""
    return closing(HostWatch(patience_s=experiment.cluster.recovery_s))


def follow_hosts(watch: HostWatch, experiment: Experiment, serving: Collection[str] = ()) -> None:
    """Watch the alive hosts of a joined cluster from now on; those at the addresses `serving` serve.

    One machine has none to watch.
    """
    if experiment.cluster.session == "address":
        from cluster.ray_session.session import watched_hosts

        with suppress(SessionError):  # then the hosts are watched that were watched before
            watch.follow(watched_hosts(serving))
        watch.settle()


@contextmanager
def _external(experiment: Experiment, emit: Emit) -> Iterator[Service]:
    urls, access = experiment.target.bases, access_to(experiment.target)
    reported = _listed(experiment, urls, access, READY_TIMEOUT_S)
    checked = "answer" if reported else "are not asked for their models"
    emit("connecting", text=f"{len(urls)} endpoint(s) {checked}; starting the load actors")
    with _load_hosts(experiment) as actors, watched(experiment) as hosts:
        follow_hosts(hosts, experiment)
        served = Service(
            urls,
            reported=reported,
            metrics_urls={url: f"{url}/metrics" for url in urls},
            actors=actors,
            access=access,
            power_unknown=NOT_OURS,
            hosts=hosts,
        )
        yield replace(served, recover=partial(_answering, experiment, served))


@contextmanager
def _load_hosts(experiment: Experiment) -> Iterator[Actors]:
    """Where load actors run: on the nodes of a cluster that is joined, else on this machine, without Ray."""
    if experiment.cluster.session != "address":
        yield LocalActors()
        return
    from cluster.ray_session.session import open_session
    from loadgen.fleet.ray_actors import RayActors

    with open_session(experiment.cluster, None):
        yield RayActors(experiment.fleet.cpus_per_actor)


def _listed(
    experiment: Experiment, urls: Sequence[str], access: Access, within_s: float
) -> dict[str, list[Any]]:
    """The list of models of each endpoint, for the manifest; empty if there is none. Raises TargetError."""
    if not experiment.target.list_models:
        return {}
    return {"models": [models_of(url, access, within_s) for url in urls]}


def _answering(experiment: Experiment, served: Service, limit_s: float) -> Service:
    """The same service once every endpoint answers requests of the workload again. Raises TargetError."""
    access, deadline_s = served.access, time.monotonic() + limit_s
    warm = WarmupRequests(*warming_requests(experiment), access=access)
    try:
        ReplicaWarmer(warm, deadline_s, limit_s).replicas({url: url for url in served.urls})
    except DeployError as error:
        raise TargetError(str(error)) from error
    left_s = max(LEAST_ASK_S, deadline_s - time.monotonic())
    listed = _listed(experiment, served.urls, access, min(READY_TIMEOUT_S, left_s))
    again = partial(_answering, experiment, served)
    return replace(served, reported={**served.reported, **listed}, recover=again)


def warming_requests(experiment: Experiment) -> tuple[str, Callable[[int], bytes]]:
    """Path and bodies of requests of the workload's mean length, own prompts and short answers."""
    workload, model = experiment.workload, experiment.model
    # Of another salt than the run's: no prompt of theirs may be in a cache.
    salt = secrets.randbits(31)
    prompts = Prompts(workload, model.served_name, model.vocab, salt, experiment.target)
    images = workload.images.most * workload.images.tokens
    lengths = round(workload.input_tokens.mean), round(workload.output_tokens.mean)
    prompt, answer = max(1, lengths[0]) + images, max(1, min(WARM_OUTPUT_TOKENS, lengths[1]))
    return prompts.path, lambda number: prompts.body(number, prompt, answer, image_tokens=images)
