"""loadgen/drive/windows.py, load_feed.py: windows that end early, watched windows, the ledger of requests."""

from functools import cache
from typing import Any, Literal

import pyarrow as pa
import pytest

from analysis.live.state import WindowSoFar
from analysis.rows import records
from conf import Experiment, load
from loadgen.drive import programs
from loadgen.drive.driver import Driver
from loadgen.drive.load_feed import Ledger
from loadgen.fleet.target import LostActor, Observation
from loadgen.search.window_plan import WindowPlan
from loadgen.traffic.schedule import NS, ArrivalSchedule
from loadgen.traffic.traffic import Traffic
from tests.support.virtual.virtual_drivers import altered, driver, engines
from tests.support.virtual.virtual_target import VirtualTarget


@cache
def searched(watched: bool) -> tuple[Driver, list[WindowSoFar]]:
    seen: list[WindowSoFar] = []
    made, *_ = driver([])
    made.watcher = seen.append if watched else None
    programs.offer_rate(made, 3.0, 40, 5)
    return made, seen


def test_the_same_windows_are_measured_with_and_without_a_watcher() -> None:
    (alone, none), (beside, seen) = searched(False), searched(True)
    first, second = ([(o.plan, o.counts) for o in each.windows.outcomes] for each in (alone, beside))
    assert first == second and not none and seen


def test_it_tells_counts_that_add_up_and_how_much_is_out() -> None:
    _, seen = searched(True)
    for one in seen:
        assert one.sent == one.answered + one.failed + one.pending
        assert one.window_start_s <= one.now_s <= one.window_end_s
        assert set(one.latencies) == {"ttft_p90_ms", "tpot_p90_ms"}
    last = [one for one in seen if one.index == seen[-1].index]
    assert [one.sent for one in last] == sorted(one.sent for one in last)


WORDS = ["workload=smoke"]


class Busy(VirtualTarget):
    """A virtual target on whose clock 100 ms pass after each observation, while the driver decides."""

    def __init__(self, experiment: Experiment, **row: Any) -> None:
        super().__init__(engines(experiment))
        self._row = row

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        progress = super().run(schedule, until_ns)
        self._now_ns += NS // 10
        return Observation(altered(progress.ended, self._row), altered(progress.pending, self._row))


@pytest.mark.parametrize(("kind", "rate_qps"), [("ramp", 100.0), ("window", 400.0)])
@pytest.mark.parametrize(
    ("lag_ns", "void", "message"),
    [(1_400_000, False, "overloaded, ended early"), (NS // 10, True, "VOID client_limited")],
)
def test_a_window_that_ends_early_is_void_only_where_the_client_was_late(
    kind: Literal["ramp", "window"], rate_qps: float, lag_ns: int, void: bool, message: str
) -> None:
    drive, _, events = driver(WORDS, target=Busy(load(WORDS), send_offset_ns=lag_ns))
    drive.load(WindowPlan(0, kind, rate_qps, 0.0, 20.0, False, "far too much"))
    outcome = drive.windows.outcomes[0]
    sent = next(check for check in outcome.verdict.checks if check.name == "sent")
    assert (outcome.aborted, sent.value) == (True, 1.0) and outcome.verdict.valid != void
    (done,) = [facts for name, facts in events if name == "window_done"]
    assert done["verdict"].startswith(message)


TRAFFIC = Traffic(load(["workload=smoke"]).workload)


def planned(window_index: int, first_seq: int, count: int = 8) -> ArrivalSchedule:
    return TRAFFIC.closed(count, 2, window_index * NS, window_index=window_index, first_seq=first_seq, seed=1)


def rows(status: str, *keys: tuple[int, int]) -> pa.Table:
    """Rows of (window, seq)."""
    told = [{"window_index": index, "seq": seq, "due_ns": seq, "status": status} for index, seq in keys]
    return pa.Table.from_pylist(told, schema=records.PROGRESS)


def seen(ended: pa.Table, pending: pa.Table, *lost: LostActor) -> Observation:
    return Observation(ended, pending, [], list(lost))


def told(ledger: Ledger, *indices: int) -> dict[int, str]:
    table: Any = ledger.rows(*indices)
    seqs = table["seq"].to_pylist()
    assert len(seqs) == len(set(seqs)), "each request once"
    return dict(zip(seqs, table["status"].to_pylist(), strict=True))


def test_what_ended_stays_and_what_flies_is_as_last_seen() -> None:
    ledger = Ledger()
    ledger.take(seen(rows("ok", (0, 0)), rows("pending", (0, 1), (1, 2))))
    assert told(ledger, 0, 1) == {0: "ok", 1: "pending", 2: "pending"}
    ledger.settled()
    ledger.take(seen(rows("timeout", (0, 1)), rows("pending", (1, 2))))
    assert told(ledger, 0) == {0: "ok", 1: "timeout"} and told(ledger, 1) == {2: "pending"}
    assert ledger.touched == {0, 1}
    ledger.settled()
    ledger.take(seen(rows("ok", (1, 2)), rows("pending")))
    assert told(ledger, 0, 1) == {0: "ok", 1: "timeout", 2: "ok"} and ledger.touched == {1}


def test_a_lost_actor_leaves_what_it_wrote_and_loses_the_rest_once() -> None:
    ledger = Ledger()
    for schedule in (planned(0, 0), planned(1, 8)):
        ledger.plan(schedule)
    ledger.take(seen(rows("ok", (0, 0), (0, 1), (0, 2)), rows("pending", (0, 3))))
    dead = LostActor(1, 1, 2, "killed")
    # Its disk repeats request 1 and adds request 3; the other actor's requests 4 and 6 are on their way.
    ledger.take(seen(rows("ok", (0, 1), (0, 3)), rows("pending", (0, 4), (0, 6)), dead))
    lost_first = {0: "ok", 1: "ok", 2: "ok", 3: "ok", 4: "pending", 5: "lost", 6: "pending", 7: "lost"}
    assert told(ledger, 0) == lost_first
    assert told(ledger, 1) == {9: "lost", 11: "lost", 13: "lost", 15: "lost"}
    ledger.take(seen(rows("ok", (0, 4)), rows("pending", (0, 6)), dead))
    assert told(ledger, 0) == lost_first | {4: "ok"}


def test_of_conversations_a_lost_actor_loses_the_turns_of_its_own_sessions() -> None:
    ledger, traffic = Ledger(), Traffic(load(["workload=character"]).workload)
    plans = []
    for start_s in (0, 20):  # two pieces of one window
        bounds = {"transition": (start_s * NS, (start_s + 20) * NS)}
        plans.append(traffic.draw(4.0, bounds, window_index=0, first_seq=1000 * start_s, seed=1))
        ledger.plan(plans[-1])
    ledger.take(seen(rows("ok"), rows("pending"), LostActor(5, 1, 2, "killed")))
    mine = [seq for plan in plans for seq in plan.seq[plan.owner(2) == 1].tolist()]
    assert told(ledger, 0) == dict.fromkeys(mine, "lost")
    assert mine != [seq for plan in plans for seq in plan.seq[plan.seq % 2 == 1].tolist()]


def test_a_restored_ledger_counts_like_one_that_saw_it_all() -> None:
    ledger, again = Ledger(), Ledger()
    ledger.take(seen(rows("ok", (0, 0), (1, 1)), rows("pending")))
    whole = records.table([{"window_index": 0, "seq": 0, "due_ns": 0, "status": "ok", "itl_us": [3]}])
    other = rows("ok", (1, 1)).append_column("itl_us", pa.nulls(1, pa.list_(pa.int32())))
    again.restore(pa.concat_tables([whole, other.cast(records.REQUESTS)]))
    assert again.rows(0, 1).equals(ledger.rows(0, 1))
