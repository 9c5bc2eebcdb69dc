"""Deployment of the engine under test, up and warm. A composition root."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from cluster.deployment.deploy import Deployment, ServicePlan, deploy
from cluster.deployment.service_reports import check_router
from cluster.deployment.warmup import DeployError, WarmupRequests
from cluster.preflight.gpus import PowerMeter
from cluster.preflight.preflight import expected_of, inspect
from cluster.ray_session.host_watch import HostWatch
from cluster.ray_session.session import Session, open_session
from conf import Experiment
from conf.io.http_get import DEFAULT_ACCESS
from conf.specs.experiment import SimulatedEngine
from loadgen.cli.service import follow_hosts, warming_requests, watched
from loadgen.fleet.ray_actors import RayActors
from loadgen.run.endpoint import TargetError, models_of
from loadgen.run.jobs import Service
from loadgen.run.progress import Emit
from loadgen.traffic.traffic import Traffic
from serve_apps.simulated.app import ENGINES, PREFILL, application_name, build_app
from serve_apps.vllm_engine import app, config_file
from serve_apps.vllm_engine.config_file import prepared, with_folder

SIMULATED_START_S = 120.0
NO_GPU = "the {} engine uses no GPU"
SHARED_MACHINE = "nodes share a machine, each of which would report the power of all"


def service_plan(experiment: Experiment) -> ServicePlan:
    """The application that an experiment deploys. Raises ValueError for an engine that cannot be deployed."""
    if isinstance(experiment.engine, SimulatedEngine):
        return ServicePlan(
            app_name=application_name(experiment),
            build=partial(build_app, experiment),
            replicas=experiment.replicas,
            warmup=WarmupRequests(*warming_requests(experiment)),
            engines=ENGINES,
            prefill_replicas=experiment.prefill_replicas,
            prefill_engines=PREFILL,
            per_node=experiment.streams > 0,
            start_s=SIMULATED_START_S,
        )
    return _vllm(experiment)


def _vllm(experiment: Experiment) -> ServicePlan:
    tokens = Traffic(experiment.workload).longest_request_tokens, round(experiment.workload.prompt_tokens)
    service, recipe = prepared(experiment, *tokens)
    engine, experiment = service.engine, with_folder(experiment)
    return ServicePlan(
        app_name=application_name(experiment),
        build=app.vllm_app(experiment, recipe),
        built_in_cluster=True,
        replicas=app.answering(experiment),
        warmup=WarmupRequests(*warming_requests(experiment)),
        engines=app.ENGINES,
        prefill_replicas=experiment.prefill_replicas,
        prefill_engines=app.PREFILL,
        per_node=experiment.streams > 0,
        engine=service.described(recipe),
        # On machines without a GPU all processes must know that, not only the replicas.
        environment=config_file.environment(engine, experiment.routing)
        | (recipe.env if engine.kind != "vllm" else {}),
        start_s=engine.start_timeout_s,
    )


@contextmanager
def deployed(experiment: Experiment, emit: Emit) -> Iterator[Service]:
    """The experiment's engine in a Ray session, up and warm; both end with the block. Raises TargetError."""
    plan = service_plan(experiment)
    load_cpus = experiment.fleet.actors * experiment.fleet.cpus_per_actor
    split = f" and {experiment.prefill_replicas} for prompts" if experiment.prefill_replicas else ""
    wanted = f"{experiment.replicas} replica(s){split}"
    emit("deploying", text=f"starting Ray ({experiment.cluster.name}) and {wanted}")
    for note in plan.engine.get("notes", []):
        emit("recipe", text=note)
    cluster, real_gpus = experiment.cluster, experiment.engine.kind == "vllm"
    with (
        _target_errors(),
        open_session(cluster, experiment.routing, load_cpus, plan.environment, real_gpus) as session,
    ):
        preflight = _preflight(experiment, plan, session, emit)
        deployment = deploy(plan, session.url, lambda line: emit("deploy", text=line))
        try:
            # It follows no node yet.
            metered = closing(PowerMeter({})) if real_gpus else nullcontext()
            with metered as meter, watched(experiment) as hosts:
                yield _served(experiment, emit, session, deployment, preflight, meter, hosts)
        finally:
            deployment.teardown()


@contextmanager
def _target_errors() -> Iterator[None]:
    """Turn an error of the deployment into the run's, with the last words of the service."""
    try:
        yield
    except DeployError as error:
        raise TargetError(str(error), error.last_words) from error


def _preflight(experiment: Experiment, plan: ServicePlan, session: Session, emit: Emit) -> dict[str, Any]:
    """Preflight's report on the nodes of a joined cluster, for the manifest; it warns and stops nothing."""
    if experiment.cluster.session != "address":
        return {}
    if not session.load_selector:
        emit("placement", text="no node carries the label role=load: load actors may run beside replicas")
    report = inspect(expected_of(experiment, plan.engine.get("env", {})))
    failed = [finding for finding in report.findings if finding.status == "fail"]
    for finding in failed:
        emit("preflight", text=f"{finding.check} on {finding.node}: {finding.figure}; {finding.remedy}")
    emit("preflight", text=report.lines()[-1])
    return {"preflight": report.tree()}


def _served(
    experiment: Experiment,
    emit: Emit,
    session: Session,
    deployment: Deployment,
    preflight: Mapping[str, Any],
    meter: PowerMeter | None,
    hosts: HostWatch,
) -> Service:
    """The running service, its router checked, with the function that waits for its recovery.

    The manifest of every generation has the report of `preflight`. The meter reads the nodes of this one, and
    `hosts` watches its hosts.
    """
    one_token = {"model": experiment.model.served_name, "prompt": [0], "max_tokens": 1}
    front = session.url
    if problem := check_router(front, experiment.routing, experiment.replicas, one_token):
        emit("routing", text=problem)

    def again(limit_s: float) -> Service:
        with _target_errors():
            back = deployment.recovered(limit_s, lambda line: emit("deploy", text=line))
            return _served(experiment, emit, session, back, preflight, meter, hosts)

    described = deployment.described
    replicas = [*described["replicas"].values(), *described["prefill"].values()]
    nodes = {replica["node"]: replica["host"] for replica in replicas}
    follow_hosts(hosts, experiment, {urlsplit(front).hostname or "", *nodes.values()})
    unknown = "" if meter else NO_GPU.format(experiment.engine.kind)
    if meter and len(set(nodes.values())) < len(nodes):
        meter, unknown = None, SHARED_MACHINE
    if meter:
        meter.follow(nodes)
    selector = session.load_selector
    targets = _targets(experiment, deployment.urls, deployment.metrics_urls)
    return Service(
        targets,
        replicas=deployment.replica_ids if deployment.named else None,
        fault=deployment.healthy,
        reported={
            "models": [models_of(front, DEFAULT_ACCESS)],
            "urls": list(deployment.urls),
            "shape": experiment.layout.shape,
            "replica_nodes": deployment.replica_nodes,
            **described,
            **preflight,
        },
        metrics_urls=(deployment.metrics_urls or {url: f"{url}/metrics" for url in deployment.urls})
        | deployment.prefill_urls,
        actors=RayActors(experiment.fleet.cpus_per_actor, {"label_selector": selector} if selector else {}),
        recover=again,
        front_streams=session.front_streams if targets == [front] else None,
        power=meter,
        power_unknown=unknown,
        hosts=hosts,
    )


def _targets(experiment: Experiment, urls: Sequence[str], metrics_urls: Mapping[str, str]) -> list[str]:
    """Addresses of the load: `urls`, or with client-side routing each replica's own, in order."""
    if experiment.routing.policy != "client_side":
        return list(urls)
    if len(metrics_urls) != experiment.replicas:
        missing = f"{len(metrics_urls)} of {experiment.replicas} replicas have an address of their own"
        raise TargetError(f"{missing}; use routing=consistent_hash")
    return [url.removesuffix("/metrics") for url in metrics_urls.values()]
