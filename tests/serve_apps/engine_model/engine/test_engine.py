"""serve_apps/engine_model/engine/engine.py: asynchronous scheduling, prefix cache, queue limits, states."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_apps.engine_model import Engine, GenerateRequest
from serve_apps.engine_model.engine.engine import QueueFull, RequestState
from serve_apps.engine_model.engine.steps import IDLE_POLL_S
from tests.support.virtual.books import check_integrity
from tests.support.virtual.engines import Step, drain, engine, run_step


def emitted(served: Engine, *arrivals: tuple[float, int, int]) -> list[tuple[float, float, list[int]]]:
    """Start and end of every step, and who got a token; arrivals are (time, prompt, output)."""
    steps, now_s, coming = [], 0.0, [*arrivals]
    while coming or served.ready_s() < float("inf"):
        ready_s = max(now_s, served.ready_s())
        while coming and coming[0][0] <= ready_s:
            at_s, prompt, output = coming.pop(0)
            served.add(GenerateRequest(prompt, output), at_s)
            ready_s = max(now_s, served.ready_s())
        step = run_step(served, ready_s)
        if step is not None:
            steps.append((step.start_s, step.end_s, [event.request_id for event in step.events]))
            now_s = step.end_s
    return steps


def test_a_step_is_chosen_when_the_one_before_it_starts() -> None:
    between_s = 1e-4
    steps = emitted(engine(), (0.0, 64, 5), (between_s, 64, 1))
    assert [who for _, _, who in steps] == [[0], [0], [0, 1], [0], [0]], "two boundaries"
    steps = emitted(engine(async_scheduling=False), (0.0, 64, 5), (between_s, 64, 1))
    assert [who for _, _, who in steps] == [[0], [0, 1], [0], [0], [0]], "one boundary"
    assert all(end == start for (_, end, _), (start, _, _) in zip(steps, steps[1:], strict=False))


def test_a_core_with_nothing_to_compute_sleeps_a_millisecond() -> None:
    (_, end_s, _), *_ = emitted(engine(), (0.0, 64, 1))
    for wait_s, starts_s in ((0.0, IDLE_POLL_S), (5e-4, IDLE_POLL_S), (5e-3, 5e-3)):
        steps = emitted(engine(), (0.0, 64, 1), (end_s + wait_s, 64, 1))
        assert steps[1][0] == pytest.approx(end_s + starts_s)
        steps = emitted(engine(async_scheduling=False), (0.0, 64, 1), (end_s + wait_s, 64, 1))
        assert steps[1][0] == pytest.approx(end_s + wait_s)


def served_one_by_one(served: Engine, *requests: GenerateRequest) -> list[RequestState]:
    states, now_s = [], 0.0
    for request in requests:
        states.append(served.add(request, now_s))
        now_s = drain(served, now_s)[-1].end_s
    return states


def test_a_shared_prefix_is_computed_once_and_never_whole() -> None:
    shared = tuple(range(100))  # 1600 tokens
    served = engine()
    alike = [GenerateRequest(1600, 3, shared)] * 2
    longer, other = GenerateRequest(1700, 3, shared), GenerateRequest(1600, 3, (-1, *shared[1:]))
    states = served_one_by_one(served, *alike, longer, other)
    assert [state.cached_tokens for state in states] == [0, 1584, 1600, 0], "the last block is recomputed"
    assert (served.total("prefix_queries"), served.total("prefix_hits")) == (3 * 1600 + 1700, 1584 + 1600)
    first_s, last_s = (
        [getattr(state, f"{which}_token_s") for state in states] for which in ("first", "last")
    )
    assert first_s[1] - last_s[0] < 0.6 * (first_s[3] - last_s[2])
    states = served_one_by_one(engine(enable_prefix_caching=False), *alike, longer)
    assert [state.cached_tokens for state in states] == [0, 0, 0]


def test_a_preempted_request_finds_what_it_had() -> None:
    """Two requests of 6 blocks each in 10: the second goes, and comes back to most of its own prefix."""
    last_s = {}
    for caching in (True, False):
        served = engine(num_gpu_blocks=10, enable_prefix_caching=caching)
        states = [served.add(GenerateRequest(64, 32), 0.0) for _ in range(2)]
        drain(served)
        assert served.total("preemptions") == 1 and [state.emitted for state in states] == [32, 32]
        last_s[caching] = states[1].last_token_s or 0.0
    assert last_s[True] < last_s[False], "it recomputes less"


@pytest.mark.parametrize("limit", [{"max_num_queued_reqs": 2}, {"max_num_queued_tokens": 128}])
def test_queue_limits_refuse_what_would_wait_too_long(limit: dict[str, int]) -> None:
    served = engine(**limit)
    first, _ = (served.add(GenerateRequest(64, 3), 0.0) for _ in range(2))
    with pytest.raises(QueueFull, match="Please try again later"):
        served.add(GenerateRequest(64, 3), 0.0)
    now_s = served.begin_step(0.0) or 0.0
    served.end_step()
    if "max_num_queued_tokens" in limit:  # those prompts are computed; their requests are still open
        served.add(GenerateRequest(64, 3), now_s)
    else:
        with pytest.raises(QueueFull):
            served.add(GenerateRequest(64, 3), now_s)
        served.abort(first)
        served.add(GenerateRequest(64, 3), now_s)


TIGHT: dict[str, Any] = {
    "num_gpu_blocks": 12,
    "block_size": 8,
    "max_num_batched_tokens": 32,
    "max_num_seqs": 5,
}
operations = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 60), st.integers(1, 30)),
    st.tuples(st.just("abort"), st.integers(0, 20), st.just(0)),
    st.tuples(st.just("step"), st.just(0), st.just(0)),
)


@given(st.lists(operations, max_size=60), st.sampled_from([0.0, 5.0]), st.booleans(), st.booleans())
@settings(max_examples=150)
def test_every_request_emits_its_tokens_once_in_order_and_its_state_tells_them_at_any_moment(
    story: list[tuple[str, int, int]], front_end_ms: float, asynchronous: bool, caching: bool
) -> None:
    flags = {"async_scheduling": asynchronous, "enable_prefix_caching": caching}
    served = engine(front_end_ms=front_end_ms, **TIGHT, **flags)
    wanted: dict[int, int] = {}
    states: list[RequestState] = []
    steps: list[Step] = []
    times: defaultdict[int, list[float]] = defaultdict(list)
    now_s = 0.0
    for action, first, second in story:
        if action == "add":
            wanted[len(states)] = second
            states.append(served.add(GenerateRequest(first, second), now_s))
        elif action == "abort" and first < len(states):
            served.abort(states[first])
            wanted.pop(first, None)
        elif step := run_step(served, now_s):
            steps.append(step)
            now_s = step.end_s
            for event in step.events:
                times[event.request_id].append(now_s)
        check_integrity(served.arrays)
        for state in states:
            seen = times[state.request_id]
            expected = (len(seen), seen[0] if seen else None, seen[-1] if seen else None)
            assert (state.emitted, state.first_token_s, state.last_token_s) == expected
    steps += drain(served, now_s)
    emitted = defaultdict(list)
    for step in steps:
        assert step.end_s > step.start_s
        for event in step.events:
            emitted[event.request_id].append((event.number, event.finished))
    for number, count in wanted.items():
        assert emitted[number] == [(index, index == count - 1) for index in range(count)]
    assert (served.running, served.waiting, served.kv_usage) == (0, 0, 0.0)
    assert served.total("generation_tokens") == sum(len(step.events) for step in steps)


def test_the_front_end_serves_one_request_after_the_other() -> None:
    served = engine(front_end_ms=10.0, async_scheduling=False)
    *_, last = (served.add(GenerateRequest(8, 1), 1.0) for _ in range(3))
    assert served.waiting == 3
    assert served.ready_s() == pytest.approx(1.010)
    assert run_step(served, 1.009) is None
    step = run_step(served, 1.021)
    assert step is not None and [event.request_id for event in step.events] == [0, 1]
    assert served.ready_s() == pytest.approx(1.030)
    served.abort(last)
    assert served.ready_s() == float("inf")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (GenerateRequest(90, 7), "num_gpu_blocks"),
        (GenerateRequest(90, 2**63 - 1), "num_gpu_blocks"),
        (GenerateRequest(90, 10**30), "num_gpu_blocks"),
        (GenerateRequest(0, 7), "at least one prompt"),
        (GenerateRequest(7, 0), "at least one prompt"),
    ],
)
def test_requests_that_can_never_be_served_are_refused(prompt: GenerateRequest, message: str) -> None:
    served = engine(**TIGHT)
    served.add(GenerateRequest(8, 8), 0.0)
    with pytest.raises(ValueError, match=message):
        served.add(prompt, 0.0)
    assert served.waiting == 1
