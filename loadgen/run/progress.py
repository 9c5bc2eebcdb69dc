"""Shows a run on stderr while it goes on: one screen on a terminal, plain lines in a pipe; or JSON lines."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from analysis.live import state
from analysis.live.screen import clock, screen, window_line
from analysis.live.state import BEGAN, LiveState, WindowSoFar, done_window
from analysis.results.json_border import finite
from conf.io import terminal
from conf.io.one_line import printable

Emit = Callable[..., None]
"""emit(kind, **facts): one event of a run, for the log and for the screen."""

UNTOLD = (state.KIND, BEGAN)
"""Events for a live view only."""
FRESH_PER_S = 4
"""Times a second that the screen is drawn anew (our choice)."""


@contextmanager
def shown(as_json: bool, out: TextIO | None = None, quiet: bool = False) -> Iterator[Emit]:
    """Shows events as they come: JSON lines on `out` (by default stdout) if asked; else on stderr.

    There it is one screen on a terminal, which is left as it was last at the end of the block, or plain
    lines; nothing if `quiet`.
    """
    if as_json:
        yield partial(json_line, out)
    elif quiet:
        yield lambda *_, **__: None
    elif sys.stderr.isatty():
        show = LiveScreen()
        with show.live:
            yield show
    else:
        yield partial(plain_line, time.monotonic())


def json_line(out: TextIO | None, kind: str, /, **facts: Any) -> None:
    """Write an event as one JSON line of ASCII, but for the running window, which is told again and again."""
    if kind in UNTOLD:
        return
    terminal.data(json.dumps(finite({"event": kind, **facts}), default=str), out)


def plain_line(start_s: float, kind: str, /, **facts: Any) -> None:
    """Write an event as one line on stderr, stamped with the seconds since the start."""
    if line := sentence(kind, facts):
        terminal.tell(f"{time.monotonic() - start_s:7.1f}s  {line}", sys.stderr)


class LiveScreen:
    """One screen of the run that is drawn anew in place."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._state = LiveState()
        self._seen: WindowSoFar | None = None
        self._console = Console(stderr=True)
        self.live = Live(
            console=self._console, refresh_per_second=FRESH_PER_S, get_renderable=self.drawn, transient=False
        )

    def __call__(self, kind: str, /, **facts: Any) -> None:
        self._state = self._state.after({"event": kind, **facts})
        self._seen = None if kind == BEGAN else self._state.now or self._seen

    def drawn(self) -> Text:
        """The screen as it stands, for the terminal's size."""
        width, height = self._console.size
        lines = screen(self._state, width - 1, height - 2, self._seen)
        lines[0] = f"{lines[0]}  {clock(time.monotonic() - self._start)}"[: width - 1]
        # As `Text`, or brackets in it would be taken for markup.
        return Text("\n".join(lines), no_wrap=True, overflow="crop")


def sentence(kind: str, facts: dict[str, Any]) -> str:
    """An event as one line that no terminal obeys, or nothing if it is for the log only."""
    return printable(_sentence(kind, facts))


def _sentence(kind: str, facts: dict[str, Any]) -> str:
    if kind == "window":
        if facts["rate_qps_per_node"] is None:
            return f"{facts['kind']} {facts['index']}: {facts['reason']}"
        rate = f"{facts['rate_qps_per_node']:.3f} QPS per node"
        left = f"; about {clock(facts['left_s'])} of load left" if facts.get("left_s") else ""
        return f"{facts['kind']} {facts['index']}: {rate}; {facts['reason']}{left}"
    if kind == "window_done" and (done := done_window(facts)):
        return window_line(done)
    if kind == "window_final" and facts["changed"] and (done := done_window(facts)):
        return f"final figures of {window_line(done)}"
    return str(facts.get("text", ""))
