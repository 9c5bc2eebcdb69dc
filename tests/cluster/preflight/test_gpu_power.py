"""Power of a node: the kernel's files, what tools print, and what is not believed."""

import json
import time
from pathlib import Path

import pytest

from cluster.preflight.gpu_facts import run_tool
from cluster.preflight.gpu_power import PowerReading, amd_watts, read_power
from tests.support.machine.power_tree import power_tree, write

# The shapes of ROCm 6 (a list) and of ROCm 7 (a wrapper: documents of AMD's device metrics exporter).
AMD_LIST = """WARNING: User is missing the following required groups: render, video.
[{"gpu": 0, "power": {"socket_power": {"value": 142, "unit": "W"}, "gfx_voltage": "N/A"}},
 {"gpu": 1, "power": {"socket_power": "N/A", "average_socket_power": {"value": 90}}},
 {"gpu": 2, "power": {"socket_power": "N/A"}}, {"gpu": 3, "power": "N/A"},
 {"gpu": 4, "power": {"socket_power": {"value": 142000, "unit": "mW"}}}]"""
AMD_WRAPPED = '{"gpu_data": [{"gpu": 1, "power": {"socket_power": 717}}, {"gpu": 0, "power": {}}]}'
NOBODY = "neither the kernel nor amd-smi tells the power of a GPU"


def nothing(command: list[str]) -> str | None:
    return None


def test_amd_smi_tells_watts_in_old_and_new_shapes() -> None:
    assert amd_watts(AMD_LIST) == (142.0, 90.0, None, None, None)
    assert amd_watts(AMD_WRAPPED) == (None, 717.0)


@pytest.mark.parametrize(
    "text", ["", "not json", "[", "[1]", '[{"gpu": 0, "power": {"socket_power": {"value": -1}}}]']
)
def test_amd_smi_without_a_figure_tells_no_watts(text: str) -> None:
    assert not any(amd_watts(text))


def test_the_kernel_tells_the_watts_of_every_gpu(tmp_path: Path) -> None:
    power_tree(tmp_path, [700e6, 131.5e6])
    assert read_power(tmp_path, nothing) == PowerReading((700.0, 131.5), None, "hwmon")


def test_an_average_is_better_than_a_moment(tmp_path: Path) -> None:
    (card,) = power_tree(tmp_path, [700e6])
    write(tmp_path, {f"{card}/hwmon/hwmon3/power1_average": "650000000\n"})
    assert read_power(tmp_path, nothing).gpu_watts == (650.0,)


@pytest.mark.parametrize("said", ["", "0", "-95", "4294967201", "much", "nan"])
def test_what_is_no_power_is_unknown_and_never_zero(tmp_path: Path, said: str) -> None:
    first, _ = power_tree(tmp_path, [1.0, 500e6])
    write(tmp_path, {f"{first}/hwmon/hwmon3/power1_input": said})
    assert read_power(tmp_path, nothing).gpu_watts == (None, 500.0)


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
    assert read_power(tmp_path, nothing) == PowerReading((700.0,), None, "hwmon")


def test_the_meter_of_a_machine_stands_beside_its_gpus(tmp_path: Path) -> None:
    power_tree(tmp_path, [700e6, 700e6], meter_microwatts=2.4e9)
    assert read_power(tmp_path, nothing) == PowerReading((700.0, 700.0), 2400.0, "hwmon")


def test_a_tool_is_asked_where_the_kernel_says_nothing(tmp_path: Path) -> None:
    asked = []

    def tool(command: list[str]) -> str | None:
        asked.append(command[0])
        return AMD_WRAPPED if command[0] == "amd-smi" else None

    assert read_power(tmp_path, tool) == PowerReading((None, 717.0), None, "amd-smi")
    assert asked == ["amd-smi"]
    asked.clear()
    power_tree(tmp_path, [700e6])
    assert read_power(tmp_path, tool).source == "hwmon" and not asked


def test_a_node_that_tells_nothing_says_so(tmp_path: Path) -> None:
    assert read_power(tmp_path, nothing) == PowerReading(error=NOBODY)


def executable(folder: Path, name: str, script: str) -> None:
    folder.joinpath(name).write_text(f"#!/bin/sh\n{script}\n")
    folder.joinpath(name).chmod(0o755)


def test_a_program_on_the_path_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    said = json.dumps([{"gpu": 0, "power": {"socket_power": {"value": 421, "unit": "W"}}}])
    executable(tmp_path, "amd-smi", f"[ \"$*\" = 'metric --power --json' ] && echo '{said}'")
    assert read_power(tmp_path, run_tool) == PowerReading((421.0,), None, "amd-smi")


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


def test_output_that_is_no_text_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    executable(tmp_path, "odd-smi", r"printf '\377ok'")
    assert run_tool(["odd-smi"]) == "\N{REPLACEMENT CHARACTER}ok"
