"""`cluster.__main__`: `up`, `status`, `preflight`, `down`, and jobs submitted: one cluster, started once."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.results import summary
from analysis.results.runs import load_run
from cluster import __main__ as command
from cluster import local_verbs
from cluster.ray_session.processes import with_descendants
from tests.support.machine import tries
from tests.support.servers.sockets import LOOPBACK, listening

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("no_session")]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
WORDS = ("cluster=laptop_4n", "cluster.nodes=1")
ON_IT = (*WORDS, "cluster.session=address")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the state file is, so that a cluster of the person who runs the tests is left alone."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(autouse=True)
def in_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what runs in this process: it starts no Ray here."""
    monkeypatch.setenv("XDG_STATE_HOME", str(home))


@pytest.fixture(scope="module")
def run(home: Path) -> Run:
    def command_line(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        path = f"{BIN}:{os.environ['PATH']}"
        return subprocess.run(
            words,
            cwd=ROOT,
            env={**os.environ, "PATH": path, "XDG_STATE_HOME": str(home), **more},
            capture_output=True,
            text=True,
            timeout=600,
        )

    return command_line


@pytest.fixture(scope="module")
def standing(run: Run) -> Iterator[dict[str, Any]]:
    """A cluster of a load node and one with GPUs that is up; down at the end, whatever became of it."""
    try:
        done = run("python", "-m", "cluster", "up", *WORDS, "--json")
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)
    finally:
        run("python", "-m", "cluster", "down")


def processes_of(state: dict[str, Any]) -> set[int]:
    first = {pid for pid, _ in (*state["raylets"], *state["services"])}
    return {pid for pid, _ in with_descendants(first)}


def test_a_cluster_stays_up_and_shows_what_it_has(standing: dict[str, Any], run: Run) -> None:
    done = run("python", "-m", "cluster", "status", "--json")
    assert done.returncode == 0, done.stderr
    tree = json.loads(done.stdout)
    assert tree["address"] == standing["address"]
    assert [node["role"] for node in tree["nodes"]] == ["load", "gpu"]
    assert [node["resources"].get("GPU", 0) for node in tree["nodes"]] == [0, 8]
    assert tree["applications"] == {} and tree["processes_ended"] == 0
    people = "\n".join(local_verbs._status_lines(tree))
    assert people.count("alive") == 2 and "application  none" in people


def test_it_listens_on_loopback_only_and_shows_no_token(standing: dict[str, Any], home: Path) -> None:
    state = json.loads((home / "maxqps" / "cluster.json").read_text())
    found = listening(processes_of(state))
    assert found and set(found) <= LOOPBACK, found
    environment = standing["environment"]
    token_file = Path(environment["RAY_AUTH_TOKEN_PATH"])
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    token = token_file.read_text()
    file = Path(standing["environment_file"]).read_text()
    assert token not in json.dumps([standing, state]) + file
    assert all(f"export {name}=" in file for name in environment)


def test_up_is_idempotent_and_another_cluster_is_refused(
    standing: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["up", *WORDS]) == 0
    again = capsys.readouterr().out
    assert standing["address"] in again
    assert "python -m loadgen sweep cluster=laptop_4n cluster.nodes=1 cluster.session=address\n" in again
    assert command.main(["up", "cluster=laptop"]) == 5
    assert "stop it first: python -m cluster down" in capsys.readouterr().err


def test_a_stranger_without_the_token_is_refused(standing: dict[str, Any]) -> None:
    host, port = standing["dashboard"].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as stranger:
        stranger.sendall(b"GET /api/jobs/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert b" 401 " in stranger.recv(1000).partition(b"\r\n")[0]


def test_preflight_looks_at_every_node(standing: dict[str, Any], run: Run) -> None:
    done = run("python", "-m", "cluster", "preflight", *ON_IT, "--json", **standing["environment"])
    assert done.returncode in (0, 5), done.stderr  # something may listen on Serve's port
    assert len(json.loads(done.stdout)["nodes"]) == 2


def submit(run: Run, standing: dict[str, Any], *words: str) -> subprocess.CompletedProcess[str]:
    """The command that `up` prints: a copy of the working directory travels to a node for load."""
    options = ("--working-dir", ".", "--entrypoint-num-cpus", "1")
    chosen = ("--entrypoint-label-selector", '{"role":"load"}')
    job = ("python", "-m", "loadgen", *words)
    return run("ray", "job", "submit", *options, *chosen, "--", *job, **standing["environment"])


def test_a_probe_as_a_job_leaves_its_run_folder(standing: dict[str, Any], run: Run, tmp_path: Path) -> None:
    load = ("workload=smoke", "workload.output_tokens.mean=4", "concurrency=8", "requests=110")

    def probed(number: int) -> dict[str, Any]:
        done = submit(run, standing, "probe", *ON_IT, *load, f"out={tmp_path}", f"run=job-{number}")
        said = done.stdout + done.stderr
        assert (tmp_path / f"job-{number}" / "sweep.json").exists(), said
        job = load_run(tmp_path / f"job-{number}")
        assert job.sweep is not None and job.config.cluster.session == "address"
        code = job.sweep["exit_code"]
        assert (done.returncode == 0) == (code == 0)
        assert "succeeded" in said if code == 0 else f"exit code {code}" in said
        return job.sweep

    tree = tries.valid(probed)
    assert tree["exit_code"] == summary.EXIT_OK, tree["reason"]


def test_a_job_that_is_refused_fails(standing: dict[str, Any], run: Run) -> None:
    done = submit(run, standing, "probe", *ON_IT, "rate_qps=-1")
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "rate_qps" in said and "exit code 2" in said


def test_down_ends_exactly_that(
    standing: dict[str, Any], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last test of the file: the cluster is gone after it."""
    state = json.loads((home / "maxqps" / "cluster.json").read_text())
    ours = processes_of(state)
    stranger = subprocess.Popen(["sleep", "60"], env={**os.environ, **standing["environment"]})
    try:
        assert command.main(["down"]) == 0
        assert "left         nothing" in capsys.readouterr().out
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in ours)
    assert not Path(state["folder"]).exists() and not list(home.rglob("*.json"))
    assert command.main(["status"]) == 5
    assert "no cluster is up here" in capsys.readouterr().err
    assert command.main(["down", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": None, "left": []}
