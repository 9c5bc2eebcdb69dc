"""cluster.ray_session.up on conf.io.durable: the note of a cluster is whole, and one command writes it."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cluster import __main__ as command
from cluster.ray_session import up
from cluster.ray_session.processes import process_of
from cluster.ray_session.session import SessionError
from conf.io import durable
from conf.specs.experiment import Cluster, Routing

ASKED = Cluster("here", session="fake"), Routing("leastconn"), 1.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ExitStack]:
    """Clusters that were started; each is made of one process that sleeps."""
    made: list[ExitStack] = []

    def start(cluster: Cluster, routing: Routing, load_cpus: float, undo: ExitStack) -> up.StandingCluster:
        made.append(undo)
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        undo.callback(process.wait)
        undo.callback(process.kill)
        folder = tmp_path / f"ray-{len(made)}"
        folder.mkdir()
        told: dict[str, Any] = {
            "cluster": up.asdict(cluster),
            "routing": up.asdict(routing),
            "load_cpus": load_cpus,
        }
        services = (process_of(process.pid),)
        return up.StandingCluster(
            str(folder), "127.0.0.1:1", "http://127.0.0.1:2", **told, raylets=(), services=services
        )

    monkeypatch.setattr(up, "_start", start)
    return made


def test_a_second_up_finds_what_the_first_started_and_down_ends_it(
    starts: list[ExitStack], home: Path
) -> None:
    made = up.start(*ASKED)
    assert up.start(*ASKED) == made == up.standing() and len(starts) == 1
    assert [path.name for path in up.state_file().parent.iterdir()] != ["cluster.tmp"]
    assert up.stop() == (made, [])
    assert up.stop() == (None, []) and up.standing() is None


def test_while_one_command_is_at_work_another_is_refused(
    starts: list[ExitStack], capsys: pytest.CaptureFixture[str]
) -> None:
    with up._alone():
        for act in (lambda: up.start(*ASKED), up.stop):
            with pytest.raises(
                SessionError, match="another `python -m cluster up` or `down` is at work here"
            ):
                act()
        assert command.main(["down"]) == command.EXIT_CLUSTER
    assert "try again when it has ended" in capsys.readouterr().err
    assert not starts and up.standing() is None


def test_a_note_that_cannot_be_written_leaves_the_old_one_whole_and_no_cluster(
    starts: list[ExitStack], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {"half": "of a cluster"}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable.os, "fsync", full)
    with pytest.raises(SessionError, match=r"cannot write .*cluster\.json: .*No space left"):
        up.start(*ASKED)
    assert len(starts) == 1 and up.standing() is None
    up.state_file().write_text(json.dumps(old))
    with pytest.raises(SessionError, match="delete it"):
        up.start(*ASKED)
    assert json.loads(up.state_file().read_text()) == old
