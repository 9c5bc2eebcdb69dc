"""Ports, folders and processes of a session of our own."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.ray_session import own_machine
from cluster.ray_session.own_machine import LOOPBACK, HeldPorts, kill_processes_of
from cluster.ray_session.placement import SessionError


def bound(port: int, reuse: bool) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    server.bind((LOOPBACK, port))
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
    said = str(caught.value)
    assert f"{tmp_path}: its path has more than 8 characters" in said
    assert "/tmp: no program may run there (noexec)" in said
    assert "/nowhere: No such file or directory; set TMPDIR to a folder with a short path" in said


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
        kill_processes_of(tmp_path)
        assert left_over.wait(30) == -9
        assert [process.poll() for process in (editor, other, load)] == [None] * 3
