"""`loadgen.run` of conversations: Ctrl-C cuts a sweep, resume ends it; each turn once, each session at home.

Two simulated replicas behind HAProxy and Serve's hash ring, deployed once for both sessions of the run, so
that the ring is the same. A run that a busy machine made void is repeated, and no other reason is accepted.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from analysis.results import recount, summary
from analysis.results.json_border import to_tree
from analysis.results.runs import load_run
from analysis.rows import metrics
from cluster.ray_session.session import Session
from conf import Experiment
from loadgen.cli import measuring
from loadgen.cli.service import service
from loadgen.cli.words import experiment_of
from loadgen.drive import prepared_load
from loadgen.drive.driver import Driver
from loadgen.fleet.target import Observation, Target
from loadgen.run.jobs import SearchCapacity, Site
from loadgen.run.lifecycle import RunLifecycle
from loadgen.run.run_folder import RunFolder
from loadgen.search.window_plan import Start
from loadgen.traffic.population import SessionPopulation
from loadgen.traffic.schedule import NS, PHASES, ArrivalSchedule
from tests.support.commands import WORDS
from tests.support.machine import tries
from tests.support.machine.patience import PATIENCE_S
from tests.support.virtual.virtual_drivers import silent

pytestmark = [pytest.mark.ray, pytest.mark.slow]

Events = list[dict[str, Any]]
ENDS = [("ok", None), ("missed", "retracted"), ("missed", "overdue"), ("timeout", "deadline")]
"""Ends of a turn; the last two are those of a machine too busy to keep the pace."""
CUT = [("conn_error", "interrupted"), ("truncated", "interrupted"), ("timeout", "turn_blocked")]
"""Answers that a busy machine still had in flight when the interrupted session ended."""


class Interrupted:
    """A fleet in whose second window Ctrl-C comes, on its first look at what is answered there."""

    def __init__(self, fleet: Target) -> None:
        self._fleet, self._at_ns = fleet, math.inf

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        progress = self._fleet.run(schedule, until_ns)
        if schedule is not None and schedule.window_index == 1 and PHASES.index("window") in schedule.phase:
            self._at_ns = until_ns
        elif until_ns > self._at_ns:
            raise KeyboardInterrupt
        return progress


class CutSearch(SearchCapacity):
    """A sweep that is cut."""

    def load(self, driver: Driver) -> None:
        driver.feed.target = cast(Target, Interrupted(driver.feed.target))
        super().load(driver)


@dataclass(frozen=True)
class Ran:
    """A run in two sessions: its experiment, both conclusions, and its folder."""

    experiment: Experiment
    trees: tuple[dict[str, Any], dict[str, Any]]
    folder: Path

    @property
    def sessions(self) -> tuple[Events, Events]:
        """The events of the session that was cut, and of the one that went on."""
        events = load_run(self.folder).events()
        cut = next(number for number, event in enumerate(events) if event["event"] == "end")
        return events[:cut], events[cut:]

    def sent(self) -> list[dict[str, Any]]:
        """What was sent under load; a warm-up repeats what was said before time 0."""
        rows = load_run(self.folder).requests().to_pylist()
        return [row for row in rows if row["send_offset_ns"] is not None and row["window_index"] >= 0]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, standing: Session) -> Iterator[Ran]:
    experiment = experiment_of("sweep", WORDS["conversations"], None)
    out, runs = tmp_path_factory.mktemp("runs"), list[Ran]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared_load, "CACHE_PIECE_S", 5.0)
        patch.setattr(prepared_load, "LONGEST_S", 10.0)
        patch.setattr("loadgen.fleet.fleet.REPLY_TIMEOUT_S", PATIENCE_S)
        patch.setattr("loadgen.fleet.fleet.READY_TIMEOUT_S", PATIENCE_S)
        patch.setattr("loadgen.cli.deployment.open_session", lambda *_, **__: nullcontext(standing))
        with service(experiment, silent) as up:
            site = Site(lambda *_: (Start(8.0, 2.0), None), lambda *_: nullcontext(up))

            def cut_and_resumed(number: int) -> dict[str, Any]:
                folder = RunFolder.create(out, f"try-{number}")
                cut = to_tree(RunLifecycle(CutSearch(experiment), folder, site, silent).measure())
                ended = to_tree(measuring.resume(folder.path, site, silent))
                runs.append(Ran(experiment, (cut, ended), folder.path))
                return ended

            tries.valid(cut_and_resumed)
    yield runs[-1]


def test_the_run_was_cut_in_a_window_and_came_to_its_end(ran: Ran) -> None:
    cut, ended = ran.trees
    assert cut["exit_code"] == summary.EXIT_INTERRUPTED
    assert ended["exit_code"] in (0, 3, 6), ended["reason"]
    first, second = ran.sessions
    measured = [[e["index"] for e in part if e["event"] == "window_done"] for part in (first, second)]
    assert measured[0] == [0] and measured[1][0] <= 1 and measured[1][-1] == len(ended["windows"]) - 1


def test_every_planned_turn_has_one_row_and_is_sent_at_most_once(ran: Ran) -> None:
    rows = load_run(ran.folder).requests().to_pylist()
    assert len(rows) == len({row["seq"] for row in rows}) == RunFolder.planned_in(ran.folder)
    ends = {(row["status"], row["error_kind"]) for row in rows}
    assert {("ok", None), ("missed", "retracted")} <= ends <= {*ENDS, *CUT}
    turns = [(row["session_id"], row["turn"]) for row in ran.sent()]
    assert len(turns) == len(set(turns)) > 100


def test_no_turn_of_a_window_is_left_out_in_either_session(ran: Ran) -> None:
    spec = ran.experiment.workload.conversations
    assert spec is not None
    people = SessionPopulation(spec, ran.experiment.seed)
    rows = load_run(ran.folder).requests().to_pylist()
    tried = [row for row in rows if row["error_kind"] != "retracted" and row["window_index"] >= 0]
    windows = [event["window"] for event in itertools.chain(*ran.sessions) if event["event"] == "window_done"]
    for window in windows:
        begin_ns, end_ns = window["window_start_ns"], window["window_end_ns"]
        asked = people.turns(window["rate_qps"], begin_ns / NS, end_ns / NS)
        due = {(row["session_id"], row["turn"]) for row in tried if begin_ns <= row["due_ns"] < end_ns}
        assert due == {(int(turn["session"]), int(turn["turn"])) for turn in asked} and len(due) >= 10


def test_a_session_has_one_replica_and_in_each_session_of_the_run_one_load_actor(ran: Ran) -> None:
    replicas, actors, count = defaultdict(set), defaultdict(set), ran.experiment.fleet.actors
    for row in ran.sent():
        if row["replica_id"] is not None:  # cut off before its answer began
            replicas[row["session_id"]].add(row["replica_id"])
        actors[row["session_id"], row["client_id"] // count].add(row["client_id"])
    assert len(set().union(*replicas.values())) == 2 and len(set().union(*actors.values())) == 2 * count == 4
    assert {len(homes) for homes in replicas.values()} == {len(owners) for owners in actors.values()} == {1}
    # How many users talk on in the second session of the run depends on the rates that the search chose.
    for session in {session for session, _ in actors}:
        if {(session, 0), (session, 1)} <= actors.keys():
            (before,), (after,) = actors[session, 0], actors[session, 1]
            assert before % count == after % count


def test_caches_are_filled_anew_after_the_resume(ran: Ran) -> None:
    first, second = ran.sessions

    def filled(part: Events) -> list[float]:
        """The rate of each window, if a fill went before it, else 0."""
        rates, fills = [], 0
        for event in part:
            fills += event["event"] == "fill"
            if event["event"] == "window":
                rates.append(event["rate_qps_per_node"] if fills else 0.0)
                fills = 0
        return rates

    assert filled(first)[0] > 0
    # No rate above those of the first session: only that it is another session asks for it.
    assert 0 < filled(second)[0] <= max(filled(first)) * (1 + prepared_load.AGREE)
    rows = load_run(ran.folder).requests()
    assert (metrics.prefix_hit(rows) or 0.0) > 0.5


def test_the_conclusion_is_found_again_in_the_parquet(ran: Ran) -> None:
    run = load_run(ran.folder)
    said, identical = recount.recomputed(run)
    assert identical, said
    assert run.verdict is not None and run.verdict.exit_code == ran.trees[1]["exit_code"]
    assert run.verdict.requests.rows == run.verdict.requests.planned == run.requests().num_rows
