"""The verb `live`: follow a run folder in a browser until Ctrl-C.

What is read and what is served stand beside it.
"""

import threading
from pathlib import Path

from analysis.live.address import Address
from analysis.live.followed import Followed, followed
from analysis.live.server import LiveServer, invitation, serving
from analysis.live.view import LiveView
from analysis.results.locations import WRONG_KIND
from analysis.results.runs import RunError
from analysis.views import answers
from conf import ConfigError
from conf.io import terminal
from conf.io.one_line import reason

FLAG = "--port"
LOOK_S = 0.5
"""Seconds between two looks at a folder (our choice)."""


def live(path: Path, port: str, stop: threading.Event | None = None) -> None:
    """Serve the page of a run or study that runs or has ended, until Ctrl-C or `stop`.

    Raises RunError for a folder of neither, ConfigError where the port cannot be listened on.
    """
    source, asked, view = followed(path, concluded), Address.from_words(port, FLAG), LiveView()
    view.snapshot = source.look()
    with serving(asked, view, FLAG) as server:
        terminal.note(f"{invitation(server.address)}  (Ctrl-C ends it)")
        _follow(source, server, stop or threading.Event())


def _follow(source: Followed, server: LiveServer, stop: threading.Event) -> None:
    said = ""
    while not stop.wait(LOOK_S):
        try:
            snapshot = source.look()
        except RunError as error:  # a folder that was broken or removed while it is followed
            if (line := reason(error)) != said:
                said = line
                terminal.note(line)
            continue
        if snapshot != server.view.snapshot:
            server.view.snapshot = snapshot


def concluded(path: Path) -> str:
    """The result of a run or study that has ended, or one line that says why it cannot be read."""
    try:
        return str(answers.of_folder(path))
    except (RunError, ConfigError, OSError, *WRONG_KIND) as error:
        return f"the result cannot be read: {reason(error)}"
