"""The flag `--live`: the page that follows a command while it loads a service.

`analysis.live` has the page and its server.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from analysis.live.address import Address
from analysis.live.state import Ending, LiveState, LiveView, Snapshot
from analysis.results.studies import PartVerdict
from analysis.views import answers
from conf.io import terminal
from loadgen.cli.arguments import LIVE
from loadgen.run.progress import Emit

NO_RESULT = "The command ended before it had a result; its own screen says why."


class LiveShow:
    """Shows the events of a command as `show` does, and in a live view besides."""

    def __init__(self, show: Emit, view: LiveView | None) -> None:
        self._show, self._view = show, view

    def __call__(self, kind: str, /, **facts: Any) -> None:
        if self._view:
            self._view.add({"event": kind, **facts})
        self._show(kind, **facts)

    def end(self, verdict: PartVerdict) -> None:
        """Show the result on the page."""
        if self._view:
            self._view.end(Ending(str(answers.brief(verdict)), verdict.exit_code, verdict.report or None))


@contextmanager
def shown(arguments: argparse.Namespace, show: Emit) -> Iterator[LiveShow]:
    """Serve the page, if it is asked for, until the end of the block. Raises ConfigError if it cannot."""
    if arguments.live is None:
        yield LiveShow(show, None)
        return
    # An HTTP server and Prometheus's format, which no command without a page needs.
    from analysis.live.server import invitation, serving

    view = LiveView()
    view.snapshot = Snapshot(LiveState(verb=arguments.verb))
    with serving(Address.from_words(arguments.live, LIVE), view, LIVE) as server:
        terminal.note(invitation(server.address))
        try:
            yield LiveShow(show, view)
        finally:
            if view.snapshot.ending is None:
                view.end(Ending(NO_RESULT, None))
