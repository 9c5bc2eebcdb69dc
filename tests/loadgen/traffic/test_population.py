"""loadgen/traffic/population.py: rate, stationarity and requests of the population of chat users."""

from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal

from analysis.rows import records
from conf import ConfigError, load
from loadgen.cli import two_sides
from loadgen.fleet.rows import plan_table
from loadgen.studies import comparison, matrix_study
from loadgen.traffic.population import Rows, SessionPopulation
from loadgen.traffic.prefix_sharing import means_of, with_mean_lengths
from loadgen.traffic.schedule import NS, PHASES, ArrivalSchedule, cut_tokens, planned
from loadgen.traffic.traffic import Traffic

WORKLOAD = load(["workload=character"]).workload
SPEC: Any = WORKLOAD.conversations
QUICK = replace(SPEC, turns=6.0, think_mean_s=4.0, answer_ttft_s=0.5, answer_tpot_s=0.01, characters=1000)
"""Short sessions, so that the past of a minute is long gone."""


@cache
def many(truncation: str = "cache_aware") -> Rows:
    """More than 200,000 turns of the default population; what is measured is after its caches have filled."""
    spec = replace(SPEC, truncation=truncation)
    return SessionPopulation(spec, 1).turns(60.0, 0.0, 4000.0)


def reused(turns: Rows, system_tokens: int) -> tuple[Rows, Rows]:
    """Of each prompt the tokens that an unbounded cache of tokens has seen at a prompt's beginning."""
    known: dict[object, int] = defaultdict(int)
    result = np.zeros(len(turns))
    names = ("character", "session", "history_cut", "character_tokens", "persona_tokens", "input_tokens")
    for i, row in enumerate(zip(*(turns[name].tolist() for name in names), strict=True)):
        character, session, cut, of_character, persona, count = row
        ends = {
            "all": system_tokens,
            character: of_character,
            (session,): of_character + persona,
            (session, cut): count,
        }
        result[i] = max(min(end, known[name]) for name, end in ends.items())
        for name, end in ends.items():
            known[name] = max(known[name], end)
    return result, turns["input_tokens"]


@cache
def some() -> Rows:
    """Some 20,000 turns of the default population."""
    return SessionPopulation(SPEC, 1).turns(20.0, 0.0, 1000.0)


@cache
def hit_share(truncation: str) -> float:
    turns = many(truncation)
    hits, asked = reused(turns, SPEC.system_tokens)
    settled = turns["due_s"] > 1500
    return float(hits[settled].sum() / asked[settled].sum())


def said(
    rate_qps: float, bounds: dict[str, tuple[int, int]], seed: int = 1, window_index: int = 0
) -> ArrivalSchedule:
    traffic = Traffic(replace(WORKLOAD, conversations=QUICK))
    return traffic.draw(rate_qps, bounds, window_index=window_index, first_seq=100, seed=seed)


@pytest.mark.slow
def test_a_request_in_the_mean_is_the_published_one() -> None:
    turns = many()
    assert len(turns) > 200_000
    assert turns["input_tokens"].mean() == pytest.approx(5600, rel=0.02)
    assert turns["output_tokens"].mean() == pytest.approx(140, rel=0.01)
    assert 2 * turns["turn"].mean() == pytest.approx(180, rel=0.03)  # messages before the average message
    assert turns["input_tokens"].max() <= 8192


@pytest.mark.slow
@pytest.mark.parametrize("truncation", ["cache_aware", "naive"])
def test_means_and_reuse_are_known_without_drawing(truncation: str) -> None:
    told = means_of(replace(SPEC, truncation=truncation))
    assert told.input_tokens == pytest.approx(many(truncation)["input_tokens"].mean(), rel=0.01)
    assert told.reusable == pytest.approx(hit_share(truncation), abs=0.01)


@pytest.mark.slow
def test_cache_aware_truncation_keeps_what_naive_truncation_loses() -> None:
    assert hit_share("cache_aware") >= 0.95
    assert hit_share("naive") < 0.45


def test_the_workload_has_the_means_that_its_conversations_come_to() -> None:
    result = with_mean_lengths(WORKLOAD)
    assert (result.input_tokens.mean, result.output_tokens.mean) == (5582, 140)
    assert with_mean_lengths(load().workload) == load().workload


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_a_cut_is_whole_steps_and_as_few_as_fit(step: int) -> None:
    history, room = np.arange(0, 20_000, 37), 6000
    cut, used = cut_tokens(history, room, step), min(step, 4500)
    assert np.all(history - cut <= room) and np.all(cut % used == 0)
    assert np.all((cut == 0) | (history - cut > room - used))
    assert np.all(np.diff(cut) >= 0)


def test_prompts_are_made_of_their_parts() -> None:
    turns = some()
    kept = turns["said_tokens"] - turns["history_cut"]
    assert_array_equal(turns["input_tokens"], turns["character_tokens"] + turns["persona_tokens"] + kept)
    assert kept.min() >= 1 and turns["persona_tokens"].min() >= 8
    _, first, places = np.unique(turns["character"], return_index=True, return_inverse=True)
    assert_array_equal(turns["character_tokens"], turns["character_tokens"][first][places])


def test_characters_are_as_popular_as_zipf_has_it() -> None:
    turns = some()
    sessions = np.unique(turns[["session", "character"]])["character"]
    counts = np.bincount(sessions, minlength=3)[:3] / len(sessions)
    shares = 1 / np.arange(1, 4) / np.sum(1 / np.arange(1, 1_000_001))
    assert np.all(np.abs(counts - shares) < 4.5 * np.sqrt(shares / len(sessions)))


@pytest.mark.parametrize("rate_qps", [0.7, 50.0])
def test_the_rate_is_that_of_messages_at_any_rate(rate_qps: float) -> None:
    turns = SessionPopulation(QUICK, 3).turns(rate_qps, 0.0, 60_000 / rate_qps)
    minutes = np.bincount((turns["due_s"] * rate_qps // 600).astype(int), minlength=100)
    error = minutes.std() / np.sqrt(len(minutes))
    assert abs(minutes.mean() - 600) < 4 * error and error < 12


@pytest.mark.parametrize("seed", range(5))
def test_time_0_meets_as_many_users_as_there_are_in_the_mean_at_any_rate(seed: int) -> None:
    marks = np.sort(SessionPopulation(QUICK, seed).before(2000)["mark"])
    users_per_qps = (1 - 1 / 6) * (0.5 + 140 * 0.01 + 4.0)
    for rate_qps in (0.3, 1.0, 2.7, 64.0, 300.0):
        assert abs(np.searchsorted(marks, rate_qps) - rate_qps * users_per_qps) <= 1


@pytest.mark.slow
def test_what_a_run_is_offered_differs_from_its_rate_about_as_poisson_has_it() -> None:
    """A Poisson number of users at time 0 would make it three times as much."""
    spec = replace(SPEC, characters=1000)
    offered = [len(SessionPopulation(spec, seed).turns(16.0, 0.0, 300.0)) for seed in range(30)]
    assert np.mean(offered) == pytest.approx(4800, rel=0.01)
    assert np.std(offered) < 1.5 * np.sqrt(4800)


def test_seeds_have_different_users() -> None:
    first, second = (SessionPopulation(QUICK, seed).turns(5.0, 0.0, 60.0) for seed in (1, 2))
    assert not set(first["due_s"]) & set(second["due_s"])


def test_sessions_begin_as_a_poisson_process() -> None:
    turns = SessionPopulation(QUICK, 5).turns(40.0, 0.0, 3000.0)
    first = turns[turns["turn"] == 0]["due_s"]
    per_second = np.bincount(first.astype(int), minlength=3000)
    assert per_second.mean() == pytest.approx(40 / 6, rel=0.03)
    assert per_second.var() / per_second.mean() == pytest.approx(1.0, abs=0.12)


@pytest.mark.slow
def test_the_first_minute_is_like_the_tenth() -> None:
    """Over many seeds: the rate, what was said before, the turn, and how many sessions go on."""
    spec = replace(QUICK, turns=30.0, think_mean_s=10.0)

    def minute(turns: Rows, number: int) -> list[float]:
        rows = turns[turns["due_s"] // 60 == number]
        figures = (rows["input_tokens"], rows["turn"], rows["output_tokens"], rows["said_tokens"])
        return [len(rows), len(np.unique(rows["session"])), *(float(figure.mean()) for figure in figures)]

    seen = [SessionPopulation(spec, seed).turns(16.0, 0.0, 600.0) for seed in range(24)]
    first, tenth = (np.array([minute(turns, number) for turns in seen]) for number in (0, 9))
    error = np.sqrt((first.var(axis=0) + tenth.var(axis=0)) / len(seen))
    assert np.all(np.abs(first.mean(axis=0) - tenth.mean(axis=0)) < 3.5 * error)
    assert np.all(error < 0.04 * first.mean(axis=0))


def test_gaps_of_a_session_are_its_answer_and_its_thought() -> None:
    turns = SessionPopulation(QUICK, 2).turns(20.0, 0.0, 2000.0)
    order = np.lexsort((turns["turn"], turns["session"]))
    one, other = turns[order][:-1], turns[order][1:]
    next_ = (one["session"] == other["session"]) & (one["due_s"] < 1800)
    assert np.all(other["turn"][next_] == one["turn"][next_] + 1)
    think_s = (other["due_s"] - one["due_s"] - 0.5 - 0.01 * one["output_tokens"])[next_]
    assert think_s.min() > 0
    assert think_s.mean() == pytest.approx(4.0, rel=0.03)
    assert think_s.std() / think_s.mean() == pytest.approx(1.0, abs=0.1)
    grown = other["said_tokens"] - one["said_tokens"] - one["output_tokens"]
    assert grown[next_].min() >= 1 and grown[next_].mean() == pytest.approx(30, rel=0.03)


def test_a_higher_rate_has_all_turns_of_a_lower_one_and_more() -> None:
    slow, fast = (SessionPopulation(QUICK, 1).turns(rate, 100.0, 400.0) for rate in (2.0, 4.0))
    assert len(fast) > 1.5 * len(slow) > 300
    assert_array_equal(fast[fast["mark"] < 2.0], slow)
    assert np.all(np.diff(fast["due_s"]) >= 0)


def test_what_is_seen_of_a_time_does_not_depend_on_what_was_asked_before() -> None:
    asked = SessionPopulation(QUICK, 1)
    whole = asked.turns(3.0, 0.0, 4500.0)
    for start_s, end_s in ((4000.0, 4100.0), (50.0, 60.0), (3599.0, 3601.0), (0.0, 10.0)):
        inside = (whole["due_s"] >= start_s) & (whole["due_s"] < end_s)
        assert_array_equal(asked.turns(3.0, start_s, end_s), whole[inside])
        assert_array_equal(SessionPopulation(QUICK, 1).turns(3.0, start_s, end_s), whole[inside])


BOUNDS = {"transition": (10 * NS, 20 * NS), "window": (20 * NS, 50 * NS)}


def test_a_schedule_is_the_population_of_its_time() -> None:
    schedule = said(8.0, BOUNDS)
    assert set(schedule.phase.tolist()) == {PHASES.index("transition"), PHASES.index("window")}
    assert schedule.seq.tolist() == list(range(100, 100 + len(schedule)))
    assert np.all(np.diff(schedule.due_ns) >= 0) and schedule.due_ns[0] >= 10 * NS
    last: dict[int, int] = {}
    for session, turn in zip(schedule.session.tolist(), schedule.turn.tolist(), strict=True):
        assert turn == last.get(session, turn - 1) + 1
        last[session] = turn
    assert len(schedule) > len(last) + 50


def test_windows_and_pieces_go_on_with_the_same_users() -> None:
    traffic = Traffic(replace(WORKLOAD, conversations=QUICK))
    first = traffic.draw(8.0, {"window": (0, 30 * NS)}, window_index=0, first_seq=0, seed=1)
    second = traffic.draw(
        4.0, {"window": (30 * NS, 60 * NS)}, window_index=1, first_seq=len(first), seed=1, piece=2
    )
    assert set(first.session.tolist()) & set(second.session.tolist())
    whole = said(4.0, {"window": (0, 60 * NS)})
    assert_array_equal(whole.due_ns[whole.due_ns >= 30 * NS], second.due_ns)


def test_the_warm_up_says_what_users_said_last_before_the_beginning() -> None:
    traffic = Traffic(replace(WORKLOAD, conversations=QUICK))
    warm = traffic.evenly(40, NS, NS // 4, first_seq=0, seed=1)
    assert len(warm) == 40 and set(warm.phase.tolist()) == {0}
    assert warm.due_ns.tolist() == [NS + i * NS // 4 for i in range(40)]
    later = traffic.draw(20.0, {"window": (0, 60 * NS)}, window_index=0, first_seq=40, seed=1)
    said_before = dict(zip(warm.session.tolist(), warm.turn.tolist(), strict=True))
    sessions, first = np.unique(later.session, return_index=True)
    next_ = dict(zip(sessions.tolist(), later.turn[first].tolist(), strict=True))
    both = said_before.keys() & next_.keys()
    assert len(both) > 20 and all(next_[number] == said_before[number] + 1 for number in both)


@pytest.mark.parametrize("actors", [1, 3, 8])
def test_one_actor_has_all_turns_of_a_session(actors: int) -> None:
    whole = said(40.0, BOUNDS)
    parts = [whole.shard(i, actors) for i in range(actors)]
    assert pa.concat_tables([plan_table(part) for part in parts]).sort_by("seq") == plan_table(whole)
    owners = [set(part.session.tolist()) for part in parts if part.session is not None]
    assert sum(map(len, owners)) == len(set().union(*owners))
    assert all(0.5 < len(part) * actors / len(whole) < 1.5 for part in parts)


def test_a_planned_turn_has_what_its_prompt_shares() -> None:
    schedule = said(8.0, BOUNDS)
    for name in ("character", "character_tokens", "persona_tokens", "history_cut"):
        assert [getattr(row, name) for row in planned(schedule)] == getattr(schedule, name).tolist()
    table = plan_table(schedule)
    lost = records.lost(table)
    assert lost.schema == records.SHARD and lost["session_id"].to_pylist() == table["session_id"].to_pylist()


def test_compare_refuses_users_who_cannot_be_scaled_and_a_grid_does_not_pair_them() -> None:
    both = [load(["workload=character", f"search={name}"]) for name in ("standard", "standard")]
    assert comparison.unlike(*both) == "conversations are not scaled in time"
    assert "requests of its own" in matrix_study.unpaired(*both)
    with pytest.raises(ConfigError, match="matrix.KEY"):
        two_sides.compared(["workload=character", "b.layout=dp2_tp4_ep4"], None)
