"""A folder that one process at a time fills: an event log, and files written whole or not at all."""

import contextlib
import json
import math
import os
import secrets
import shutil
import stat
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from conf import ConfigError, Experiment
from conf.compose import refuse_name
from conf.io import durable
from conf.io.secret import Secret
from loadgen.fleet.arrow_stream import lock


class BusyError(OSError):
    """Another process is filling the folder."""


class LinkError(OSError):
    """The folder holds a link or no plain file: what is written there would touch what lies elsewhere."""


class Folder:
    """A folder held by one process, with its events.jsonl, written without the `secret`. Raises BusyError,
    LinkError.
    """

    def __init__(self, path: Path) -> None:
        self.secret: Secret | None = None
        self.path = path = path.resolve()
        self.run_id = path.name
        refuse_links(path)
        _give_up_second_name(path / "events.jsonl")
        self._events = (path / "events.jsonl").open("a")
        try:
            lock(self._events)
        except BlockingIOError as error:
            self._events.close()
            raise BusyError(f"{path} is being filled by another process") from error
        except OSError:
            self._events.close()
            raise
        if self._events.tell() and not (path / "events.jsonl").read_bytes().endswith(b"\n"):
            self._events.write("\n")  # the last line was cut by a kill; what follows must not be lost with it

    @classmethod
    def create(cls, out: Path, name: str | None) -> Self:
        """A new folder `out/name`, by default the UTC time and four digits. Raises OSError."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        path = out / (name or f"{stamp}-{secrets.token_hex(2)}")
        path.mkdir(parents=True, exist_ok=False)
        try:
            return cls(path)
        except OSError:
            shutil.rmtree(path, ignore_errors=True)  # else the next try finds its name taken
            raise

    def event(self, kind: str, /, **facts: Any) -> None:
        """Append one line to events.jsonl and hand it to the operating system."""
        facts = self.cleaned(facts)
        self._events.write(
            json.dumps(finite({"at": time.time(), "event": kind, **facts}), default=str) + "\n"
        )
        self._events.flush()

    def write_text(self, name: str, text: str) -> None:
        """Write a small file whole or not at all."""
        durable.write_text(self.path / name, self.cleaned(text))

    def read_json(self, name: str) -> Any:
        """A JSON file of this folder."""
        return json.loads((self.path / name).read_text())

    def write_json(self, name: str, tree: Any) -> None:
        """Write a JSON file whole or not at all; see `finite` for numbers that are not."""
        self.write_text(name, json.dumps(finite(self.cleaned(tree)), indent=2, default=str) + "\n")

    def cleaned(self, tree: Any) -> Any:
        """A tree, or a text, as it may leave this process: without the key in it."""
        return tree if self.secret is None else self.secret.cleaned(tree)

    @property
    def typed(self) -> Path:
        """The path as a person would type it here."""
        try:
            here = Path.cwd()
        except (
            FileNotFoundError
        ):  # nodes that share a machine lay a job's working directory anew, each in turn
            return self.path
        return self.path.relative_to(here) if self.path.is_relative_to(here) else self.path

    def close(self) -> None:
        """End the event log; on a full disk without what it could not take."""
        with contextlib.suppress(OSError):
            self._events.close()


FolderKind = TypeVar("FolderKind", bound=Folder)


def created(kind: type[FolderKind], experiment: Experiment) -> FolderKind:
    """A new folder as the experiment names it. Raises ConfigError with the remedy if that is not possible."""
    refuse_name(experiment.run)
    try:
        return kind.create(Path(experiment.out), experiment.run)
    except FileExistsError as error:
        raise ConfigError(
            f"run folder {error.filename} exists; choose another run=NAME or remove it"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot create the run folder: {error}") from error


def refuse_links(path: Path) -> None:
    """Raise LinkError where a name in the folder leads out of it, or is no plain file."""
    for above, folders, files in os.walk(path):
        for name in [*folders, *files]:
            found = Path(above, name)
            mode = found.lstat().st_mode
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                what = "a link" if stat.S_ISLNK(mode) else "no plain file"
                raise LinkError(f"{found} is {what}; nothing is written through it: put a plain copy there")


def _give_up_second_name(log: Path) -> None:
    """Copy a log that has another name besides, as in a copy by hard links: what is appended is ours."""
    if log.exists() and log.stat().st_nlink > 1:
        durable.write_text(log, log.read_text(errors="replace"))


def finite(tree: Any) -> Any:
    """The tree as JSON can carry it: NaN (unknown) as null, infinities as the words "inf" and "-inf"."""
    if isinstance(tree, dict):
        return {key: finite(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [finite(value) for value in tree]
    if isinstance(tree, np.generic):
        tree = tree.item()
    if isinstance(tree, float) and not math.isfinite(tree):
        return None if math.isnan(tree) else str(tree)
    return tree
