"""Compares the files of a run or study with the checksums in its folder.

Nobody signs the sums: a change of manifest.json along with another file goes unnoticed.
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from analysis.results import locations
from analysis.results.locations import MANIFEST, REPORT, STUDY, SUMS, RunError
from conf.io.one_line import one_line

SMALL_BYTES = 2**20
"""Files up to this size are checked whenever a run is opened; every command checks all (our choice)."""
MOST_NAMED = 4
"""Files that are named; the rest is counted (our choice)."""
LATER = {MANIFEST, SUMS, "events.jsonl", REPORT}
"""Files that grow or are written anew once the sums stand."""
WRONG_KIND = (
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
    AssertionError,
    RecursionError,
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
    if (place / STUDY).exists():
        names = locations.part_names(place, locations.read_json(place / STUDY))
        parts = [line for name in names for line in altered(place / name)]
        return [*_told(place, of_study(place)), *parts]
    if not (place / MANIFEST).exists():
        return []
    return _told(place, of_run(place, locations.read_json(place / MANIFEST)))


def of_run(run: Path, manifest: Mapping[str, Any], most_bytes: int | None = None) -> tuple[str, ...]:
    """The files of a run, up to so many bytes each, that are not as its manifest says, and why."""
    sums = manifest.get("files")
    if sums is None:
        return ()
    more = [file for folder in TABLES for file in sorted((run / folder).rglob("*")) if file.is_file()]
    return _other(run, sums, more, most_bytes)


def of_study(study: Path) -> tuple[str, ...]:
    """The files of a study itself that are not as they were when it ended."""
    path = study / SUMS
    return _other(study, locations.read_json(path).get("files"), (), None) if path.exists() else ()


def is_sealed(place: Path) -> bool:
    """True of a run or study with sums, all of whose files are as it wrote them."""
    if (place / STUDY).exists():
        return (place / SUMS).exists() and not altered(place)
    if not (place / MANIFEST).exists():
        return False
    return "files" in locations.read_json(place / MANIFEST) and not altered(place)


def _told(place: Path, files: tuple[str, ...]) -> list[str]:
    if not files:
        return []
    named = ", ".join(files[:MOST_NAMED])
    more = f" and {len(files) - MOST_NAMED} more" if len(files) > MOST_NAMED else ""
    line = one_line(f"{place} is not as it was written: {named}{more}")
    return [f"{line}; nothing in it can be trusted: take a sound copy, or measure again"]


def _other(folder: Path, sums: object, more: Iterable[Path], most_bytes: int | None) -> tuple[str, ...]:
    if not isinstance(sums, dict) or not all(isinstance(each, str) for each in sums.values()):
        return ("its sums are no table",)
    other = []
    for name, sum_ in sums.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            other.append(f"{name} lies outside")
        elif not path.is_file():
            other.append(f"{name} is missing")
        elif (most_bytes is None or path.stat().st_size <= most_bytes) and _sum(path) != sum_:
            other.append(f"{name} is altered")
    names = {str(path.relative_to(folder)) for path in more if not _is_later(path)}
    return (*other, *(f"{name} was added" for name in sorted(names - sums.keys())))


def _sum(path: Path) -> str:
    known = path.stat()
    return _sum_of(str(path.resolve()), known.st_size, known.st_mtime_ns, known.st_ino)


@lru_cache(maxsize=4096)
def _sum_of(path: str, _size: int, _changed_ns: int, _number: int) -> str:
    """The sum of a file as it stands, so that one command reads no file twice for it."""
    return sha256_of(Path(path))


def _is_later(path: Path) -> bool:
    return path.name in LATER or path.suffix == ".tmp"
