"""`loadgen.fleet.turns`: a turn waits for the one of its session before it, and for nothing else."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis.capacity.checks import sent as share_sent
from analysis.rows import metrics, records, routing_spread
from conf import load
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import NS, ArrivalSchedule
from tests.support.machine.patience import PATIENCE_S
from tests.support.runs.run_folders import facts
from tests.support.servers.mock_server import MockServer, Script, answer, head, token
from tests.support.servers.workers import Rows, played, started

pytestmark = pytest.mark.usefixtures("never_overdue")
WORKLOAD = load(["workload=character"]).workload
PROMPTS = Prompts(WORKLOAD, "m", 151936, 1)
MS = NS // 1000


def turns(*rows: tuple[int, int, int]) -> ArrivalSchedule:
    """A schedule of (seq, due in ms, session): three tokens out, forty in."""
    seq, due_ms, session = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    ones = np.ones_like(seq)
    return ArrivalSchedule(
        window_index=0,
        seq=seq,
        due_ns=due_ms * MS,
        phase=3 * ones,
        input_tokens=40 * ones,
        output_tokens=3 * ones,
        shared_tokens=4 * ones,
        session=session,
        turn=0 * ones,
        character=session,
        character_tokens=14 * ones,
        persona_tokens=10 * ones,
        history_cut=0 * ones,
    )


def sent(folder: Path, schedule: ArrivalSchedule, script: Script, **how: Any) -> tuple[pa.Table, list[Any]]:
    """The rows of a worker over a schedule, by seq, and those in flight as soon as `watch` said enough.

    Then it goes on until all have ended, or it is to `retract` or `end` at once. What comes `later` is
    offered once all have ended.
    """

    async def main() -> Rows:
        async with MockServer(script) as server:
            shard = ArrowStream(folder / "s.arrow")
            worker = started([server.url], PROMPTS, shard, timeout_s=how.get("timeout_s", PATIENCE_S))
            ended, seen = await played(worker, schedule, enough=how.get("watch", lambda *_: True))
            if how.get("retract"):
                worker.retract()
            if not how.get("end"):
                await played(worker, count=len(schedule) - len(ended))
                await played(worker, *how.get("later", ()))
            await worker.finish(how.get("drain_s", PATIENCE_S))
            return seen

    seen = asyncio.run(main())
    return records.read_shard(folder / "s.arrow").sort_by("seq"), seen


def column(rows: pa.Table, name: str) -> list[Any]:
    return list(rows[name].to_pylist())


def at_ns(rows: pa.Table, event: str) -> list[int]:
    """When that happened to each request, on the run's clock."""
    offsets = column(rows, f"{event}_offset_ns")
    return [due + offset for due, offset in zip(column(rows, "due_ns"), offsets, strict=True)]


def slow(body: dict[str, Any]) -> list[Any]:
    return answer(body, 0.06)


def test_a_turn_is_sent_when_the_one_before_has_ended_and_nobody_else_waits(tmp_path: Path) -> None:
    held = True

    def all_in_flight(_: Rows, pending: Rows) -> bool:
        nonlocal held
        held = len(pending) < 4
        return not held

    def script(body: dict[str, Any]) -> Iterator[Any]:
        """No answer begins before all are in flight: then the other session's request did not wait."""
        while held:
            yield 0.01
        yield from answer(body)

    schedule = turns((0, 0, 7), (1, 50, 7), (2, 60, 8), (3, 70, 7))
    rows, seen = sent(tmp_path, schedule, script, watch=all_in_flight, later=[turns((4, 80, 7))])
    assert column(rows, "status") == ["ok"] * 5
    ends, starts = (at_ns(rows, event) for event in ("end", "send"))
    blocked = column(rows, "turn_blocked_ns")
    assert [each is None for each in blocked] == [True, False, True, False, True]
    for turn, before in ((1, 0), (3, 1)):
        assert ends[before] <= column(rows, "due_ns")[turn] + blocked[turn] <= starts[turn]
    # Held turns are in flight for whoever watches, and not yet sent.
    sends = {row["seq"]: row["send_offset_ns"] for row in seen}
    assert [seq for seq, offset_ns in sorted(sends.items()) if offset_ns is None] == [1, 3]
    assert sorted(sends) == [0, 1, 2, 3]


def test_latency_counts_from_the_due_time_and_send_lag_without_the_wait(tmp_path: Path) -> None:
    rows, _ = sent(tmp_path, turns((0, 0, 7), (1, 50, 7)), slow)
    ttft, lag = metrics.ttft(rows), metrics.send_lag(rows)
    assert ttft[1] > 100 and ttft[1] > ttft[0]
    assert lag[1] == (column(rows, "send_offset_ns")[1] - column(rows, "turn_blocked_ns")[1]) / MS


def test_a_turn_follows_a_failure_too(tmp_path: Path) -> None:
    def script(_: dict[str, Any]) -> list[Any]:
        return [head(), token(), 0.2, None]

    rows, _ = sent(tmp_path, turns((0, 0, 7), (1, 20, 7)), script)
    assert column(rows, "status") == ["truncated", "truncated"]
    assert column(rows, "turn_blocked_ns")[1] > 50 * MS


def test_what_was_never_sent_holds_nobody(tmp_path: Path) -> None:
    schedule = turns((0, 0, 7), (1, 600_000, 7))
    rows, _ = sent(tmp_path, schedule, answer, watch=lambda ended, _: ended, retract=True)
    assert column(rows, "status") == ["ok", "missed"]
    assert column(rows, "turn_blocked_ns") == [None, None]


def test_who_waits_as_long_as_a_request_may_last_has_gone(tmp_path: Path) -> None:
    hung = [head(), token(), 600.0]
    schedule = turns((0, 0, 7), (1, 150, 7), (2, 160, 7))
    rows, _ = sent(tmp_path, schedule, lambda _: hung, timeout_s=0.2)
    assert column(rows, "status") == ["timeout"] * 3
    assert rows.num_rows == 3 and column(rows, "error_kind")[2] == "turn_blocked"
    assert column(rows, "send_offset_ns")[2] is None
    assert np.all(np.isinf(metrics.ttft(rows)))
    # The client did its part: what is void is another thing.
    assert share_sent(facts(rows)) == 1 and np.all(np.isfinite(metrics.send_lag(rows)[:2]))


def test_a_run_that_ends_has_a_row_for_who_waits(tmp_path: Path) -> None:
    hung = [head(), token(), 600.0]
    rows, _ = sent(
        tmp_path,
        turns((0, 0, 7), (1, 20, 7)),
        lambda _: hung,
        watch=lambda _, pending: len(pending) == 2,
        end=True,
        drain_s=0.1,
    )
    assert column(rows, "error_kind") == ["interrupted", "interrupted"]


def test_on_a_fast_clock_the_wait_was_the_engine_s() -> None:
    """Engine 0.5 s after a wait of 1 s, and 20 ms of path: 0.2 s on a clock ten times as fast."""
    row = {
        "status": "ok",
        "time_scale": 10.0,
        "turn_blocked_ns": NS,
        "send_offset_ns": NS + 10 * MS,
        "first_token_offset_ns": NS + 700 * MS,
        "engine_first_token_ns": 500 * MS,
    }
    rows = records.table([row])
    assert metrics.ttft(rows)[0] == 1520
    assert metrics.path(rows)[0] == 20
    assert metrics.send_lag(rows)[0] == 1


def test_how_many_turns_waited_is_told_and_the_longest() -> None:
    waits = [None, 200 * MS, None, 1500 * MS]
    turns_ = [{"session_id": i, "status": "ok", "turn_blocked_ns": wait} for i, wait in enumerate(waits)]
    rows = records.table([*turns_, {"session_id": -1, "status": "ok"}])
    assert (routing_spread.turns_blocked(rows), routing_spread.longest_block_ms(rows)) == (0.5, 1500)
    alone = records.table([{"session_id": -1, "status": "ok"}])
    assert routing_spread.turns_blocked(alone) is None and routing_spread.longest_block_ms(alone) is None
