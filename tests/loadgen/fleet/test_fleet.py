"""`loadgen.fleet.fleet` with local processes and with Ray against a scripted server; what ends a process."""

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.rows import records, shards
from conf import load
from conf.host_outage import HostOutage
from conf.io.http_get import Access
from conf.io.secret import Secret
from conf.specs.experiment import Workload
from loadgen.fleet.fleet import LoadFleet
from loadgen.fleet.http_client import ClientPlan
from loadgen.fleet.load_actor import Actors
from loadgen.fleet.local_actors import LocalActors
from loadgen.fleet.process import ClockOffset
from loadgen.fleet.ray_actors import RayActors
from loadgen.fleet.target import FleetError
from loadgen.run.run_folder import RunFolder
from loadgen.traffic.schedule import NS, ArrivalSchedule
from loadgen.traffic.traffic import Traffic
from tests.support.machine.patience import PATIENCE_S, until
from tests.support.machine.shared_session import SharedSession
from tests.support.servers.mock_server import answer, serving
from tests.support.servers.plans import client_plan

WORKLOAD = load(["workload=smoke", "workload.output_tokens.mean=4"]).workload
SELECTOR = {"label_selector": {"role": "!gpu"}}


@pytest.fixture(
    params=[pytest.param("local", marks=pytest.mark.live), pytest.param("ray", marks=pytest.mark.ray)]
)
def actors(request: pytest.FixtureRequest) -> Actors:
    """Processes of this machine, and a head of Ray's; the session that other files leave open will do."""
    return LocalActors() if request.param == "local" else request.getfixturevalue("on_ray")


@pytest.fixture
def on_ray(shared_session: SharedSession) -> RayActors:
    shared_session.fake()
    return RayActors(0.4, SELECTOR)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(lambda body: answer(body, 0.02)) as server:
        yield server.url


def fleet(url: str, folder: RunFolder, actors: Actors, count: int = 2) -> LoadFleet:
    plan = client_plan([url], timeout_s=PATIENCE_S, access=Access(Secret("hush-hush")))
    return LoadFleet(count, actors, asking(plan, WORKLOAD), folder.shards)


def asking(plan: ClientPlan, workload: Workload) -> ClientPlan:
    """The plan with another workload."""
    return replace(plan, experiment=replace(plan.experiment, workload=workload))


def offered(target: LoadFleet, folder: RunFolder, seconds: float) -> tuple[ArrivalSchedule, int]:
    """A schedule that begins in half a second, and when it does."""
    start_ns = max(0, target.now_ns()) + NS // 2
    bounds = {"window": (start_ns, start_ns + int(seconds * NS))}
    schedule = Traffic(WORKLOAD).draw(40.0, bounds, window_index=0, first_seq=0, seed=3)
    folder.plan(schedule)
    return schedule, start_ns


def statuses(rows: Any) -> dict[str, int]:
    counted = rows["status"].value_counts().to_pylist()
    return {item["values"]: item["counts"] for item in counted}


def check_sent(rows: Any) -> None:
    """All were answered, but for some that a busy machine made overdue."""
    counted = statuses(rows)
    assert set(counted) <= {"ok", "missed"} and counted["ok"] > 0


def test_actors_share_one_schedule_and_every_request_has_one_row(
    url: str, tmp_path: Path, actors: Actors
) -> None:
    folder = RunFolder.create(tmp_path, "whole")
    target = fleet(url, folder, actors)
    schedule, start_ns = offered(target, folder, 2.0)
    progress = target.run(schedule, start_ns + 2 * NS + NS // 2)
    assert set(progress.ended["client_id"].to_pylist()) == {0, 1}
    assert {beat["client_id"] for beat in progress.health} == {0, 1} and not progress.lost_actors
    assert all(0 <= beat["cpu_share"] < 1.5 and beat["in_flight"] >= 0 for beat in progress.health)
    target.finish(PATIENCE_S)
    rows = folder.collect(target.zero_wall_ns)
    assert sorted(rows["seq"].to_pylist()) == schedule.seq.tolist()
    check_sent(rows)
    by_client = {(row["client_id"], row["seq"] % 2) for row in rows.select(["client_id", "seq"]).to_pylist()}
    assert by_client == {(0, 0), (1, 1)}
    written = b"".join(path.read_bytes() for path in folder.path.rglob("*") if path.is_file())
    assert b"hush-hush" not in written


def test_a_killed_actor_is_noticed_and_its_requests_are_lost_not_forgotten(
    url: str, tmp_path: Path, actors: Actors
) -> None:
    folder = RunFolder.create(tmp_path, "killed")
    target = fleet(url, folder, actors)
    schedule, start_ns = offered(target, folder, 60.0)
    target.run(schedule, start_ns)
    shard = target._shard(target.members[1])
    until(lambda: records.read_shard(shard).num_rows)
    target.members[1].actor.kill()
    until(lambda: target.run(None, target.now_ns()).lost_actors)
    progress = target.run(None, target.now_ns() + 2 * NS)
    assert [actor.client_id for actor in progress.lost_actors] == [1]
    assert {beat["client_id"] for beat in progress.health} == {0}
    target.finish(PATIENCE_S)
    rows = folder.collect(target.zero_wall_ns)
    assert sorted(rows["seq"].to_pylist()) == schedule.seq.tolist()
    lost = {row["seq"] for row in rows.select(["seq", "status"]).to_pylist() if row["status"] == "lost"}
    assert lost and all(seq % 2 == 1 for seq in lost)
    assert set(statuses(rows)) <= {"ok", "missed", "lost"}
    assert len(lost) < len(schedule.shard(1, 2)), "rows flushed before the kill are kept"


class Seen:
    """Whoever watches the hosts saw the one of this machine silent from `from_ns` to `until_ns`."""

    patience_s = PATIENCE_S

    def __init__(self, address: str) -> None:
        self.outage = HostOutage("here", address, False, "timed out", time.monotonic_ns())

    def outages(self) -> list[HostOutage]:
        return [self.outage]


@pytest.mark.slow
def test_an_actor_on_a_host_without_network_is_waited_for_and_no_row_is_lost(
    url: str, tmp_path: Path, actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its network is cut for the driver alone, which an actor that stands still looks like."""
    folder = RunFolder.create(tmp_path, "cut")
    target = fleet(url, folder, actors)
    monkeypatch.setattr("loadgen.fleet.fleet.REPLY_TIMEOUT_S", 3.0)
    schedule, start_ns = offered(target, folder, 6.0)
    target.run(schedule, start_ns + NS)
    cut = target.members[1].place
    assert cut is not None
    target.hosts = seen = Seen(cut.address)
    os.kill(cut.pid, signal.SIGSTOP)
    try:
        until(lambda: target.run(None, target.now_ns()).silent_actors)
    finally:
        os.kill(cut.pid, signal.SIGCONT)
    seen.outage = replace(seen.outage, until_ns=time.monotonic_ns())
    assert target.heal() and not target.lost and [member.client_id for member in target.members] == [0, 1]
    assert not target.run(None, target.now_ns()).silent_actors
    target.finish(PATIENCE_S)
    rows = folder.collect(target.zero_wall_ns)
    assert sorted(rows["seq"].to_pylist()) == schedule.seq.tolist()
    check_sent(rows)


@pytest.mark.slow
def test_a_wall_clock_that_is_set_moves_no_request_of_a_replacement(
    url: str, tmp_path: Path, actors: Actors
) -> None:
    """The step is faked as what it changes: where the run's zero lies on the wall clock of today."""
    folder = RunFolder.create(tmp_path, "stepped")
    target = fleet(url, folder, actors, count=1)
    target.members[0].actor.kill()
    until(lambda: target.run(None, target.now_ns()).lost_actors)
    target._clock = replace(target._clock, wall_ns=target._clock.wall_ns - 3600 * NS)
    assert target.heal()
    schedule, start_ns = offered(target, folder, 1.0)
    target.run(schedule, start_ns + NS)
    target.finish(PATIENCE_S)
    check_sent(folder.collect(target.zero_wall_ns))
    assert target.members[-1].offset == ClockOffset(0, 0)


@pytest.mark.slow
def test_a_host_on_which_no_replacement_starts_is_said_with_its_name(
    url: str, tmp_path: Path, actors: Actors
) -> None:
    target, said = fleet(url, RunFolder.create(tmp_path, "full"), actors, count=1), list[str]()
    target.members[0].actor.kill()
    until(lambda: target.run(None, target.now_ns()).lost_actors)
    target.cannot_start, target._folder = said.append, tmp_path / "file" / "shards"
    (tmp_path / "file").touch()
    assert not target.heal()
    assert len(said) == 1 and f"on {platform.node()} (" in said[0] and "Not a directory" in said[0]


@pytest.mark.ray
@pytest.mark.slow
def test_no_room_for_the_actors_is_one_line(
    url: str, tmp_path: Path, on_ray: RayActors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.fleet.fleet.READY_TIMEOUT_S", 2.0)
    with pytest.raises(FleetError, match="no room for 1 load actors within 2 s"):
        fleet(url, RunFolder.create(tmp_path, "none"), replace(on_ray, cpus_per_actor=64.0), count=1)


@pytest.mark.slow
def test_a_shard_from_another_disk_is_fetched(url: str, tmp_path: Path, actors: Actors) -> None:
    folder = RunFolder.create(tmp_path, "remote")
    target = fleet(url, folder, actors, count=1)
    schedule, start_ns = offered(target, folder, 1.0)
    target.run(schedule, start_ns + 2 * NS)
    # The actor keeps writing to its own disk; the driver's folder lies elsewhere.
    elsewhere = RunFolder.create(tmp_path, "driver")
    target._folder = elsewhere.shards
    kept = folder.path / "shards" / "of another run"
    kept.write_text("kept")
    target.finish(PATIENCE_S)
    assert list(folder.shards.iterdir()) == [kept], "what was fetched is deleted there, and nothing else"
    assert sorted(shards.requests(elsewhere.path)["seq"].to_pylist()) == schedule.seq.tolist()


def test_an_actor_that_cannot_begin_is_one_line(url: str, tmp_path: Path) -> None:
    missing = replace(WORKLOAD, tokenizer=str(tmp_path / "none"))
    plan = asking(client_plan([url]), missing)
    with pytest.raises(FleetError, match=r"load actor failed to start: ConfigError: on node [^\n]*$"):
        LoadFleet(1, LocalActors(), plan, tmp_path)


DRIVER = """
import os, signal
from loadgen.fleet.local_actors import LocalActor
actor = LocalActor()
actor.call("read_clock")(60)
print(actor._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_local_actor_ends_with_its_driver() -> None:
    driver = subprocess.run([sys.executable, "-c", DRIVER], capture_output=True, text=True)
    pid = int(driver.stdout)
    until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.slow
def test_what_measures_an_endpoint_imports_no_ray() -> None:
    code = "import sys; import loadgen.cli.measuring; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
