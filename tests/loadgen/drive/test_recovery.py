"""`loadgen.drive.loss_recovery` on real Ray: a fault voids the window that it strikes, and no other.

Three fake nodes of eight GPUs, and a head without any; one fault in each sweep, once answers of a window are
on disk. All sweeps share the session; a node that is lost for good comes last.
"""

import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray

from analysis import load_run
from analysis.results import summary
from analysis.results.json_border import to_tree
from analysis.rows import shards
from cluster.deployment.serve_state import state
from cluster.ray_session import session
from cluster.ray_session.own_machine import LOOPBACK, HeldPorts
from conf import load
from loadgen.cli.service import service
from loadgen.drive.driver import Driver
from loadgen.drive.programs import sweep
from loadgen.run.jobs import SearchCapacity, Site
from loadgen.run.lifecycle import RunLifecycle
from loadgen.run.resumption import continued
from loadgen.run.run_folder import RunFolder
from loadgen.search.window_plan import Start, Stop, WindowPlan
from serve_apps.simulated.app import application_name
from tests.support.machine import tries
from tests.support.machine.patience import PATIENCE_S, until
from tests.support.machine.shared_session import SharedSession
from tests.support.words.words import over

pytestmark = [pytest.mark.ray, pytest.mark.slow]

LIMIT_S, LAST_LIMIT_S = 240, 10
"""Seconds for a service to come back, which takes a while on a busy machine, and for what never does."""
WORDS = [
    "cluster=laptop_4n",
    "cluster.nodes=3",
    f"cluster.recovery_s={LIMIT_S}",
    "layout=dp1_tp8_ep8",
    "workload=smoke",
    "workload.output_tokens.mean=4",
    "slo.ttft_p90_ms=2000",
    "slo.tpot_p90_ms=500",
    "fleet.actors=1",
    "fleet.cpus_per_actor=0.4",
    "fleet.warmup_requests=1",
    "fleet.request_timeout_s=20",
    "search.start=prediction",
    "search.expected_qps=7",
    "search.settle_s=5",
    "search.min_windows=2",
    "search.budget_s=300",
]
EXPERIMENT = load(WORDS)
APP_NAME = application_name(EXPERIMENT)
STRUCK, MOST_WINDOWS = 1, 10


def replica_dies(nodes: Any) -> None:
    victim = min(state(APP_NAME).engines, key=lambda replica: replica.replica_id)
    ray.kill(ray.get_actor(victim.actor, "serve"))


def controller_restarts(nodes: Any) -> None:
    ray.kill(ray.get_actor(*session.SERVE_CONTROLLER), no_restart=False)


def haproxy_dies(nodes: Any) -> None:
    folder = os.fsencode(os.environ["RAY_TMPDIR"])
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # others come and go
            words = entry.joinpath("cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"haproxy") and any(folder in word for word in words):
                os.kill(int(entry.name), signal.SIGKILL)


def node_is_lost(nodes: Any) -> None:
    nodes.remove_node(max(nodes.worker_nodes, key=lambda node: node.node_id), allow_graceful=False)


def node_is_replaced(nodes: Any) -> None:
    """The new one comes when the loss is noticed: Ray starts nodes in the main thread only."""
    node_is_lost(nodes)


@dataclass
class Saboteur:
    """Listens to a run and does a fault once answers of the window `STRUCK` are on disk."""

    fault: Callable[[Any], None]
    nodes: Any
    folder: Path
    at_s: float = math.nan
    replaced: bool = False

    def __call__(self, kind: str, /, **facts: Any) -> None:
        if kind == "window" and facts["index"] == STRUCK:
            threading.Thread(target=self._strike, daemon=True).start()
        elif kind == "fault" and self.fault is node_is_replaced and not self.replaced:
            self.replaced = True  # the loss may be noticed twice
            self.nodes.add_node(
                wait=False,
                node_ip_address=LOOPBACK,
                num_cpus=1,
                num_gpus=8,
                labels={"role": "gpu"},
                include_dashboard=False,
                dashboard_agent_listen_port=HeldPorts().another(),
                object_store_memory=session.OBJECT_STORE_BYTES,
            )

    def _strike(self) -> None:
        until(self._answered)
        self.at_s = time.time()
        self.fault(self.nodes)

    def _answered(self) -> bool:
        rows = shards.requests(self.folder).to_pylist()
        return any(
            (row["window_index"], row["phase"], row["status"]) == (STRUCK, "window", "ok") for row in rows
        )


@dataclass(frozen=True)
class Ran:
    """The conclusion of a sweep, its folder, and when its fault was."""

    tree: dict[str, Any]
    folder: Path
    at_s: float

    @property
    def manifest(self) -> dict[str, Any]:
        return load_run(self.folder).manifest

    @property
    def reasons(self) -> dict[int, str]:
        """Why each window is void, empty where it is valid."""
        return {window["index"]: window["void_reason"] for window in self.tree["windows"]}

    def struck(self) -> set[int]:
        """The windows in which the fault was."""
        zero_s = self.manifest["clock"]["zero_wall_ns"] / 1e9
        windows = [e["window"] for e in load_run(self.folder).events() if e["event"] == "window_done"]
        at_ns = (self.at_s - zero_s) * 1e9
        return {
            window["index"]
            for window in windows
            if window["window_start_ns"] <= at_ns <= window["window_end_ns"]
        }


@pytest.fixture(scope="module")
def cluster(shared_session: SharedSession) -> Iterator[tuple[session.Session, Any]]:
    """A session of three nodes for all sweeps, and the cluster whose nodes may be removed."""
    clusters: list[Any] = []

    class Known(session.RayCluster):  # type: ignore[misc]
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            clusters.append(self)

    shared_session.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "RayCluster", Known)
        opened = shared_session.of(EXPERIMENT.cluster, EXPERIMENT.routing)
    yield opened, clusters[-1]
    shared_session.close()


def choose(driver: Driver) -> WindowPlan | Stop:
    """A sound window, long ones until the fault is noticed, and one more when the service is back."""
    number, loss = len(driver.windows.outcomes), driver.loss
    if number > MOST_WINDOWS or (loss.recoveries and loss.first_window < len(loss.windows.outcomes)):
        return Stop("budget", "enough was seen")
    window_s = 3.0 if number < STRUCK or loss.recoveries else 20.0
    return WindowPlan(number, "window", 7.0, 1.0, window_s, False, "a rate that three nodes serve")


class ChosenWindows(SearchCapacity):
    def load(self, driver: Driver) -> None:
        self._stop = sweep(driver, choose)


@pytest.fixture
def run(
    cluster: tuple[session.Session, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """A sweep in the session that stands, with a fault."""
    opened, nodes = cluster
    monkeypatch.setattr("loadgen.cli.deployment.open_session", lambda *_, **__: nullcontext(opened))
    monkeypatch.setattr("loadgen.fleet.fleet.REPLY_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr("loadgen.fleet.fleet.READY_TIMEOUT_S", PATIENCE_S)
    # Soon in steady state, also after the fault.
    monkeypatch.setattr("loadgen.drive.prepared_load.PIECE_S", 3.0)

    def ran(fault: Callable[[Any], None], limit_s: int = LIMIT_S, name: str = "run") -> Ran:
        folder = RunFolder.create(tmp_path, name)
        saboteur = Saboteur(fault, nodes, folder.path)
        site = Site(lambda *_: (Start(8.0, 6.0), None), service)
        experiment = load(over(WORDS, f"cluster.recovery_s={limit_s}"))
        tree = to_tree(RunLifecycle(ChosenWindows(experiment), folder, site, saboteur).measure())
        return Ran(tree, folder.path, saboteur.at_s)

    return ran


def check_rows(ran: Ran) -> None:
    """One row for every planned request, and most were answered."""
    rows = load_run(ran.folder).requests().to_pylist()
    assert len(rows) == len({row["seq"] for row in rows}) == RunFolder.planned_in(ran.folder)
    assert Counter(row["status"] for row in rows)["ok"] > 50


@pytest.mark.parametrize(
    ("fault", "reason", "same_processes"),
    [
        (replica_dies, "1 of 3 replicas gone", 2),
        (controller_restarts, "", 3),  # the words depend on when it is noticed
        (haproxy_dies, "", 3),
        (node_is_replaced, "1 of 3 replicas gone", 2),
    ],
)
def test_a_window_with_a_fault_in_it_is_void_and_the_sweep_goes_on(
    fault: Callable[[Any], None], reason: str, same_processes: int, run: Callable[..., Ran]
) -> None:
    runs: list[Ran] = []

    def tried(number: int) -> dict[str, Any]:
        runs.append(run(fault, name=f"try-{number}"))
        check_fault(runs[-1], reason)
        return runs[-1].tree

    def others_valid(tree: dict[str, Any]) -> bool:
        reasons = runs[-1].reasons
        return bool(runs[-1].struck()) and reasons[0] == reasons[max(reasons)] == ""

    tries.valid(tried, also=("replica_lost",), enough=others_valid)
    check_generations(runs[-1], same_processes)
    check_continued(runs[-1])


def check_fault(ran: Ran, reason: str) -> None:
    """The service was lost and came back, and the windows with the fault in them are void for that."""
    check_rows(ran)
    recoveries = ran.tree["recoveries"]
    # A busy machine may notice the loss of the controller or of HAProxy twice.
    assert 1 <= len(recoveries) <= 2 and recoveries[0]["reason"].startswith(reason), recoveries
    assert all(recovery["waited_s"] < LIMIT_S for recovery in recoveries)
    reasons = ran.reasons
    assert {reasons[index] for index in ran.struck()} <= {"replica_lost"}
    assert "replica_lost" not in (reasons[0], reasons[max(reasons)])


def check_generations(ran: Ran, same_processes: int) -> None:
    """Each node holds one replica before and after, and no process was replaced but what was lost."""
    generations = [*ran.manifest["servers_before"], ran.manifest["server"]]
    assert len(generations) == len(ran.tree["recoveries"]) + 1
    for server in generations:
        assert len({replica["node"] for replica in server["replicas"].values()}) == 3
        assert len(server["replicas"]) == 3
        assert all(replica["stable"] is not None for replica in server["replicas"].values())
    head = {actor["node"] for actor in ran.manifest["load_actors"]}
    assert not head & {replica["node"] for s in generations for replica in s["replicas"].values()}
    pids = [{replica["pid"] for replica in server["replicas"].values()} for server in generations]
    assert len(pids[0] & pids[-1]) == same_processes


def check_continued(ran: Ran) -> None:
    """A later session goes on after the last window without a loss."""
    before = continued(load_run(ran.folder))
    kept = [window.index for window in before.windows]
    assert kept == list(range(len(kept)))
    lost = {window.index for window in before.windows if window.evidence.loss}
    assert not kept or kept[-1] not in lost
    assert all(ran.reasons[index] for index in lost)
    assert lost >= {index for index in kept if ran.reasons[index] == "replica_lost"}
    assert before.elapsed_s < EXPERIMENT.search.budget_s


def test_a_node_that_stays_away_ends_the_sweep_with_everything_saved(run: Callable[..., Ran]) -> None:
    """The last test of the file: the session has two nodes after it."""
    ran = run(node_is_lost, LAST_LIMIT_S)
    assert ran.tree["exit_code"] == summary.EXIT_TARGET, ran.tree["reason"]
    assert f"not whole again within {LAST_LIMIT_S} s: 2 of 3 replicas" in ran.tree["reason"]
    check_rows(ran)
