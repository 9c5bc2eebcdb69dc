"""Finds run folders: paths, globs, the parts of a study, on any file system that Arrow knows.

`runs` reads what is in it.
"""

import atexit
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

import pyarrow as pa
from pyarrow import fs

from conf.io.one_line import one_line, plain, reason

MANIFEST = "manifest.json"
STUDY = "study.json"
REPORT = "report.html"
SUMS = "sums.json"
"""sha256 of a study's own files; those of a run stand in its manifest."""
KNOWN = 1
"""The schema_version of manifest.json, sweep.json and study.json that this version writes and reads."""
URI = re.compile(r"[a-z][a-z0-9+.-]+:")
MAGIC = frozenset("*?[")


class RunError(ValueError):
    """The folder is not a run, or a file in it is broken; one line."""


class NewerError(RunError):
    """A newer version wrote the file: what this one would read of it may be wrong."""


def local(place: Path | str, filesystem: fs.FileSystem | None = None) -> Path:
    """The folder `place` on this machine; of another file system a copy, kept until the process ends.

    `place` is a path, a URI, or a path within `filesystem`. Raises RunError where no run or study is found.
    """
    if filesystem is None and (not URI.match(str(place)) or Path(place).exists()):
        return Path(place)
    try:
        path = str(place)
        if filesystem is None:
            return _of_uri(path)
        return Path(path) if isinstance(filesystem, fs.LocalFileSystem) else _copy(filesystem, path, place)
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{place} cannot be opened: {reason(error)}") from error


@lru_cache(maxsize=64)
def _of_uri(uri: str) -> Path:
    filesystem, path = fs.FileSystem.from_uri(uri)
    return Path(path) if isinstance(filesystem, fs.LocalFileSystem) else _copy(filesystem, path, uri)


def folders(place: Path | str) -> list[Path]:
    """The run folders that a path, a glob or a URI means; a study's are those of its parts, in its order.

    What a glob finds beside runs and studies is left out. Raises RunError if there is no run.
    """
    places = [local(place)]
    if not places[0].exists() and MAGIC.intersection(str(place)):
        pattern = places[0]
        matching = Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))
        places = [path for path in sorted(matching) if _begun(path)]
    runs = [run for folder in places for run in _parts(folder)]
    if not runs:
        raise RunError(f"{place} holds no run folder; give one, a study, or a glob of them")
    return runs


def read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file. Raises RunError if it is broken, OSError if it is not there."""
    try:
        if path.exists() and not path.is_file():
            raise RunError(f"{path} is broken: it is no file")
        tree = plain(json.loads(path.read_bytes()))
    except RunError:
        raise
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is broken: {reason(error)}") from error
    if not isinstance(tree, dict):
        raise RunError(f"{path} is broken: it holds no object")
    _refuse_newer(path, tree.get("schema_version", KNOWN))
    return tree


def _refuse_newer(path: Path, version: object) -> None:
    if type(version) is not int or version < 1:
        raise RunError(f"{path} is broken: its schema_version is {one_line(str(version), 40)}")
    if version > KNOWN:
        raise NewerError(
            f"{path} has schema_version {one_line(str(version), 40)}, this version reads up to {KNOWN}; "
            "open it with the version that wrote it (manifest.json: versions) or a newer one"
        )


def part_names(folder: Path, study: Mapping[str, object]) -> list[str]:
    """A study's parts, folders within its own. Raises RunError for any other place."""
    names = study.get("names")
    if not isinstance(names, list):
        raise RunError(f"{folder} is not a readable study: {STUDY} lacks the names of its parts")
    for name in names:
        if name in ("", "..") or name != Path(str(name)).name:
            raise RunError(f"{folder} is not a readable study: its part '{name}' is not in its folder")
    return names


def _begun(folder: Path) -> bool:
    return (folder / MANIFEST).exists() or (folder / STUDY).exists()


def _parts(folder: Path) -> list[Path]:
    """A run's own folder, or those of a study's parts that have begun."""
    if not (folder / STUDY).exists():
        return [folder]
    parts = [folder / name for name in part_names(folder, read_json(folder / STUDY))]
    return [run for part in parts if _begun(part) for run in _parts(part)]


def _copy(filesystem: fs.FileSystem, path: str, place: Path | str) -> Path:
    """A copy of a run or study; of nothing else, for that may be a whole bucket."""
    path = path.rstrip("/")
    if filesystem.get_file_info(path).type == fs.FileType.NotFound:
        raise RunError(f"{place} cannot be opened: there is nothing")
    marks = filesystem.get_file_info([f"{path}/{MANIFEST}", f"{path}/{STUDY}"])
    if not any(mark.is_file for mark in marks):
        raise RunError(f"{place} is not a run folder: it has no {MANIFEST}")
    kept = tempfile.mkdtemp(prefix="maxqps-")
    atexit.register(shutil.rmtree, kept, ignore_errors=True)
    folder = Path(kept) / (PurePosixPath(path).name or "run")
    fs.copy_files(path, str(folder), filesystem, fs.LocalFileSystem())
    return folder
