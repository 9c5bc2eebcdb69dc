"""The nodes of a cluster, and whether a head runs here: preflight without a cluster says so at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from cluster import __main__ as command
from cluster.__main__ import EXIT_CLUSTER
from cluster.ray_session import placement
from cluster.ray_session.placement import PlacementError, require_nodes
from conf.specs.experiment import Cluster


@pytest.mark.parametrize("gpus", [[8, 8], [0, 8, 8], [8, 16, 8]])
def test_enough_nodes(gpus: list[float]) -> None:
    require_nodes(Cluster("it", session="fake", nodes=2), gpus)


@pytest.mark.parametrize("gpus", [[], [8], [0, 4, 8], [16]])
def test_too_few_nodes_are_named(gpus: list[float]) -> None:
    with pytest.raises(PlacementError, match=r"cluster\.nodes=2 but Ray knows [01] nodes with 8 GPUs"):
        require_nodes(Cluster("it", session="fake", nodes=2), gpus)


def processes(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (folder / str(number)).mkdir()
        (folder / str(number) / "comm").write_text(f"{name}\n")
    return folder


@pytest.mark.parametrize(
    ("address", "variable", "names", "is_missing"),
    [
        ("auto", "", ["bash", "python"], True),
        ("auto", "", ["bash", "gcs_server"], False),
        ("auto", "10.0.0.1:6379", ["bash"], False),
        ("10.0.0.1:6379", "", ["bash"], False),
    ],
)
def test_a_cluster_is_missing_where_nothing_leads_to_one(
    address: str,
    variable: str,
    names: list[str],
    is_missing: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(placement.ADDRESS, variable)
    assert placement.head_is_missing(address, processes(tmp_path, *names)) == is_missing


def test_without_a_list_of_processes_nothing_is_refused(tmp_path: Path) -> None:
    assert not placement.head_is_missing("auto", tmp_path / "none")


def test_preflight_without_a_cluster_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "head_is_missing", lambda address: address == "auto")
    assert command.main(["preflight", "cluster=mi325x_1n", "engine=vllm"]) == EXIT_CLUSTER
    said = capsys.readouterr()
    assert said.err == f"error: {placement.NO_CLUSTER}\n" and said.out == ""


def test_the_look_needs_no_ray() -> None:
    code = "import sys; from cluster.ray_session import placement; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
