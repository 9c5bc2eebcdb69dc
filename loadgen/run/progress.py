"""Shows a run while it goes on: a live table on a terminal, plain lines in a pipe, or JSON lines.

Knows the events of a run and how to show them; decides nothing. Progress goes to stderr, results to stdout.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from analysis.live import window_so_far
from conf.io import terminal
from conf.io.one_line import printable
from loadgen.run.folder import finite

Emit = Callable[..., None]
"""emit(kind, **facts): one event of a run, for the log and for the screen."""

UNTOLD = (window_so_far.KIND, "run")
"""Events for a live view only."""
COLUMNS = "#|kind|QPS/node|n|TTFT p90 ms|TPOT p90 ms|over TTFT/TPOT %|lag p99 ms|verdict"
OTHER_LINES = 10
"""Lines of the terminal that the live table leaves to its frame, its notes and the prompt."""


@contextmanager
def shown(as_json: bool, out: TextIO | None = None) -> Iterator[Emit]:
    """Shows events as they come: JSON lines on `out` (by default stdout) if asked; else on stderr.

    There it is a live table on a terminal, which is restored at the end of the block, or plain lines.
    """
    if as_json:
        yield partial(json_line, out)
    elif sys.stderr.isatty():
        table = LiveTable()
        with table.live:
            yield table
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


class LiveTable:
    """A table that grows by one row per segment, with a line of what goes on now."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._rows: list[tuple[str, ...]] = []
        self._notes: list[str] = []
        self._now = self._window = ""
        self._console = Console(stderr=True)
        self.live = Live(console=self._console, refresh_per_second=4, get_renderable=self._render)

    def __call__(self, kind: str, /, **facts: Any) -> None:
        if kind == window_so_far.KIND:
            self._window = running(facts)
        elif kind == "segment_done":
            self._rows.append(cells(facts))
            self._window = ""
        elif line := sentence(kind, facts):
            self._now = line
            if kind in ("prediction", "rejudged", "study"):
                self._notes.append(line)

    def _render(self) -> Table:
        elapsed = time.monotonic() - self._start
        minutes, seconds = divmod(int(elapsed), 60)
        # As `Text`, or brackets in them would be taken for markup.
        notes = Text("\n".join(self._notes))
        caption = Text("\n".join(filter(None, [f"{minutes}:{seconds:02d}  {self._now}", self._window])))
        table = Table(title=notes if self._notes else None, caption=caption, title_justify="left")
        for column in COLUMNS.split("|"):
            table.add_column(column, justify="left" if column in ("kind", "verdict") else "right")
        room = max(5, self._console.height - OTHER_LINES)
        for row in self._rows[-room:]:
            table.add_row(*map(Text, row))
        return table


def number(value: Any, digits: int = 0) -> str:
    """A figure for a person; unknown is said, failures are infinite."""
    if value is None or value != value:
        return "unknown"
    return "inf" if value in (float("inf"), -float("inf")) else f"{value:.{digits}f}"


def cells(facts: dict[str, Any]) -> tuple[str, ...]:
    """One row of the table."""
    over = f"{number(facts.get('over_ttft_pct'), 1)} / {number(facts.get('over_tpot_pct'), 1)}"
    return (
        str(facts["index"]),
        printable(facts["kind"]),
        number(facts["rate_qps_per_node"], 3),
        str(facts["requests"]),
        number(facts.get("ttft_p90_ms")),
        number(facts.get("tpot_p90_ms"), 1),
        over,
        number(facts.get("lag_p99_ms"), 1),
        printable(facts["verdict"]),
    )


def running(facts: dict[str, Any]) -> str:
    """The running window so far: a line for the load and one for each latency, all provisional."""
    sent, budget = facts["sent"], facts["budget_s"]
    out = "unknown" if not sent else f"{100 * facts['pending'] / sent:.0f} %"
    spent = number(facts["elapsed_s"]) + ("" if budget is None else f" of {number(budget)}")
    offered, achieved = (number(facts[f"{name}_qps_per_node"], 2) for name in ("rate", "achieved"))
    flying = number(facts["in_flight"])
    lines = [
        f"{spent} s; offered {offered}, achieved {achieved} QPS per node; {flying} in flight",
        f"window so far, {out} of its answers out:",
    ]
    for key, one in facts["latencies"].items():
        p90, over = number(one["p90_ms"], 1), number(one["over_pct"], 1)
        lines.append(f"{key.removesuffix('_ms')}: {over} % over the bound, p90 {p90} ms")
    return "\n".join(map(printable, lines))


def sentence(kind: str, facts: dict[str, Any]) -> str:
    """An event as one line that no terminal obeys, or nothing if it is for the log only."""
    return printable(_sentence(kind, facts))


def _sentence(kind: str, facts: dict[str, Any]) -> str:
    if kind == "segment":
        if facts["rate_qps_per_node"] is None:
            return f"{facts['kind']} {facts['index']}: {facts['reason']}"
        rate = f"{facts['rate_qps_per_node']:.3f} QPS per node"
        return f"{facts['kind']} {facts['index']}: {rate}; {facts['reason']}"
    if kind == "segment_done":
        _, segment, rate, count, ttft, tpot, over, lag, verdict = cells(facts)
        return (
            f"{segment} {facts['index']}: {rate} QPS per node, {count} requests, p90 TTFT {ttft} ms, "
            f"p90 TPOT {tpot} ms, over the bounds {over} %, send lag p99 {lag} ms: {verdict}"
        )
    return str(facts.get("text", ""))
