"""Power of the nodes, read from a tree of files; with actors in this process instead of Ray's."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.preflight import gpus
from cluster.preflight.gpus import PowerMeter, PowerReading, read_power, run_tool
from tests.support.machine.node_files import install_amdsmi, power_tree, write

NO_SOURCE = "neither hwmon nor amdsmi reports the power of a GPU"
MI325X = {"power": {"socket_power": 717, "current_socket_power": 717, "average_socket_power": "N/A"}}
OLDER = {"power": {"current_socket_power": "N/A", "average_socket_power": 90}}


def test_an_average_is_better_than_a_moment(tmp_path: Path) -> None:
    (card,) = power_tree(tmp_path, [700e6])
    write(tmp_path, {f"{card}/hwmon/hwmon3/power1_average": "650000000\n"})
    assert read_power(tmp_path).gpu_watts == (650.0,)


@pytest.mark.parametrize("message", ["", "0", "-95", "4294967201", "much", "nan"])
def test_what_is_no_power_is_unknown_and_never_zero(tmp_path: Path, message: str) -> None:
    first, _ = power_tree(tmp_path, [1.0, 500e6])
    write(tmp_path, {f"{first}/hwmon/hwmon3/power1_input": message})
    assert read_power(tmp_path).gpu_watts == (None, 500.0)


def test_partitions_and_gpus_of_others_are_not_counted(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    power_tree(tmp_path, [700e6])
    write(
        tmp_path, {f"{nodes}/2/properties": "simd_count 304\ndrm_render_minor 136\n"}
    )  # no sensor of its own
    write(tmp_path, {"sys/class/drm/renderD140/device/hwmon/hwmon9/power1_input": "600000000"})  # not ours
    meter = {"name": "power_meter", "power1_average": "9000000000"}
    write(tmp_path, {f"sys/class/hwmon/hwmon0/{name}": text for name, text in meter.items()})
    # The meter is of the whole machine, and we are only a part of it.
    assert read_power(tmp_path) == PowerReading((700.0,), None, "hwmon")


def test_the_meter_of_a_machine_stands_beside_its_gpus(tmp_path: Path) -> None:
    power_tree(tmp_path, [700e6, 131.5e6], meter_microwatts=2.4e9)
    assert read_power(tmp_path) == PowerReading((700.0, 131.5), 2400.0, "hwmon")


def test_the_module_amdsmi_reports_what_the_kernel_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    implausible = {"power": {"socket_power": -1, "current_socket_power": 65535}}
    install_amdsmi(monkeypatch, [{}, MI325X, OLDER, implausible])
    assert read_power(tmp_path) == PowerReading((None, 717.0, 90.0, None), None, "amdsmi")
    power_tree(tmp_path, [700e6])
    assert read_power(tmp_path) == PowerReading((700.0,), None, "hwmon")


def test_a_node_without_any_reading_gives_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_power(tmp_path) == PowerReading(error=NO_SOURCE)
    install_amdsmi(monkeypatch, [MI325X], has_driver=False)
    assert read_power(tmp_path) == PowerReading(error=NO_SOURCE)
    install_amdsmi(monkeypatch, [{}, {}])
    assert read_power(tmp_path) == PowerReading(error=NO_SOURCE)


def executable(folder: Path, name: str, script: str) -> None:
    folder.joinpath(name).write_text(f"#!/bin/sh\n{script}\n")
    folder.joinpath(name).chmod(0o755)


@pytest.mark.parametrize(
    "script",
    ["exec yes", "yes & wait", "sleep 600 & wait", "echo 1; exit 3", "exec >&-; exec sleep 600"],
    ids=["endless", "endless child", "silent child", "fails", "closed and silent"],
)
def test_a_tool_is_bounded_in_time_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    executable(tmp_path, "odd-smi", script)
    began_s = time.monotonic()
    assert run_tool(["odd-smi"], 0.5) is None
    assert time.monotonic() - began_s < 300  # not the 600 of its sleep


DURING_S = 0.2
A, B = "a" * 56, "b" * 56
"""Ray's ids of two nodes."""


@dataclass
class FakeRay:
    """Actors in this process, numbered from 1; those in `silent` do not answer yet."""

    during_read: Callable[[], None] = lambda: None
    made: int = 0
    silent: set[Any] = field(default_factory=set)

    def remote(self, **_: Any) -> Callable[[type], Any]:
        return lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._actor))

    def _actor(self, root: Any) -> Any:
        self.made += 1
        number = self.made

        def read() -> Any:
            self.during_read()
            return (number, object())

        return SimpleNamespace(read=SimpleNamespace(remote=read))

    def wait(self, answers: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return [answer for answer in answers if answer[0] not in self.silent], []

    def get(self, answer: Any) -> PowerReading:
        return PowerReading((float(answer[0]),), source="hwmon")

    def kill(self, actor: Any) -> None:
        pass


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(gpus, "ray", fake)
    return fake


def test_an_answer_of_a_node_that_was_left_meanwhile_is_not_waited_for_again(ray: FakeRay) -> None:
    meter = PowerMeter({A: "node"})
    leaving = threading.Thread(target=meter.follow, args=({},))

    def leave() -> None:
        ray.during_read = lambda: None
        leaving.start()
        leaving.join(DURING_S)

    ray.during_read, ray.silent = leave, {1}
    assert meter.read() == []
    leaving.join()
    meter.follow({A: "node"})
    (row,) = meter.read()
    assert row["gpu_watts"] == (2.0,), "the new actor answers, not the one that was killed"


def test_a_late_answer_is_part_of_the_next_reading(ray: FakeRay) -> None:
    meter = PowerMeter({A: "first", B: "second"})
    ray.silent = {1}
    assert len(meter.read()) == 1
    ray.silent = set()
    assert {row["node"] for row in meter.read()} == {"first", "second"}
    meter.close()
    assert meter.nodes == () and meter.read() == []
