"""serve_apps/engine_model/compiled/fast_engine.py against the engine that keeps books of every block."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from conf import load
from conf.specs.experiment import SimulatedEngine
from serve_apps.engine_model import BlockEngine, GenerateRequest, VirtualService
from serve_apps.engine_model.compiled.fast_engine import (
    FastSpec,
    Times,
    UnsupportedByFastPath,
    serve_closed,
)
from serve_apps.engine_model.service.balancer import Balance
from serve_apps.engine_model.service.routed import Replicas, Requests, serve_open

ASKED = load(["engine=simulated"])
PARTS = ASKED.model, ASKED.hardware, ASKED.layout


def spec(**fields: Any) -> SimulatedEngine:
    assert isinstance(ASKED.engine, SimulatedEngine)
    return replace(ASKED.engine, **fields)


def by_blocks(
    asked: SimulatedEngine, sent_s: Any, columns: Any, replicas: int = 1, policy: str = "leastconn"
) -> Any:
    """(replica, first token, last token, time in the queue) of each request, by `BlockEngine`."""
    service = VirtualService([BlockEngine(asked, *PARTS, seed=3) for _ in range(replicas)], policy)
    rows = zip(sent_s.tolist(), *(column.tolist() for column in columns), strict=True)
    for key, (at_s, inputs, outputs, shared) in enumerate(rows):
        service.submit(key, at_s, inputs, outputs, shared_tokens=shared)
    service.advance(1e9)
    seen = sorted(service.observe())
    return np.array([(one.replica, one.first_token_s, one.last_token_s, one.queue_s) for one in seen])


def by_loop(served: Times) -> Any:
    return np.column_stack([served.replica, served.first_token_s, served.last_token_s, served.queue_s])


def traffic(seed: int, count: int, rate_qps: float, shared: int = 0) -> Any:
    """Arrivals and lengths around 1500 / 12."""
    rng = np.random.default_rng(seed)
    inputs, outputs = rng.integers(shared + 1, 3000 + shared, count), rng.integers(1, 24, count)
    return np.cumsum(rng.exponential(1 / rate_qps, count)), (inputs, outputs, np.full(count, shared))


@given(
    seed=st.integers(0, 10_000),
    rate_qps=st.sampled_from([1.0, 10.0, 60.0]),
    budget=st.sampled_from([64, 700, 8192]),
    slots=st.sampled_from([2, 16, 64]),
    ahead=st.booleans(),
    shared=st.sampled_from([0, 5, 1000]),
    caching=st.booleans(),
    noise=st.sampled_from([{}, {"step_noise_cv": 0.05}, {"drift_sd": 0.1, "stall_every_steps": 20}]),
)
@settings(max_examples=40, deadline=None)
def test_every_token_comes_when_the_block_by_block_engine_says(
    seed: int, rate_qps: float, budget: int, slots: int, ahead: bool, shared: int, caching: bool, noise: Any
) -> None:
    asked = spec(
        max_num_batched_tokens=budget,
        max_num_seqs=slots,
        async_scheduling=ahead,
        enable_prefix_caching=caching,
        **noise,
    )
    sent_s, columns = traffic(seed, 40, rate_qps, shared)
    expected = by_blocks(asked, sent_s, columns)
    machine = FastSpec.of(asked, *PARTS)
    assert_allclose(
        by_loop(serve_open(machine, Requests(sent_s, columns), Replicas(seed=3))), expected, rtol=1e-12
    )


@pytest.mark.parametrize("policy", ["leastconn", "roundrobin"])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_router_in_front_of_engines_chooses_as_the_virtual_service_does(policy: str, ahead: bool) -> None:
    asked = spec(async_scheduling=ahead)
    sent_s, columns = traffic(5, 300, 60.0)
    served = serve_open(FastSpec.of(asked, *PARTS), Requests(sent_s, columns), Replicas(3, Balance(policy)))
    assert_allclose(by_loop(served), by_blocks(asked, sent_s, columns, 3, policy), rtol=1e-12)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_closed_loop_is_that_of_the_block_by_block_engine(ahead: bool) -> None:
    asked = spec(async_scheduling=ahead, max_num_seqs=6)
    _, (inputs, outputs, shared) = traffic(9, 60, 1.0)
    engine, now_s, sent = BlockEngine(asked, *PARTS), 0.0, 8
    states = [engine.add(GenerateRequest(i, int(inputs[i]), int(outputs[i])), 0.0) for i in range(8)]
    while (ready_s := engine.ready_s()) < np.inf:
        now_s = max(now_s, ready_s)
        end_s = engine.begin_step(now_s)
        assert end_s is not None
        now_s = end_s
        for _ in engine.end_step()[: 60 - sent]:
            states.append(engine.add(GenerateRequest(sent, int(inputs[sent]), int(outputs[sent])), now_s))
            sent += 1
    expected = [(state.first_token_s, state.last_token_s) for state in states]
    served = serve_closed(FastSpec.of(asked, *PARTS), 8, (inputs, outputs, shared))
    assert_allclose(np.column_stack([served.first_token_s, served.last_token_s]), expected, rtol=1e-12)


def test_the_kv_in_use_is_that_of_the_blocks_held() -> None:
    asked, count = spec(), 300
    sent_s = np.cumsum(np.random.default_rng(1).exponential(0.05, count))
    columns = np.full(count, 5600), np.full(count, 140), np.full(count, 5320)
    work = serve_open(FastSpec.of(asked, *PARTS), Requests(sent_s, columns)).work
    engine = BlockEngine(asked, *PARTS)
    service = VirtualService([engine])
    for key, at_s in enumerate(sent_s.tolist()):
        service.submit(key, at_s, 5600, 140, shared_tokens=5320)
    held = 0.0
    for until_s in np.arange(0.02, sent_s[-1] + 30, 0.02).tolist():
        service.advance(until_s)
        held += 0.02 * engine.kv_usage * engine.kv_blocks * engine.block_size
    assert work.kv_token_seconds == pytest.approx(held, rel=0.1)


def test_work_adds_up() -> None:
    sent_s, columns = traffic(4, 50, 10.0)
    work = serve_open(FastSpec.of(spec(), *PARTS), Requests(sent_s, columns)).work
    inputs, outputs, _ = columns
    assert (work.prefill_tokens, work.sequences) == (inputs.sum(), outputs.sum())
    assert work.decode_tokens == (outputs - 1).sum()
    assert 0 < work.busy_s < 1e3 and work.kv_token_seconds > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"max_num_seqs": 65, "max_num_batched_tokens": 64},
        {"long_prefill_token_threshold": 100},
        {"max_num_queued_reqs": 3},
    ],
)
def test_an_engine_beyond_the_loops_rules_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(UnsupportedByFastPath):
        FastSpec.of(spec(**fields), *PARTS)


def test_requests_beyond_the_loops_rules_are_refused() -> None:
    sent_s, (inputs, outputs, shared) = traffic(4, 50, 1000.0)
    small = FastSpec.of(spec(num_gpu_blocks=200), *PARTS)
    with pytest.raises(UnsupportedByFastPath, match="overflow"):
        serve_open(small, Requests(sent_s, (inputs, outputs, shared)))
    with pytest.raises(ValueError, match="asks for"):
        serve_open(small, Requests(sent_s, (inputs + 4000, outputs, shared)))
    with pytest.raises(UnsupportedByFastPath, match="shorter than the prefix"):
        serve_open(FastSpec.of(spec(), *PARTS), Requests(sent_s, (inputs, outputs, shared + 10**4)))
    with pytest.raises(UnsupportedByFastPath, match="lengths"):
        serve_open(FastSpec.of(spec(), *PARTS), Requests(sent_s, (inputs, outputs, inputs // 2)))
