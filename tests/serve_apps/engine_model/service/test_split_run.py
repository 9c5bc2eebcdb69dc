"""serve_apps/engine_model/service/split_run.py against the service that keeps books of every block."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from conf import Experiment, load
from conf.specs.experiment import SimulatedEngine
from serve_apps.engine_model.compiled.fast_engine import Times, UnsupportedByFastPath
from serve_apps.engine_model.service.balancer import Balance
from serve_apps.engine_model.service.routed import Replicas, Requests
from serve_apps.engine_model.service.split_run import SplitSpec, serve_split
from serve_apps.engine_model.service.split_service import SplitService

POLL_S = 1e-3
"""An idle engine looks for work so often; the compiled prefill engine at once."""


def asked(*words: str) -> Experiment:
    return load(["engine=simulated", *words])


def traffic(seed: int, count: int, rate_qps: float, shared: int = 0) -> tuple[Any, Any]:
    """Arrivals, and lengths around 1500 / 12."""
    rng = np.random.default_rng(seed)
    inputs, outputs = rng.integers(shared + 1, 3000 + shared, count), rng.integers(1, 24, count)
    return np.cumsum(rng.exponential(1 / rate_qps, count)), (inputs, outputs, np.full(count, shared))


def by_blocks(it: Experiment, sent_s: Any, columns: Any, policy: str, seed: int) -> Any:
    """(replica, first token, last token) of each request, by `SplitService`."""
    assert isinstance(it.engine, SimulatedEngine)
    parts = it.engine, it.model, it.hardware, it.layout
    service = SplitService.of(*parts, it.cluster.nodes, policy, seed)
    for key, (at_s, *tokens) in enumerate(
        zip(sent_s.tolist(), *(column.tolist() for column in columns), strict=True)
    ):
        service.submit(key, at_s, tokens[0], tokens[1], shared_tokens=tokens[2])
    service.advance(1e5)
    seen = sorted(service.observe())
    return np.array([(one.replica, one.first_token_s, one.last_token_s) for one in seen])


def by_loop(it: Experiment, sent_s: Any, columns: Any, policy: str = "leastconn", seed: int = 0) -> Times:
    assert isinstance(it.engine, SimulatedEngine)
    spec = SplitSpec.of(it.engine, it.model, it.hardware, it.layout)
    return serve_split(spec, Requests(sent_s, columns), Replicas(it.replicas, Balance(policy), seed))


def columns_of(found: Times) -> Any:
    return np.column_stack([found.replica, found.first_token_s, found.last_token_s])


@given(
    seed=st.integers(0, 10_000),
    burst=st.sampled_from([1e3, 1e6]),
    budget=st.sampled_from([700, 8192]),
    slots=st.sampled_from([2, 16, 64]),
    ahead=st.booleans(),
    way=st.sampled_from(["layout.transfer_mode=read", "layout.transfer_mode=write", "layout.connector=nixl"]),
    slow=st.sampled_from([5e10, 1e9]),
)
@settings(max_examples=25, deadline=None)
def test_every_token_comes_when_the_block_by_block_engines_say(
    seed: int, burst: float, budget: int, slots: int, ahead: bool, way: str, slow: float
) -> None:
    it = asked(
        "layout=1p1d_tp4_ep4",
        "layout.max_num_batched_tokens=null",
        "layout.max_num_seqs=null",
        "layout.prefill.max_num_batched_tokens=null",
        "layout.prefill.max_num_seqs=null",
        f"engine.max_num_batched_tokens={budget}",
        f"engine.max_num_seqs={slots}",
        f"engine.async_scheduling={ahead}",
        f"layout.transfer.gpu_bytes_per_s.value={slow}",
        way,
    )
    sent_s, columns = traffic(seed, 40, burst, shared=1000 if "nixl" in way else 0)
    expected = by_blocks(it, sent_s, columns, "leastconn", seed)
    assert_allclose(columns_of(by_loop(it, sent_s, columns, seed=seed)), expected, rtol=1e-9)


@pytest.mark.parametrize("mode", ["read", "write"])
@pytest.mark.parametrize("policy", ["leastconn", "roundrobin", "pow2"])
def test_several_engines_on_each_side_and_their_balancers_choose_alike(policy: str, mode: str) -> None:
    it = asked("layout=3p1d_tp2_ep2", "cluster=mi325x_4n", f"layout.transfer_mode={mode}")
    sent_s, columns = traffic(5, 400, 1e4)
    expected = by_blocks(it, sent_s, columns, policy, 3)
    assert_allclose(columns_of(by_loop(it, sent_s, columns, policy, 3)), expected, rtol=1e-9)


@pytest.mark.parametrize("mode", ["read", "write"])
def test_at_a_moderate_load_only_sleeps_of_idle_prefill_engines_differ(mode: str) -> None:
    it = asked("layout=3p1d_tp2_ep2", f"layout.transfer_mode={mode}")
    sent_s, columns = traffic(7, 600, 12.0)
    one, other = columns_of(by_loop(it, sent_s, columns)), by_blocks(it, sent_s, columns, "leastconn", 0)
    away_s = np.abs(one[:, 1:] - other[:, 1:])
    assert np.quantile(away_s, 0.9) <= 1.1 * POLL_S
    assert abs(away_s.mean(axis=0) / other[:, 1:].mean(axis=0)).max() < 1e-4


def test_work_adds_up_on_both_sides() -> None:
    sent_s, (inputs, outputs, shared) = traffic(4, 50, 10.0)
    found = by_loop(asked("layout=1p1d_tp4_ep4"), sent_s, (inputs, outputs, shared))
    own, prompts = found.work, found.prefill_work
    assert prompts is not None
    assert (prompts.prefill_tokens, prompts.decode_tokens) == (inputs.sum(), 0)
    # The last token of each prompt is computed once more, where its answer is decoded.
    assert (own.prefill_tokens, own.decode_tokens) == (0, outputs.sum())
    assert own.sequences == outputs.sum() and own.kv_token_seconds > 0


def test_what_the_loop_may_not_serve_is_refused() -> None:
    sent_s, (inputs, outputs, shared) = traffic(4, 50, 1000.0)
    small = asked("layout=1p1d_tp4_ep4", "engine.num_gpu_blocks=400")
    with pytest.raises(UnsupportedByFastPath, match="overflow"):
        by_loop(small, sent_s, (inputs, outputs, shared))
    with pytest.raises(ValueError, match="asks for"):
        by_loop(small, sent_s, (inputs + 8000, outputs, shared))
    noisy = asked("layout=1p1d_tp4_ep4", "engine.step_noise_cv=.1")
    with pytest.raises(UnsupportedByFastPath, match="noise"):
        by_loop(noisy, sent_s, (inputs, outputs, shared))
