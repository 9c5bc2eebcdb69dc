"""serve_apps/engine_model/service/replay.py: a closed loop over engines, each as alone with what it got."""

import numpy as np
import pytest

from conf import load
from conf.specs.experiment import SimulatedEngine
from serve_apps.engine_model.compiled.fast_engine import (
    FastEngine,
    FastSpec,
    Ints,
    UnsupportedByFastPath,
)
from serve_apps.engine_model.service.balancer import Balance
from serve_apps.engine_model.service.replay import LATE_GAP, late_gap_s, replay, serve_circle
from serve_apps.engine_model.service.routed import Replicas, Requests
from serve_apps.engine_model.service.whole_service import serve

HELD = 7


def asked(count: int = 60) -> list[Ints]:
    rng = np.random.default_rng(0)
    return [rng.integers(100, 6000, count), rng.integers(1, 200, count), np.zeros(count, np.int64)]


def machine(*words: str) -> FastSpec:
    it = load(["engine.max_num_batched_tokens=8192", *words])
    assert isinstance(it.engine, SimulatedEngine)
    return FastSpec.of(it.engine, it.model, it.hardware, it.layout)


@pytest.mark.parametrize(
    ("policy", "asynchronous"), [("leastconn", "true"), ("roundrobin", "false"), ("pow2", "true")]
)
def test_each_engine_serves_what_it_got_and_as_many_are_in_flight(policy: str, asynchronous: str) -> None:
    one, lengths = machine(f"engine.async_scheduling={asynchronous}"), asked()
    times = serve_circle(one, HELD, lengths, Replicas(3, Balance(policy)))
    assert (np.diff(times.sent_s) >= 0).all() and set(times.replica) == {0, 1, 2}
    in_flight = [
        int(((times.sent_s <= at) & (times.last_token_s > at)).sum()) for at in times.last_token_s[:-HELD]
    ]
    assert max(in_flight) == HELD
    # A request is sent the very moment that another one ends.
    assert set(times.sent_s[HELD:]) <= set(times.last_token_s)
    if policy == "roundrobin":
        assert times.replica.tolist() == [each % 3 for each in range(len(lengths[0]))]
    for replica in range(3):
        mine = np.flatnonzero(times.replica == replica)
        alone = FastEngine(one, 200).serve(times.sent_s[mine], [column[mine] for column in lengths])
        np.testing.assert_allclose(alone.first_token_s, times.first_token_s[mine], rtol=1e-9)
        np.testing.assert_allclose(alone.last_token_s, times.last_token_s[mine], rtol=1e-9)


def test_a_burst_to_two_engines_is_that_of_requests_due_at_once() -> None:
    it, lengths = load(["layout=dp2_tp4_ep4"]), asked()
    assert isinstance(it.engine, SimulatedEngine)
    parts = it.engine, it.model, it.hardware, it.layout
    count = len(lengths[0])
    requests = Requests(np.zeros(count), lengths)
    burst, _ = replay(*parts, requests, Replicas(2), count)
    at_once = serve(*parts, requests, Replicas(2))
    np.testing.assert_allclose(burst.last_token_s, at_once.last_token_s, rtol=1e-9)


def test_what_it_does_not_play_is_unfit() -> None:
    with pytest.raises(UnsupportedByFastPath, match="noise of many engines"):
        serve_circle(machine("engine=simulated_aiter"), HELD, asked(), Replicas(2))
    with pytest.raises(UnsupportedByFastPath, match="KV cache may overflow"):
        serve_circle(machine("engine.num_gpu_blocks=450"), 40, asked(), Replicas(2))


@pytest.mark.parametrize("count", [2, 3, 5, 101, 102, 140])
@pytest.mark.parametrize("share", [LATE_GAP, 0.5, 0.0, 1.0])
def test_the_late_gap_is_numpys_quantile(count: int, share: float) -> None:
    ends = np.cumsum(np.random.default_rng(count).choice([0.01, 0.02, 0.1], count))
    assert late_gap_s(ends, share) == pytest.approx(np.quantile(np.diff(ends), share))


def test_the_gaps_of_a_request_are_those_of_its_own_tokens() -> None:
    it, lengths = load(["layout=dp2_tp4_ep4"]), asked()
    assert isinstance(it.engine, SimulatedEngine)
    parts = it.engine, it.model, it.hardware, it.layout
    sent_s = np.sort(np.random.default_rng(1).random(len(lengths[0])) * 10)
    times, gaps = replay(*parts, Requests(sent_s, lengths), Replicas(2, Balance("roundrobin")))
    one = FastSpec.of(*parts)
    engine = FastEngine(one, 200, steps=10_000)
    engine.serve(sent_s[1::2], [column[1::2] for column in lengths])
    for number, gap in enumerate(gaps[1::2]):
        if lengths[1][1::2][number] == 1:
            assert np.isnan(gap)
        else:
            assert gap == pytest.approx(np.quantile(np.diff(engine.token_times(number)), LATE_GAP))
    assert times.replica.tolist() == [0, 1] * 30


def test_gaps_are_unknown_where_blocks_are_counted() -> None:
    it = load(["engine.long_prefill_token_threshold=512"])
    assert isinstance(it.engine, SimulatedEngine)
    parts = it.engine, it.model, it.hardware, it.layout
    times, gaps = replay(*parts, Requests(np.arange(60) / 4, asked()), Replicas())
    assert np.isnan(gaps).all() and np.isfinite(times.last_token_s).all()
