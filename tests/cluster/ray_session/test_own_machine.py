"""Ports, folders, processes, limits and nodes of a session, and the watch over its hosts."""

import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster import __main__ as command
from cluster.__main__ import EXIT_CLUSTER
from cluster.ray_session import host_watch, own_machine
from cluster.ray_session.host_watch import HostLog, HostWatch, WatchedHost
from cluster.ray_session.own_machine import LEAST_FILES, MOST_STREAMS, HeldPorts, SessionError, require_nodes
from conf.host_outage import HostOutage
from conf.specs.experiment import Cluster, Routing
from tests.support.machine.patience import until


def bound(port: int, reuse: bool) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    server.bind((own_machine.LOOPBACK, port))
    return server


def test_a_held_port_is_for_a_server_that_reuses_addresses_alone() -> None:
    with HeldPorts() as ports:
        port = ports.another()
        with pytest.raises(OSError, match="in use"):
            bound(port, reuse=False)
        for _ in range(2):  # as HAProxy, which is started again when it dies
            with bound(port, reuse=True) as server:
                server.listen()
    bound(port, reuse=False).close()


def test_two_sessions_never_choose_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_machine, "PORTS", own_machine.PORTS[:64])
    with HeldPorts() as ours, HeldPorts() as theirs:
        chosen = [ports.another() for ports in (ours, theirs) for _ in range(20)]
    assert len(set(chosen)) == len(chosen)


def made_with(tmpdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of a new folder with this TMPDIR; the folder is removed again."""
    monkeypatch.setenv("TMPDIR", str(tmpdir))
    folder = own_machine.new_folder()
    try:
        assert (folder / "token").stat().st_mode & 0o777 == 0o600
        # Its output stays open for as long as its watcher runs.
        assert subprocess.run([folder / "haproxy", "-v"], stdout=subprocess.DEVNULL).returncode == 0
        return folder.parent
    finally:
        shutil.rmtree(folder)


def without_programs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `place` be on a file system that is mounted noexec."""
    run = subprocess.run

    def denied(command: list[Path], **settings: Any) -> Any:
        if command[0].is_relative_to(place):
            raise PermissionError(13, "Permission denied", str(command[0]))
        return run(command, **settings)

    monkeypatch.setattr(own_machine.subprocess, "run", denied)


def test_the_folder_of_tmpdir_is_taken_where_the_sockets_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_machine, "LONGEST", len(str(tmp_path)))
    assert made_with(tmp_path, monkeypatch) == tmp_path
    monkeypatch.setattr(own_machine, "LONGEST", len(str(tmp_path)) - 1)
    assert made_with(tmp_path, monkeypatch) == Path("/tmp")


def test_another_place_is_taken_where_tmpdir_runs_no_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_machine, "LONGEST", len(str(tmp_path)))
    without_programs(tmp_path, monkeypatch)
    assert made_with(tmp_path, monkeypatch) == Path("/tmp")
    assert list(tmp_path.iterdir()) == []


def test_every_place_that_cannot_be_taken_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_machine, "LONGEST", len("/var/tmp"))
    monkeypatch.setenv("HOME", "/nowhere")
    without_programs(Path("/"), monkeypatch)
    with pytest.raises(SessionError) as caught:
        made_with(tmp_path, monkeypatch)
    message = str(caught.value)
    assert f"{tmp_path}: its path has more than 8 characters" in message
    assert "/tmp: no program may run there (noexec)" in message
    assert "/nowhere: No such file or directory; set TMPDIR to a folder with a short path" in message


SLEEP = "import sys, time; print(flush=True); time.sleep(600)"


@contextmanager
def sleeping(*words: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with these words in its command line, which has begun to run."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEP, *words], env={**os.environ, **environment}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_only_processes_of_the_session_end_and_no_editor_of_its_files(tmp_path: Path) -> None:
    log = f"{tmp_path}/session/logs/raylet.out"
    with ExitStack() as started:
        left_over = started.enter_context(sleeping(log, RAY_TMPDIR=str(tmp_path)))
        editor = started.enter_context(sleeping(log))
        other = started.enter_context(sleeping(log, RAY_TMPDIR=f"{tmp_path}-2"))
        load = started.enter_context(sleeping("load", RAY_TMPDIR=str(tmp_path)))
        own_machine.kill_processes_of(tmp_path)
        assert left_over.wait(30) == -9
        assert [process.poll() for process in (editor, other, load)] == [None] * 3


@pytest.mark.parametrize("gpus", [[8, 8], [0, 8, 8], [8, 16, 8]])
def test_enough_nodes(gpus: list[float]) -> None:
    require_nodes(Cluster("it", session="fake", nodes=2), gpus)


@pytest.mark.parametrize("gpus", [[], [8], [0, 4, 8], [16]])
def test_too_few_nodes_are_named(gpus: list[float]) -> None:
    with pytest.raises(
        own_machine.PlacementError, match=r"cluster\.nodes=2 but Ray knows [01] nodes with 8 GPUs"
    ):
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
    monkeypatch.setenv(own_machine.ADDRESS, variable)
    assert own_machine.head_is_missing(address, processes(tmp_path, *names)) == is_missing
    assert not own_machine.head_is_missing(address, tmp_path / "no list of processes")


def test_preflight_without_a_cluster_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "head_is_missing", lambda address: address == "auto")
    assert command.main(["preflight", "cluster=mi325x_1n", "engine=vllm"]) == EXIT_CLUSTER
    output = capsys.readouterr()
    assert output.err == f"error: {own_machine.NO_CLUSTER}\n" and output.out == ""


def test_the_look_needs_no_ray() -> None:
    code = "import sys; from cluster.ray_session import own_machine; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


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
    monkeypatch.setattr(own_machine.resource, "getrlimit", told.__getitem__)


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
    assert own_machine.front_streams() == streams
    assert (own_machine.shortage() is None) == (files < 0 or files >= LEAST_FILES)
    needed = own_machine.FILES_OF_A_STREAM * streams + own_machine.SPARE_FILES
    assert files < 0 or streams == 1 or needed <= files
    with HeldPorts() as ports:
        made = own_machine.own_environment(Path("folder"), Routing("leastconn"), ports)
    assert len({made[name] for name in own_machine.PORT_NAMES}) == len(own_machine.PORT_NAMES)
    assert made["RAY_SERVE_HAPROXY_MAXCONN"] == str(streams)
    joined = own_machine.serve_environment(Routing("leastconn"))
    assert joined["RAY_SERVE_HAPROXY_MAXCONN"] == str(MOST_STREAMS)


HOST = WatchedHost("load1", "10.0.0.9", 6380)


def test_an_outage_lasts_from_the_last_answer_to_the_next() -> None:
    log = HostLog(HOST)
    tries = [(0, "not yet"), (100,), (200,), (0, "timed out"), (0, "No route to host"), (900,), (950,)]
    for each in tries:
        log.note(*each)
    assert log.outages == [HostOutage("load1", "10.0.0.9", False, "timed out", 200, 900)]


class Cables:
    """Hosts by address, each of which answers unless its cable is cut."""

    def __init__(self) -> None:
        self.cut: set[str] = set()
        self.tries: dict[str, int] = defaultdict(int)
        self._lock = threading.Lock()

    def reach(self, host: WatchedHost) -> None:
        with self._lock:
            self.tries[host.address] += 1
            if host.address in self.cut:
                raise OSError(113, "No route to host")


@pytest.fixture
def cables(monkeypatch: pytest.MonkeyPatch) -> Cables:
    monkeypatch.setattr(host_watch, "PERIOD_S", 0.01)
    return Cables()


def test_a_host_that_is_cut_is_silent_until_it_is_back(cables: Cables) -> None:
    watch = HostWatch(cables.reach)
    watch.follow([HOST, WatchedHost("node1", "10.0.0.2", 6380, True)])
    until(lambda: len(cables.tries) == 2)
    cables.cut.add("10.0.0.2")
    until(watch.outages)
    (outage,) = watch.outages()
    assert (outage.name, outage.serves) == ("node1", True)
    assert (outage.reason, outage.until_ns) == ("No route to host", None)
    cables.cut.clear()
    watch.settle()
    (outage,) = watch.outages()
    assert outage.until_ns is not None and outage.until_ns > outage.from_ns
    watch.close()


@pytest.mark.parametrize(
    "instead", [WatchedHost("load2", "10.0.0.10", 6380), HOST], ids=["another host", "another role"]
)
def test_the_outage_of_a_host_that_was_replaced_ends(cables: Cables, instead: WatchedHost) -> None:
    watch = HostWatch(cables.reach)
    watch.follow([replace(HOST, serves=True)])
    until(lambda: cables.tries["10.0.0.9"] > 1)
    cables.cut.add("10.0.0.9")
    until(watch.outages)
    watch.follow([instead])
    assert [outage.until_ns is None for outage in watch.outages()] == [False]
    watch.close()
