"""The schedule: a true Poisson process, the same whatever the number of actors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf import load
from conf.schema import Lengths
from loadgen.arrivals import NS, PHASES, ArrivalSchedule, draw, draw_lengths, evenly, poisson_ns

WORKLOAD = load().workload


def segment(rate_qps: float = 20.0, dwell: int = 3, seed: int = 1) -> ArrivalSchedule:
    bounds = {"transition": (0, 15 * NS), "window": (15 * NS, 60 * NS), "bridge": (60 * NS, 61 * NS)}
    return draw(rate_qps, bounds, WORKLOAD, dwell=dwell, first_seq=100, seed=seed)


def test_gaps_are_exponential_and_counts_are_not_rescaled() -> None:
    rng = np.random.default_rng(5)
    due = poisson_ns(50.0, 0, 2000 * NS, rng)
    gaps = np.diff(due) / NS
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.02)
    per_second = np.bincount(due // NS, minlength=2000)
    assert per_second.var() / per_second.mean() == pytest.approx(1.0, abs=0.1)
    counts = [len(poisson_ns(10.0, 0, 10 * NS, rng)) for _ in range(400)]
    assert np.var(counts) / np.mean(counts) == pytest.approx(1.0, abs=0.25)


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 500), st.integers(0, 10**12), st.integers(1, 30 * NS), st.integers(0, 2**32 - 1))
def test_arrivals_are_ordered_and_inside(rate_qps: float, start: int, length: int, seed: int) -> None:
    due = poisson_ns(rate_qps, start, start + length, np.random.default_rng(seed))
    assert np.all(np.diff(due) >= 0)
    assert np.all((due >= start) & (due < start + length))


@pytest.mark.parametrize("actors", [1, 3, 8])
def test_shards_are_a_partition_of_the_master_schedule(actors: int) -> None:
    master = segment()
    shards = [master.shard(i, actors) for i in range(actors)]
    union = np.sort(np.concatenate([shard.seq for shard in shards]))
    assert union.tolist() == master.seq.tolist()
    assert max(len(shard) for shard in shards) - min(len(shard) for shard in shards) <= 1


def test_phases_follow_the_due_time() -> None:
    schedule = segment()
    names = np.array(PHASES)[schedule.phase]
    assert set(names) == {"transition", "window", "bridge"}
    assert np.all((names == "window") == ((schedule.due_ns >= 15 * NS) & (schedule.due_ns < 60 * NS)))
    assert schedule.seq[0] == 100 and np.all(np.diff(schedule.seq) == 1)


def test_seed_and_dwell_decide_everything() -> None:
    assert segment().due_ns.tolist() == segment().due_ns.tolist()
    assert segment(dwell=4).due_ns.tolist() != segment().due_ns.tolist()
    assert segment(seed=2).due_ns.tolist() != segment().due_ns.tolist()


def test_two_rates_of_one_dwell_share_their_unit_rate_arrivals() -> None:
    slow, fast = segment(10.0), segment(20.0)
    shared = min(len(slow), len(fast) // 2)
    assert slow.due_ns[:shared] / 2 == pytest.approx(fast.due_ns[:shared], abs=2)


def test_lengths_have_the_asked_mean_and_spread() -> None:
    rng = np.random.default_rng(0)
    assert set(draw_lengths(Lengths(mean=140), 10, rng).tolist()) == {140}
    drawn = draw_lengths(Lengths(mean=140, kind="lognormal", cv=0.45), 40_000, rng)
    assert drawn.mean() == pytest.approx(140, rel=0.01)
    assert drawn.std() / drawn.mean() == pytest.approx(0.45, abs=0.02)
    assert drawn.min() >= 1


def test_the_warm_up_stands_outside_the_segments() -> None:
    warm = evenly(8, 0, NS // 4, WORKLOAD, seed=1)
    assert warm.dwell == -1 and warm.seq.tolist() == list(range(8))
    assert {PHASES[i] for i in warm.phase.tolist()} == {"warmup"}
