"""The services of known capacity on which searches are tried: what they serve, and what rows say."""

import math

import numpy as np
import pytest

from conf import load
from loadgen.traffic.schedule import NS
from loadgen.traffic.traffic import Traffic
from tests.benchmarks.search_accuracy import row
from tests.support.search.scenarios import truths
from tests.support.search.searches import Found
from tests.support.virtual.shared_processor import SharedProcessor, step_s
from tests.support.virtual.toy_services import Failing, OneAtATime, waits_longer


def token_by_token(arrivals, until_s):
    """{key: (tokens, first, last)} of a shared processor that is stepped a token at a time."""
    due, running, seen, now_s = sorted(arrivals), [], {}, 0.0
    while due or running:
        if not running:
            now_s = max(now_s, due[0][0])
        while due and due[0][0] <= now_s:
            running.append(due.pop(0))
        end_s = now_s + step_s(len(running))
        if end_s > until_s:
            break
        now_s = end_s
        for _, key, _ in running:
            tokens, first, _ = seen.get(key, (0, now_s, now_s))
            seen[key] = tokens + 1, first, now_s
        running = [one for one in running if seen[one[1]][0] < one[2]]
    return seen


@pytest.mark.parametrize(("rate_qps", "mean"), [(0.5, 5), (20, 60), (120, 40)])
def test_a_shared_processor_is_where_its_steps_are(rate_qps, mean):
    rng = np.random.default_rng(3)
    at_s, wanted = np.cumsum(rng.exponential(1 / rate_qps, 150)), rng.integers(1, 2 * mean, 150)
    arrivals = [
        (at, key, want) for key, (at, want) in enumerate(zip(at_s.tolist(), wanted.tolist(), strict=True))
    ]
    server, ended = SharedProcessor(), {}
    for at, key, want in arrivals:
        server.submit(key, at, 1, want)
    for until_s in [*np.linspace(0.3, at_s[-1], 17), at_s[-1] + 1e4]:
        server.advance(until_s)
        seen = {
            a.key: (a.tokens, a.first_token_s, a.last_token_s) for a in server.observe() if a.tokens
        } | ended
        ended |= {key: it for key, it in seen.items() if it[0] == wanted[key]}
        expected = token_by_token(arrivals, until_s)
        assert seen.keys() == expected.keys()
        assert all(seen[key] == pytest.approx(expected[key], abs=1e-6) for key in seen)


def test_what_a_shared_processor_is_told_to_forget_never_comes():
    server = SharedProcessor()
    for key, at_s in enumerate((0.0, 0.5, 9.0)):
        server.submit(key, at_s, 1, 10)
    server.advance(1.0)
    server.retract(1.0)
    server.submit(3, 2.0, 1, 10)
    server.advance(99.0)
    assert sorted(a.key for a in server.observe() if a.finished) == [0, 1, 3]


def test_twice_the_speed_is_half_the_time():
    slow, fast = SharedProcessor(), SharedProcessor(speed=2.0)
    for server, scale in ((slow, 1.0), (fast, 0.5)):
        for key in range(30):
            server.submit(key, 0.1 * key * scale, 1, 20 + key)
        server.advance(1e3)
    ends = ([a.last_token_s for a in sorted(s.observe(), key=lambda a: a.key)] for s in (slow, fast))
    assert next(ends) == pytest.approx([2 * at_s for at_s in next(ends)])


def test_one_at_a_time_waits_its_turn():
    server = OneAtATime(2.0)
    for key, at_s in enumerate((0.0, 1.0, 9.0)):
        server.submit(key, at_s, 1, 4)
    server.advance(3.2)
    seen = {a.key: (a.tokens, a.first_token_s, a.last_token_s) for a in server.observe()}
    assert seen == {0: (4, 0.5, 2.0), 1: (2, 2.5, 3.0)}
    server.advance(20.0)
    assert {a.key: a.first_token_s for a in server.observe()} == {1: 2.5, 2: 9.5}


def test_the_queue_of_one_at_a_time_is_the_one_of_the_books():
    """Who comes to a busy server waits, and so many of 40,000 wait longer as the closed form says."""
    assert waits_longer(0.6, 1.0, 0.0) == pytest.approx(0.6)
    rng = np.random.default_rng(4)
    at_s = np.cumsum(rng.exponential(1 / 0.6, 40_000)).tolist()
    server = OneAtATime(1.0)
    for key, at in enumerate(at_s):
        server.submit(key, at, 1, 10)
    server.advance(1e9)
    waits = np.array([a.first_token_s - 0.1 - a.at_s for a in server.observe()])
    for seconds in (0.5, 1.5, 3.2):
        assert (waits > seconds + 1e-6).mean() == pytest.approx(waits_longer(0.6, 1.0, seconds), rel=0.06)


def test_a_failing_node_spoils_its_share_and_nothing_else():
    asked = load(["workload=smoke"])
    drawn = Traffic(asked.workload).draw(20.0, {"window": (0, 200 * NS)}, dwell=0, first_seq=0, seed=1)
    whole, some = Failing(SharedProcessor(), 0.0, 1), Failing(SharedProcessor(), 0.02, 1)
    tables = [node.run(drawn, 300 * NS).ended.sort_by("seq") for node in (whole, some)]
    failed = np.array([status == "http_error" for status in tables[1]["status"].to_pylist()])
    assert failed.mean() == pytest.approx(0.02, abs=0.008)
    assert tables[0]["status"].unique().to_pylist() == ["ok"]
    kept = [table.filter(~failed) for table in tables]
    assert kept[0].equals(kept[1])
    assert tables[1].filter(failed)["first_token_offset_ns"].null_count == failed.sum()
    assert tables[1]["end_offset_ns"].equals(tables[0]["end_offset_ns"])


def test_a_row_says_which_bounds_are_wrong_and_what_ended_a_search():
    found = [
        Found(0.75, 0.7, 0.8, 0.71, 15.0),
        Found(math.nan, 0.0, 0.48, 0.0, 15.0),
        Found(math.nan, 0.7, math.inf, 0.7, 15.0),
        Found(math.nan, 0.0, math.inf, 0.0, 2.0, stop="lost"),
    ]
    cells = [cell.strip() for cell in row("L2000 | maxqps", 0.77, found).split("|")[1:-1]]
    cover, certified_over, opened, wrong, ends = cells[6], cells[7], cells[9], cells[12], cells[13]
    assert (cover, certified_over, opened, wrong, ends) == ("0.667", "0.000", "3", "1", "1 lost")
    assert row("none | maxqps", 0.77, found[1:]).count("| - |") >= 1


def test_the_same_capacities_by_closed_form_and_by_hand():
    """Rates at which a tenth waits longer than the bound less the first token's time."""
    for scenario, service_s, wait_s in (("M1", 5.0, 7.6875), ("M057", 1.0, 1.8875), ("T20", 2.0, 19.875)):
        assert waits_longer(truths()[scenario], service_s, wait_s) == pytest.approx(0.1, rel=1e-3)
