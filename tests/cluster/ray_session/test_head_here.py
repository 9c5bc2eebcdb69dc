"""cluster.ray_session.head_here: preflight without a cluster says so at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from cluster import __main__ as command
from cluster.command_line import EXIT_CLUSTER
from cluster.ray_session import head_here


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
    monkeypatch.setenv(head_here.ADDRESS, variable)
    assert head_here.is_missing(address, processes(tmp_path, *names)) == is_missing


def test_without_a_list_of_processes_nothing_is_refused(tmp_path: Path) -> None:
    assert not head_here.is_missing("auto", tmp_path / "none")


def test_preflight_without_a_cluster_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(head_here, "is_missing", lambda address: address == "auto")
    assert command.main(["preflight", "cluster=mi325x_1n", "engine=vllm"]) == EXIT_CLUSTER
    said = capsys.readouterr()
    assert said.err == f"error: {head_here.NO_CLUSTER}\n" and said.out == ""


def test_the_look_needs_no_ray() -> None:
    code = "import sys; from cluster.ray_session import head_here; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
