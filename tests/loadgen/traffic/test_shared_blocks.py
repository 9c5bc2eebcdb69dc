"""loadgen/traffic/prefix_sharing.py: bodies of a trace share what its block hashes say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf import load
from conf.specs.experiment import SimulatedEngine
from loadgen.fleet.rows import planned
from loadgen.prompts.bodies import Prompts
from loadgen.traffic import trace
from loadgen.traffic.schedule import ArrivalSchedule
from loadgen.traffic.traffic import Traffic
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service.prefixes import BlockPrefixes
from serve_apps.engine_model.service.service import Replicas, Requests, serve

IDS = load().workload
SIZE = 32
"""Tokens of a block, two of the engine's."""
CHAINS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, SIZE - 1)),
    min_size=2,
    max_size=12,
)


def recorded(folder: Path, prompts: list[tuple[list[int], int]], gap_ms: int = 60_000) -> Traffic:
    """A trace of prompts, each with its block hashes and the tokens that its last block lacks."""
    lines = [
        {
            "timestamp": gap_ms * i,
            "input_length": SIZE * len(hashes) - missing,
            "output_length": 4,
            "hash_ids": hashes,
        }
        for i, (hashes, missing) in enumerate(prompts)
    ]
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["workload=trace", f"workload.trace={path}", f"workload.trace_block_tokens={SIZE}"]
    return Traffic(load(words).workload)


def replayed(traffic: Traffic) -> ArrivalSchedule:
    return traffic.replay(0, None, window_index=0, first_seq=100, seed=1)


def prompt_tokens(schedule: ArrivalSchedule) -> list[list[int]]:
    made = Prompts(IDS, "m", 150_000, salt=3)
    bodies = [
        made.body(one.seq, one.input_tokens, one.output_tokens, begins=one.begins)
        for one in planned(schedule)
    ]
    return [json.loads(body)["prompt"] for body in bodies]


def common(one: list[Any], other: list[Any]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def told(prompts: list[tuple[list[int], int]], i: int, j: int) -> int:
    """Tokens that two prompts share: their common blocks, no further than the shorter prompt."""
    ends = [SIZE * len(prompts[k][0]) - prompts[k][1] for k in (i, j)]
    return min(SIZE * common(prompts[i][0], prompts[j][0]), *ends)


@settings(max_examples=12, deadline=None)
@given(CHAINS)
def test_bodies_share_what_the_hashes_say(tmp_path_factory: pytest.TempPathFactory, prompts: Any) -> None:
    """A block that ends early in one prompt is shared as far as its first owner has it."""
    prompts = [(hashes, 0) for hashes, _ in prompts]
    traffic = recorded(tmp_path_factory.getbasetemp(), prompts)
    schedule = replayed(traffic)
    if schedule.begins is None:  # no two prompts begin alike
        assert len({hashes[0] for hashes, _ in prompts}) == len(prompts)
        return
    words = prompt_tokens(schedule)
    assert [len(one) for one in words] == schedule.input_tokens.tolist()
    assert schedule.reusable_tokens is not None
    for j, one in enumerate(words):
        shared = [common(words[i], one) for i in range(j)]
        assert shared == [told(prompts, i, j) for i in range(j)]
        assert schedule.reusable_tokens[j] == max(shared, default=0)


@settings(max_examples=10, deadline=None)
@given(CHAINS)
def test_prompts_of_any_length_share_no_more_than_they_have(
    tmp_path_factory: pytest.TempPathFactory, prompts: Any
) -> None:
    traffic = recorded(tmp_path_factory.getbasetemp(), prompts)
    schedule = replayed(traffic)
    words = prompt_tokens(schedule)
    assert [len(one) for one in words] == schedule.input_tokens.tolist()
    if schedule.reusable_tokens is None:
        return
    for j, one in enumerate(words):
        shared = max((common(words[i], one) for i in range(j)), default=0)
        assert shared >= schedule.reusable_tokens[j]


@settings(max_examples=25, deadline=None)
@given(CHAINS)
def test_an_unlimited_cache_finds_what_the_trace_reuses(
    tmp_path_factory: pytest.TempPathFactory, prompts: Any
) -> None:
    """One request at a time."""
    traffic = recorded(tmp_path_factory.getbasetemp(), prompts)
    schedule, asked = replayed(traffic), load(["engine.num_gpu_blocks=100000"])
    if schedule.begins is None or schedule.reusable_tokens is None:
        return
    assert isinstance(asked.engine, SimulatedEngine)
    parts = asked.engine, asked.model, asked.hardware, asked.layout
    size, own = asked.engine.block_size, schedule.seq[0]
    runs = [[(owner - own, end) for owner, end in row] for row in schedule.begins]
    shared = BlockPrefixes(runs, np.zeros(len(runs), np.int64))
    lengths = [schedule.input_tokens, schedule.output_tokens, np.zeros_like(schedule.seq)]
    seen = serve(EngineKind.of(*parts), Requests(schedule.due_ns / 1e9, lengths, shared), Replicas())
    most = np.minimum(schedule.reusable_tokens, schedule.input_tokens - 1) // size * size
    assert seen.cached_tokens.tolist() == most.tolist()


def test_parts_of_a_fleet_share_nothing() -> None:
    runs = [(), ((0, 64),), ((0, 64),), ((0, 64),)]
    shared = BlockPrefixes(runs, np.array([0, 1, 0, 1]))
    names = shared.pieces(16).names[0]
    assert names[0] == names[2] != names[1] == names[3]


def test_a_trace_that_begins_again_is_of_other_chats(tmp_path: Path) -> None:
    traffic = recorded(tmp_path, [([1, 2], 0), ([1, 3], 0), ([1, 2], 0)], gap_ms=1000)
    schedule = traffic.draw(1.0, {"window": (0, 30 * 10**9)}, window_index=0, first_seq=0, seed=1)
    assert schedule.line is not None and schedule.begins is not None
    for i, (line, runs) in enumerate(zip(schedule.line.tolist(), schedule.begins, strict=True)):
        assert all(owner >= i - line for owner, _ in runs)


def test_every_node_has_prompts_of_its_own(tmp_path: Path) -> None:
    traffic = recorded(tmp_path, [([1, 2], 0), ([1, 3], 0), ([1, 2], 0)], gap_ms=1000)
    schedule = traffic.draw(4.0, {"window": (0, 30 * 10**9)}, window_index=0, first_seq=0, seed=1, streams=2)
    assert schedule.begins is not None and schedule.stream is not None
    for i, runs in enumerate(schedule.begins):
        assert all(schedule.stream[owner] == schedule.stream[i] for owner, _ in runs)


def test_what_is_not_in_the_order_of_the_trace_shares_nothing(tmp_path: Path) -> None:
    recorded(tmp_path, [([1, 2], 0), ([1, 3], 0)])
    words = [
        f"workload.trace={tmp_path}/trace.jsonl",
        f"workload.trace_block_tokens={SIZE}",
        "workload=trace",
    ]
    workload = load([*words, "workload.arrivals.kind=poisson"]).workload
    drawn = Traffic(workload).draw(1.0, {"window": (0, 10**10)}, window_index=0, first_seq=0, seed=1)
    assert drawn.begins is None and "not replayed" in trace.cautions(workload)[0]
    assert trace.cautions(load(words).workload) == []
