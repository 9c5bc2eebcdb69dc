"""Follows a run folder, or a study's, while somebody else fills it: events, the running window, the end.

The folder may be a stranger's: what is read of it at once is bounded, a line that is damaged or too long is
skipped, and links are not followed. A folder is read again whenever one of its files has changed.
"""

import json
import os
import stat
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from analysis.live.address import Address
from analysis.live.server import invitation, serving
from analysis.live.state import FILE, KIND, OVER, Ending, LiveState, LiveView, WatchedPart
from analysis.results import locations, studies
from analysis.results.locations import MANIFEST, REPORT, WRONG_KIND
from analysis.results.runs import RunError, load_run
from analysis.views import answers
from conf import ConfigError
from conf.io import terminal
from conf.io.one_line import one_line, reason

EVENTS, CONFIG, SWEEP, END = "events.jsonl", "config.yaml", "sweep.json", "end"
"""The log of a run, its configuration and its result, and the last event of a log."""
WINDOWS = ("window", "window_done", *OVER, END)
"""Events that begin or end a window."""
READ_BYTES = 2**23
"""Newest bytes of a file that are read; a log of a thousand windows has half of that (our choice)."""
MOST_EVENTS = 20_000
"""Newest lines of a log that are read; a log of a thousand windows has fewer (our choice)."""
MOST_LINE = 2**18
"""Bytes of a line; an event of ours has at most some ten thousand (our choice)."""
MOST_LETTERS, MOST_MEMBERS, MOST_DEPTH = 500, 100, 8
"""Longest text, longest list or table, and deepest tree of an event (our choice)."""
MOST_INT = 2**53
MOST_PARTS = 100
"""Newest runs of a study that are named (our choice)."""

Event = Mapping[str, Any]
Stamps = tuple[tuple[int, ...], ...]


def look(path: Path) -> LiveState:
    """The run or study in a folder as its files say now. Raises RunError for a folder of neither."""
    if studies.is_study(path):
        return _study(path)
    if not (path / MANIFEST).exists():
        raise RunError(f"{path} is no folder of a run or a study: it has no {MANIFEST}")
    return _run(path, _stamps(path, EVENTS, MANIFEST, CONFIG, FILE, SWEEP, REPORT))


@lru_cache(maxsize=2)
def _run(path: Path, _stamps_of_files: Stamps) -> LiveState:
    """A run, read again only when one of its files has changed."""
    manifest, now = _object(_tail(path / MANIFEST)), _object(_tail(path / FILE))
    state, newest, has_ended = _logged(path, _stamps(path, EVENTS))
    # The file of the running window stays when the window has ended.
    if newest.get("event") == "window" and newest.get("index") == now.get("index"):
        state = state.after({**now, "event": KIND})
    run_id, verb = (str(manifest.get(key, "")) for key in ("run_id", "verb"))
    nodes = _nodes(path, _stamps(path, CONFIG, MANIFEST, SWEEP))
    ended = has_ended and (path / SWEEP).exists()
    ending = _ending(path, _object(_tail(path / SWEEP)).get("exit_code")) if ended else None
    newest_s = max(_changed_s(path / name) for name in (EVENTS, MANIFEST, FILE, SWEEP))
    heard_s = time.monotonic() - max(0.0, time.time() - newest_s)
    return replace(state, run_id=run_id, verb=verb, nodes=nodes, heard_s=heard_s).concluded(ending)


@lru_cache(maxsize=2)
def _logged(path: Path, _log: Stamps) -> tuple[LiveState, Event, bool]:
    """What the log says, its newest event that began or ended a window, and whether it has ended or is empty.

    It is read again only when it has grown: the file of the running window changes far more often.
    """
    state, events = LiveState(), events_of(_tail(path / EVENTS))
    for event in events:
        state = state.after(event)
    newest = [event for event in events if event["event"] in WINDOWS]
    return state, newest[-1] if newest else {}, all(event["event"] == END for event in events[-1:])


def _study(path: Path) -> LiveState:
    """Of a study the newest run that has not ended, else the newest, and the names of all.

    Raises RunError if the study cannot be read.
    """
    runs = locations.run_folders(path)[-MOST_PARTS:]
    if not runs:
        return LiveState(run_id=path.name, phase="no run of this study has begun")
    ended = {run: (run / SWEEP).exists() for run in runs}
    shown = max(runs, key=lambda run: (not ended[run], _changed_s(run / EVENTS)))
    parts = tuple(WatchedPart(one_line(str(run.relative_to(path))), ended[run], run == shown) for run in runs)
    name = f"{one_line(path.resolve().name)}/{parts[runs.index(shown)].name}"
    ending = _study_ending(path, _stamps(path, locations.STUDY, REPORT))
    return replace(look(shown), run_id=name, parts=parts).concluded(ending)


@lru_cache(maxsize=2)
def _study_ending(path: Path, _files: Stamps) -> Ending | None:
    exit_code = studies.load_verdict(path).exit_code
    return None if exit_code is None else _ending(path, exit_code)


def _stamps(folder: Path, *names: str) -> Stamps:
    """What changes whenever one of these files does."""
    return tuple(_stamp(folder / name) for name in names)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        file = path.lstat()
    except OSError:
        return ()
    return file.st_ino, file.st_mtime_ns, file.st_size


def _tail(path: Path) -> bytes:
    """The newest bytes of a plain file, from the start of a line; nothing of a link, or of a pipe."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            known = os.fstat(file.fileno())
            if not stat.S_ISREG(known.st_mode):
                return b""
            skipped = max(0, known.st_size - READ_BYTES)
            file.seek(skipped)
            text = file.read(READ_BYTES)
    except OSError:
        return b""
    return text.partition(b"\n")[2] if skipped else text


def events_of(log: bytes) -> list[Event]:
    """The events in the whole lines of a log, their texts printable and short."""
    trees = [_object(line) for line in log.split(b"\n")[:-1][-MOST_EVENTS:] if len(line) <= MOST_LINE]
    return [tree for tree in trees if isinstance(tree.get("event"), str)]


def _object(text: bytes) -> Event:
    """The object that JSON holds, within bounds; an empty one for anything else."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return _within(tree, MOST_DEPTH) if isinstance(tree, dict) else {}


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


@lru_cache(maxsize=MOST_PARTS)
def _nodes(run: Path, _files: Stamps) -> int | None:
    """Nodes that the rates of a run are divided by; None where its configuration cannot be read."""
    try:
        return load_run(run).config.cluster.nodes
    except (RunError, ConfigError, OSError):
        return None


def _changed_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _ending(path: Path, exit_code: object) -> Ending:
    """The end of a run or study, with its result or one line that says why it cannot be read."""
    try:
        text = str(answers.of_folder(path))
    except (RunError, ConfigError, OSError, *WRONG_KIND) as error:
        text = f"the result cannot be read: {reason(error)}"
    report = path / REPORT
    code = exit_code if isinstance(exit_code, int) and not isinstance(exit_code, bool) else None
    return Ending(text, code, str(report) if report.exists() else None)


FLAG = "--port"
LOOK_S = 0.5
"""Seconds between two looks at a folder (our choice)."""


def live(path: Path, port: str, stop: threading.Event | None = None) -> None:
    """Serve the page of a run or study that runs or has ended, until Ctrl-C or `stop`.

    Raises RunError for a folder of neither, ConfigError where the port cannot be listened on.
    """
    address, view = Address.from_words(port, FLAG), LiveView(look(path))
    status_line, stop = "", stop or threading.Event()
    with serving(address, view, FLAG) as server:
        terminal.note(f"{invitation(server.address)}  (Ctrl-C ends it)")
        while not stop.wait(LOOK_S):
            try:
                state = look(path)
            except RunError as error:  # a folder that was broken or removed while it is followed
                if (line := reason(error)) != status_line:
                    status_line = line
                    terminal.note(line)
                continue
            if state != view.state:
                view.state = state
