"""Runs of `loadgen` on a cluster of hosts: begun, disturbed, and read where they were written."""

import json
import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from analysis import load_run
from analysis.results import summary
from tests.hosts.conftest import CLUSTER, RUNS, Cluster
from tests.support.commands import WORDS
from tests.support.machine.patience import START_S, until

SWEEP = (*CLUSTER, *WORDS["hosts"])

GOES_ON = (summary.EXIT_OK, summary.EXIT_OPEN, summary.EXIT_VOID, summary.EXIT_SLO_MISSED)
"""Exit codes of a search that went on to its end; on a busy machine all its windows may be void."""


@dataclass(frozen=True)
class Ended:
    """A run that has ended: what its command said, its exit code, and its folder."""

    said: str
    code: int
    folder: Path

    @property
    def tree(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "sweep.json").read_text()))

    @property
    def manifest(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "manifest.json").read_text()))

    @property
    def reasons(self) -> list[str]:
        """Why windows are void."""
        return [window["void_reason"] for window in self.tree["windows"] if not window["valid"]]

    def windows(self, indices: Collection[int]) -> list[dict[str, Any]]:
        """The windows with these indices."""
        return [window for window in self.tree["windows"] if window["index"] in indices]

    def lost_hosts(self, index: int) -> set[str]:
        """Hosts that could not be reached in a window, as far as it is known at the end."""
        kinds = ("window_done", "rejudged")
        lost = [event["lost"] for event in self.events if event["event"] in kinds and event["index"] == index]
        return {*lost[-1]["nodes"], *lost[-1]["load_hosts"]} if lost else set()

    @property
    def stops(self) -> list[str]:
        """Why the search ended."""
        return [event["stop"] for event in self.events if event["event"] == "stop"]

    @property
    def events(self) -> list[dict[str, Any]]:
        return load_run(self.folder).events()

    def is_whole(self) -> bool:
        """True if every planned request has its one row."""
        requests = self.tree["requests"]
        rows = load_run(self.folder).requests()["seq"].to_pylist()
        return bool(requests["planned"] == requests["rows"] == len(rows) == len(set(rows)))


def measure(
    cluster: Cluster,
    name: str,
    verb: str,
    words: Sequence[str],
    then: Callable[[Callable[[], int]], None],
) -> Ended:
    """Run a command on the head to its end; `then` disturbs it, and gets the wait for its next window."""
    command = ["python", "-m", "loadgen", verb, RUNS, f"run={name}", *words]
    process = cluster.begin(*command)
    folder = cluster.host("head").disk / "runs" / name
    try:
        then(partial(await_new_window, folder, process))
        said, _ = process.communicate(timeout=START_S)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{name} hangs: {error.stdout}") from error
    finally:
        process.kill()
    assert (folder / "sweep.json").exists(), said
    return Ended(said, process.returncode, copied(cluster, folder))


def copied(cluster: Cluster, folder: Path) -> Path:
    """A run folder brought here: paths are resolved where it is read, and into a host they lead nowhere."""
    return Path(shutil.copytree(folder, cluster.units.parent / folder.name))


def await_new_window(folder: Path, process: "subprocess.Popen[str]") -> int:
    """Wait until a window begins, in the folder of the run that `process` measures; returns its index."""

    def windows() -> list[int]:
        file = folder / "events.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event["index"] for event in events if event["event"] == "window"]

    before = len(windows())
    until(lambda: len(windows()) > before or process.poll() is not None, "no window began", START_S)
    assert len(windows()) > before, f"ended after {before} windows: {process.communicate()[0]}"
    return windows()[-1]
