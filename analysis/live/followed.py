"""Follows a run folder, or a study's, while somebody else fills it: events, the running window, the end.

The folder may be a stranger's: what is read of it at once is bounded, a line that is damaged or too long is
skipped, links are not followed, and a file that was replaced is read anew.
"""

import json
import os
import stat
import threading
import time
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from analysis.live.address import Address
from analysis.live.server import invitation, serving
from analysis.live.state import FILE, KIND, Ending, LiveState, LiveView, Snapshot, WatchedPart
from analysis.results import locations, studies
from analysis.results.locations import MANIFEST, REPORT, WRONG_KIND
from analysis.results.runs import RunError, load_run
from analysis.views import answers
from conf import ConfigError
from conf.io import terminal
from conf.io.one_line import one_line, reason

EVENTS, SWEEP, END = "events.jsonl", "sweep.json", "end"
"""The log of a run, its result, and the last event of a log."""
READ_BYTES = 2**22
"""Read of a file at one look; what is left comes with the next (our choice)."""
MOST_LINE = 2**18
"""Bytes of a line; an event of ours has at most some ten thousand (our choice)."""
MOST_LETTERS, MOST_MEMBERS, MOST_DEPTH = 500, 100, 8
"""Longest text, longest list or table, and deepest tree of an event (our choice)."""
MOST_INT = 2**53
MOST_PARTS = 100
"""Newest runs of a study that are named (our choice)."""


class GrowingFile:
    """The lines that were added to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, int] | None = None
        self._at, self._rest, self._skips = 0, b"", False

    def lines(self) -> tuple[bool, list[bytes]]:
        """Whether the file is another one than before, and its new whole lines; none if it is not there."""
        try:
            with open_plain(self._path) as file:
                known = os.fstat(file.fileno())
                anew = self._known is not None and (
                    self._known != (known.st_dev, known.st_ino) or known.st_size < self._at
                )
                if anew or self._known is None:
                    self._known = known.st_dev, known.st_ino
                    self._at, self._rest, self._skips = 0, b"", False
                file.seek(self._at)
                return anew, self._whole(file.read(READ_BYTES))
        except OSError:
            return False, []

    def _whole(self, piece: bytes) -> list[bytes]:
        self._at += len(piece)
        *whole, self._rest = (self._rest + piece).split(b"\n")
        if whole and self._skips:
            del whole[0]
            self._skips = False
        if len(self._rest) > MOST_LINE:
            self._rest, self._skips = b"", True
        return [line for line in whole if len(line) <= MOST_LINE]


class FollowedRun:
    """One run folder, read as far as it goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = GrowingFile(path / EVENTS)
        self._snapshot, self._last, self._heard_s = Snapshot(), "", time.monotonic()
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._name, self._verb = "", ""
        self._nodes: int | None = None
        self._ending: Ending | None = None

    def look(self) -> Snapshot:
        """The run as it stands now."""
        while self._read():
            pass
        if tree := self._renewed(MANIFEST):
            self._nodes = _nodes(self.path)
            self._name, self._verb = (str(tree.get(key, "")) for key in ("run_id", "verb"))
        if tree := self._renewed(FILE):
            self._snapshot = self._snapshot.after({**tree, "event": KIND})
        self._end()
        state = replace(self._snapshot.state, run_id=self._name, verb=self._verb)
        return Snapshot(state, self._nodes, heard_s=self._heard_s).concluded(self._ending)

    def _read(self) -> bool:
        """Take up what the log has more; False once that was nothing."""
        anew, lines = self._log.lines()
        if anew:
            self._snapshot, self._last, self._ending = Snapshot(), "", None
            self._seen.clear()
        for event in filter(None, map(event_of, lines)):
            self._snapshot, self._last = self._snapshot.after(event), event["event"]
        if lines:
            self._hear(EVENTS)
        return bool(lines)

    def _hear(self, name: str) -> None:
        with suppress(OSError):
            age_s = time.time() - (self.path / name).stat().st_mtime
            self._heard_s = time.monotonic() - max(0.0, age_s)

    def _renewed(self, name: str) -> dict[str, Any]:
        """The object in a small file that was written since the last look; else an empty one."""
        try:
            with open_plain(self.path / name) as file:
                known = os.fstat(file.fileno())
                stamp = known.st_ino, known.st_mtime_ns, known.st_size
                if self._seen.get(name) == stamp:
                    return {}
                self._seen[name] = stamp
                text = file.read(READ_BYTES)
        except OSError:
            return {}
        self._hear(name)
        return _object(text) or {}

    def _end(self) -> None:
        """Note the end once the log and the result say so, and the report once it is there."""
        if not (self.path / SWEEP).exists() or self._last not in ("", END):
            self._ending = None  # it runs, or goes on
            return
        if self._ending is None:
            tree = self._renewed(SWEEP)
            code = tree.get("exit_code")
            self._seen.pop(SWEEP, None)
            self._ending = Ending(concluded(self.path), code if type(code) is int else None)
        if self._ending.report is None and (report := self.path / REPORT).exists():
            self._ending = replace(self._ending, report=str(report))


class FollowedStudy:
    """A study: the newest of its runs that has not ended, else the newest, and the names of all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._run: FollowedRun | None = None
        self._ending: Ending | None = None

    def look(self) -> Snapshot:
        """The run that is shown, and all runs. Raises RunError if the study cannot be read."""
        runs = [run for name in _part_names(self.path) for run in _runs_of(self.path / name)][-MOST_PARTS:]
        if not runs:
            return Snapshot(LiveState(run_id=self.path.name, phase="no run of this study has begun"))
        shown = max(runs, key=lambda run: (not _has_ended(run), _changed_s(run)))
        if self._run is None or self._run.path != shown:
            self._run = FollowedRun(shown)
        snapshot = self._run.look()
        parts = tuple(
            WatchedPart(one_line(str(run.relative_to(self.path))), _has_ended(run), run == shown)
            for run in runs
        )
        name = f"{one_line(self.path.resolve().name)}/{parts[runs.index(shown)].name}"
        state = replace(snapshot.state, run_id=name)
        return replace(snapshot, state=state, parts=parts).concluded(self._concluded())

    def _concluded(self) -> Ending | None:
        """The end of the study; None while it runs."""
        code = studies.load_verdict(self.path).exit_code
        if code is None:
            return None
        report = self.path / REPORT
        known = str(report) if report.exists() else None
        if self._ending is None or (self._ending.exit_code, self._ending.report) != (code, known):
            self._ending = Ending(concluded(self.path), code, known)
        return self._ending


Followed = FollowedRun | FollowedStudy


def followed(path: Path) -> Followed:
    """The follower of the folder at `path`. Raises RunError unless it is one of a run or of a study."""
    if studies.is_study(path):
        studies.load_verdict(path)
        return FollowedStudy(path)
    if not (path / MANIFEST).exists():
        raise RunError(f"{path} is no folder of a run or a study: it has no {MANIFEST}")
    return FollowedRun(path)


def open_plain(path: Path) -> BinaryIO:
    """Open a file that is one: no link, no pipe that would never end. Raises OSError."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(f"{path} is no plain file")


def event_of(line: bytes) -> dict[str, Any] | None:
    """The event in a line, its texts printable and short; None for a line that holds none."""
    tree = _object(line)
    return tree if tree and isinstance(tree.get("event"), str) else None


def _object(text: bytes) -> dict[str, Any] | None:
    """The object that JSON holds, within bounds; None for anything else."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _within(tree, MOST_DEPTH) if isinstance(tree, dict) else None


def _within(tree: Any, depth: int) -> Any:
    """A tree cut to what an event of ours may hold: printable texts, numbers that a float can carry."""
    if isinstance(tree, str):
        return one_line(tree, MOST_LETTERS)
    if isinstance(tree, int) and abs(tree) > MOST_INT:
        return None
    if not isinstance(tree, dict | list):
        return tree
    if depth == 0:
        return None
    if isinstance(tree, list):
        return [_within(value, depth - 1) for value in tree[:MOST_MEMBERS]]
    return {one_line(key, MOST_LETTERS): _within(tree[key], depth - 1) for key in islice(tree, MOST_MEMBERS)}


def _nodes(run: Path) -> int | None:
    """Nodes that the run's rates are divided by; None where its configuration cannot be read."""
    try:
        return load_run(run).config.cluster.nodes
    except (RunError, ConfigError, OSError):
        return None


def _part_names(study: Path) -> list[str]:
    return locations.part_names(study, locations.read_json(study / locations.STUDY))


def _runs_of(part: Path, depth: int = 3) -> list[Path]:
    """The run folders of a part that has begun: its own, or those of a study that it is."""
    if studies.is_study(part) and depth:
        return [run for name in _part_names(part) for run in _runs_of(part / name, depth - 1)]
    return [part] if (part / MANIFEST).exists() else []


def _has_ended(run: Path) -> bool:
    return (run / SWEEP).exists()


def _changed_s(run: Path) -> float:
    try:
        return (run / EVENTS).stat().st_mtime
    except OSError:
        return 0.0


FLAG = "--port"
LOOK_S = 0.5
"""Seconds between two looks at a folder (our choice)."""


def live(path: Path, port: str, stop: threading.Event | None = None) -> None:
    """Serve the page of a run or study that runs or has ended, until Ctrl-C or `stop`.

    Raises RunError for a folder of neither, ConfigError where the port cannot be listened on.
    """
    source, asked, view = followed(path), Address.from_words(port, FLAG), LiveView()
    view.snapshot, said, stop = source.look(), "", stop or threading.Event()
    with serving(asked, view, FLAG) as server:
        terminal.note(f"{invitation(server.address)}  (Ctrl-C ends it)")
        while not stop.wait(LOOK_S):
            try:
                snapshot = source.look()
            except RunError as error:  # a folder that was broken or removed while it is followed
                if (line := reason(error)) != said:
                    said = line
                    terminal.note(line)
                continue
            if snapshot != view.snapshot:
                view.snapshot = snapshot


def concluded(path: Path) -> str:
    """The result of a run or study that has ended, or one line that says why it cannot be read."""
    try:
        return str(answers.of_folder(path))
    except (RunError, ConfigError, OSError, *WRONG_KIND) as error:
        return f"the result cannot be read: {reason(error)}"
