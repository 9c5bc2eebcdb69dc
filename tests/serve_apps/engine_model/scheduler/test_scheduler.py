"""serve_apps/engine_model/scheduler/scheduler.py: vLLM's scheduling rules, as stories and properties."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_apps.engine_model import GenerateRequest
from serve_apps.engine_model.scheduler.request import RequestState
from serve_apps.engine_model.scheduler.scheduler import Scheduler
from tests.support.virtual.engines import (
    Step,
    check_integrity,
    drain,
    engine,
    ids,
    one_step,
    run_step,
    scheduler,
)


def add(
    rules: Scheduler, request_id: int, prompt: int, output: int, hashes: tuple[int, ...] = ()
) -> RequestState:
    request = rules.request(request_id, prompt, output, hashes)
    rules.add(request)
    return request


# The rules, one story each.


def test_a_long_prompt_is_cut_by_the_budget_and_the_next_one_fills_the_step() -> None:
    rules = scheduler(budget=100)
    add(rules, 1, 250, 3)
    add(rules, 2, 70, 3)
    assert one_step(rules) == (100, 0, [])
    assert one_step(rules) == (100, 0, [])
    assert one_step(rules) == (100, 0, [1])
    assert one_step(rules) == (20, 1, [1, 2])
    assert one_step(rules) == (0, 2, [1, 2])
    assert one_step(rules) == (0, 1, [2])


def test_decoders_come_before_prompts() -> None:
    rules = scheduler(budget=10)
    add(rules, 1, 2, 9)
    assert one_step(rules) == (2, 0, [1])
    add(rules, 2, 18, 9)
    assert one_step(rules) == (9, 1, [1])
    assert one_step(rules) == (9, 1, [1, 2])


def test_a_prompt_waits_for_room_for_all_of_it_and_nobody_overtakes() -> None:
    rules = scheduler(blocks=10, budget=12)
    add(rules, 1, 20, 3)
    add(rules, 2, 24, 3)
    add(rules, 3, 4, 3)
    assert one_step(rules) == (12, 0, [])
    assert one_step(rules) == (8, 0, [1])
    assert ids(rules.waiting) == [2, 3]
    one_step(rules)
    assert one_step(rules) == (0, 1, [1])
    assert one_step(rules) == (12, 0, [])


def test_the_last_running_is_preempted_recomputed_and_emits_nothing_twice() -> None:
    rules = scheduler(blocks=5)
    add(rules, 1, 8, 5)
    second = add(rules, 2, 8, 4)
    assert one_step(rules) == (16, 0, [1, 2])
    add(rules, 3, 4, 1)
    # Both need a third block and one is left: the first takes it, the second goes.
    assert one_step(rules) == (0, 1, [1])
    assert (rules.preemptions, second.emitted) == (1, 1)
    assert ids(rules.waiting) == [2, 3], "to the front, and nothing is admitted in that step"
    assert [one_step(rules)[:2] for _ in range(3)] == [(0, 1)] * 3, "9 tokens need 3 blocks, 2 are free"
    assert one_step(rules) == (13, 0, [2, 3]), "prompt and emitted token at once, beside the third's prompt"
    assert [one_step(rules)[2] for _ in range(2)] == [[2], [2]]
    assert second.finished and rules.kv.free_blocks == 5


def test_a_request_may_preempt_itself() -> None:
    rules = scheduler(blocks=4)
    add(rules, 1, 4, 9)
    add(rules, 2, 8, 8)
    assert one_step(rules) == (12, 0, [1, 2])
    assert one_step(rules) == (0, 1, [1])
    assert rules.preemptions == 1


def test_abort_in_the_middle_of_a_step_emits_nothing_more() -> None:
    rules = scheduler()
    gone, stays = add(rules, 1, 4, 2), add(rules, 2, 4, 2)
    rules.schedule()
    rules.abort(gone)
    rules.complete(1.0)
    assert (gone.emitted, stays.emitted) == (0, 1)
    assert rules.kv.free_blocks == 999


lengths = st.tuples(st.integers(1, 60), st.integers(1, 20))


@given(
    st.lists(lengths, min_size=1, max_size=12),
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(20, 40) | st.just(1000),
)
def test_any_load_is_served_within_the_limits_and_with_room_for_all_no_step_is_left_unfilled(
    loads: list[tuple[int, int]], budget: int, seqs: int, blocks: int
) -> None:
    rules = scheduler(blocks, budget, seqs)
    for number, (prompt, output) in enumerate(loads):
        add(rules, number, prompt, output)
    while rules.running or rules.waiting:
        batch = rules.schedule()
        assert batch is not None
        assert 0 < batch.decode_tokens + batch.prefill_tokens <= budget
        assert len(rules.running) <= seqs
        if blocks == 1000 and batch.decode_tokens + batch.prefill_tokens < budget:
            assert len(rules.running) == seqs or not rules.waiting
        assert batch.sequences == len(set(ids(rules.emitting())))
        check_integrity(rules)
        rules.complete(0.0)
    assert rules.kv.free_blocks == blocks
    assert rules.preemptions == 0 or blocks < 1000
    assert rules.generation_tokens_total == sum(output for _, output in loads)
    assert rules.prompt_tokens_total == sum(prompt for prompt, _ in loads)


# The engine.

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


@given(st.lists(operations, max_size=60), st.sampled_from([0.0, 5.0]))
def test_every_request_emits_its_tokens_once_in_order(
    story: list[tuple[str, int, int]], front_end_ms: float
) -> None:
    served = engine(front_end_ms=front_end_ms, **TIGHT)
    wanted: dict[int, int] = {}
    steps: list[Step] = []
    now_s, added = 0.0, 0
    for action, first, second in story:
        if action == "add":
            served.add(GenerateRequest(added, first, second), now_s)
            wanted[added] = second
            added += 1
        elif action == "abort":
            served.abort(first)
            wanted.pop(first, None)
        elif step := run_step(served, now_s):
            steps.append(step)
            now_s = step.end_s
        check_integrity(served.scheduler)
    steps += drain(served, now_s)
    emitted = defaultdict(list)
    for step in steps:
        assert step.end_s > step.start_s
        for event in step.events:
            emitted[event.request_id].append((event.number, event.finished))
    for number, count in wanted.items():
        assert emitted[number] == [(index, index == count - 1) for index in range(count)]
    assert (served.running, served.waiting, served.kv_usage) == (0, 0, 0.0)


def test_the_front_end_serves_one_request_after_the_other() -> None:
    served = engine(front_end_ms=10.0, async_scheduling=False)
    for number in range(3):
        served.add(GenerateRequest(number, 8, 1), 1.0)
    assert served.waiting == 3
    assert served.ready_s() == pytest.approx(1.010)
    assert run_step(served, 1.009) is None
    step = run_step(served, 1.021)
    assert step is not None and [event.request_id for event in step.events] == [0, 1]
    assert served.ready_s() == pytest.approx(1.030)
    served.abort(2)
    assert served.ready_s() == float("inf")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (GenerateRequest(1, 90, 7), "num_gpu_blocks"),
        (GenerateRequest(1, 0, 7), "at least one prompt"),
        (GenerateRequest(1, 7, 0), "at least one prompt"),
        (GenerateRequest(0, 8, 8), "unique"),
    ],
)
def test_requests_that_can_never_be_served_are_refused(asked: GenerateRequest, message: str) -> None:
    served = engine(**TIGHT)
    served.add(GenerateRequest(0, 8, 8), 0.0)
    with pytest.raises(ValueError, match=message):
        served.add(asked, 0.0)
    assert served.waiting == 1


def test_the_longest_request_that_fits_is_served() -> None:
    served = engine(**TIGHT)
    served.add(GenerateRequest(1, 90, 6), 0.0)
    assert drain(served)[-1].events[-1] == (1, 5, True)


def test_an_id_may_come_back_after_its_request() -> None:
    served = engine()
    for _ in range(2):
        served.add(GenerateRequest(1, 8, 2), 0.0)
        assert len(drain(served)) == 2
    served.abort(1)


def durations(seed: int, cv: float) -> list[float]:
    served = engine(seed, step_noise_cv=cv)
    served.add(GenerateRequest(1, 16, 2000), 0.0)
    return [step.end_s - step.start_s for step in drain(served)]


def test_noise_is_seeded_and_keeps_the_mean() -> None:
    quiet, noisy = durations(1, 0.0), durations(1, 0.2)
    factors = [b / a for a, b in zip(quiet, noisy, strict=True)]
    mean = sum(factors) / len(factors)
    spread = (sum((factor - mean) ** 2 for factor in factors) / len(factors)) ** 0.5
    assert mean == pytest.approx(1, abs=0.015)
    assert spread == pytest.approx(0.2, rel=0.1)
    assert noisy == durations(1, 0.2) != durations(2, 0.2)
    assert quiet == durations(2, 0.0)
