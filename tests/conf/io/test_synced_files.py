"""`conf.io.durable`: what is synced, in which order, and what a failure leaves behind."""

import errno
import os
from pathlib import Path

import pytest

from conf.io import durable

REPLACE = Path.replace


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What was synced, renamed and made, in order, by names below the test's folder."""
    done: list[str] = []

    def synced(opened: int) -> None:
        done.append(f"sync {os.path.relpath(Path(f'/proc/self/fd/{opened}').readlink(), tmp_path)}")

    def replaced(path: Path, target: Path) -> Path:
        done.append(f"rename to {target.name}")
        return REPLACE(path, target)

    monkeypatch.setattr(durable.os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    return done


def test_a_file_is_synced_then_renamed_and_then_its_folder_is_synced(
    steps: list[str], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    durable.write_text(tmp_path / "run" / "sweep.json", "{}")
    assert steps == ["sync run/sweep.json.tmp", "rename to sweep.json", "sync run"]
    assert (tmp_path / "run" / "sweep.json").read_text() == "{}"


def test_the_name_of_each_new_folder_is_synced_in_the_folder_above(steps: list[str], tmp_path: Path) -> None:
    durable.folder(tmp_path / "a" / "b")
    assert steps == ["sync .", "sync a"] and (tmp_path / "a" / "b").is_dir()
    durable.folder(tmp_path / "a" / "b")
    assert len(steps) == 2


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_only_a_file_system_that_cannot_sync_folders_may_refuse_it(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuses(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(durable.os, "fsync", refuses)
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output"):
            durable.sync_folder(tmp_path)
    else:
        durable.sync_folder(tmp_path)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    durable.write_text(tmp_path / "sweep.json", "old")
    with pytest.raises(ValueError, match="cut"), durable.replacing(tmp_path / "sweep.json") as file:
        file.write(b"half")
        raise ValueError("cut")
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]
    assert (tmp_path / "sweep.json").read_text() == "old"


def test_a_link_of_a_stranger_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("mine")
    for name in ("sweep.json", "sweep.json.tmp"):
        (tmp_path / name).symlink_to(tmp_path / "foreign")
    durable.write_text(tmp_path / "sweep.json", "ours")
    assert (tmp_path / "foreign").read_text() == "mine"
    assert not (tmp_path / "sweep.json").is_symlink() and (tmp_path / "sweep.json").read_text() == "ours"
