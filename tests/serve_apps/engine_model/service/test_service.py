"""serve_apps/engine_model/service/service.py in one call: against the engine step by step, and by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from conf.specs.experiment import SimulatedEngine
from serve_apps.engine_model import Engine, EngineKind, GenerateRequest
from serve_apps.engine_model.service.balancer import Balance
from serve_apps.engine_model.service.service import (
    LATE_GAP,
    Replicas,
    Requests,
    Service,
    Times,
    late_gap_s,
    late_gaps_s,
    serve,
    serve_closed,
)
from tests.support.virtual.engines import specs
from tests.support.virtual.virtual_service import VirtualService

ASKED = specs()
PARTS = ASKED.model, ASKED.hardware, ASKED.layout


def spec(**fields: Any) -> SimulatedEngine:
    assert isinstance(ASKED.engine, SimulatedEngine)
    return replace(ASKED.engine, **fields)


def traffic(seed: int, count: int, rate_qps: float, shared: int = 0) -> Any:
    """Arrivals and lengths around 1500 / 12."""
    rng = np.random.default_rng(seed)
    inputs, outputs = rng.integers(shared + 1, 3000 + shared, count), rng.integers(1, 24, count)
    return np.cumsum(rng.exponential(1 / rate_qps, count)), (inputs, outputs, np.full(count, shared))


def step_by_step(asked: SimulatedEngine, sent_s: Any, columns: Any, held: int = 0) -> Sequence[Any]:
    """The states of all requests on one engine; with `held` of them in flight, else each at its time."""
    engine, now_s, states, count = Engine(EngineKind.of(asked, *PARTS), 3), 0.0, [], len(columns[0])

    def add(at_s: float) -> None:
        number = len(states)
        prompt, output, shared = (int(column[number]) for column in columns)
        hashes = tuple(range(shared // engine.kind.spec.block_size))
        states.append(engine.add(GenerateRequest(prompt, output, hashes), at_s))

    for _ in range(held):
        add(0.0)
    while True:
        start_s = max(now_s, engine.ready_s())
        if not held and len(states) < count and sent_s[len(states)] <= start_s:
            add(float(sent_s[len(states)]))
            continue
        if start_s == np.inf:
            return states
        end_s = engine.begin_step(start_s)
        now_s = start_s if end_s is None else end_s
        for _ in engine.end_step() if end_s else ():
            if held and len(states) < count:
                add(now_s)


def of_states(states: Sequence[Any]) -> Any:
    return np.array(
        [(state.first_token_s, state.last_token_s, state.queue_s, state.cached_tokens) for state in states]
    )


def of_times(served: Times) -> Any:
    assert served.queue_s is not None
    return np.column_stack([served.first_token_s, served.last_token_s, served.queue_s, served.cached_tokens])


@given(
    seed=st.integers(0, 10_000),
    rate_qps=st.sampled_from([1.0, 10.0, 60.0]),
    budget=st.sampled_from([64, 700, 8192]),
    slots=st.sampled_from([2, 16, 100]),
    blocks=st.sampled_from([300, 10_000]),
    ahead=st.booleans(),
    shared=st.sampled_from([0, 5, 1000]),
    noise=st.sampled_from([{}, {"step_noise_cv": 0.05}, {"drift_sd": 0.1, "stall_every_steps": 20}]),
)
@settings(max_examples=25)
def test_one_call_serves_as_the_engine_does_step_by_step(
    seed: int, rate_qps: float, budget: int, slots: int, blocks: int, ahead: bool, shared: int, noise: Any
) -> None:
    asked = spec(
        max_num_batched_tokens=budget,
        max_num_seqs=slots,
        num_gpu_blocks=blocks,
        async_scheduling=ahead,
        **noise,
    )
    sent_s, columns = traffic(seed, 40, rate_qps, shared)
    served = serve(EngineKind.of(asked, *PARTS), Requests(sent_s, columns), Replicas(seed=3))
    assert_allclose(of_times(served), of_states(step_by_step(asked, sent_s, columns)), rtol=1e-12)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_closed_loop_sends_the_next_request_when_one_ends(ahead: bool) -> None:
    asked = spec(async_scheduling=ahead, max_num_seqs=6)
    _, columns = traffic(9, 60, 1.0)
    served = serve_closed(EngineKind.of(asked, *PARTS), 8, columns, seed=3)
    assert_allclose(of_times(served), of_states(step_by_step(asked, None, columns, held=8)), rtol=1e-12)


HELD = 7


@pytest.mark.parametrize(
    ("policy", "ahead", "cv"), [("leastconn", True, 0.05), ("roundrobin", False, 0.0), ("pow2", True, 0.0)]
)
def test_in_a_closed_loop_each_engine_serves_what_it_got_and_as_many_are_in_flight(
    policy: str, ahead: bool, cv: float
) -> None:
    rng = np.random.default_rng(0)
    lengths = [rng.integers(100, 6000, 60), rng.integers(1, 200, 60), np.zeros(60, np.int64)]
    kind = EngineKind.of(spec(async_scheduling=ahead, step_noise_cv=cv), *PARTS)
    times = serve(kind, Requests(np.zeros(60), lengths), Replicas(3, Balance(policy)), HELD)
    assert (np.diff(times.sent_s) >= 0).all() and set(times.replica) == {0, 1, 2}
    in_flight = [
        int(((times.sent_s <= at) & (times.last_token_s > at)).sum()) for at in times.last_token_s[:-HELD]
    ]
    assert max(in_flight) == HELD
    # A request is sent the very moment that another one ends.
    assert set(times.sent_s[HELD:]) <= set(times.last_token_s)
    if policy == "roundrobin":
        assert times.replica.tolist() == [each % 3 for each in range(60)]
    for replica in range(3):
        mine = np.flatnonzero(times.replica == replica)
        requests = Requests(times.sent_s[mine], [column[mine] for column in lengths])
        alone = serve(kind, requests, Replicas(seed=replica))
        assert_allclose(alone.last_token_s, times.last_token_s[mine], rtol=1e-9)


def test_the_kv_in_use_is_that_of_the_blocks_held() -> None:
    """Many short answers behind a shared prefix, which counts once."""
    asked, count = spec(), 300
    sent_s = np.cumsum(np.random.default_rng(1).exponential(0.05, count))
    columns = np.full(count, 5600), np.full(count, 14), np.full(count, 5320)
    work = serve(EngineKind.of(asked, *PARTS), Requests(sent_s, columns)).work
    service = VirtualService(EngineKind.of(asked, *PARTS))
    for key, at_s in enumerate(sent_s.tolist()):
        service.submit(key, at_s, 5600, 14, shared_tokens=5320)
    held, (engine,) = 0.0, service.service.arrays.engines
    for until_s in np.arange(0.02, sent_s[-1] + 30, 0.02).tolist():
        service.advance(until_s)
        held += 0.02 * float(engine["blocks"] - engine["free"]) * float(engine["block_size"])
    assert work["kv_token_seconds"] == pytest.approx(held, rel=0.03)


def test_what_can_never_be_served_is_refused() -> None:
    sent_s, (inputs, outputs, shared) = traffic(4, 50, 1000.0)
    requests = Requests(sent_s, (inputs + 4000, outputs, shared))
    with pytest.raises(ValueError, match="asks for"):
        serve(EngineKind.of(spec(num_gpu_blocks=200), *PARTS), requests)
    with pytest.raises(ValueError, match="does not predict refusals"):
        serve(EngineKind.of(spec(max_num_queued_reqs=3), *PARTS), requests)
    with pytest.raises(ValueError, match="num_gpu_blocks"):
        serve(EngineKind.of(spec(num_gpu_blocks=0), *PARTS), requests)


@pytest.mark.parametrize("count", [2, 5, 101, 140])
@pytest.mark.parametrize("share", [LATE_GAP, 0.5, 0.0, 1.0])
def test_the_late_gap_is_numpys_quantile(count: int, share: float) -> None:
    ends = np.cumsum(np.random.default_rng(count).choice([0.01, 0.02, 0.1], count))
    assert late_gap_s(ends, share) == pytest.approx(np.quantile(np.diff(ends), share))


def test_more_tokens_than_there_is_room_for_are_refused() -> None:
    """Compiled code would write their times over other memory."""
    service, each = Service(EngineKind.of(spec(), *PARTS), Replicas(), 8, 64, tokens=10), np.array([5])
    none = np.zeros((1, 1), np.int64)
    service.append(each, each, none, none)
    service.append(each, each, none, none)
    with pytest.raises(MemoryError, match="no room for the times"):
        service.append(each, each, none, none)


@pytest.mark.parametrize("blocks", [250, 10_000])
def test_the_times_of_tokens_are_those_of_their_steps(blocks: int) -> None:
    """Also of requests that are preempted."""
    asked = spec(num_gpu_blocks=blocks)
    sent_s, (inputs, outputs, shared) = traffic(2, 40, 30.0)
    columns = inputs // 3, outputs * 9, shared
    times = serve(EngineKind.of(asked, *PARTS), Requests(sent_s, columns), Replicas(seed=3), tokens=True)
    engine, now_s, coming = Engine(EngineKind.of(asked, *PARTS), 3), 0.0, 0
    seen: list[list[float]] = [[] for _ in sent_s]
    while (start_s := max(now_s, engine.ready_s())) < np.inf or coming < len(sent_s):
        if coming < len(sent_s) and sent_s[coming] <= start_s:
            tokens = int(columns[0][coming]), int(columns[1][coming])
            engine.add(GenerateRequest(*tokens), float(sent_s[coming]))
            coming += 1
            continue
        now_s = engine.begin_step(start_s) or start_s
        for state in engine.emitting():
            seen[state.request_id].append(now_s)
        engine.end_step()
    assert_allclose(times.token_s, np.concatenate(seen), rtol=1e-12)
    assert (engine.total("preemptions") > 0) == (blocks == 250)
    gaps_s = late_gaps_s(times.token_s, columns[1], LATE_GAP)
    for own, gap_s in zip(seen, gaps_s, strict=True):
        expected = np.quantile(np.diff(own), LATE_GAP) if len(own) > 1 else np.nan
        assert gap_s == pytest.approx(expected, nan_ok=True)
