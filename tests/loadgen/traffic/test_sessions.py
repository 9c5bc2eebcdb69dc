"""loadgen/traffic/population.py: sessions in the schedule, in prompts and on the wire, and their spread."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from analysis.capacity.checks import prefix_hit_error
from analysis.rows import records, routing_spread
from analysis.rows.records import REQUESTS
from conf import load
from conf.specs.experiment import Workload
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.http_client import chosen
from loadgen.fleet.rows import plan_table
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import NS, ArrivalSchedule, turns
from loadgen.traffic.traffic import Traffic
from tests.support.machine.patience import PATIENCE_S
from tests.support.prompts import schedules
from tests.support.prompts.bodies import tokens
from tests.support.prompts.chats import common
from tests.support.runs.run_folders import facts
from tests.support.servers.mock_server import MockServer
from tests.support.servers.workers import played, started

CHATS = load(["workload=chat_sessions", "workload.sessions=7"]).workload
SHORT = replace(CHATS, input_tokens=replace(CHATS.input_tokens, mean=200))
BOUNDS = {"transition": (0, 10 * NS), "window": (10 * NS, 40 * NS)}


def drawn(workload: Workload, rate_qps: float = 5.0, window_index: int = 2, seed: int = 1) -> ArrivalSchedule:
    return Traffic(workload).draw(rate_qps, BOUNDS, window_index=window_index, first_seq=100, seed=seed)


def sessions_of(schedule: Any) -> list[int]:
    return schedule.session.tolist()


def test_without_sessions_a_schedule_has_none() -> None:
    schedule = drawn(replace(CHATS, sessions=0, session_hit=0.0))
    assert schedule.session is None and schedule.turn is None
    table = plan_table(schedule)
    assert set(table["session_id"].to_pylist()) == {-1} and set(table["turn"].to_pylist()) == {0}


def test_sessions_do_not_depend_on_the_rate_and_differ_between_windows_and_seeds() -> None:
    slow, fast = sessions_of(drawn(CHATS, 2.0)), sessions_of(drawn(CHATS, 20.0))
    assert len(fast) > 5 * len(slow) > 50
    assert fast[: len(slow)] == slow
    assert sessions_of(drawn(CHATS, 2.0, window_index=3))[:40] != slow[:40]
    assert sessions_of(drawn(CHATS, 2.0, seed=2))[:40] != slow[:40]


def test_arrivals_and_lengths_are_those_of_a_workload_without_sessions() -> None:
    varied = load(["workload=chat_5600_140_varied"]).workload
    plain, chats = drawn(varied), drawn(replace(varied, sessions=9, session_hit=0.5))
    for name in ("seq", "due_ns", "phase", "input_tokens", "output_tokens", "shared_tokens"):
        assert_array_equal(getattr(plain, name), getattr(chats, name))


def test_every_session_is_as_likely() -> None:
    counts = np.bincount(sessions_of(drawn(CHATS, 1000.0)), minlength=7)
    expected = counts.sum() / 7
    assert len(counts) == 7
    assert ((counts - expected) ** 2 / expected).sum() < 22.5  # chi-squared of 6 degrees, 99.9 %


@given(st.lists(st.integers(0, 4)))
def test_turns_count_the_requests_of_a_session_before(session: list[int]) -> None:
    seen: Counter[int] = Counter()
    for number, turn in zip(session, turns(np.array(session, dtype=np.int64)).tolist(), strict=True):
        assert turn == seen[number]
        seen[number] += 1


def test_turns_go_on_where_a_window_is_drawn_in_two_parts() -> None:
    lead, replayed = drawn(CHATS, window_index=4), drawn(CHATS, window_index=1)
    joined = lead.followed_by(replayed)
    assert_array_equal(joined.turn, turns(np.array(sessions_of(lead) + sessions_of(replayed))))


@cache
def prompts_of(kind: str, hit: float = 0.95, shared: float = 0.0) -> Prompts:
    words = [f"workload.prompt={kind}", "workload.sessions=99", f"workload.session_hit={hit}"]
    return Prompts(load([*words, f"workload.prefix_hit={shared}"]).workload, "m", 151936, salt=3)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["token_ids", "text", "chat"]),
    st.integers(0, 2**39 - 2),
    st.integers(1, 9000),
    st.integers(1, 9000),
    st.integers(0, 10_000_000),
)
def test_a_session_shares_what_was_asked_and_nothing_more(
    kind: str, seq: int, long: int, short: int, session: int
) -> None:
    prompts = prompts_of(kind)
    short, long = sorted((short, long))
    one = tokens(prompts.body(seq, long, 4, 0, session))
    other = tokens(prompts.body(seq + 1, short, 4, 0, session))
    stranger = tokens(prompts.body(seq + 2, long, 4, 0, session + 1))
    assert (len(one), len(other)) == (long, short)
    asked = min(round(0.95 * short), short - 8)
    assert common(one, other) == (asked if asked > 8 and min(round(0.95 * long), long - 8) > 8 else 0)
    assert long < 17 or common(one, stranger) == 0


def sent(folder: Path, workload: Workload, urls: int, sticky: bool) -> tuple[list[list[str]], pa.Table]:
    """The session headers that each of so many servers got, and the rows of the worker that sent them."""
    schedule = schedules.drawn(workload, 200.0, 0.25)
    shard = ArrowStream(folder / "shard.arrow")
    servers = [MockServer() for _ in range(urls)]

    async def main() -> None:
        async with AsyncExitStack() as stack:
            for server in servers:
                await stack.enter_async_context(server)
            prompts, targets = Prompts(workload, "m", 151936, salt=1), [server.url for server in servers]
            worker = started(targets, prompts, shard, sticky=sticky)
            await played(worker, schedule)
            await worker.finish(PATIENCE_S)

    asyncio.run(main())
    heads = [[head.decode() for head, _ in server.requests] for server in servers]
    named = [[line for head in each for line in head.split("\r\n") if "session" in line] for each in heads]
    return named, records.read_shard(shard.path)


@pytest.mark.usefixtures("never_overdue")
@pytest.mark.parametrize("sticky", [True, False])
def test_every_request_names_its_session_and_with_client_side_routing_keeps_its_server(
    tmp_path: Path, sticky: bool
) -> None:
    named, rows = sent(tmp_path, replace(SHORT, sessions=12), urls=3, sticky=sticky)
    expected = Counter(f"x-session-id: session-{number}" for number in rows["session_id"].to_pylist())
    assert rows.num_rows > 30 and set(rows["status"].to_pylist()) == {"ok"}
    assert sum(map(Counter, named), Counter()) == expected
    homes = {line: {i for i in range(3) if line in named[i]} for line in expected}
    if sticky:
        assert all(len(servers) == 1 for servers in homes.values())
        assert homes["x-session-id: session-5"] == {chosen(5, 3)}
    else:
        assert max(len(servers) for servers in homes.values()) > 1


def rows_of(*answers: tuple[int, str | None, float]) -> pa.Table:
    """Requests of (session, replica, TTFT in ms); without a replica it failed."""
    known = {"status": "ok", "prompt_tokens": 100, "cached_tokens": 50, "output_tokens": 1}
    failed = {"status": "timeout"}
    return records.table(
        [
            {
                "seq": seq,
                "window_index": 0,
                "due_ns": seq * NS,
                "phase": "window",
                "session_id": session,
                "replica_id": replica,
                "first_token_offset_ns": int(ttft_ms * 1e6),
                **(known if replica else failed),
            }
            for seq, (session, replica, ttft_ms) in enumerate(answers)
        ]
    )


SPREAD = rows_of(
    (0, "a", 10), (0, "b", 20), (0, "a", 30), (1, "c", 40), (1, "c", 50), (2, "a", 60), (3, None, 0)
)


def test_known_answers_of_a_window() -> None:
    # Of sessions 0 and 1; 2 and 3 have one answer or none.
    assert routing_spread.replicas_per_session(SPREAD) == 1.5
    assert routing_spread.max_over_mean_share(SPREAD) == 3 / (6 / 3)
    assert routing_spread.max_over_mean_share(SPREAD, replicas=4) == 3 / (6 / 4)
    assert routing_spread.by_replica(SPREAD) == [
        {"replica_id": "a", "requests": 3, "ttft_p90_ms": 54.0},
        {"replica_id": "b", "requests": 1, "ttft_p90_ms": 20.0},
        {"replica_id": "c", "requests": 2, "ttft_p90_ms": 49.0},
    ]


def test_what_is_not_known_is_not_said() -> None:
    nobody, single = rows_of((-1, "a", 1), (-1, "b", 1)), rows_of((0, "a", 1), (1, "b", 1))
    silent = rows_of((0, None, 1), (0, None, 1))
    assert routing_spread.replicas_per_session(nobody) is routing_spread.replicas_per_session(single) is None
    assert routing_spread.replicas_per_session(silent) is routing_spread.max_over_mean_share(silent) is None
    assert routing_spread.by_replica(silent) == []
    assert routing_spread.replicas_per_session(REQUESTS.empty_table()) is None


def test_with_sessions_the_hits_are_reported_and_not_judged() -> None:
    plan = {"requested_input_tokens": 100, "shared_tokens": 0}
    alone, chats = (
        pa.Table.from_pylist([row | plan for row in rows_of((session, "a", 1)).to_pylist()], schema=REQUESTS)
        for session in (-1, 4)
    )
    judged, reported = prefix_hit_error(facts(alone)), prefix_hit_error(facts(chats))
    assert judged is not None and judged > 0.01 and reported is None
    assert routing_spread.with_sessions(rows_of((4, "a", 1)))
    assert not routing_spread.with_sessions(rows_of((-1, "a", 1)))
