"""Where the private folder of a session lies: its sockets fit, and HAProxy's wrapper runs."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster.ray_session import private_folder
from cluster.ray_session.placement import SessionError


def made_with(tmpdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of a new folder with this TMPDIR; the folder is removed again."""
    monkeypatch.setenv("TMPDIR", str(tmpdir))
    folder = private_folder.new_folder()
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

    monkeypatch.setattr(private_folder.subprocess, "run", denied)


def test_the_folder_of_tmpdir_is_taken_where_the_sockets_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_folder, "LONGEST", len(str(tmp_path)))
    assert made_with(tmp_path, monkeypatch) == tmp_path
    monkeypatch.setattr(private_folder, "LONGEST", len(str(tmp_path)) - 1)
    assert made_with(tmp_path, monkeypatch) == Path("/tmp")


def test_another_place_is_taken_where_tmpdir_runs_no_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_folder, "LONGEST", len(str(tmp_path)))
    without_programs(tmp_path, monkeypatch)
    assert made_with(tmp_path, monkeypatch) == Path("/tmp")
    assert list(tmp_path.iterdir()) == []


def test_every_place_that_cannot_be_taken_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_folder, "LONGEST", len("/var/tmp"))
    monkeypatch.setenv("HOME", "/nowhere")
    without_programs(Path("/"), monkeypatch)
    with pytest.raises(SessionError) as caught:
        made_with(tmp_path, monkeypatch)
    said = str(caught.value)
    assert f"{tmp_path}: its path has more than 8 characters" in said
    assert "/tmp: no program may run there (noexec)" in said
    assert "/nowhere: No such file or directory; set TMPDIR to a folder with a short path" in said
