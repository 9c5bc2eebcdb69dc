"""Limits of this process that a session of our own cannot live with, and what the remedy says."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.ray_session import serve_settings
from cluster.ray_session.own_machine import HeldPorts
from cluster.ray_session.serve_settings import (
    FILES_OF_A_STREAM,
    LEAST_FILES,
    MOST_STREAMS,
    PORT_NAMES,
    SPARE_FILES,
    front_streams,
    own_environment,
    serve_environment,
    shortage,
)
from conf.specs.experiment import Routing

UNLIMITED = resource.RLIM_INFINITY
START = """
import resource, sys
from pathlib import Path
from cluster.ray_session.session import SessionError, open_session
from conf.specs.experiment import Cluster
resource.setrlimit(getattr(resource, sys.argv[1]), (int(sys.argv[2]), int(sys.argv[3])))
try:
    open_session(Cluster("c", session="local", nodes=1, gpus_per_node=1), None).__enter__()
except SessionError as error:
    print(error)
"""


def limited(monkeypatch: pytest.MonkeyPatch, files: int = UNLIMITED, space: int = UNLIMITED) -> None:
    told = {
        resource.RLIMIT_NOFILE: (min(files, 64) if files > 0 else 64, files),
        resource.RLIMIT_AS: (space, UNLIMITED),
    }
    monkeypatch.setattr(serve_settings.resource, "getrlimit", told.__getitem__)


def test_enough_is_no_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    for files in (LEAST_FILES, 65536, UNLIMITED):
        limited(monkeypatch, files)
        assert shortage() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "soft", "hard", "remedy"),
    [
        ("RLIMIT_NOFILE", 64, LEAST_FILES - 1, "ulimit -Hn"),
        ("RLIMIT_AS", 8 * 2**30, UNLIMITED, "ulimit -v unlimited"),
    ],
)
@pytest.mark.battery("wrong input")
def test_a_start_under_a_low_limit_says_what_to_raise_and_leaves_nothing(
    kind: str, soft: int, hard: int, remedy: str, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", START, kind, str(soft), str(hard)]
    env = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3]), "HOME": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert remedy in done.stdout and "port" not in done.stdout and done.stdout.count("\n") == 1
    assert list(tmp_path.glob("maxqps-*")) == []


@pytest.mark.parametrize(
    ("files", "streams"), [(UNLIMITED, MOST_STREAMS), (1_048_576, MOST_STREAMS), (20_000, 7795), (100, 1)]
)
def test_the_front_takes_as_many_streams_as_it_has_files_for(
    files: int, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, files)
    assert front_streams() == streams
    assert files < 0 or streams == 1 or FILES_OF_A_STREAM * streams + SPARE_FILES <= files
    with HeldPorts() as ports:
        made = own_environment(Path("folder"), Routing("leastconn"), ports)
    assert len({made[name] for name in PORT_NAMES}) == len(PORT_NAMES)
    assert made["RAY_SERVE_HAPROXY_MAXCONN"] == str(streams)
    assert serve_environment(Routing("leastconn"))["RAY_SERVE_HAPROXY_MAXCONN"] == str(MOST_STREAMS)
