"""loadgen/drive: hosts without network, on a virtual clock: what is void, whose fault it is, what goes on."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from analysis.capacity.window_counts import Window
from analysis.results import summary
from analysis.results.json_border import to_tree
from analysis.rows import records
from conf import load
from conf.host_outage import HostOutage
from loadgen.drive import service_loss
from loadgen.drive.driver import Driver
from loadgen.drive.programs import sweep
from loadgen.fleet.target import LostActor, Observation
from loadgen.run import verdicts
from loadgen.search.window_plan import Start
from loadgen.traffic.schedule import NS, ArrivalSchedule
from tests.support.virtual.virtual_drivers import SILENT, Changed, altered, engines, plan

WORDS = ["search=quick", "search.start=prediction", "search.expected_qps=3.4", "search.window_s=20"]
EXPERIMENT = load([*WORDS, "search.budget_s=240", "search.min_windows=2"])
CUT_UNTIL_S = 900.0
NO_WAY = SILENT | {"status": "conn_error", "error_kind": "OSError", "error": "No route to host"}


class Cut(Changed):
    """A virtual target whose hosts, one for load and one that serves, can be cut from the driver's.

    While the load host is cut, its requests find no way and its load actor reports nothing.
    """

    def __init__(self, *, serves: bool, from_s: float = 100.0) -> None:
        self._from_ns, self._until_ns = int(from_s * NS), int(CUT_UNTIL_S * NS)
        self._serves = serves
        super().__init__(
            engines(EXPERIMENT), lambda rows: altered(rows, NO_WAY, self._from_ns, self._until_ns)
        )
        self.waits = 0

    def outages(self) -> Sequence[HostOutage]:
        if self._now_ns < self._from_ns:
            return ()
        back = self._now_ns >= self._until_ns
        clients = frozenset[int]() if self._serves else frozenset({0})
        name = "node1" if self._serves else "load1"
        at = self._from_ns, self._until_ns if back else None
        return [HostOutage(name, "10.0.0.9", self._serves, "No route to host", *at, clients)]

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        progress = super().run(schedule, until_ns)
        is_silent = not self._serves and self._from_ns <= self._now_ns < self._until_ns
        return dataclasses.replace(progress, silent_actors=["load actor 0 on load1"] if is_silent else [])

    def heal(self) -> bool:
        self.waits += 1
        self._now_ns = max(self._now_ns, self._until_ns)
        return True

    def repair(self) -> frozenset[str]:
        self.heal()
        return frozenset({"0"})


def run(target: Cut) -> tuple[Driver, dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    events: list[tuple[str, dict[str, Any]]] = []
    emit = lambda kind, /, **facts: events.append((kind, facts))  # noqa: E731
    load_plan = plan(EXPERIMENT, Start(5.1), replicas=frozenset({"0"}))
    drive = Driver(target, load_plan, emit, repair=target.repair)
    drive.windows.outages = target.outages
    return drive, to_tree(verdicts.sweep_verdict(EXPERIMENT, drive, sweep(drive), "wall")), events


def test_a_load_host_without_network_voids_its_windows_and_no_service_is_lost() -> None:
    target = Cut(serves=False)
    drive, tree, events = run(target)
    void = {window["void_reason"] for window in tree["windows"] if not window["valid"]}
    assert void == {"load_host_lost"} and tree["valid"]
    assert target.waits == 1 and not drive.loss.recoveries
    assert "target_lost" not in {kind for kind, _ in events}
    named = [facts["verdict"] for kind, facts in events if kind == "window_done" and facts["void"]]
    assert named and all("load1 (10.0.0.9)" in text for text in named)
    assert tree["exit_code"] in (summary.EXIT_OK, summary.EXIT_OPEN), "the search goes on to its end"
    assert drive.elapsed_s() < CUT_UNTIL_S - 100, "the wait costs no budget"


def test_a_node_without_network_is_named_and_the_service_is_waited_for() -> None:
    drive, tree, events = run(Cut(serves=True))
    void = {window["void_reason"] for window in tree["windows"] if not window["valid"]}
    assert "node_lost" in void and void <= {"node_lost", "replica_lost"} and tree["valid"]
    assert len(drive.loss.recoveries) == 1
    lost = next(facts["text"] for kind, facts in events if kind == "target_lost")
    assert "node node1 (10.0.0.9) cannot be reached: No route to host" in lost


WINDOW = Window(3, "window", 1.0, 1, 0, 0, 100 * NS, 100 * NS)


def outage(from_s: float, until_s: float | None, clients: frozenset[int] = frozenset({1})) -> HostOutage:
    until_ns = None if until_s is None else int(until_s * NS)
    return HostOutage("load1", "10.0.0.9", False, "timed out", int(from_s * NS), until_ns, clients)


def rows(*lines: tuple[int, float, float | None]) -> pa.Table:
    """Client, due time and seconds until the end, None in flight."""
    table = [
        {
            "client_id": client,
            "due_ns": int(due_s * NS),
            "status": "ok" if e2e_s else records.PENDING,
            "end_offset_ns": int(e2e_s * NS) if e2e_s else None,
        }
        for client, due_s, e2e_s in lines
    ]
    return pa.Table.from_pylist(table, schema=records.PROGRESS)


@pytest.mark.parametrize(
    ("from_s", "until_s", "last", "expected"),
    [
        (50, 60, 5.0, True),
        (50, None, 5.0, True),
        (101, 120, 5.0, True),  # the answer to a request of 99 s came at 104 s
        (105, 120, 5.0, False),
        (105, 120, None, True),  # it is still in flight
    ],
)
def test_a_window_feels_an_outage_while_it_or_its_answers_last(
    from_s: float, until_s: float | None, last: float | None, expected: bool
) -> None:
    felt = service_loss.felt([outage(from_s, until_s)], rows((1, 99, last)), WINDOW)
    assert bool(felt) is expected
    before = dataclasses.replace(WINDOW, start_ns=200 * NS, window_start_ns=200 * NS, window_end_ns=300 * NS)
    assert until_s is None or not service_loss.felt([outage(from_s, until_s)], rows(), before)


def test_only_requests_of_the_cut_host_are_its_own_fault() -> None:
    table = rows((1, 40, 5.0), (1, 49, 5.0), (0, 55, 1.0), (1, 55, None), (1, 61, 1.0))
    assert service_loss.own_fault([outage(50, 60)], table).tolist() == [False, True, False, True, False]


class Gone(Cut):
    """A load host that never comes back, and no other takes its load actor."""

    def heal(self) -> bool:
        self.lost = [LostActor(0, 0, 1, "its host cannot be reached", "load1 (10.0.0.9)")]
        return False

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        return dataclasses.replace(super().run(schedule, until_ns), lost_actors=getattr(self, "lost", []))


def test_a_load_host_gone_for_good_ends_the_sweep_with_what_it_has() -> None:
    _, tree, events = run(Gone(serves=False, from_s=170.0))
    assert tree["exit_code"] in (summary.EXIT_OK, summary.EXIT_OPEN) and tree["capacity"]
    assert "it ended early: lost load actor 0 on load1 (10.0.0.9)" in tree["evidence"]
    assert [facts["stop"] for kind, facts in events if kind == "stop"] == ["actor_lost"]
