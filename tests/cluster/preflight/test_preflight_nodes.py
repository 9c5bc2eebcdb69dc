"""`cluster.preflight.preflight` on real Ray nodes: all answer, one is silent, one is gone."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from cluster.preflight import preflight
from cluster.preflight.checks import InspectedNode
from cluster.preflight.gpus import PowerMeter
from cluster.preflight.preflight import PreflightReport, expected_of, inspect, with_devices
from cluster.ray_session.session import gather
from conf import load
from tests.support.machine.node_files import HEALTHY, power_tree
from tests.support.machine.patience import PATIENCE_S, until
from tests.support.machine.shared_session import SharedSession

pytestmark = [pytest.mark.ray, pytest.mark.slow]

EXPERIMENT = load(["cluster=laptop_4n", "cluster.nodes=1"])
EXPECTED = expected_of(EXPERIMENT, {})


@pytest.fixture(scope="module", autouse=True)
def session(shared_session: SharedSession) -> None:
    """A head for load actors and a fake node of eight GPUs, without Serve."""
    shared_session.of(EXPERIMENT.cluster, None)


def statuses(report: PreflightReport, check: str) -> list[str]:
    return [finding.status for finding in report.findings if finding.check == check]


def test_every_node_of_a_session_tells_of_itself() -> None:
    report = inspect(EXPECTED)
    assert len(set(report.nodes)) == 2
    assert report.exit_code == 0, report.lines()
    assert statuses(report, "node") == []
    assert statuses(report, "ray") == statuses(report, "python") == statuses(report, "maxqps") == ["pass"]
    assert len(statuses(report, "open files")) == 2
    # One node serves with GPUs that are only told to Ray; of the head only its load actors matter.
    assert statuses(report, "GPUs in Ray") == ["unknown"]
    # One clock for all: never off, and known unless the machine is too busy for round trips of 2 ms.
    assert set(statuses(report, "clock")) <= {"pass", "unknown"}
    assert "not measured" not in {finding.figure for finding in report.findings if finding.check == "clock"}
    json.dumps(report.tree())


def test_the_gpus_of_a_node_are_held_all_at_once_and_each_is_tried() -> None:
    real = replace(HEALTHY, facts={"torch": "of whom the tests have none"})
    node = InspectedNode("real", "gpu", 8.0, False, real)
    (seen,) = with_devices({a_serving_node(): node}, EXPECTED).values()
    assert seen.devices == {str(device): None for device in range(8)}


def test_more_nodes_than_there_are_fail() -> None:
    report = inspect(replace(EXPECTED, nodes=2))
    assert statuses(report, "serving nodes") == ["fail"]
    assert report.exit_code == 5


def test_the_power_of_every_node_is_read_and_one_that_is_gone_says_so(tmp_path: Path) -> None:
    """The nodes share the files of a made-up machine; `idle` and time are the driver's."""
    power_tree(tmp_path, [700e6, 131e6], meter_microwatts=2.4e9)
    names = {node["NodeID"]: node["Labels"].get("role", "") for node in ray.nodes() if node["Alive"]}
    meter = PowerMeter({**names, "e" * 56: "nowhere"}, tmp_path)
    heard: dict[str, dict[str, Any]] = {}

    def read() -> bool:
        heard.update({row["node"]: row for row in meter.read()})
        return heard.keys() == set(meter.nodes)

    until(read)
    gone = heard.pop("nowhere")
    assert gone["error"] and not gone["gpu_watts"] and len(heard) == 2
    told = {"gpu_watts": (700.0, 131.0), "node_watts": 2400.0, "source": "hwmon", "error": None}
    assert all(row == {"node": name, **told} for name, row in heard.items())
    meter.follow({node: name for node, name in names.items() if name == "gpu"})
    heard.clear()
    until(read)
    assert list(heard) == ["gpu"]
    meter.close()
    assert meter.nodes == () and meter.read() == []


@contextmanager
def silent(node: str) -> Iterator[None]:
    """Stop the Ray processes of one node, as a hung host does, and let them go on afterwards."""
    stopped = raylets(node)
    assert stopped, f"no raylet of {node}"
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def raylets(node: str) -> list[int]:
    started = [(process.pid, process.info["cmdline"] or [""]) for process in psutil.process_iter(["cmdline"])]
    return [
        pid for pid, (program, *words) in started if program.endswith("/raylet") and node in " ".join(words)
    ]


def a_serving_node() -> str:
    return next(
        node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Labels"].get("role") == "gpu"
    )


def test_a_node_that_hangs_fails_and_the_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    hung = a_serving_node()

    def gathered(tasks: dict[str, Any], *how: Any) -> Any:
        """The time-out begins when all others have answered, however busy the machine is."""
        others = [task for node, task in tasks.items() if node != hung]
        ray.wait(others, num_returns=len(others), timeout=PATIENCE_S)
        return gather(tasks, *how)

    monkeypatch.setattr(preflight, "gather", gathered)
    with silent(hung):
        report = inspect(replace(EXPECTED, node_timeout_s=2.0))
    unheard = [finding for finding in report.findings if finding.check == "node"]
    assert [(found.status, found.figure) for found in unheard] == [("fail", "no answer in 2 s")]
    assert hung[:6] in unheard[0].node
    assert len(statuses(report, "open files")) == 1
    assert report.exit_code == 5


def test_a_task_that_raises_fails_with_its_line() -> None:
    report = inspect(replace(EXPECTED, model_path="\0"))  # no path can have it
    assert statuses(report, "node") == ["fail"] * 2
    assert all("null" in finding.figure for finding in report.findings if finding.check == "node")


def test_a_node_that_is_gone_is_missed() -> None:
    gone = a_serving_node()
    for pid in raylets(gone):
        os.kill(pid, signal.SIGTERM)  # it says goodbye; after a kill Ray waits for it
    until(lambda: not any(node["Alive"] and node["NodeID"] == gone for node in ray.nodes()))
    report = inspect(EXPECTED)
    assert statuses(report, "serving nodes") == ["fail"]
    assert len(report.nodes) == 1
