"""loadgen/drive: services and hosts that are lost and come back: what is void, what goes on."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from analysis import load_run
from analysis.capacity.window_counts import Window
from analysis.results import summary
from analysis.results.json_border import to_tree
from analysis.rows import records
from conf import load
from conf.host_outage import HostOutage
from loadgen.drive import service_loss
from loadgen.drive.driver import Driver
from loadgen.drive.loss_recovery import TargetLost
from loadgen.drive.programs import sweep
from loadgen.drive.service_loss import MOST_RECOVERIES, death, outlived
from loadgen.fleet.target import LostActor, Observation
from loadgen.run import verdicts
from loadgen.run.resumption import past
from loadgen.run.run_folder import RunFolder
from loadgen.search.window_plan import Start
from loadgen.traffic.schedule import NS, ArrivalSchedule
from tests.support.runs.verdict_trees import text_of
from tests.support.search.searches import swept
from tests.support.virtual.virtual_drivers import (
    SILENT,
    Breaking,
    Changed,
    Hanging,
    Killed,
    altered,
    engines,
    plan,
)
from tests.support.virtual.virtual_target import VirtualTarget

EXPERIMENT = load(["search=standard"])
SHORT = dataclasses.replace(EXPERIMENT.search, budget_s=400)


def driver(target: VirtualTarget, emit: Callable[..., None] = lambda *_, **__: None, **more: Any) -> Driver:
    return Driver(target, plan(EXPERIMENT, Start(5.1), replicas=frozenset({"0"})), emit, **more)


@pytest.mark.slow
@pytest.mark.parametrize("dies_s", [60.0, 500.0], ids=["ramp", "window"])
def test_a_service_that_comes_back_costs_a_window_and_no_budget(dies_s: float) -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    target = Breaking(EXPERIMENT, dies_s)

    drive = driver(target, lambda kind, /, **facts: events.append((kind, facts)), repair=target.repair)
    tree = to_tree(verdicts.sweep_verdict(EXPERIMENT, drive, sweep(drive)))
    assert (tree["exit_code"], tree["valid"]) == (summary.EXIT_OK, True)
    assert 2.9 < tree["capacity"]["qps_per_node"]["value"] < 3.9
    assert [recovery["waited_s"] >= 400 for recovery in tree["recoveries"]] == [True]
    assert drive.elapsed_s() < EXPERIMENT.search.budget_s + 60 < target.now_ns() / NS
    void = [window["void_reason"] for window in tree["windows"] if not window["valid"]]
    assert void and set(void) == {"replica_lost"} and len(void) <= 2
    told = [kind for kind, _ in events]
    assert told.index("target_lost") < told.index("recovered") and "came back (1 time(s))" in tree["evidence"]
    assert text_of(tree)


@pytest.mark.slow
def test_what_follows_a_recovery_begins_with_a_transition() -> None:
    faults = iter([None, None, None, "1 of 1 replicas gone, 1 new"])
    drive = driver(Breaking(EXPERIMENT, 1e9), fault=lambda: next(faults, None), repair=lambda: frozenset("0"))
    drive.replan(search=SHORT)
    result = swept(drive)
    lost = [outcome for outcome in result.outcomes if outcome.void]
    assert [outcome.plan.index for outcome in lost] == [3]
    assert result.outcomes[4].plan.transition_s >= EXPERIMENT.search.transition_s


@pytest.mark.slow
def test_a_service_that_stays_away_ends_the_sweep() -> None:
    events: list[str] = []

    def repair() -> None:
        raise TargetLost("not whole again within 300 s: 2 of 3 replicas running")

    drive = driver(Breaking(EXPERIMENT, 300.0), lambda kind, /, **_: events.append(kind), repair=repair)
    with pytest.raises(TargetLost, match="requests failed: .*; not whole again within 300 s: 2 of 3"):
        sweep(drive)
    told = [kind for kind in events if kind != "rejudged"]  # a window that ended before may have felt it too
    assert told[-2:] == ["target_lost", "window_done"] and drive.windows.outcomes[-1].void


@pytest.mark.slow
def test_what_hangs_since_a_loss_is_no_sign_of_another() -> None:
    target = Hanging(EXPERIMENT, 250.0)
    drive = driver(target, fault=target.fault, repair=lambda: target.repair(30))
    drive.replan(search=SHORT)
    result = swept(drive)
    assert len(drive.loss.recoveries) == 1 and result.stop.kind == "budget"
    windows = [outcome for outcome in result.outcomes if outcome.plan.kind == "window"]
    assert not any(outcome.aborted for outcome in windows if not outcome.void)


@pytest.mark.slow
def test_all_that_a_loss_may_have_spoilt_is_measured_again_by_a_later_session() -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    emit = lambda kind, /, **facts: events.append((kind, facts))  # noqa: E731
    faults = iter([*[None] * 26, "1 of 1 replicas gone, 1 new"])
    drive = driver(Breaking(EXPERIMENT, 1e9), emit, fault=lambda: next(faults, None))
    # Answers do not name their replica, and three such windows end before a loss is surely noticed.
    short = dataclasses.replace(EXPERIMENT.search, window_s=10)
    # Windows last as long as the bounds let answers last.
    strict = dataclasses.replace(EXPERIMENT.slo, tpot_p90_ms=30)
    drive.replan(replicas=None, search=short, slo=strict)
    with pytest.raises(TargetLost):
        sweep(drive)
    first, *_ = [facts["last"] for kind, facts in events if kind == "target_lost"]
    assert first < len(drive.windows.outcomes) - 1


@pytest.mark.slow
def test_a_loss_in_the_last_moment_costs_the_last_window() -> None:
    """Nobody looks after the last window but those who wait for its answers."""
    faults: list[str] = []
    target = Breaking(EXPERIMENT, 1e9)

    def settled(kind: str, /, **facts: Any) -> None:
        if kind == "window_done" and facts["elapsed_s"] > EXPERIMENT.search.budget_s - 46:
            faults.append("1 of 1 replicas gone, 1 new")

    def repair() -> frozenset[str]:
        faults.clear()
        return frozenset({"0"})

    drive = driver(target, settled, fault=lambda: faults[0] if faults else None, repair=repair)
    drive.replan(replicas=None)
    result = swept(drive)
    assert len(drive.loss.recoveries) == 1 and [o.plan.index for o in result.outcomes if o.void]


@pytest.mark.slow
def test_a_service_that_breaks_again_and_again_is_given_up() -> None:
    faults = itertools.cycle([None, "a fault"])
    drive = driver(Breaking(EXPERIMENT, 1e9), fault=lambda: next(faults), repair=lambda: frozenset("0"))
    with pytest.raises(TargetLost, match="a fault"):
        sweep(drive)
    assert len(drive.loss.recoveries) == MOST_RECOVERIES


WINDOW = Window(3, "window", 1.0, 1, 0, 0, 100 * NS, 100 * NS)


def row(due_s: float, e2e_s: float, replica: str | None, **end: Any) -> dict[str, Any]:
    return {
        "window_index": 3,
        "due_ns": int(due_s * NS),
        "status": "ok",
        "replica_id": replica,
        "first_token_offset_ns": int(e2e_s * NS) // 2,
        "last_token_offset_ns": int(e2e_s * NS),
        "end_offset_ns": int(e2e_s * NS),
        **end,
    }


HEARD = yaml.safe_load((Path(__file__).parents[2] / "data" / "losses.yaml").read_text())
LATE: list[Any] = [(99, 5, "a"), (103, 1, "b")]


@pytest.mark.parametrize(("has_late", "heard", "replicas", "lost_s", "expected"), HEARD["outlived"])
def test_a_window_is_sound_if_the_service_outlived_it(
    has_late: bool, heard: list[Any], replicas: list[str] | None, lost_s: float, expected: bool
) -> None:
    rows = [row(*each[:3], **dict(*each[3:])) for each in (LATE if has_late else []) + heard]
    table = pa.Table.from_pylist(rows, schema=records.PROGRESS)
    assert outlived(table, WINDOW, replicas and set(replicas), int(lost_s * NS)) is expected


@pytest.mark.slow
def test_a_resumed_run_keeps_void_what_a_loss_spoilt(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    folder.write_json("manifest.json", {"verb": "sweep"})
    faults = iter([*[None] * 8, "1 of 1 replicas gone, 1 new"])

    def emit(kind: str, /, **facts: Any) -> None:
        folder.event(kind, **facts)
        if kind == "window" and facts["index"] == 11:
            raise Killed

    drive = driver(
        Breaking(EXPERIMENT, 1e9), emit, fault=lambda: next(faults, None), repair=lambda: frozenset("0")
    )
    with pytest.raises(Killed):
        sweep(drive)
    folder.collect()
    rows = pa.concat_tables([drive.windows.ledger.rows(*range(-1, 12))])
    kept = past(load_run(folder.path))
    assert kept.windows and [bool(window.evidence.loss) for window in kept.windows].count(True) == 1
    again = driver(Breaking(EXPERIMENT, 1e9))
    again.restore(dataclasses.replace(kept, rows=rows))
    before, after = ([outcome.void for outcome in one.windows.outcomes] for one in (drive, again))
    assert after == before[: len(after)] and True in after


@pytest.mark.parametrize(("groups", "now_s", "reason"), HEARD["dead"])
def test_a_service_is_dead_where_nothing_was_heard_since_nearly_all_failed(
    groups: list[tuple[int, float, str]], now_s: int, reason: str
) -> None:
    rows = [{"due_ns": due_s * NS} | HEARD["ends"][end] for count, due_s, end in groups for _ in range(count)]
    told = death(pa.Table.from_pylist(rows, schema=records.PROGRESS), now_s * NS)
    assert (told or "").startswith(reason) and (told is None) == (not reason)


WORDS = ["search=quick", "search.start=prediction", "search.expected_qps=3.4", "search.window_s=20"]
BRIEF = load([*WORDS, "search.budget_s=240", "search.min_windows=2"])
CUT_UNTIL_S = 900.0
NO_WAY = SILENT | {"status": "conn_error", "error_kind": "OSError", "error": "No route to host"}


class Cut(Changed):
    """A virtual target whose hosts, one for load and one that serves, can be cut from the driver's.

    While the load host is cut, its requests find no way and its load actor reports nothing.
    """

    def __init__(self, *, serves: bool, from_s: float = 100.0) -> None:
        self._from_ns, self._until_ns = int(from_s * NS), int(CUT_UNTIL_S * NS)
        self._serves = serves
        super().__init__(engines(BRIEF), lambda rows: altered(rows, NO_WAY, self._from_ns, self._until_ns))
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
    load_plan = plan(BRIEF, Start(5.1), replicas=frozenset({"0"}))
    drive = Driver(target, load_plan, emit, repair=target.repair)
    drive.windows.outages = target.outages
    return drive, to_tree(verdicts.sweep_verdict(BRIEF, drive, sweep(drive))), events


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


def outage(from_s: float, until_s: float | None, clients: frozenset[int] = frozenset({1})) -> HostOutage:
    until_ns = None if until_s is None else int(until_s * NS)
    return HostOutage("load1", "10.0.0.9", False, "timed out", int(from_s * NS), until_ns, clients)


def client_rows(*lines: tuple[int, float, float | None]) -> pa.Table:
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
    felt = service_loss.felt([outage(from_s, until_s)], client_rows((1, 99, last)), WINDOW)
    assert bool(felt) is expected
    before = dataclasses.replace(WINDOW, start_ns=200 * NS, window_start_ns=200 * NS, window_end_ns=300 * NS)
    assert until_s is None or not service_loss.felt([outage(from_s, until_s)], client_rows(), before)


def test_only_requests_of_the_cut_host_are_its_own_fault() -> None:
    table = client_rows((1, 40, 5.0), (1, 49, 5.0), (0, 55, 1.0), (1, 55, None), (1, 61, 1.0))
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
