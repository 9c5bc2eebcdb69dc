"""serve_apps/engine_model/service/service.py: in one call against the engine step by step, and by hand."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from conf.constants import replaced
from conf.specs.experiment import SimulatedEngine
from loadgen.cli.engine_model import parts
from serve_apps.engine_model import Engine, EngineKind, GenerateRequest
from serve_apps.engine_model.cost.step_time import Batch, roofline
from serve_apps.engine_model.engine.engine import RequestState
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
from tests.support.virtual.virtual_service import RequestProgress, VirtualService

ASKED = specs()
PARTS = ASKED.model, ASKED.hardware, ASKED.layout


def kind(**fields: Any) -> EngineKind:
    return EngineKind.of(SimulatedEngine(**fields), *PARTS)


def traffic(seed: int, count: int, rate_qps: float, shared: int = 0) -> Any:
    """Arrivals and lengths around 1500 / 12."""
    rng = np.random.default_rng(seed)
    inputs, outputs = rng.integers(shared + 1, 3000 + shared, count), rng.integers(1, 24, count)
    return np.cumsum(rng.exponential(1 / rate_qps, count)), (inputs, outputs, np.full(count, shared))


class Stepped(NamedTuple):
    """An engine that has served, the states of its requests, and the times of their tokens."""

    engine: Engine
    states: list[RequestState]
    token_s: list[list[float]]


def step_by_step(asked: EngineKind, sent_s: Any, columns: Any, held: int = 0) -> Stepped:
    """All requests on one engine; with `held` of them in flight, else each at its time."""
    engine, now_s, count = Engine(asked, 3), 0.0, len(columns[0])
    states: list[RequestState] = []
    token_s: list[list[float]] = [[] for _ in range(count)]

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
            return Stepped(engine, states, token_s)
        end_s = engine.begin_step(start_s)
        now_s = start_s if end_s is None else end_s
        for state in engine.emitting() if end_s else ():
            token_s[state.request_id].append(now_s)
        for _ in engine.end_step() if end_s else ():
            if held and len(states) < count:
                add(now_s)


def assert_alike(served: Times, stepped: Stepped) -> None:
    for name in ("first_token_s", "last_token_s", "queue_s", "cached_tokens"):
        expected = [getattr(state, name) for state in stepped.states]
        assert_allclose(getattr(served, name), expected, rtol=1e-12)


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
    asked = kind(
        max_num_batched_tokens=budget,
        max_num_seqs=slots,
        num_gpu_blocks=blocks,
        async_scheduling=ahead,
        **noise,
    )
    sent_s, columns = traffic(seed, 40, rate_qps, shared)
    served = serve(asked, Requests(sent_s, columns), Replicas(seed=3))
    assert_alike(served, step_by_step(asked, sent_s, columns))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_closed_loop_sends_the_next_request_when_one_ends(ahead: bool) -> None:
    asked = kind(async_scheduling=ahead, max_num_seqs=6)
    _, columns = traffic(9, 60, 1.0)
    assert_alike(serve_closed(asked, 8, columns, seed=3), step_by_step(asked, None, columns, held=8))


HELD = 7


@pytest.mark.parametrize(
    ("policy", "ahead", "cv"), [("leastconn", True, 0.05), ("roundrobin", False, 0.0), ("pow2", True, 0.0)]
)
def test_in_a_closed_loop_each_engine_serves_what_it_got_and_as_many_are_in_flight(
    policy: str, ahead: bool, cv: float
) -> None:
    rng = np.random.default_rng(0)
    lengths = [rng.integers(100, 6000, 60), rng.integers(1, 200, 60), np.zeros(60, np.int64)]
    asked = kind(async_scheduling=ahead, step_noise_cv=cv)
    times = serve(asked, Requests(np.zeros(60), lengths), Replicas(3, Balance(policy)), HELD)
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
        alone = serve(asked, requests, Replicas(seed=replica))
        assert_allclose(alone.last_token_s, times.last_token_s[mine], rtol=1e-9)


def test_the_kv_in_use_is_that_of_the_blocks_held() -> None:
    """Many short answers behind a shared prefix, which counts once."""
    asked, count = kind(), 300
    sent_s = np.cumsum(np.random.default_rng(1).exponential(0.05, count))
    columns = np.full(count, 5600), np.full(count, 14), np.full(count, 5320)
    work = serve(asked, Requests(sent_s, columns)).work
    service = VirtualService(asked)
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
        serve(kind(num_gpu_blocks=200), requests)
    with pytest.raises(ValueError, match="does not predict refusals"):
        serve(kind(max_num_queued_reqs=3), requests)
    with pytest.raises(ValueError, match="num_gpu_blocks"):
        serve(kind(num_gpu_blocks=0), requests)


@pytest.mark.parametrize("count", [2, 5, 101, 140])
@pytest.mark.parametrize("share", [LATE_GAP, 0.5, 0.0, 1.0])
def test_the_late_gap_is_numpys_quantile(count: int, share: float) -> None:
    ends = np.cumsum(np.random.default_rng(count).choice([0.01, 0.02, 0.1], count))
    assert late_gap_s(ends, share) == pytest.approx(np.quantile(np.diff(ends), share))


def test_more_tokens_than_there_is_room_for_are_refused() -> None:
    """Compiled code would write their times over other memory."""
    service, each = Service(kind(), Replicas(), 8, 64, tokens=10), np.array([5])
    none = np.zeros((1, 1), np.int64)
    service.append(each, each, none, none)
    service.append(each, each, none, none)
    with pytest.raises(MemoryError, match="no room for the times"):
        service.append(each, each, none, none)


@pytest.mark.parametrize("blocks", [250, 10_000])
def test_the_times_of_tokens_are_those_of_their_steps(blocks: int) -> None:
    """Also of requests that are preempted."""
    asked = kind(num_gpu_blocks=blocks)
    sent_s, (inputs, outputs, shared) = traffic(2, 40, 30.0)
    columns = inputs // 3, outputs * 9, shared
    times = serve(asked, Requests(sent_s, columns), Replicas(seed=3), tokens=True)
    stepped = step_by_step(asked, sent_s, columns)
    assert_allclose(times.token_s, np.concatenate(stepped.token_s), rtol=1e-12)
    assert (stepped.engine.total("preemptions") > 0) == (blocks == 250)
    gaps_s = late_gaps_s(times.token_s, columns[1], LATE_GAP)
    for own, gap_s in zip(stepped.token_s, gaps_s, strict=True):
        expected = np.quantile(np.diff(own), LATE_GAP) if len(own) > 1 else np.nan
        assert gap_s == pytest.approx(expected, nan_ok=True)


# Requests one by one on the virtual clock: the balancer, and what is observed.


def finished(served: VirtualService, until_s: float) -> dict[int, RequestProgress]:
    served.advance(until_s)
    return {seen.key: seen for seen in served.observe() if seen.finished}


def test_a_lone_request_takes_its_front_end_and_its_steps() -> None:
    served = VirtualService(kind())
    served.submit(7, 2.0, 5600, 3)
    seen = finished(served, 10.0)[7]
    model = roofline(*PARTS)
    prompt = Batch(sequences=1)
    prompt.add_chunk(5600, 0)
    constants = ASKED.model.step_time
    front_end_s = (constants.front_end_ms.value + constants.front_end_latency_ms.value) * 1e-3
    first_s = 2.0 + front_end_s + model.duration_s(prompt)
    decode_s = sum(model.duration_s(Batch(1, 0, context, 0.0, 1)) for context in (5600, 5601))
    assert seen.first_token_s == pytest.approx(first_s)
    assert seen.last_token_s == pytest.approx(first_s + decode_s)
    assert (seen.replica, seen.tokens) == (0, 3)


def test_equal_loads_are_dealt_in_turn() -> None:
    for policy in ("leastconn", "roundrobin"):
        served = VirtualService(kind(), 3, policy)
        for key in range(9):
            served.submit(key, 1.0, 5600, 140)
        served.advance(1.0)
        assert [seen.replica for seen in served.observe()] == [0, 1, 2] * 3


def test_leastconn_avoids_the_busy_replica_and_roundrobin_does_not() -> None:
    for policy, expected in (("leastconn", [0, 1, 1, 1]), ("roundrobin", [0, 1, 0, 1])):
        served = VirtualService(kind(), 2, policy)
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
    front_end = "model.step_time.front_end_ms", "model.step_time.front_end_latency_ms"
    served = VirtualService(EngineKind.of(*parts(replaced(ASKED, dict.fromkeys(front_end, 0.0)))))
    for key in (1, 2):
        served.submit(key, 1.0, 100, 5)
    served.advance(1.0)
    served.submit(3, 1.0, 100, 5)
    assert len({seen.first_token_s for seen in finished(served, 5.0).values()}) == 1
