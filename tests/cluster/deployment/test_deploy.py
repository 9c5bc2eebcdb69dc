"""`cluster.deployment.deploy`: the simulated engine behind a real Ray Serve and HAProxy, over HTTP."""

import asyncio
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest
import ray
from ray.serve import Application

from cluster.deployment import serve_state
from cluster.deployment.deploy import DeployError, Deployment, ServicePlan, deploy
from cluster.ray_session.own_machine import with_descendants
from cluster.ray_session.session import Session
from conf import load
from serve_apps.simulated.app import application_name, build_app
from tests.cluster.deployment.completions import MODEL, USAGE, ask, metric
from tests.support.machine.patience import PATIENCE_S, until
from tests.support.servers.plans import one_token

pytestmark = pytest.mark.ray

SPECS = load(["cluster=laptop_4n", "cluster.nodes=2", "engine=simulated", "layout=dp2_tp4_ep4"])


def plan(name: str, app: Application, replicas: int = 1, start_s: float = 120.0) -> ServicePlan:
    return ServicePlan(name, lambda: app, replicas, one_token(MODEL), start_s=start_s)


@pytest.fixture(scope="module")
def deployment(ray_session: Session) -> Iterator[Deployment]:
    name = application_name(SPECS)
    running = deploy(plan(name, build_app(SPECS), SPECS.replicas), ray_session.url)
    yield running
    pids = [replica.pid for replica in serve_state.state(name).engines]
    running.teardown()
    assert running.healthy() == "4 of 4 replicas gone, 0 new"
    assert pids
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "a replica still runs")


@pytest.mark.slow
def test_what_a_session_runs_has_the_priority_of_this_process(ray_session: Session) -> None:
    assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)


@pytest.mark.slow
def test_a_deployment_that_does_not_fit_says_so_and_leaves_nothing(ray_session: Session) -> None:
    """Comes first: there is one application at a time."""
    assert "ray" not in str(getattr(signal.getsignal(signal.SIGTERM), "__module__", ""))
    app = build_app(
        load(["cluster.gpus_per_node=16", "layout.tensor_parallel=16", "hardware.topology=switch"])
    )
    with pytest.raises(DeployError, match="0 of 1 replicas running in time; too-large is "):
        deploy(plan("too-large", app, start_s=2.0), ray_session.url)
    assert serve_state.state("too-large").trouble == "the application is ABSENT"


@ray.serve.deployment(max_constructor_retry_count=1, ray_actor_options={"num_cpus": 0})
class Dies:
    """A replica that ends as one does whose library was built for another CPU, or by an exception."""

    def __init__(self, by_signal: bool) -> None:
        sys.stderr.write("its last words\n")
        if by_signal:
            signal.raise_signal(signal.SIGILL)  # to this thread, which goes no further
        raise OSError("[Errno 98] Address already in use")

    async def __call__(self) -> None:
        """Nobody gets so far."""


@pytest.mark.slow
@pytest.mark.parametrize("by_signal, cause", [(True, "illegal instruction"), (False, "port in use")])
def test_a_deployment_that_dies_tells_its_last_words(
    by_signal: bool, cause: str, ray_session: Session
) -> None:
    with pytest.raises(DeployError) as caught:
        deploy(plan("dies", Dies.bind(by_signal)), ray_session.url)
    message = str(caught.value), *caught.value.last_words
    assert re.match(f"dies is DEPLOY_FAILED: .*; {cause}: ", message[0]), "\n".join(message)
    assert "\n" not in str(caught.value)
    assert any(f"({line})" in str(caught.value) for line in caught.value.last_words)
    assert serve_state.state("dies").trouble == "the application is ABSENT"


@ray.serve.deployment(ray_actor_options={"num_cpus": 0})
class DiesAsked:
    """A replica that runs, and dies of its first request."""

    async def __call__(self) -> None:
        sys.stderr.write("its last words\n")
        signal.raise_signal(signal.SIGILL)


@pytest.mark.slow
def test_a_replica_that_dies_of_its_first_request_is_not_waited_for(ray_session: Session) -> None:
    with pytest.raises(DeployError, match="1 of 1 replicas died while they were warmed") as caught:
        deploy(plan("dies-asked", DiesAsked.bind(), start_s=PATIENCE_S), ray_session.url)
    assert "\n" not in str(caught.value)
    assert serve_state.state("dies-asked").trouble == "the application is ABSENT"


def test_a_stream_has_every_token_usage_and_an_end(deployment: Deployment) -> None:
    body = {"prompt": [7] * 500, "max_tokens": 60, "ignore_eos": True, **USAGE}
    (answer,) = ask(deployment, body)
    *tokens, usage, done = answer.events()
    assert answer.status == 200
    assert answer.replica_id in deployment.replica_ids
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 59 + ["length"]
    assert usage["usage"]["prompt_tokens"] == 500
    assert usage["usage"]["completion_tokens"] == 60
    assert usage["maxqps"]["steps"] == 60
    assert done == "[DONE]"


def test_the_balancer_uses_every_replica_alike(deployment: Deployment) -> None:
    body = {"prompt": [7] * 100, "max_tokens": 40, "stream": True}
    answers = ask(deployment, *[body] * 12)
    share = Counter(answer.replica_id for answer in answers)
    assert set(share) == deployment.replica_ids
    assert set(share.values()) == {3}


def test_a_refusal_comes_through_the_proxy(deployment: Deployment) -> None:
    (answer,) = ask(deployment, {"model": "other", "prompt": [1]})
    assert answer.status == 404 and answer.replica_id in deployment.replica_ids
    assert json.loads(answer.body)["error"]["type"] == "NotFoundError"


def test_a_client_that_hangs_up_frees_its_place(deployment: Deployment) -> None:
    async def hang_up_after_the_first_token() -> None:
        body = {"model": MODEL, "prompt": [7] * 100, "max_tokens": 20_000, "stream": True}
        async with aiohttp.ClientSession() as client:
            response = await client.post(deployment.urls[0] + "/v1/completions", json=body)
            assert b"token" in await response.content.readany()
            response.close()

    aborted = 'vllm:request_success_total{engine="0",model_name="' + MODEL + '",finished_reason="abort"}'
    before = sum(metric(deployment, aborted).values())
    assert set(metric(deployment, aborted)) == deployment.replica_ids
    asyncio.run(hang_up_after_the_first_token())
    until(lambda: sum(metric(deployment, aborted).values()) > before, "the request was never aborted")
    assert set(metric(deployment, "vllm:num_requests_running").values()) == {0.0}
    assert set(metric(deployment, "vllm:kv_cache_usage_perc").values()) == {0.0}


def test_what_was_deployed_is_read_back(deployment: Deployment) -> None:
    replicas = deployment.described["replicas"]
    assert set(replicas) == deployment.replica_ids
    for replica in replicas.values():
        assert b"SimulatedReplica" in Path(f"/proc/{replica['pid']}/cmdline").read_bytes()
        assert replica["node"] in deployment.replica_nodes.values()
        assert replica["told"]["models"][0]["id"] == MODEL
        assert 0 < replica["load_s"] < deployment.described["ready_s"] + 1
        assert replica["first_request_s"] > 0
    json.dumps(deployment.described)


def test_each_node_holds_two_replicas(ray_session: Session, deployment: Deployment) -> None:
    assert ray_session.load_selector == {"role": "load"}
    roles = {node["NodeID"]: node["Labels"]["role"] for node in ray.nodes()}
    assert sorted(roles.values()) == ["gpu", "gpu", "load"]
    share = Counter(deployment.replica_nodes.values())
    assert set(share.values()) == {2}
    assert {roles[node] for node in share} == {"gpu"}


def test_nothing_listens_beyond_the_loopback_address(deployment: Deployment) -> None:
    ours = {pid for pid, _ in with_descendants({os.getpid()})}
    sockets = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    addresses = [each.laddr.ip for each in sockets if each.pid in ours]
    assert len(addresses) > 10 and set(addresses) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.mark.slow
def test_a_lost_replica_is_reported(deployment: Deployment) -> None:
    """Comes last: it spoils the deployment the others use."""
    assert deployment.healthy() is None
    victim = min(deployment.replica_ids)
    actor = f"SERVE_REPLICA::{deployment.app_name}#SimulatedReplica#{victim}"
    ray.kill(ray.get_actor(actor, namespace="serve"))
    until(deployment.healthy, "nobody noticed")
    reason = deployment.healthy()
    assert reason is not None and reason.startswith("1 of 4 replicas gone")
