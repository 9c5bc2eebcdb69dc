"""serve_apps/engine_model/engine/rules.py: vLLM's scheduling rules, as stories and properties."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_apps.engine_model import Engine, GenerateRequest
from serve_apps.engine_model.engine import rules as compiled
from serve_apps.engine_model.engine.engine import Kv, RequestState
from serve_apps.engine_model.engine.native import NONE
from serve_apps.engine_model.engine.state import KEPT, LOADING, PLACES, WAITING
from serve_apps.engine_model.engine.steps import IDLE_POLL_S
from tests.support.virtual.books import check_integrity
from tests.support.virtual.engines import engine

Done = tuple[int, int, list[int]]
"""Prefill tokens, decode tokens and who emits, of a step."""


class Rules:
    """The rules of a synchronous engine without a front end, step by step; `engine` has the rest."""

    def __init__(self, blocks: int = 1000, budget: int = 100, seqs: int = 100, **limits: int) -> None:
        self.engine = engine(
            num_gpu_blocks=blocks,
            block_size=4,
            max_num_batched_tokens=budget,
            max_num_seqs=seqs,
            **limits,
            enable_prefix_caching=False,
            async_scheduling=False,
        )
        self._now_s = 0.0

    def add(self, number: int, prompt: int, output: int, kv: Kv = "own") -> RequestState:
        """The requests are numbered from 1 on."""
        state = self.engine.add(GenerateRequest(prompt, output, kv=kv), self._now_s)
        assert state.request_id == number - 1
        return state

    def step(self) -> Done | None:
        """The next step; None where nothing can be computed."""
        self._now_s += 1.0
        if self.engine.begin_step(self._now_s) is None:
            return None
        step, emitting = self.engine.arrays.engines[0].copy(), self.engine.emitting()
        assert step["samples"] == len(emitting)
        self.engine.end_step()
        check_integrity(self.engine.arrays)
        return int(step["prefill"]), int(step["decode"]), [it.request_id + 1 for it in emitting]

    def arrive(self, *states: RequestState) -> None:
        """The KV of these requests is known to be here, or to be gone from here."""
        for state in states:
            compiled.transferred(self.engine.arrays.address, 0, state.row)
        self.engine.arrays.engines["stalled"] = 0

    def at(self, place: int) -> list[int]:
        """Who is at a place, in order."""
        row, arrays, result = int(self.engine.arrays.queues["head"][0, place]), self.engine.arrays, []
        while row != NONE:
            result.append(int(arrays.requests["serial"][row]) + 1)
            row = int(arrays.links["next"][row, PLACES])
        return result

    @property
    def free(self) -> int:
        return int(self.engine.arrays.engines["free"][0])


def test_a_long_prompt_is_cut_by_the_budget_and_the_next_one_fills_the_step() -> None:
    rules = Rules(budget=100)
    rules.add(1, 250, 3)
    rules.add(2, 70, 3)
    steps = [rules.step() for _ in range(6)]
    assert steps == [
        (100, 0, []),
        (100, 0, []),
        (100, 0, [1]),
        (20, 1, [1, 2]),
        (0, 2, [1, 2]),
        (0, 1, [2]),
    ]


def test_a_prompt_waits_for_room_for_all_of_it_and_nobody_overtakes() -> None:
    rules = Rules(blocks=10, budget=12)
    rules.add(1, 20, 3)
    rules.add(2, 24, 3)
    rules.add(3, 4, 3)
    assert rules.step() == (12, 0, [])
    assert rules.step() == (8, 0, [1])
    assert rules.at(WAITING) == [2, 3]
    rules.step()
    assert rules.step() == (0, 1, [1])
    assert rules.step() == (12, 0, [])


def test_the_last_running_is_preempted_recomputed_and_emits_nothing_twice() -> None:
    rules = Rules(blocks=5)
    rules.add(1, 8, 5)
    second = rules.add(2, 8, 4)
    assert rules.step() == (16, 0, [1, 2])
    rules.add(3, 4, 1)
    # Both need a third block and one is left: the first takes it, the second goes.
    assert rules.step() == (0, 1, [1])
    assert (rules.engine.total("preemptions"), second.emitted) == (1, 1)
    assert rules.at(WAITING) == [2, 3], "to the front, and nothing is admitted in that step"
    assert [rules.step() for _ in range(3)] == [(0, 1, [1])] * 3, "9 tokens need 3 blocks, 2 are free"
    assert rules.step() == (13, 0, [2, 3]), "prompt and emitted token at once, beside the third's prompt"
    assert [rules.step() for _ in range(2)] == [(0, 1, [2])] * 2
    assert second.finished and rules.free == 5


@pytest.mark.parametrize(("others", "cut"), [(0, 90), (1, 30)])
def test_a_prompt_is_cut_unless_its_request_is_alone(others: int, cut: int) -> None:
    rules = Rules(long_prefill_token_threshold=30)
    for number in range(1, others + 2):
        rules.add(number, 90, 2)
    assert rules.step() == (cut * (others + 1), 0, [] if others else [1])


def test_prefills_are_held_back_from_the_last_one_on_while_others_decode_and_none_is_left_waiting() -> None:
    rules = Rules(budget=40, seqs=2, prefill_schedule_interval=3)
    rules.add(1, 60, 9)
    assert rules.step() == (40, 0, [])
    rules.add(2, 20, 9)
    assert rules.step() == (20 + 20, 0, [1, 2])  # nobody decoded yet
    rules.add(3, 20, 1)
    assert [rules.step() for _ in range(3)] == [(0, 2, [1, 2])] * 3  # 3 finds no slot, and is left waiting
    while rules.at(WAITING):
        done = rules.step()
    assert done == (20, 0, [3])  # and comes as soon as a slot is free


def test_a_cut_prompt_waits_for_the_end_of_the_interval() -> None:
    rules = Rules(budget=40, prefill_schedule_interval=3)
    rules.add(1, 10, 9)
    assert rules.step() == (10, 0, [1])
    rules.add(2, 60, 2)
    assert [rules.step() for _ in range(6)] == [
        *[(0, 1, [1])] * 2,
        (39, 1, [1]),
        *[(0, 1, [1])] * 2,
        (21, 1, [1, 2]),
    ]


def test_a_decoder_behind_a_cut_prompt_gets_what_the_prompt_leaves() -> None:
    rules = Rules(budget=40, prefill_schedule_interval=3)
    rules.add(1, 10, 20)
    rules.step()
    rules.add(2, 100, 2)
    assert [rules.step() for _ in range(3)] == [(0, 1, [1]), (0, 1, [1]), (39, 1, [1])]
    remote = rules.add(3, 9, 9, "remote")  # it is admitted while the prompt before it is held back
    rules.step()
    rules.arrive(remote)
    assert rules.step() == (0, 2, [1, 3])
    assert rules.step() == (39, 1, [1]), "vLLM goes through them in their order"
    assert rules.step() == (0, 2, [1, 3])


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
    rules = Rules(blocks, budget, seqs)
    for number, (prompt, output) in enumerate(loads, 1):
        rules.add(number, prompt, output)
    served = rules.engine
    while served.running or served.waiting:
        done = rules.step()
        assert done is not None and 0 < done[0] + done[1] <= budget
        assert served.running <= seqs
        if blocks == 1000 and done[0] + done[1] < budget:
            assert len(done[2]) == seqs or not served.waiting
    assert rules.free == blocks
    assert served.total("preemptions") == 0 or blocks < 1000
    assert served.total("generation_tokens") == sum(output for _, output in loads)
    assert served.total("prompt_tokens") == sum(prompt for prompt, _ in loads)


# KV that comes from another engine or goes to one.


def test_a_remote_prompt_takes_its_blocks_waits_without_a_slot_and_computes_one_token() -> None:
    rules = Rules(blocks=10, seqs=1)
    remote = rules.add(1, 17, 2, "remote")
    rules.add(2, 4, 2)
    assert rules.step() == (4, 0, [2])
    assert rules.at(LOADING) == [1] and rules.engine.loading() == [remote]
    assert remote.tokens_to_load == 17 and rules.free == 10 - 5 - 1
    rules.arrive(remote)
    assert rules.step() == (0, 1, [2])  # the slot is taken
    assert rules.step() == (0, 1, [1])  # the prompt's last token is decoded
    assert remote.cached_tokens == 16
    assert rules.step() == (0, 1, [1])
    assert rules.free == 10 and remote.finished


def test_those_whose_kv_is_there_come_before_all_that_wait_in_the_order_of_their_blocks() -> None:
    rules = Rules(budget=4, seqs=3)
    remote = [rules.add(number, 8, 3, "remote") for number in (1, 2, 3)]
    assert rules.step() is None and rules.at(LOADING) == [1, 2, 3]
    rules.add(4, 2, 3)
    rules.arrive(remote[2], remote[0])
    assert rules.step() == (2, 2, [1, 3, 4])


def test_nobody_overtakes_a_remote_prompt_that_does_not_fit() -> None:
    rules = Rules(blocks=4)
    first = rules.add(1, 12, 2, "remote")
    rules.add(2, 8, 2, "remote")
    rules.add(3, 4, 2)
    assert rules.step() is None
    assert rules.at(LOADING) == [1] and rules.at(WAITING) == [2, 3]
    rules.arrive(first)
    assert rules.step() == (0, 1, [1])


def test_a_transfer_leaves_the_blocks_that_prompts_in_computation_need() -> None:
    rules = Rules(blocks=10, budget=9, long_prefill_token_threshold=8)
    rules.add(1, 24, 1)
    rules.add(2, 20, 1, "remote")
    assert rules.step() == (8, 0, [])
    assert rules.at(WAITING) == [2]  # 8 blocks are free, 4 of them needed
    assert rules.step() == (8, 0, []) and rules.step() == (8, 0, [1])
    assert rules.step() is None and rules.at(LOADING) == [2]


def test_held_blocks_stay_until_the_transfer_ends() -> None:
    rules = Rules(blocks=6)
    held = rules.add(1, 16, 1, "held")
    waits = rules.add(2, 12, 1, "held")
    assert rules.step() == (16, 0, [1])
    assert held.finished and rules.at(KEPT) == [1] and rules.step() is None
    rules.arrive(held)
    assert rules.step() == (12, 0, [2])
    rules.arrive(waits)
    assert rules.free == 6


@pytest.mark.parametrize("seen", [False, True])
def test_an_aborted_transfer_keeps_its_blocks_until_it_ends(seen: bool) -> None:
    rules = Rules(blocks=6)
    remote = rules.add(1, 16, 3, "remote")
    rules.step()
    if seen:
        rules.arrive(remote)
    rules.engine.abort(remote)
    assert rules.free == (6 if seen else 2)
    rules.arrive(remote)
    assert rules.free == 6 and not rules.at(LOADING) and not rules.at(KEPT)


def test_a_preempted_remote_request_is_computed_here() -> None:
    rules = Rules(blocks=6)
    first, second = (rules.add(number, 12, 5, "remote") for number in (1, 2))
    rules.step()
    rules.arrive(first, second)
    assert rules.step() == (0, 2, [1, 2])
    assert rules.step() == (0, 1, [1]) and rules.at(WAITING) == [2]
    while not first.finished:
        rules.step()
    assert rules.step() == (13, 0, [2]) and not rules.at(LOADING)


# Time.


def served(asynchronous: bool) -> Engine:
    return engine(async_scheduling=asynchronous, num_gpu_blocks=2000)


@pytest.mark.parametrize(("asynchronous", "looks"), [(False, 1), (True, 2)])
def test_an_idle_core_looks_every_millisecond_and_reads_it_a_step_later(
    asynchronous: bool, looks: int
) -> None:
    decode = served(asynchronous)
    state = decode.add(GenerateRequest(5600, 2, kv="remote"), 1.0)
    assert decode.begin_step(1.0) is None
    assert decode.loading() == [state] and decode.loading() == []
    assert decode.ready_s() == math.inf and decode.waiting == 1
    decode.transfer_ends(state, 1.0105)
    while (end_s := decode.begin_step(decode.ready_s())) is None:
        start_s = decode.ready_s()
    assert start_s == pytest.approx(1.011 + looks * IDLE_POLL_S)
    decode.end_step()
    assert state.first_token_s == end_s


@pytest.mark.parametrize("asynchronous", [False, True])
def test_while_blocks_are_held_an_arrival_waits_for_the_next_look(asynchronous: bool) -> None:
    prefill = served(asynchronous)
    held = prefill.add(GenerateRequest(1600, 1, kv="held"), 0.0)
    end_s = prefill.begin_step(0.0)
    assert end_s is not None
    prefill.end_step()
    now_s = end_s
    while now_s < math.inf:
        assert prefill.begin_step(now_s) is None
        now_s = max(now_s, prefill.ready_s())
    assert prefill.kv_usage == pytest.approx(0.05)
    prefill.add(GenerateRequest(1600, 1), end_s + 0.0205)
    assert prefill.begin_step(end_s + 0.0207) is None
    assert prefill.ready_s() == pytest.approx(end_s + 0.021)
    assert prefill.begin_step(prefill.ready_s()) is not None
    prefill.transfer_ends(held)
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
    decode.add(GenerateRequest(64, 40), 0.0)
    late = decode.add(GenerateRequest(64, 2, kv="remote"), 0.0)
    ends = [decode.begin_step(0.0)]
    decode.transfer_ends(late, 1e-6)  # in the first step
    while late.first_token_s is None:
        decode.end_step()
        ends.append(decode.begin_step(ends[-1] or 0.0))
    assert late.first_token_s == ends[computed_in - 1]
