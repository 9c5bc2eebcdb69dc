"""`cluster.deployment.serve_state`: which replicas are engines, and whether they are still the same."""

import functools
import operator
from typing import Any

import pytest
from ray.serve._private.common import RequestProtocol
from ray.serve.schema import Target, TargetGroup

from cluster.deployment import serve_state
from cluster.deployment.serve_state import ServeReplica, ServeState, in_order, read


def replica(name: str, number: int, state: str = "RUNNING") -> dict[str, Any]:
    return {
        "replica_id": f"{name}-{number}",
        "state": state,
        "node_id": f"node-{number}",
        "node_ip": "10.0.0.1",
        "pid": 100 + number,
        "actor_name": f"SERVE_REPLICA::llm#{name}#{name}-{number}",
        "start_time_s": 5.0,
    }


def deployment(name: str, replicas: int) -> dict[str, Any]:
    return {
        "replicas": [replica(name, number) for number in range(replicas)],
        "target_num_replicas": replicas,
        "deployment_config": {"name": name, "num_replicas": replicas},
    }


def details() -> dict[str, Any]:
    """An application of ray.serve.llm with direct streaming: two engines, a router and an ingress."""
    names = {"LLMServer:qwen": 2, "LLMRouter:qwen": 1, "OpenAiIngress": 1}
    return {
        "controller_info": {"worker_id": "c0"},
        "proxies": {"head": {"actor_id": "p0", "status": "HEALTHY"}},
        "applications": {
            "llm": {
                "status": "RUNNING",
                "message": "a replica\n  died",
                "deployments": {name: deployment(name, count) for name, count in names.items()},
            }
        },
    }


def seen(tree: dict[str, Any]) -> ServeState:
    return read(tree, "llm", "LLMServer")


def test_only_the_replicas_that_serve_the_model_are_engines() -> None:
    now = seen(details())
    assert now.replica_ids == {"LLMServer:qwen-0", "LLMServer:qwen-1"}
    assert now.counts == {"RUNNING": 2} and len(now.others) == 2
    assert (now.trouble, now.changed(seen(details()))) == (None, None)
    assert len(read(details(), "llm").engines) == 4


def test_an_application_without_its_router_is_not_ready() -> None:
    tree = details()
    tree["applications"]["llm"]["deployments"]["LLMRouter:qwen"]["replicas"] = []
    assert seen(tree).trouble == "0 of 1 LLMRouter:qwen running"


def test_an_application_that_is_not_there_is_absent() -> None:
    assert read(details(), "other").trouble == "the application is ABSENT"


APP, ENGINE = ("applications", "llm"), ("applications", "llm", "deployments", "LLMServer:qwen", "replicas", 0)
ROUTER = (*APP, "deployments", "LLMRouter:qwen", "replicas", 0)
OPTIONS = (*APP, "deployments", "OpenAiIngress", "deployment_config", "num_replicas")


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (("proxies", "head", "status"), "UNHEALTHY", "the proxy is UNHEALTHY"),
        (("proxies", "head", "actor_id"), "p1", "the proxy was replaced"),
        (("controller_info", "worker_id"), "c1", "Serve's controller was restarted"),
        ((*ENGINE, "pid"), 999, "LLMServer:qwen LLMServer:qwen-0 is another process now"),
        ((*ENGINE, "replica_id"), "LLMServer:qwen-7", "1 of 2 replicas gone, 1 new"),
        ((*ENGINE, "state"), "STARTING", "1 of 2 replicas gone, 0 new"),
        ((*ROUTER, "pid"), 999, "LLMRouter:qwen LLMRouter:qwen-0 is another process now"),
        (OPTIONS, 3, "the deployment's options were changed"),
        ((*APP, "status"), "UNHEALTHY", "the application is UNHEALTHY a replica died"),
    ],
)
def test_a_service_that_is_not_what_was_deployed_is_told(
    place: tuple[Any, ...], value: object, why: str
) -> None:
    tree: Any = details()
    changed = functools.reduce(operator.getitem, place[:-1], tree)
    changed[place[-1]] = value
    assert seen(details()).changed(seen(tree)) == why


def at(name: str, node: str) -> ServeReplica:
    return ServeReplica(name, "LLMServer", node, "10.0.0.1", 1, name, 0.0)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([], [at("b", "1"), at("a", "2")], "ab"),
        ([at("b", "1"), at("c", "2")], [at("c", "2"), at("a", "1")], "ac"),  # replaced where it was
        ([at("c", "1"), at("d", "2"), at("e", "3")], [at("a", "2"), at("b", "1"), at("e", "3")], "bae"),
        ([at("c", "1"), at("d", "2")], [at("a", "9"), at("d", "2")], "ad"),  # its node was replaced
        ([at("c", "1")], [at("a", "2"), at("c", "1")], "ca"),
    ],
)
def test_who_stays_keeps_its_place(
    before: list[ServeReplica], now: list[ServeReplica], expected: str
) -> None:
    assert "".join(replica.replica_id for replica in in_order(now, before)) == expected


@pytest.mark.parametrize(
    ("targets", "urls"),
    [
        ({"SERVE_PROXY_ACTOR-1": 8000}, {}),
        ({"SERVE_REPLICA::app#It#r0": 30000}, {"r0": "http://10.0.0.1:30000/metrics"}),
        ({"SERVE_REPLICA::app#It#gone": 30000}, {}),
    ],
)
def test_metrics_come_from_the_replicas_own_ports_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, targets: dict[str, int], urls: dict[str, str]
) -> None:
    def group(protocol: str, shift: int) -> TargetGroup:
        found = [Target(ip="10.0.0.1", port=p + shift, instance_id="", name=n) for n, p in targets.items()]
        return TargetGroup(targets=found, route_prefix="/", protocol=RequestProtocol(protocol))

    groups = [group("HTTP", 0), group("gRPC", 10_000)]
    monkeypatch.setattr(serve_state, "_ask_controller", lambda *_: groups)
    assert serve_state.metrics_urls("app", ["r0", "r1"]) == urls
