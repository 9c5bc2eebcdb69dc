"""serve_apps/engine_model/service/service.py on the virtual clock: the balancer, and what is observed."""

from dataclasses import replace

import pytest

from conf.specs.experiment import SimulatedEngine
from serve_apps.engine_model import EngineKind
from serve_apps.engine_model.cost.step_time import Batch, roofline
from tests.support.virtual.engines import specs
from tests.support.virtual.virtual_service import RequestProgress, VirtualService

SPECS = specs()


def service(replicas: int = 1, policy: str = "leastconn") -> VirtualService:
    assert isinstance(SPECS.engine, SimulatedEngine)
    return VirtualService(
        EngineKind.of(SPECS.engine, SPECS.model, SPECS.hardware, SPECS.layout), replicas, policy
    )


def finished(served: VirtualService, until_s: float) -> dict[int, RequestProgress]:
    served.advance(until_s)
    return {seen.key: seen for seen in served.observe() if seen.finished}


def test_a_lone_request_takes_its_front_end_and_its_steps() -> None:
    served = service()
    served.submit(7, 2.0, 5600, 3)
    seen = finished(served, 10.0)[7]
    model = roofline(SPECS.model, SPECS.hardware, SPECS.layout)
    prompt = Batch(sequences=1)
    prompt.add_chunk(5600, 0)
    constants = SPECS.model.step_time
    front_end_s = (constants.front_end_ms.value + constants.front_end_latency_ms.value) * 1e-3
    first_s = 2.0 + front_end_s + model.duration_s(prompt)
    decode_s = sum(model.duration_s(Batch(1, 0, context, 0.0, 1)) for context in (5600, 5601))
    assert seen.first_token_s == pytest.approx(first_s)
    assert seen.last_token_s == pytest.approx(first_s + decode_s)
    assert (seen.replica, seen.tokens) == (0, 3)


def test_equal_loads_are_dealt_in_turn() -> None:
    for policy in ("leastconn", "roundrobin"):
        served = service(replicas=3, policy=policy)
        for key in range(9):
            served.submit(key, 1.0, 5600, 140)
        served.advance(1.0)
        assert [seen.replica for seen in served.observe()] == [0, 1, 2] * 3


def test_leastconn_avoids_the_busy_replica_and_roundrobin_does_not() -> None:
    for policy, expected in (("leastconn", [0, 1, 1, 1]), ("roundrobin", [0, 1, 0, 1])):
        served = service(replicas=2, policy=policy)
        served.submit(0, 0.0, 5600, 2000)
        for key in (1, 2, 3):
            served.submit(key, 5.0 * key, 100, 5)
        served.advance(0.0)
        seen = {}
        for until_s in (4.9, 9.9, 14.9, 19.9):
            served.advance(until_s)
            seen.update({progress.key: progress.replica for progress in served.observe()})
        assert [seen[key] for key in range(4)] == expected


def test_all_arrivals_of_an_instant_join_the_step_that_starts_there() -> None:
    instant = replace(SPECS.model.step_time.front_end_ms, value=0.0, low=None, high=None)
    no_front_end = replace(SPECS.model.step_time, front_end_ms=instant, front_end_latency_ms=instant)
    model = replace(SPECS.model, step_time=no_front_end)
    assert isinstance(SPECS.engine, SimulatedEngine)
    served = VirtualService(EngineKind.of(SPECS.engine, model, SPECS.hardware, SPECS.layout))
    for key in (1, 2):
        served.submit(key, 1.0, 100, 5)
    served.advance(1.0)
    served.submit(3, 1.0, 100, 5)
    assert len({seen.first_token_s for seen in finished(served, 5.0).values()}) == 1
