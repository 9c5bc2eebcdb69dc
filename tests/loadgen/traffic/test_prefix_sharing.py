"""loadgen/traffic/prefix_sharing.py: what planned prompts share, held to the bodies that are sent."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.results import predictions
from analysis.results.json_border import to_tree
from analysis.results.predictions import GridCell
from conf import Experiment, load
from loadgen.cli import engine_model
from loadgen.cli.words import experiment_of
from loadgen.predict import grid
from loadgen.predict.operating_point import Effort, RateSimulator
from loadgen.prompts.bodies import Prompts
from loadgen.traffic import trace
from loadgen.traffic.prefix_sharing import (
    SharedPrefixes,
    blocked,
    cache_warmup_s,
    gap_s,
    scattered,
    sessions_alive,
    shared_prefixes,
)
from loadgen.traffic.schedule import NS, ArrivalSchedule, planned
from loadgen.traffic.traffic import Traffic
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service.prefixes import session_pieces, trace_pieces
from serve_apps.engine_model.service.service import Replicas, Requests, serve
from tests.support.prompts.bodies import bodies
from tests.support.prompts.chats import common
from tests.support.prompts.schedules import drawn
from tests.support.runs.verdict_trees import screen


def asked(*words: str) -> Experiment:
    return experiment_of("predict", ["cluster.session=fake", *words], None)


@pytest.mark.parametrize(
    "words",
    [
        ["workload=chat_sessions", "workload.sessions=6", "workload.prefix_hit=.1"],
        [
            "workload=chat_sessions",
            "workload.sessions=6",
            "workload.input_tokens={kind: uniform, mean: 900, spread: 0.6}",
        ],
        ["workload=character", "workload.conversations.characters=3"],
        ["workload=character", "workload.conversations.truncation=naive"],
    ],
)
def test_two_prompts_have_the_blocks_in_common_that_their_bodies_have(words: list[str]) -> None:
    experiment = asked(*words)
    schedule = drawn(experiment.workload, 1.0, 40 if "character" in words[0] else 20)
    shared, prompts = shared_prefixes(schedule, experiment.workload), bodies(experiment, schedule)
    names, ends, _ = session_pieces(*shared)
    blocks = np.diff(ends // 16, axis=0, prepend=0)
    chains = [
        [(name, at) for name, count in zip(*columns, strict=True) for at in range(count)]
        for columns in zip(names.T.tolist(), blocks.T.tolist(), strict=True)
    ]
    some = 0
    for i in range(len(schedule)):
        for j in range(i):
            blocks = next(
                (k for k, pair in enumerate(zip(chains[i], chains[j], strict=False)) if pair[0] != pair[1]),
                min(len(chains[i]), len(chains[j])),
            )
            assert blocks == common(prompts[i], prompts[j]) // 16
            some += blocks > 70
    assert some


def test_without_sessions_prompts_share_one_beginning_and_need_no_fill() -> None:
    plain = asked("workload.prefix_hit=.5")
    assert shared_prefixes(drawn(plain.workload, 5.0, 5), plain.workload) is None
    assert cache_warmup_s(plain.workload, 5.0, 4, 8e6) == 0 and gap_s(plain.workload, 5.0, 4) is None


def test_the_fill_sees_every_session_again_and_turns_the_cache_over() -> None:
    talks, users = asked("workload=character").workload, asked("workload=chat_sessions").workload
    assert gap_s(talks, 7.0, 4) == pytest.approx(2 + 14 + 40)
    assert gap_s(users, 2.0, 5) == 12.0 and sessions_alive(users, 2.0, 5) == 24.0
    assert sessions_alive(talks, 10.0, 4) == pytest.approx(560)
    assert cache_warmup_s(users, 2.0, 5, 1.148e6) == pytest.approx(6 * 12 + 2 * 1.148e6 / (2 * 5740))


def test_a_part_of_a_fleet_sees_sessions_as_the_whole_would() -> None:
    """A session's turns meet as many other replicas, and as seldom the same one again, as in the fleet."""
    rng = np.random.default_rng(4)
    session = rng.integers(300, size=30_000)
    none = np.zeros_like(session)
    whole = SharedPrefixes(none, session % 40, none, session, none, none, none)
    split, part = scattered(whole, 16.0, seed=1)
    here = rng.integers(4, size=len(session))  # of 4 replicas that stand for 64
    assert set(part.tolist()) == set(range(16))
    met = len(np.unique(split.session * 4 + here)) / 300
    assert met == pytest.approx(64 * (1 - (1 - 1 / 64) ** 100), rel=0.02)
    names, first = np.unique(split.session, return_index=True)
    assert len(names) == pytest.approx(300 * 16, rel=0.02)
    liked = dict(zip(split.session[first].tolist(), split.character[first].tolist(), strict=True))
    assert [liked[name] for name in split.session.tolist()] == split.character.tolist()
    assert (split.character[first] == whole.character[first]).mean() < 0.1


def test_a_turn_is_blocked_while_the_one_before_goes_on() -> None:
    five, none = np.arange(5), np.zeros(5, np.int64)
    schedule = ArrivalSchedule(
        *(0, five, five * NS, none, none, none, none),
        session=np.array([1, 2, 1, 1, 2]),
        character=none,
    )
    assert blocked(schedule, np.array([2.5, 2.0, 2.9, 9.0, 9.0])).tolist() == [0, 0, 1, 0, 0]
    assert not blocked(replace(schedule, character=None), five + 9.0).any()


@pytest.mark.slow
def test_sticky_sessions_serve_more_and_the_answer_says_why() -> None:
    words = ["workload=character", "cluster.nodes=3", "search.budget_s=900"]
    both = [asked(*words, f"routing={each}") for each in ("consistent_hash", "pow2")]
    result = [engine_model.predict(one, draws=0) for one in both]
    sticky, spread = (to_tree(one)["forecast"] for one in result)
    assert grid.ratio(*zip(result, both, strict=True)).value > 1.5
    assert sticky["cached_share_of_input"] > spread["cached_share_of_input"] + 0.1
    sticky, spread = sticky["sessions"], spread["sessions"]
    assert (sticky["replicas_per_session"], sticky["simulated_nodes"]) == (1.0, 3)
    assert 2 < spread["replicas_per_session"] <= 3 and spread["max_over_mean_share"] < 1.1
    text = screen(result[0])
    assert "sessions by consistent_hash: hit rate 9" in text and "(at most 95." in text
    assert "1.00 replicas per session" in text and "3 of 3 nodes simulated, after" in text
    (row,) = predictions.grid_rows([GridCell(at={}, answer=result[1])], False).to_pylist()
    assert row["replicas_per_session"] > 2


@pytest.mark.slow
def test_a_part_of_a_large_fleet_stands_for_it() -> None:
    """Eight of 64 nodes against all of them, at a rate that both keep."""
    for policy, near in (("pow2", 0.04), ("consistent_hash", 0.01)):
        experiment = asked("workload=character", "cluster.nodes=64", f"routing={policy}")
        few, many = (
            RateSimulator(experiment, engine_model.simulate, Effort(1, seconds, nodes), 8e6).at(5.0)
            for seconds, nodes in ((160.0, 8), (60.0, 64))
        )
        hits = [point.cached_tokens / point.input_tokens for point in (few, many)]
        assert hits[0] == pytest.approx(hits[1], abs=near)
        assert few.quantile_ms("tpot") == pytest.approx(many.quantile_ms("tpot"), rel=0.1)


def test_sessions_of_fixed_users_are_predicted_too() -> None:
    experiment = asked("workload=chat_sessions", "cluster.nodes=4", "routing=consistent_hash", "rate_qps=6")
    experiment = replace(experiment, search=replace(experiment.search, budget_s=600.0))
    tree = to_tree(engine_model.predict(experiment, draws=0))
    assert tree["exit_code"] == 0 and tree["forecast"]["sessions"]["sessions_per_node"] == 30
    assert tree["forecast"]["cached_share_of_input"] == pytest.approx(0.949, abs=0.005)
    assert load(["workload=chat_sessions"]).workload.sessions == 120


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
    plans = planned(schedule)
    bodies = [made.body(one.seq, one.input_tokens, one.output_tokens, begins=one.begins) for one in plans]
    return [json.loads(body)["prompt"] for body in bodies]


def told(prompts: list[tuple[list[int], int]], i: int, j: int) -> int:
    """Tokens that two prompts share: their common blocks, no further than the shorter prompt."""
    ends = [SIZE * len(prompts[k][0]) - prompts[k][1] for k in (i, j)]
    return min(SIZE * common(prompts[i][0], prompts[j][0]), *ends)


@pytest.mark.parametrize("are_whole", [True, False])
@settings(max_examples=12, deadline=None)
@given(CHAINS)
def test_bodies_share_what_the_hashes_say(
    tmp_path_factory: pytest.TempPathFactory, are_whole: bool, prompts: Any
) -> None:
    """A block that ends early in one prompt is shared as far as its first owner has it."""
    if are_whole:
        prompts = [(hashes, 0) for hashes, _ in prompts]
    schedule = replayed(recorded(tmp_path_factory.getbasetemp(), prompts))
    words = prompt_tokens(schedule)
    assert [len(word) for word in words] == schedule.input_tokens.tolist()
    if schedule.begins is None or schedule.reusable_tokens is None:  # no two prompts begin alike
        assert not are_whole or len({hashes[0] for hashes, _ in prompts}) == len(prompts)
        return
    for j, word in enumerate(words):
        shared = [common(words[i], word) for i in range(j)]
        assert max(shared, default=0) >= schedule.reusable_tokens[j]
        if are_whole:
            assert shared == [told(prompts, i, j) for i in range(j)]
            assert schedule.reusable_tokens[j] == max(shared, default=0)


@settings(max_examples=25, deadline=None)
@given(CHAINS)
def test_an_unlimited_cache_finds_what_the_trace_reuses(
    tmp_path_factory: pytest.TempPathFactory, prompts: Any
) -> None:
    """One request at a time."""
    traffic = recorded(tmp_path_factory.getbasetemp(), prompts)
    schedule, experiment = replayed(traffic), load(["engine.num_gpu_blocks=100000"])
    if schedule.begins is None or schedule.reusable_tokens is None:
        return
    parts = engine_model.parts(experiment)
    size, own = parts[0].block_size, schedule.seq[0]
    runs = [[(owner - own, end) for owner, end in row] for row in schedule.begins]
    shared = trace_pieces(runs, np.zeros(len(runs), np.int64))
    lengths = [schedule.input_tokens, schedule.output_tokens, np.zeros_like(schedule.seq)]
    served = serve(EngineKind.of(*parts), Requests(schedule.due_ns / 1e9, lengths, shared), Replicas())
    most = np.minimum(schedule.reusable_tokens, schedule.input_tokens - 1) // size * size
    assert served.cached_tokens.tolist() == most.tolist()


def test_parts_of_a_fleet_share_nothing() -> None:
    runs = [(), ((0, 64),), ((0, 64),), ((0, 64),)]
    names = trace_pieces(runs, np.array([0, 1, 0, 1])).names[0]
    assert names[0] == names[2] != names[1] == names[3]


def test_a_trace_that_begins_again_is_of_other_chats(tmp_path: Path) -> None:
    traffic = recorded(tmp_path, [([1, 2], 0), ([1, 3], 0), ([1, 2], 0)], gap_ms=1000)
    schedule = traffic.draw(1.0, {"window": (0, 30 * 10**9)}, window_index=0, first_seq=0, seed=1)
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
    words = ["workload=trace", f"workload.trace={tmp_path}/trace.jsonl"]
    words.append(f"workload.trace_block_tokens={SIZE}")
    workload = load([*words, "workload.arrivals.kind=poisson"]).workload
    assert drawn(workload, 1.0, 10).begins is None
    assert "not replayed" in trace.cautions(workload)[0]
    assert trace.cautions(load(words).workload) == []
