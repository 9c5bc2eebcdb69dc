"""A run as it is watched: its newest state and, at last, its end; one thread writes them, others read."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.live.state import LiveState
from analysis.results.json_border import to_tree

BEGAN = "run"
"""The event with which a run begins for whoever watches its command; its folder does not hold it."""
MOST_WINDOWS = 1000
"""Newest windows, and newest beliefs, that are watched; the longest of our searches has some hundred (our
choice)."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run: its result as text of several lines, its exit code, and the path of its report.

    `exit_code` is None where the command was cut short; `report` is None where there is none.
    """

    text: str
    exit_code: int | None
    report: str | None = None


@dataclass(frozen=True, slots=True)
class WatchedPart:
    """One run of a study, and whether it has `ended` or is the one `shown`."""

    name: str
    ended: bool
    shown: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment. `heard_s` is the clock (`time.monotonic`) at its newest event.

    `nodes` are those that rates are divided by, None if they are unknown.
    """

    state: LiveState = field(default_factory=LiveState)
    nodes: int | None = None
    ending: Ending | None = None
    parts: tuple[WatchedPart, ...] = ()
    heard_s: float = field(default_factory=time.monotonic)

    def after(self, event: Mapping[str, Any]) -> "Snapshot":
        """The snapshot after one event more; the log goes on where another run of a study begins."""
        state = self.state.after(event)
        if event.get("event") != BEGAN:
            return replace(self, state=bounded(state))
        return replace(self, state=replace(state, log=self.state.log), nodes=state.nodes)

    @property
    def tree(self) -> dict[str, Any]:
        """The snapshot as values that JSON can carry, without its clock."""
        tree = to_tree(self)
        del tree["heard_s"], tree["state"]["nodes"]
        if now := self.state.now:
            tree["state"]["now"]["pending_pct"] = now.pending_pct
        return tree


class LiveView:
    """Holds the newest snapshot. Its readers never make its writer wait, and get whole snapshots only."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self._written: tuple[Snapshot, str] | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        """Take up one event of the run."""
        self.snapshot = replace(self.snapshot.after(event), heard_s=time.monotonic())

    def end(self, ending: Ending) -> None:
        """Take up the end of the run, after which no event comes."""
        state = replace(self.snapshot.state, now=None, ended=True, exit_code=ending.exit_code)
        self.snapshot = replace(self.snapshot, state=state, ending=ending, heard_s=time.monotonic())

    def text(self, snapshot: Snapshot) -> str:
        """A snapshot as a line of ASCII JSON: the `run`, and `age_s`, the seconds since its newest event."""
        known = self._written
        if known is None or known[0] is not snapshot:
            known = self._written = snapshot, json.dumps(snapshot.tree)
        return f'{{"age_s": {max(0.0, time.monotonic() - snapshot.heard_s):.1f}, "run": {known[1]}}}'


def bounded(state: LiveState) -> LiveState:
    """The state with its newest windows and beliefs."""
    if max(len(state.windows), len(state.beliefs)) <= MOST_WINDOWS:
        return state
    return replace(state, windows=state.windows[-MOST_WINDOWS:], beliefs=state.beliefs[-MOST_WINDOWS:])
