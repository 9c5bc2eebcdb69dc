"""loadgen/traffic/prefix_sharing.py: what planned prompts share, held to the bodies that are sent."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.results import predictions
from analysis.results.json_border import to_tree
from analysis.results.predictions import GridCell
from conf import Experiment, load
from loadgen.cli import engine_model
from loadgen.cli.words import experiment_of
from loadgen.predict import grid
from loadgen.predict.operating_point import Effort, RateSimulator
from loadgen.traffic.prefix_sharing import (
    SharedPrefixes,
    blocked,
    cache_warmup_s,
    gap_s,
    scattered,
    sessions_alive,
    shared_prefixes,
)
from loadgen.traffic.schedule import NS, ArrivalSchedule
from loadgen.traffic.traffic import Traffic
from serve_apps.engine_model.service.prefixes import Prefixes
from tests.support.prompts.bodies import bodies
from tests.support.prompts.chats import common
from tests.support.runs.verdict_trees import screen


def asked(*words: str) -> Experiment:
    return experiment_of("predict", ["cluster.session=fake", *words], None)


def drawn(experiment: Experiment, rate_qps: float, seconds: float) -> ArrivalSchedule:
    bounds = {"window": (0, round(seconds * NS))}
    return Traffic(experiment.workload).draw(rate_qps, bounds, window_index=0, first_seq=0, seed=1)


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
    one = asked(*words)
    schedule = drawn(one, 1.0, 40.0) if "character" in words[0] else drawn(one, 1.0, 20.0)
    shared, prompts = shared_prefixes(schedule, one.workload), bodies(one, schedule)
    assert shared is not None
    names, blocks = Prefixes(*shared).pieces(16)
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
    assert shared_prefixes(drawn(plain, 5.0, 5.0), plain.workload) is None
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
    found = [engine_model.predict(one, draws=0) for one in both]
    sticky, spread = (to_tree(one)["forecast"] for one in found)
    assert grid.ratio(*zip(found, both, strict=True)).value > 1.5
    assert sticky["cached_share_of_input"] > spread["cached_share_of_input"] + 0.1
    sticky, spread = sticky["sessions"], spread["sessions"]
    assert (sticky["replicas_per_session"], sticky["simulated_nodes"]) == (1.0, 3)
    assert 2 < spread["replicas_per_session"] <= 3 and spread["max_over_mean_share"] < 1.1
    text = screen(found[0])
    assert "sessions by consistent_hash: hit rate 9" in text and "(at most 95." in text
    assert "1.00 replicas per session" in text and "3 of 3 nodes simulated, after" in text
    (row,) = predictions.grid_rows([GridCell(at={}, answer=found[1])], False).to_pylist()
    assert row["replicas_per_session"] > 2


@pytest.mark.slow
def test_a_part_of_a_large_fleet_stands_for_it() -> None:
    """Eight of 64 nodes against all of them, at a rate that both keep."""
    for policy, near in (("pow2", 0.04), ("consistent_hash", 0.01)):
        one = asked("workload=character", "cluster.nodes=64", f"routing={policy}")
        few, many = (
            RateSimulator(one, engine_model.simulate, Effort(1, seconds, nodes), 8e6).at(5.0)
            for seconds, nodes in ((160.0, 8), (60.0, 64))
        )
        hits = [point.cached_tokens / point.input_tokens for point in (few, many)]
        assert hits[0] == pytest.approx(hits[1], abs=near)
        assert few.quantile_ms("tpot") == pytest.approx(many.quantile_ms("tpot"), rel=0.1)


def test_sessions_of_fixed_users_are_predicted_too() -> None:
    one = asked("workload=chat_sessions", "cluster.nodes=4", "routing=consistent_hash", "rate_qps=6")
    tree = to_tree(engine_model.predict(replace(one, search=replace(one.search, budget_s=600.0)), draws=0))
    assert tree["exit_code"] == 0 and tree["forecast"]["sessions"]["sessions_per_node"] == 30
    assert tree["forecast"]["cached_share_of_input"] == pytest.approx(0.949, abs=0.005)
    assert load(["workload=chat_sessions"]).workload.sessions == 120
