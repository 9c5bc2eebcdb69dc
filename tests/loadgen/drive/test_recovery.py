"""One sweep through everything that may happen to its service: each fault voids its window, then it goes on.

Three fake nodes of eight GPUs, and a head without any. In turn a replica dies, Serve's controller is
restarted, HAProxy is killed, a node is lost and another one comes; in the end a node is lost for good.
"""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from analysis import load_run
from analysis.results import summary
from analysis.results.json_border import to_tree
from conf import Experiment, load
from loadgen.run.measure import Site, continued, measure, search
from loadgen.run.run_folder import RunFolder
from loadgen.search.segments import Start
from tests.support.machine.patience import PATIENCE_S

pytestmark = pytest.mark.ray

ray = pytest.importorskip("ray")

from cluster.deployment.serve_state import state  # noqa: E402
from cluster.ray_session import session  # noqa: E402
from cluster.ray_session.held_ports import HeldPorts  # noqa: E402
from loadgen.cli.deployment import service  # noqa: E402
from loadgen.run.service import Service  # noqa: E402
from serve_apps.simulated.app import application_name  # noqa: E402

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
    "search.highest_qps=8",
    "search.window_s=3",
    "search.transition_s=1",
    "search.first_transition_s=1",
    "search.settle_s=5",
    "search.budget_s=300",
]
Nodes = list[Any]


def replica_dies(app_name: str, nodes: Nodes) -> None:
    victim = min(state(app_name).engines, key=lambda replica: replica.replica_id)
    ray.kill(ray.get_actor(victim.actor, "serve"))


def controller_restarts(app_name: str, nodes: Nodes) -> None:
    ray.kill(ray.get_actor(*session.SERVE_CONTROLLER), no_restart=False)


def haproxy_dies(app_name: str, nodes: Nodes) -> None:
    folder = os.fsencode(os.environ["RAY_TMPDIR"])
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # others come and go
            words = entry.joinpath("cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"haproxy") and any(folder in word for word in words):
                os.kill(int(entry.name), signal.SIGKILL)


def node_is_replaced(app_name: str, nodes: Nodes) -> None:
    """The new one comes when the loss is noticed: Ray starts nodes in the main thread only."""
    node_is_lost(app_name, nodes)


def node_is_lost(app_name: str, nodes: Nodes) -> None:
    cluster = nodes[0]
    cluster.remove_node(max(cluster.worker_nodes, key=lambda node: node.node_id), allow_graceful=False)


FAULTS = [replica_dies, controller_restarts, haproxy_dies, node_is_replaced, node_is_lost]


@dataclass
class Saboteur:
    """Listens to a run and does the next of `FAULTS` in a window, once the one before is over."""

    nodes: Nodes
    at: dict[str, float] = field(default_factory=dict)
    sound: int = 0
    _left: list[Callable[[str, Nodes], None]] = field(default_factory=lambda: list(FAULTS))
    _armed: bool = True

    def __call__(self, kind: str, /, **facts: Any) -> None:
        if kind == "fault" and list(self.at)[-1] == node_is_replaced.__name__:
            session._add_node(self.nodes[0], HeldPorts(), 1, 8, "gpu")
        elif kind == "recovered":
            self._armed, self.sound = True, 0
        elif kind == "segment_done":
            self.sound += facts["verdict"] != "VOID replica_lost"
        elif kind == "segment" and self._armed and self.sound and self._left:
            self._armed = False
            threading.Timer(1.0 + facts["transition_s"], self._act, [self._left.pop(0)]).start()

    def _act(self, fault: Callable[[str, Nodes], None]) -> None:
        self.at[fault.__name__] = time.time()
        fault(APP_NAME, self.nodes)


EXPERIMENT = load(WORDS)
APP_NAME = application_name(
    EXPERIMENT.engine, EXPERIMENT.model, EXPERIMENT.hardware, EXPERIMENT.layout, EXPERIMENT.routing
)


@dataclass(frozen=True)
class Ran:
    """The conclusion of the sweep, its folder, and when each fault was."""

    tree: dict[str, Any]
    folder: Path
    at: dict[str, float]

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, no_session: None) -> Iterator[Ran]:
    nodes: Nodes = []

    class Known(session.RayCluster):  # type: ignore[misc]
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            nodes.append(self)

    def start(experiment: Experiment, verb: str, emit: Any) -> tuple[Start, None]:
        return Start(8.0, 6.0), None

    saboteur = Saboteur(nodes)

    def hurried(served: Service) -> Service:
        """The same, but that the last fault is not waited for long."""
        recover = served.recover
        assert recover

        def back(limit_s: float) -> Service:
            lost_for_good = node_is_lost.__name__ in saboteur.at
            return hurried(recover(LAST_LIMIT_S if lost_for_good else limit_s))

        return replace(served, recover=back)

    @contextmanager
    def up(experiment: Experiment, emit: Any) -> Iterator[Service]:
        with service(experiment, emit) as served:
            yield hurried(served)

    folder = RunFolder.create(tmp_path_factory.mktemp("runs"), "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "RayCluster", Known)
        patch.setattr("loadgen.fleet.fleet.REPLY_TIMEOUT_S", PATIENCE_S)
        patch.setattr("loadgen.fleet.fleet.READY_TIMEOUT_S", PATIENCE_S)
        patch.setattr("loadgen.drive.loss_recovery.MOST_RECOVERIES", 2 * len(FAULTS))
        patch.setattr(
            "loadgen.drive.prepared_load.PIECE_S", 3.0
        )  # soon in steady state, also after each fault
        tree = to_tree(measure(EXPERIMENT, "sweep", folder, search, Site(start, up), saboteur))
    yield Ran(tree, folder.path, saboteur.at)


def test_a_node_that_stays_away_ends_the_sweep_with_everything_saved(ran: Ran) -> None:
    assert ran.tree["exit_code"] == summary.EXIT_TARGET, ran.tree["reason"]
    assert f"not whole again within {LIMIT_S} s: 2 of 3 replicas running in time" in ran.tree["reason"]
    rows = load_run(ran.folder).requests().to_pylist()
    assert len(rows) == len({row["seq"] for row in rows}) == RunFolder.planned_in(ran.folder)
    assert Counter(row["status"] for row in rows)["ok"] > 100


def test_every_other_fault_was_recovered_from(ran: Ran) -> None:
    assert list(ran.at) == [fault.__name__ for fault in FAULTS]
    first, *others, last = (recovery["reason"] for recovery in ran.tree["recoveries"])
    assert first.startswith("1 of 3 replicas gone") and last.startswith("1 of 3 replicas gone")
    # A busy machine may notice the loss of the controller or of HAProxy twice; the words depend on when.
    assert 2 <= len(others) <= 4, others
    assert all(recovery["waited_s"] < LIMIT_S for recovery in ran.tree["recoveries"])


def test_a_window_with_a_fault_in_it_is_void_and_others_are_used(ran: Ran) -> None:
    zero_s = ran.json("manifest.json")["clock"]["zero_wall_ns"] / 1e9
    lines = {line["index"]: line for line in ran.tree["dwells"]}
    windows = [e["window"] for e in load_run(ran.folder).events() if e["event"] == "segment_done"]
    struck = set()
    for window in windows:
        begin_s, end_s = (zero_s + window[f"window_{end}_ns"] / 1e9 for end in ("start", "end"))
        if any(begin_s <= at_s <= end_s for at_s in ran.at.values()):
            struck.add(window["index"])
    assert len(struck) >= 3, "on a busy machine one may fall between windows"
    assert {lines[index]["void_reason"] for index in struck} == {"replica_lost"}
    assert sum(line["void_reason"] != "replica_lost" for line in lines.values()) >= 5


def test_each_node_holds_one_replica_again_and_again(ran: Ran) -> None:
    manifest = ran.json("manifest.json")
    generations = [*manifest["servers_before"], manifest["server"]]
    assert len(generations) == len(ran.tree["recoveries"]) + 1
    for server in generations:
        assert len(server["replicas"]) == 3
        assert len({replica["node"] for replica in server["replicas"].values()}) == 3
        assert all(replica["stable"] is not None for replica in server["replicas"].values())
    head = {actor["node"] for actor in manifest["load_actors"]}
    assert not head & {replica["node"] for s in generations for replica in s["replicas"].values()}
    pids = [{replica["pid"] for replica in server["replicas"].values()} for server in generations]
    # A replica died; the controller and HAProxy were no replica; a node took one with it.
    first, *between, last = (len(before & after) for before, after in zip(pids, pids[1:], strict=False))
    assert (first, last) == (2, 2) and set(between) == {3}


def test_a_later_session_goes_on_from_there(ran: Ran) -> None:
    before = continued(load_run(ran.folder))
    kept = [segment.index for segment, *_ in before.segments]
    reasons = {line["index"]: line["void_reason"] for line in ran.tree["dwells"]}
    assert kept == list(range(len(kept)))
    lost = {segment.index for segment, *_, seen in before.segments if seen.loss}
    # It goes on after the last window without a loss; on a busy machine that may be an early one.
    assert not kept or kept[-1] not in lost
    assert all(reasons[index] for index in lost)
    assert lost >= {index for index in kept if reasons[index] == "replica_lost"}
    assert before.elapsed_s < EXPERIMENT.search.budget_s
