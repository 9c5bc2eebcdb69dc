"""`cluster.deployment.deploy` of a split node: prompts computed by replicas that only replicas reach."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import aiohttp
import pytest
import ray

from cluster.deployment.deploy import Deployment, ServicePlan, deploy
from cluster.ray_session.session import Session
from conf import load
from serve_apps.simulated.app import ENGINES, PREFILL, application_name, build_app
from tests.cluster.deployment.completions import MODEL, USAGE, ask, metric
from tests.support.machine.patience import PATIENCE_S, until
from tests.support.machine.shared_session import FAKE
from tests.support.servers.plans import one_token

pytestmark = [pytest.mark.ray, pytest.mark.slow]


class Split(NamedTuple):
    nodes: int
    words: tuple[str, ...]


SPLITS = {"read": Split(1, ("layout.connector=nixl",)), "write": Split(2, ("layout.transfer_mode=write",))}


@pytest.fixture(scope="module", params=SPLITS)
def deployment(ray_session: Session, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    split = SPLITS[request.param]
    experiment = load(["hardware=mi325x", "engine=simulated", "layout=1p1d_tp4_ep4", *split.words])
    experiment = replace(experiment, cluster=replace(FAKE, nodes=split.nodes))
    plan = ServicePlan(
        application_name(experiment),
        lambda: build_app(experiment),
        experiment.replicas,
        one_token(MODEL),
        ENGINES,
        experiment.prefill_replicas,
        PREFILL,
    )
    running = deploy(plan, ray_session.url)
    yield running
    running.teardown()


def body(prompt: int, length: int, tokens: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": [prompt] * length, "max_tokens": tokens, **USAGE}


def stream_all(deployment: Deployment, *bodies: dict[str, Any]) -> list[list[Any]]:
    """The events of all requests before the last one, which says that the stream is whole."""
    streams = []
    for answer in ask(deployment, *bodies):
        assert answer.status == 200 and answer.replica_id in deployment.replica_ids
        *events, done = answer.events()
        assert done == "[DONE]"
        streams.append(events)
    return streams


def empty(deployment: Deployment) -> bool:
    names = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"
    return not any(value for name in names for value in metric(deployment, name).values())


def test_streams_have_their_tokens_and_leave_both_sides_empty(deployment: Deployment) -> None:
    prompts = metric(deployment, "vllm:request_success_total")
    answers = stream_all(deployment, *(body(7 + n, 500 + 200 * n, 4 + n) for n in range(6)))
    for n, events in enumerate(answers):
        assert events[-1]["usage"]["prompt_tokens"] == 500 + 200 * n
        assert events[-1]["usage"]["completion_tokens"] == 4 + n
        assert sum(bool(event["choices"]) for event in events) == 4 + n
        assert events[-1]["maxqps"]["steps"] == 4 + n + 1
    until(lambda: empty(deployment), "blocks were never released")
    now = metric(deployment, "vllm:request_success_total")
    for side in (deployment.metrics_urls, deployment.prefill_urls):
        assert sum(now[name] - prompts[name] for name in side) == 6


def test_both_sides_are_described_and_placed_on_the_nodes(deployment: Deployment) -> None:
    prefill = deployment.described["prefill"]
    assert set(prefill) == set(deployment.prefill_urls)
    assert all(each["deployment"] == PREFILL and each["told"] for each in prefill.values())
    nodes = [each["node"] for each in prefill.values()] + list(deployment.replica_nodes.values())
    assert max(map(nodes.count, nodes)) <= 2, "four GPUs each, eight on a node"
    json.dumps(deployment.described)


def test_a_client_that_hangs_up_frees_blocks_on_both_sides(deployment: Deployment) -> None:
    async def hang_up(after_s: float) -> None:
        async with aiohttp.ClientSession() as client:
            asked = client.post(deployment.urls[0] + "/v1/completions", json=body(9, 8000, 5000))
            try:
                async with asyncio.timeout(after_s):
                    async with asked as answer:
                        while True:
                            await answer.content.readany()
            except TimeoutError:
                return

    async def several() -> None:
        await asyncio.gather(*(hang_up(after_s) for after_s in (0.1, 0.3, 0.6, 1.5)))

    asyncio.run(several())
    until(lambda: empty(deployment), "blocks were never released")
    assert stream_all(deployment, body(5, 100, 3))[0][-1]["usage"]["completion_tokens"] == 3


def test_a_prefill_replica_that_is_lost_comes_back(deployment: Deployment) -> None:
    """Comes last: it spoils the deployment the others use."""
    assert deployment.healthy() is None
    victim = min(deployment.prefill_urls)
    ray.kill(ray.get_actor(f"SERVE_REPLICA::{deployment.app_name}#{PREFILL}#{victim}", namespace="serve"))
    until(deployment.healthy, "nobody noticed")
    back = deployment.recovered(PATIENCE_S)
    assert back.healthy() is None
    assert back.replica_ids == deployment.replica_ids, "those that answer stayed"
    assert len(back.prefill_urls) == len(deployment.prefill_urls) and victim not in back.prefill_urls
    assert stream_all(back, body(5, 100, 3))[0][-1]["usage"]["completion_tokens"] == 3
