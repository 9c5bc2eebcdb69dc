"""Finds the folders of runs and studies on any file system that Arrow knows, and checks their files.

Nobody signs the checksums: a change of manifest.json along with another file goes unnoticed.
"""

import atexit
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
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


def local(place: Path | str) -> Path:
    """The folder at a path or a URI; of another file system a copy, kept until the process ends.

    Raises RunError where a URI has no run or study.
    """
    if not URI.match(str(place)) or Path(place).exists():
        return Path(place)
    try:
        return _copy(str(place))
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{place} cannot be opened: {reason(error)}") from error


def folders(place: Path | str) -> list[Path]:
    """The run folders that a path, a glob or a URI means; a study's are those of its parts, in its order.

    What a glob finds beside runs and studies is left out. Raises RunError if there is no run.
    """
    places = [local(place)]
    if not places[0].exists() and MAGIC.intersection(str(place)):
        pattern = places[0]
        matching = Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))
        places = [path for path in sorted(matching) if _begun(path)]
    runs = [run for folder in places for run in run_folders(folder)]
    if not runs:
        raise RunError(f"{place} holds no run folder; give one, a study, or a glob of them")
    return runs


def refuse_repeated(paths: Sequence[Path], why: str) -> None:
    """Raise RunError for a place that is there twice."""
    resolved = [path.resolve() for path in paths]
    for path, real in zip(paths, resolved, strict=True):
        if resolved.count(real) > 1:
            raise RunError(f"{path} is given twice; {why}")


def read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file. Raises RunError if it is broken, OSError if it is not there."""
    if path.exists() and not path.is_file():
        raise RunError(f"{path} is broken: it is no file")
    try:
        tree = plain(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is broken: {reason(error)}") from error
    if not isinstance(tree, dict):
        raise RunError(f"{path} is broken: it holds no object")
    version = tree.get("schema_version", KNOWN)
    shown = one_line(str(version), 40)
    if type(version) is not int or version < 1:
        raise RunError(f"{path} is broken: its schema_version is {shown}")
    if version > KNOWN:
        raise NewerError(
            f"{path} has schema_version {shown}, this version reads up to {KNOWN}; "
            "open it with the version that wrote it (manifest.json: versions) or a newer one"
        )
    return tree


def part_names(folder: Path, study: Mapping[str, object]) -> list[str]:
    """A study's parts, folders within its own. Raises RunError for any other place."""
    names = study.get("names")
    if not isinstance(names, list):
        raise RunError(f"{folder} is not a readable study: {STUDY} lacks the names of its parts")
    for place, name in enumerate(names):
        if name in names[:place]:
            raise RunError(f"{folder} is not a readable study: its part '{name}' is there twice")
        if name in ("", "..") or name != Path(str(name)).name:
            raise RunError(f"{folder} is not a readable study: its part '{name}' is not in its folder")
    return names


def _begun(folder: Path) -> bool:
    return (folder / MANIFEST).exists() or (folder / STUDY).exists()


def run_folders(folder: Path, depth: int = 4) -> list[Path]:
    """A run's own folder, or those of a study's parts that have begun; of studies in a study, so deep."""
    if not (folder / STUDY).exists():
        return [folder]
    parts = [folder / name for name in part_names(folder, read_json(folder / STUDY))] if depth else []
    return [run for part in parts if _begun(part) for run in run_folders(part, depth - 1)]


@lru_cache(maxsize=64)
def _copy(place: str) -> Path:
    """A copy of a run or study; of nothing else, for that may be a whole bucket."""
    filesystem, path = fs.FileSystem.from_uri(place)
    if isinstance(filesystem, fs.LocalFileSystem):
        return Path(path)
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


SMALL_BYTES = 2**20
"""Files up to this size are checked whenever a run is opened; every command checks all (our choice)."""
MOST_NAMED = 4
"""Files that are named; the rest is counted (our choice)."""
LATER = {MANIFEST, SUMS, "events.jsonl", REPORT}
"""Files that grow or are written anew once the sums stand."""
WRONG_KIND = (
    *(LookupError, TypeError, AttributeError, ValueError),
    *(ArithmeticError, AssertionError, RecursionError),
)
"""Errors of reading a tree or a table that holds something else than a run writes."""
TABLES = ("requests", "schedule", "shards")
"""Folders whose every file is read: one more is as bad as one that was changed."""


class AlteredError(RunError):
    """The files of a run are not the ones it wrote, so that nothing may rest on them."""


def checksums(folder: Path, which: str = "**/*") -> dict[str, str]:
    """sha256 of every file below a run's folder but those that are written later.

    `*` are the files of a study itself; its parts have their own sums.
    """
    files = sorted(path for path in folder.glob(which) if path.is_file() and not _is_later(path))
    return {str(file.relative_to(folder)): sha256_of(file) for file in files}


def sha256_of(path: Path) -> str:
    """sha256 of a file, in hexadecimal. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_altered(place: Path) -> None:
    """Raise AlteredError with one line where a run, or a part of a study, is not as it was written."""
    if lines := altered(place):
        raise AlteredError("; ".join(lines))


def altered(place: Path) -> list[str]:
    """A line for the run, or for the study and each of its parts, whose files are not the ones they wrote.

    Nothing is said of a folder without sums: of one that was killed, or that runs.
    Raises RunError if a file that holds sums cannot be read.
    """
    lines = []
    if files := altered_files(place, _sums(place)):
        more = f" and {len(files) - MOST_NAMED} more" if len(files) > MOST_NAMED else ""
        line = one_line(f"{place} is not as it was written: {', '.join(files[:MOST_NAMED])}{more}")
        lines = [f"{line}; nothing in it can be trusted: take a sound copy, or measure again"]
    if (place / STUDY).exists():
        for name in part_names(place, read_json(place / STUDY)):
            lines += altered(place / name)
    return lines


def is_sealed(place: Path) -> bool:
    """True of a run or study with sums, all of whose files are as it wrote them."""
    return _sums(place) is not None and not altered(place)


def _sums(place: Path) -> object:
    """The recorded sums of a run, or of a study's own files; None where there are none."""
    if (place / STUDY).exists():
        return read_json(place / SUMS).get("files", "") if (place / SUMS).exists() else None
    return read_json(place / MANIFEST).get("files") if (place / MANIFEST).exists() else None


def altered_files(place: Path, sums: object, most_bytes: int | None = None) -> tuple[str, ...]:
    """The files of a folder, up to so many bytes each, that are not as its sums say, and why."""
    if sums is None:
        return ()
    if not isinstance(sums, dict) or not all(isinstance(each, str) for each in sums.values()):
        return ("its sums are no table",)
    other = []
    for name, recorded in sums.items():
        path = place / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            other.append(f"{name} lies outside")
        elif not path.is_file():
            other.append(f"{name} is missing")
        elif most_bytes is None or path.stat().st_size <= most_bytes:
            stat = path.stat()
            if _sum(path.resolve(), stat.st_size, stat.st_mtime_ns, stat.st_ino) != recorded:
                other.append(f"{name} is altered")
    files = [file for folder in TABLES for file in (place / folder).rglob("*") if file.is_file()]
    names = {str(file.relative_to(place)) for file in files if not _is_later(file)}
    return (*other, *(f"{name} was added" for name in sorted(names - sums.keys())))


@lru_cache(maxsize=4096)
def _sum(path: Path, _size: int, _changed_ns: int, _number: int) -> str:
    """The sum of a file as it stands, so that one command reads no file twice for it."""
    return sha256_of(path)


def _is_later(path: Path) -> bool:
    return path.name in LATER or path.suffix == ".tmp"
