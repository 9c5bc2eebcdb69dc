"""loadgen/traffic/schedule.py, traffic.py: true processes at the asked rate for any number of actors."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf import load
from conf.specs.experiment import Arrivals, Lengths, Workload
from loadgen.traffic.schedule import (
    NS,
    PHASES,
    ArrivalSchedule,
    Ints,
    draw_lengths,
    longest_tokens,
)
from loadgen.traffic.trace import Trace
from loadgen.traffic.traffic import OpenArrivals, Profile, Traffic, bench_arrivals_s
from tests.support.words.vllm_bench_times import GIVEN

FIXED = load().workload
VARIED = load(["workload=chat_5600_140_varied"]).workload
UNIFORM = load(["workload=chat_5600_140_uniform"]).workload
BURSTY = load(["workload=chat_5600_140_bursty"]).workload
EVEN = load(["workload=chat_5600_140_uniform", "workload.arrivals.kind=constant"]).workload
BOUNDS = {"transition": (0, 15 * NS), "window": (15 * NS, 60 * NS), "bridge": (60 * NS, 61 * NS)}
RECORDED = [(0, 10, 1), (700, 20, 2), (800, 30, 3), (1900, 40, 4), (1900, 50, 5)]
"""Milliseconds, input tokens, output tokens: five requests, 4 gaps in 1.9 s."""
KINDS = [Arrivals(), Arrivals("gamma", 0.25), Arrivals("gamma", 4.0), Arrivals("constant")]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return trace_workload(tmp_path_factory.mktemp("trace"), "trace")


def trace_workload(
    folder: Path, arrivals: str, rows: Sequence[tuple[int, int, int]] = tuple(RECORDED)
) -> Workload:
    """A workload of recorded lengths, and of their arrivals where asked."""
    line = '{{"timestamp": {}, "input_length": {}, "output_length": {}}}\n'
    (folder / "trace.jsonl").write_text("".join(line.format(*row) for row in rows))
    words = ["workload=trace", f"workload.trace={folder}/trace.jsonl", f"workload.arrivals.kind={arrivals}"]
    return load(words).workload


def window(
    rate_qps: float | Profile = 20.0, workload: Workload = FIXED, window_index: int = 3, seed: int = 1
) -> ArrivalSchedule:
    return Traffic(workload).draw(rate_qps, BOUNDS, window_index=window_index, first_seq=100, seed=seed)


def checksum(*columns: Ints) -> str:
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()[:16]


def test_a_seed_gives_the_same_schedule_in_every_version() -> None:
    schedule = window(20.0, VARIED, window_index=3, seed=1)
    assert len(schedule) == 1178
    assert schedule.due_ns[:3].tolist() == [28022016, 61992992, 101843759]
    assert schedule.input_tokens[:3].tolist() == [7368, 8061, 4949]
    assert checksum(schedule.due_ns) == checksum(window(20.0).due_ns) == "18c19e604735db80"
    bounds = {name: (start + NS, end + NS) for name, (start, end) in BOUNDS.items()}
    slow = Traffic(FIXED).draw(4.321, bounds, window_index=0, first_seq=0, seed=7)
    assert (len(slow), slow.due_ns[-1], checksum(slow.due_ns)) == (269, 61791346973, "65bd745c9bbf1d57")


@pytest.mark.parametrize("first_seq", [0, 1, 64])
def test_the_first_requests_of_a_closed_loop_are_those_that_fill_it(first_seq: int) -> None:
    schedule = Traffic(FIXED).closed(100, 32, 3 * NS, window_index=0, first_seq=first_seq, seed=1)
    assert [PHASES[i] for i in schedule.phase.tolist()] == ["transition"] * 32 + ["window"] * 68
    assert (schedule.seq[0], set(schedule.due_ns.tolist())) == (first_seq, {3 * NS})
    for shard in (schedule.shard(i, 3) for i in range(3)):
        filling = shard.phase == PHASES.index("transition")
        assert filling.sum() == shard.concurrency and filling[: shard.concurrency].all()


def renewal_ns(arrivals: Arrivals, rate_qps: float, start_ns: int, end_ns: int, rng: Any) -> Ints:
    """Due times of such a process."""
    return OpenArrivals(arrivals, None).within(rate_qps, 1, {"window": (start_ns, end_ns)}, rng)[0]


@pytest.mark.parametrize(("arrivals", "cv"), list(zip(KINDS, [1.0, 2.0, 0.5, 0.0], strict=True)))
def test_gaps_have_the_asked_mean_and_variation(arrivals: Arrivals, cv: float) -> None:
    gaps = np.diff(renewal_ns(arrivals, 50.0, 0, 4000 * NS, np.random.default_rng(5))) / NS
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.02)


def test_poisson_counts_are_not_rescaled() -> None:
    rng = np.random.default_rng(5)
    per_second = np.bincount((renewal_ns(Arrivals(), 50.0, 0, 2000 * NS, rng) // NS).astype(int))
    assert per_second.var() / per_second.mean() == pytest.approx(1.0, abs=0.1)
    counts = [len(renewal_ns(Arrivals(), 10.0, 0, 10 * NS, rng)) for _ in range(400)]
    assert np.var(counts) / np.mean(counts) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("arrivals", [*KINDS, Arrivals("gamma", 0.01)])
def test_the_rate_holds_from_the_first_second(arrivals: Arrivals) -> None:
    rng = np.random.default_rng(11)
    due = [renewal_ns(arrivals, 2.0, 0, 2 * NS, rng) for _ in range(2000)]
    counts = np.array([[np.sum(one < NS), np.sum(one >= NS)] for one in due])
    error = counts.std(axis=0) / np.sqrt(len(counts))
    assert np.all(np.abs(counts.mean(axis=0) - 2.0) <= 4.5 * error)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([FIXED, BURSTY, EVEN]),
    st.one_of(
        st.floats(0.01, 500),
        st.lists(st.floats(0, 50), min_size=1, max_size=4).filter(any).map(lambda q: profile_of(*q)),
    ),
    st.integers(0, 10**12),
    st.integers(1, 30 * NS),
    st.integers(0, 2**32 - 1),
)
def test_arrivals_are_ordered_and_inside(
    workload: Workload, rate_qps: float | Profile, start: int, length: int, seed: int
) -> None:
    bounds = {"transition": (start, start + length // 3), "window": (start + length // 3, start + length)}
    schedule = Traffic(workload).draw(rate_qps, bounds, window_index=0, first_seq=7, seed=seed)
    assert np.all(np.diff(schedule.due_ns) >= 0)
    assert np.all((schedule.due_ns >= start) & (schedule.due_ns < start + length))
    assert schedule.seq.tolist() == list(range(7, 7 + len(schedule)))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6), st.integers(0, 300))
def test_shards_are_a_partition_of_the_master_schedule(actors: int, first_seq: int, concurrency: int) -> None:
    traffic, count = Traffic(FIXED), 400
    master = traffic.closed(count, concurrency, 0, window_index=0, first_seq=first_seq, seed=1)
    if 0 < concurrency < actors:
        with pytest.raises(ValueError, match="cannot share a concurrency"):
            master.shard(0, actors)
        return
    shards = [master.shard(i, actors) for i in range(actors)]
    union = np.sort(np.concatenate([shard.seq for shard in shards]))
    assert union.tolist() == master.seq.tolist()
    assert sum(shard.concurrency for shard in shards) == concurrency
    for spread in ([len(shard) for shard in shards], [shard.concurrency for shard in shards]):
        assert max(spread) - min(spread) <= 1


def test_phases_follow_the_due_time() -> None:
    for schedule in (window(), window(Profile([0, 30], [5, 20]))):
        names = np.array(PHASES)[schedule.phase]
        assert set(names) == {"transition", "window", "bridge"}
        assert np.all((names == "window") == ((schedule.due_ns >= 15 * NS) & (schedule.due_ns < 60 * NS)))
        assert schedule.seq[0] == 100 and np.all(np.diff(schedule.seq) == 1)


@pytest.mark.parametrize("workload", [FIXED, UNIFORM, BURSTY])
def test_seed_and_window_decide_everything(workload: Workload) -> None:
    first = window(workload=workload)
    assert first.due_ns.tolist() == window(workload=workload).due_ns.tolist()
    assert first.due_ns.tolist() != window(workload=workload, window_index=4).due_ns.tolist()
    assert first.due_ns.tolist() != window(workload=workload, seed=2).due_ns.tolist()


def shared(slow: ArrivalSchedule, fast: ArrivalSchedule) -> None:
    """Both are the same requests, the second twice as fast."""
    both = min(len(slow), len(fast))
    assert both > 200
    assert slow.due_ns[:both] / 2 == pytest.approx(fast.due_ns[:both], abs=2)
    assert slow.input_tokens[:both].tolist() == fast.input_tokens[:both].tolist()
    assert slow.output_tokens[:both].tolist() == fast.output_tokens[:both].tolist()


@pytest.mark.parametrize("workload", [FIXED, UNIFORM, BURSTY, EVEN], ids=lambda w: w.name)
def test_two_rates_of_one_window_share_their_requests(workload: Workload) -> None:
    shared(window(10.0, workload), window(20.0, workload))


def test_two_rates_share_the_requests_of_a_trace(recorded: Workload, tmp_path: Path) -> None:
    shared(window(10.0, recorded), window(20.0, recorded))
    poisson = trace_workload(tmp_path, "poisson")
    shared(window(10.0, poisson), window(20.0, poisson))


def profile_of(*qps: float) -> Profile:
    """Points 7 s apart."""
    return Profile([7.0 * i for i in range(len(qps))], qps)


@pytest.mark.parametrize("workload", [FIXED, BURSTY, EVEN], ids=lambda w: w.name)
def test_arrivals_follow_the_profile_piece_by_piece(workload: Workload) -> None:
    profile = Profile([0, 10, 10, 20, 40], [400, 1200, 0, 0, 1800])
    due_s = window(profile, workload).due_ns / NS - 15
    edges = [-15.0, 0.0, 10.0, 20.0, 30.0, 40.0, 46.0]
    counts = np.histogram(due_s, edges)[0]
    expected = np.array([6000, 8000, 0, 4500, 13500, 10800])
    cv = {"poisson": 1.0, "gamma": np.sqrt(10), "constant": 0.0}[workload.arrivals.kind]
    assert np.all(np.abs(counts - expected) <= 5 * cv * np.sqrt(expected) + 1)
    assert profile.mean_qps(46) == pytest.approx(expected[1:].sum() / 46)


@pytest.mark.parametrize("workload", [FIXED, BURSTY, EVEN], ids=lambda w: w.name)
def test_a_flat_profile_is_a_constant_rate(workload: Workload) -> None:
    flat, plain = window(Profile([0], [20]), workload), window(20.0, workload)
    assert flat.due_ns == pytest.approx(plain.due_ns, abs=2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 10**12), min_size=2, max_size=12).filter(lambda due: len(set(due)) > 1),
    st.floats(0.01, 50),
    st.integers(0, 10**12),
    st.integers(0, 20 * NS),
    st.integers(0, 1000),
)
def test_a_scaled_trace_is_the_trace_repeated_and_cut(
    due: list[int], rate_qps: float, start: int, length: int, seed: int
) -> None:
    due_ns = np.sort(np.array(due)) - min(due)
    one = np.ones(len(due), dtype=np.int64)
    recorded = Trace(due_ns, one, one, empty_answers=0)
    bounds = {"window": (start, start + length)}
    rng = np.random.default_rng(seed)
    result, lines = OpenArrivals(Arrivals("trace"), recorded).within(rate_qps, 1, bounds, rng)
    count, begin = len(due), np.random.default_rng(seed).random() * len(due)
    asked = rate_qps * length / NS
    rounds = range(int(asked / count) + 2)
    at = np.concatenate([due_ns * (recorded.mean_qps / NS) + i * count for i in rounds])
    inside = (at >= begin) & (at < begin + asked)
    assert result == pytest.approx(start + (at[inside] - begin) / rate_qps * NS, abs=1e-3 * NS)
    assert lines.tolist() == np.tile(np.arange(count), len(rounds))[inside].tolist()
    assert np.all((result >= start - 1) & (result <= start + length + 1)) and np.all(np.diff(result) >= 0)


def test_a_replay_is_the_trace_itself(recorded: Workload) -> None:
    whole = Traffic(recorded).replay(5 * NS, None, window_index=0, first_seq=64, seed=1)
    assert whole.due_ns.tolist() == [5 * NS + ms * 1_000_000 for ms, _, _ in RECORDED]
    assert whole.input_tokens.tolist() == [10, 20, 30, 40, 50]
    assert whole.output_tokens.tolist() == [1, 2, 3, 4, 5]
    assert whole.seq.tolist() == [64, 65, 66, 67, 68]
    assert {PHASES[i] for i in whole.phase.tolist()} == {"window"}
    part = Traffic(recorded).replay(0, NS, window_index=0, first_seq=0, seed=1)
    assert part.input_tokens.tolist() == [10, 20, 30]
    assert len(Traffic(recorded).replay(0, 700_000_000, window_index=0, first_seq=0, seed=1)) == 1


def test_empirical_lengths_come_in_pairs_of_one_line(tmp_path: Path) -> None:
    schedule = window(40.0, trace_workload(tmp_path, "poisson"))
    assert np.all(schedule.input_tokens == 10 * schedule.output_tokens)
    shares = np.bincount(schedule.output_tokens, minlength=6)[1:] / len(schedule)
    assert shares == pytest.approx(np.full(5, 0.2), abs=0.05)


def test_a_trace_may_give_its_arrivals_alone(recorded: Workload) -> None:
    own = Workload(
        "own", Lengths(7), recorded.output_tokens, arrivals=recorded.arrivals, trace=recorded.trace
    )
    schedule = Traffic(own).replay(0, None, window_index=0, first_seq=0, seed=1)
    assert schedule.input_tokens.tolist() == [7] * 5
    assert schedule.output_tokens.tolist() == [1, 2, 3, 4, 5]


def test_lengths_have_the_asked_mean_and_spread() -> None:
    rng = np.random.default_rng(0)
    assert set(draw_lengths(Lengths(mean=140), 10, rng).tolist()) == {140}
    drawn = draw_lengths(Lengths(mean=140, kind="lognormal", cv=0.45), 40_000, rng)
    assert drawn.mean() == pytest.approx(140, rel=0.01)
    assert drawn.std() / drawn.mean() == pytest.approx(0.45, abs=0.02)
    assert drawn.min() >= 1
    drawn = draw_lengths(Lengths(mean=25, kind="uniform", spread=0.25), 40_000, rng)
    assert np.unique(drawn).tolist() == list(range(18, 33))
    assert np.bincount(drawn)[18:] == pytest.approx(np.full(15, 40_000 / 15), rel=0.1)
    assert draw_lengths(Lengths(mean=2, kind="uniform", spread=1.0), 1000, rng).min() == 1
    mixture = Lengths(kind="mixture", values=[2, 200], weights=[0.75, 0.25])
    drawn = draw_lengths(mixture, 40_000, rng)
    assert set(drawn.tolist()) == {2, 200} and (drawn == 200).mean() == pytest.approx(0.25, abs=0.01)
    assert drawn.mean() == pytest.approx(mixture.mean, rel=0.03) and longest_tokens(mixture) == 200


def test_the_lengths_of_prompt_and_answer_are_independent() -> None:
    for workload in (VARIED, UNIFORM):
        schedule = window(100.0, workload)
        assert abs(np.corrcoef(schedule.input_tokens, schedule.output_tokens)[0, 1]) < 0.05


def test_the_longest_request_is_known_beforehand(tmp_path: Path) -> None:
    assert longest_tokens(Lengths(mean=140)) == 140
    assert longest_tokens(Lengths(mean=25, kind="uniform", spread=0.25)) == 32
    rng = np.random.default_rng(0)
    lognormal = Lengths(mean=140, kind="lognormal", cv=0.45)
    assert longest_tokens(lognormal) == pytest.approx(draw_lengths(lognormal, 10**6, rng).max(), rel=0.15)
    assert Traffic(FIXED).longest_request_tokens == 5740
    recorded = trace_workload(tmp_path, "trace", [(0, 10, 90), (5, 60, 3), (9, 20, 30)])
    traffic = Traffic(recorded)
    assert traffic.longest_request_tokens == 100
    assert Traffic(replace(recorded, output_tokens=Lengths(140))).longest_request_tokens == 200


def test_the_warm_up_stands_outside_the_windows() -> None:
    warm = Traffic(FIXED).evenly(8, NS, NS // 4, first_seq=30, seed=1)
    assert warm.window_index == -1 and warm.seq.tolist() == list(range(30, 38))
    assert warm.due_ns.tolist() == [NS + i * NS // 4 for i in range(8)]
    assert {PHASES[i] for i in warm.phase.tolist()} == {"warmup"}


@pytest.mark.parametrize("question", GIVEN)
def test_arrivals_are_those_of_the_tool(question: tuple[int, float, int, float]) -> None:
    np.testing.assert_allclose(bench_arrivals_s(*question), GIVEN[question], rtol=1e-12)
