"""serve_apps/engine_model/scheduler/engine.py: engines whose KV comes from another engine or goes to one."""

import math

import pytest

from serve_apps.engine_model import BlockEngine, GenerateRequest
from serve_apps.engine_model.scheduler.engine import IDLE_POLL_S
from serve_apps.engine_model.scheduler.request import Kv, RequestState
from serve_apps.engine_model.scheduler.scheduler import Scheduler
from tests.support.virtual.engines import check_integrity, engine, ids, one_step, scheduler


def add(rules: Scheduler, request_id: int, prompt: int, output: int, kv: Kv) -> RequestState:
    request = rules.request(request_id, prompt, output, kv=kv)
    rules.add(request)
    return request


def test_a_remote_prompt_takes_its_blocks_waits_without_a_slot_and_computes_one_token() -> None:
    rules = scheduler(blocks=10, seqs=1)
    remote = add(rules, 1, 17, 2, "remote")
    add(rules, 2, 4, 2, "own")
    assert one_step(rules) == (4, 0, [2])
    assert ids(rules.loading) == ids(rules.started) == [1]
    assert remote.tokens_to_load == 17 and rules.kv.free_blocks == 10 - 5 - 1
    rules.transferred(remote)
    assert one_step(rules) == (0, 1, [2])  # the slot is taken
    assert one_step(rules) == (0, 1, [1])  # the prompt's last token is decoded
    assert remote.cached_tokens == 16
    assert one_step(rules) == (0, 1, [1])
    assert rules.kv.usage == 0 and remote.finished


def test_those_whose_kv_is_there_come_before_all_that_wait_in_the_order_of_their_blocks() -> None:
    rules = scheduler(budget=4, seqs=3)
    remote = [add(rules, number, 8, 3, "remote") for number in (1, 2, 3)]
    assert rules.schedule() is None and ids(rules.loading) == [1, 2, 3]
    add(rules, 4, 2, 3, "own")
    for request in (remote[2], remote[0]):
        rules.transferred(request)
    assert one_step(rules) == (2, 2, [1, 3, 4])


def test_nobody_overtakes_a_remote_prompt_that_does_not_fit() -> None:
    rules = scheduler(blocks=4)
    first = add(rules, 1, 12, 2, "remote")
    add(rules, 2, 8, 2, "remote")
    add(rules, 3, 4, 2, "own")
    assert rules.schedule() is None
    assert ids(rules.loading) == [1] and ids(rules.waiting) == [2, 3]
    rules.transferred(first)
    assert one_step(rules) == (0, 1, [1])


def test_a_transfer_leaves_the_blocks_that_prompts_in_computation_need() -> None:
    rules = scheduler(blocks=10, budget=9)
    rules.long_prefill_tokens = 8
    add(rules, 1, 24, 1, "own")
    add(rules, 2, 20, 1, "remote")
    assert one_step(rules) == (8, 0, [])
    assert ids(rules.waiting) == [2]  # 8 blocks are free, 4 of them needed
    assert one_step(rules) == (8, 0, []) and one_step(rules) == (8, 0, [1])
    assert rules.schedule() is None and ids(rules.loading) == [2]


def test_held_blocks_stay_until_the_transfer_ends() -> None:
    rules = scheduler(blocks=6)
    held = add(rules, 1, 16, 1, "held")
    waits = add(rules, 2, 12, 1, "held")
    assert one_step(rules) == (16, 0, [1])
    check_integrity(rules)
    assert held.finished and ids(rules.kept) == [1] and rules.schedule() is None
    rules.transferred(held)
    assert one_step(rules) == (12, 0, [2])
    rules.transferred(waits)
    assert rules.kv.usage == 0


@pytest.mark.parametrize("seen", [False, True])
def test_an_aborted_transfer_keeps_its_blocks_until_it_ends(seen: bool) -> None:
    rules = scheduler(blocks=6)
    remote = add(rules, 1, 16, 3, "remote")
    rules.schedule()
    if seen:
        rules.transferred(remote)
    rules.abort(remote)
    assert rules.kv.free_blocks == (6 if seen else 2)
    rules.transferred(remote)
    assert rules.kv.free_blocks == 6 and not rules.loading and not rules.kept


def test_a_preempted_remote_request_is_computed_here() -> None:
    rules = scheduler(blocks=6)
    first, second = (add(rules, number, 12, 5, "remote") for number in (1, 2))
    rules.schedule()
    for request in (first, second):
        rules.transferred(request)
    assert one_step(rules) == (0, 2, [1, 2])
    assert one_step(rules) == (0, 1, [1]) and ids(rules.waiting) == [2]
    while not first.finished:
        one_step(rules)
    assert one_step(rules) == (13, 0, [2]) and not rules.loading


def test_on_an_engine_that_receives_kv_nobody_is_preempted_in_the_middle_of_a_step() -> None:
    rules = scheduler(blocks=6)
    remote = [add(rules, number, 12, 5, "remote") for number in (1, 2)]
    assert rules.schedule() is None
    for request in remote:
        rules.transferred(request)
    assert rules.schedule() is not None
    assert rules.schedule() is None and rules.preemptions == 0  # both lack a block and are in that step
    rules.complete(0.0)
    assert one_step(rules) == (0, 1, [1]) and rules.preemptions == 1


# Time.


def served(asynchronous: bool, **changes: int) -> BlockEngine:
    return engine(async_scheduling=asynchronous, num_gpu_blocks=2000, **changes)


@pytest.mark.parametrize(("asynchronous", "looks"), [(False, 1), (True, 2)])
def test_an_idle_core_looks_every_millisecond_and_reads_it_a_step_later(
    asynchronous: bool, looks: int
) -> None:
    decode = served(asynchronous)
    state = decode.add(GenerateRequest(0, 5600, 2, kv="remote"), 1.0)
    assert decode.begin_step(1.0) is None
    assert decode.loading() == [state] and decode.loading() == []
    assert decode.ready_s() == math.inf and decode.waiting == 1
    decode.kv_arrived(0, 1.0105)
    while (end_s := decode.begin_step(decode.ready_s())) is None:
        start_s = decode.ready_s()
    assert start_s == pytest.approx(1.011 + looks * IDLE_POLL_S)
    decode.end_step()
    assert state.first_token_s == end_s


@pytest.mark.parametrize("asynchronous", [False, True])
def test_while_blocks_are_held_an_arrival_waits_for_the_next_look(asynchronous: bool) -> None:
    prefill = served(asynchronous)
    prefill.add(GenerateRequest(0, 1600, 1, kv="held"), 0.0)
    end_s = prefill.begin_step(0.0)
    assert end_s is not None
    with pytest.raises(ValueError, match="not finished"):
        prefill.release(0)
    prefill.end_step()
    now_s = end_s
    while now_s < math.inf:
        assert prefill.begin_step(now_s) is None
        now_s = max(now_s, prefill.ready_s())
    assert prefill.kv_usage == pytest.approx(0.05)
    prefill.add(GenerateRequest(1, 1600, 1), end_s + 0.0205)
    assert prefill.begin_step(end_s + 0.0207) is None
    assert prefill.ready_s() == pytest.approx(end_s + 0.021)
    assert prefill.begin_step(prefill.ready_s()) is not None
    prefill.release(0)
    prefill.end_step()
    for _ in range(4):
        prefill.begin_step(prefill.ready_s()) if prefill.ready_s() < math.inf else None
    assert prefill.kv_usage == 0
    assert prefill.ready_s() == math.inf


@pytest.mark.parametrize(("asynchronous", "computed_in"), [(False, 3), (True, 5)])
def test_a_busy_engine_sees_the_kv_when_the_step_behind_the_next_look_is_over(
    asynchronous: bool, computed_in: int
) -> None:
    decode = served(asynchronous)
    decode.add(GenerateRequest(0, 64, 40), 0.0)
    late = decode.add(GenerateRequest(1, 64, 2, kv="remote"), 0.0)
    ends = [decode.begin_step(0.0)]
    decode.kv_arrived(1, 1e-6)  # in the first step
    while late.first_token_s is None:
        decode.end_step()
        ends.append(decode.begin_step(ends[-1] or 0.0))
    assert late.first_token_s == ends[computed_in - 1]
