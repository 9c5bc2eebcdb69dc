"""The state of a run that its events add up to, for whoever watches.

An event that is not understood changes nothing: a folder may be of another version.
"""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from analysis.results.json_border import from_tree, to_tree
from analysis.results.locations import RunError
from analysis.rows import failures
from conf.specs.bounds import column

Kind = TypeVar("Kind")
FILE = "live.json"
"""The newest `WindowSoFar` in a run folder while the run goes on, replaced whole every second or two."""
KIND = "window_so_far"
"""The event of a run that carries one; it goes to whoever watches, and not into events.jsonl."""
BEGAN = "run"
"""The event with which a run begins for whoever watches its command; its folder does not hold it."""
MOST_WINDOWS = 1000
"""Newest windows, and newest beliefs, that are watched; the longest of our searches has some hundred (our
choice)."""
MOST_LINES = 200
"""Newest lines of the log (our choice)."""
OVER = ("stop", "abort", "target_lost")
"""Events after which no window runs."""
_BOUND = re.compile(r"(?!lag_)[a-z][a-z0-9_]{0,30}_p\d{2,3}_ms")
_OVER = re.compile(r"over_([a-z][a-z0-9_]{0,40})_pct")


@dataclass(frozen=True, slots=True)
class LatencySoFar:
    """One bounded latency over the requests of a window whose value is known already, in ms.

    `over_pct` is the share of these that are over the bound, in percent. Figures are None while nothing is
    known.
    """

    bound_ms: float
    known: int
    p50_ms: float | None
    p90_ms: float | None
    over_pct: float | None


@dataclass(frozen=True, slots=True)
class WindowSoFar:
    """A window while it runs. Times are seconds on the run's clock; rates are QPS per node.

    `sent` counts requests of the window that were due by now, `answered` and `failed` those that ended, and
    `pending` the rest. `in_flight` counts all requests of the fleet that are open, of any window.
    `latencies` are by the bound's key in the configuration (`ttft_p90_ms`). `elapsed_s` of `budget_s` are
    spent (None where the verb has no budget). `failures` are those that failed, by kind.
    """

    index: int
    kind: str
    rate_qps_per_node: float | None
    achieved_qps_per_node: float | None
    now_s: float
    window_start_s: float
    window_end_s: float
    sent: int
    answered: int
    failed: int
    pending: int
    in_flight: int | None
    latencies: Mapping[str, LatencySoFar]
    lag_p99_ms: float | None
    lag_gate_ms: float
    elapsed_s: float
    budget_s: float | None
    failures: Mapping[str, int] = field(default_factory=dict)

    @property
    def pending_pct(self) -> float | None:
        """Share of the requests sent whose answer is still out, in percent."""
        return 100 * self.pending / self.sent if self.sent else None


@dataclass(frozen=True, slots=True)
class Belief:
    """The posterior of the capacity after a window, in QPS per node; an open end is said.

    `low` and `certified` are None where the queue still grew in the windows: only the high end is shown.
    """

    qps_per_node: float
    low: float | None
    high: float
    certified: float | None
    binding: str
    open_above: bool
    open_below: bool
    windows: int


@dataclass(frozen=True, slots=True)
class DoneWindow:
    """A window that is over, as its newest event says; its figures change while answers are out."""

    index: int
    kind: str
    rate_qps_per_node: float | None
    requests: int
    pending: int
    failed: int
    latencies_p90_ms: Mapping[str, float | None]
    over_pct: Mapping[str, float | None]
    lag_p99_ms: float | None
    verdict: str
    void: bool
    failures: Mapping[str, int] = field(default_factory=dict)

    @property
    def judged(self) -> str:
        """The verdict with the failures by kind, called provisional while answers are out."""
        judged = "; ".join(filter(None, (self.verdict, failures.line(self.failures, self.requests))))
        if not self.pending:
            return judged
        out = 100 * self.pending / max(1, self.requests)
        return f"provisional, {max(1, round(out))} % of answers still out: {judged}"


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
class LiveState:
    """A run as far as its events say. `phase` is one line in words; `log` its newest lines, oldest first.

    `beliefs` are those after each window. `nodes` are those that rates are divided by, None if they are
    unknown; `parts` the runs of a study. `heard_s` is the clock (`time.monotonic`) at the newest event.
    """

    run_id: str = ""
    verb: str = ""
    nodes: int | None = None
    phase: str = "starting"
    now: WindowSoFar | None = None
    windows: tuple[DoneWindow, ...] = ()
    beliefs: tuple[Belief, ...] = ()
    log: tuple[str, ...] = ()
    parts: tuple[WatchedPart, ...] = ()
    ending: Ending | None = None
    heard_s: float = field(default_factory=time.monotonic)

    @property
    def belief(self) -> Belief | None:
        """The newest posterior of the capacity."""
        return self.beliefs[-1] if self.beliefs else None

    def after(self, event: Mapping[str, Any]) -> "LiveState":
        """The state after one event more; the same if the event is not understood.

        The log goes on where another run of a study begins.
        """
        kind, text = event.get("event"), event.get("text")
        if kind == KIND:
            return replace(self, now=_read(WindowSoFar, event) or self.now)
        if kind == BEGAN:
            run_id, verb = (str(event.get(key, "")) for key in ("run_id", "verb"))
            nodes = event.get("nodes")
            return LiveState(run_id, verb, nodes if type(nodes) is int and nodes else 1, log=self.log)
        if kind == "window":
            rate = event.get("rate_qps_per_node")
            at = f" at {rate:.3f} QPS per node" if isinstance(rate, int | float) else ""
            phase = f"{event.get('kind', 'window')} {event.get('index', '')}{at}: {event.get('reason', '')}"
            return replace(self, phase=phase, now=None)
        if kind in ("window_done", "window_final"):
            return self._over(event)
        if not isinstance(text, str):
            return self
        return replace(self, phase=text, now=None if kind in OVER else self.now, log=self._with(text))

    def _over(self, event: Mapping[str, Any]) -> "LiveState":
        """With a window that is over, or with the final figures of one."""
        window, tree, belief = done_window(event), event.get("capacity"), None
        if window is None:
            return self
        if isinstance(tree, Mapping):
            windows = tree.get("windows")
            count = len(windows) if isinstance(windows, list | tuple) else 0
            belief = _read(Belief, {**tree, "windows": count})
        newest = (belief,) if belief else ()
        if event["event"] == "window_final":
            windows = tuple(window if done.index == window.index else done for done in self.windows)
            return replace(self, windows=windows, beliefs=(*self.beliefs[: -1 if belief else None], *newest))
        line = f"{window.kind} {window.index}: {window.judged}"
        before = (done for done in self.windows if done.index < window.index)
        return replace(
            self,
            phase=line,
            now=None,
            windows=(*before, window)[-MOST_WINDOWS:],
            beliefs=(*self.beliefs, *newest)[-MOST_WINDOWS:],
            log=self._with(line),
        )

    def _with(self, line: str) -> tuple[str, ...]:
        return (*self.log, line)[-MOST_LINES:]

    def concluded(self, ending: Ending | None) -> "LiveState":
        """The state with the end of the run; with None it goes on."""
        return replace(self, now=None if ending else self.now, ending=ending)


def done_window(event: Mapping[str, Any]) -> DoneWindow | None:
    """The window in an event `window_done` or `window_final`; None if there is none."""
    latencies_p90_ms = {key: event[key] for key in event if _BOUND.fullmatch(key)}
    over_pct = {column(match[1]): event[key] for key in event if (match := _OVER.fullmatch(key))}
    return _read(DoneWindow, {**event, "latencies_p90_ms": latencies_p90_ms, "over_pct": over_pct})


def _read(kind: type[Kind], tree: Mapping[str, Any]) -> Kind | None:
    try:
        return from_tree(kind, tree, "an event")
    except RunError:
        return None


class LiveView:
    """Holds the newest state. Its readers never make its writer wait, and get whole states only."""

    def __init__(self, state: LiveState) -> None:
        self.state = state
        self._written: tuple[LiveState, str] | None = None

    def add(self, event: Mapping[str, Any]) -> None:
        """Take up one event of the run."""
        self.state = replace(self.state.after(event), heard_s=time.monotonic())

    def end(self, ending: Ending) -> None:
        """Take up the end of the run, after which no event comes."""
        self.state = replace(self.state.concluded(ending), heard_s=time.monotonic())

    def text(self, state: LiveState) -> str:
        """A state as a line of ASCII JSON: the `run`, and `age_s`, the seconds since its newest event."""
        written = self._written
        if written is None or written[0] is not state:
            tree = to_tree(state)
            del tree["heard_s"]
            written = self._written = state, json.dumps(tree)
        return f'{{"age_s": {max(0.0, time.monotonic() - state.heard_s):.1f}, "run": {written[1]}}}'
