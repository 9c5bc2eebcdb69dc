"""A live view as lines of text: what a terminal shows of a run while it goes on."""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress

from analysis.live.state import Belief, DoneWindow, LiveState, WindowSoFar
from analysis.rows import failures
from analysis.stats.estimate import fixed
from conf.io.one_line import printable
from conf.specs.bounds import LIMITS, PER_REQUEST, label, metric_of

LEAST_WIDTH = 40
"""Fewest columns that the screen is laid out for (our choice)."""
LINES_OF_LOG = 3
INDENT = "  "
AXIS_MARGIN = 0.1
"""Part of an axis left free on each side of the widest interval (our choice)."""


def screen(state: LiveState, width: int, height: int, newest: WindowSoFar | None = None) -> list[str]:
    """The screen as at most `height` lines of at most `width` columns; `newest` is the newest running window.

    The windows that are over have what room the rest leaves, the newest of them first to stay.
    """
    width = max(width, LEAST_WIDTH)
    above = [*_phase(state, newest, width), *_running(state.now, width), *_belief(state, width)]
    below = [line for text in state.log[-LINES_OF_LOG:] for line in _wrapped(text, width)][-LINES_OF_LOG:]
    room = height - len(above) - len(below) - 3
    table = _windows(state.windows[-room:], width) if room > 0 and state.windows else []
    blocks = [block for block in (above, table, below) if block]
    lines = [line for block in blocks for line in ("", *block)][1:]
    return [printable(line)[:width] for line in lines][:height]


def interval_axis(belief: Belief, beliefs: Sequence[Belief], width: int) -> str:
    """The interval of the capacity on an axis that all intervals of the run share: `|` is the estimate.

    An open end is an arrow at the end of the axis.
    """
    lows = [each.low for each in beliefs if each.low is not None]
    least, most = min(lows, default=0.0), max(each.high for each in beliefs)
    margin = AXIS_MARGIN * (most - least)
    least, most = max(0.0, least - margin), most + margin
    ends = f"{least:.2f} ", f" {most:.2f}"
    room = max(3, width - len(ends[0]) - len(ends[1]))

    def place(qps: float) -> int:
        share = (qps - least) / (most - least) if most > least else 0.5
        return min(room - 1, max(0, round(share * (room - 1))))

    cells = ["."] * room
    low, high = place(belief.low or 0.0), place(belief.high)
    cells[low : high + 1] = "=" * (high + 1 - low)
    cells[low], cells[high] = "[", "]"
    if belief.open_below:
        cells[0] = "<"
    if belief.open_above:
        cells[-1] = ">"
    cells[place(belief.qps_per_node)] = "|"
    return ends[0] + "".join(cells) + ends[1]


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are some."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def window_line(done: DoneWindow) -> str:
    """A window that is over, as one sentence; figures with answers still out are those so far."""
    latencies = ", ".join(
        f"{_words(limit)}{_told(done, limit)} ({fixed(over, 1)} % over)"
        for limit, over in done.over_pct.items()
    )
    requests = f"{done.requests} requests, so far" if done.pending else f"{done.requests} requests,"
    return (
        f"{done.kind} {done.index}: {fixed(done.rate_qps_per_node, 3)} QPS per node, "
        f"{requests} {latencies}, send lag p99 {fixed(done.lag_p99_ms, 1)} ms: {done.judged}"
    )


def _told(done: DoneWindow, key: str) -> str:
    """The limited latency of a window; nothing where requests have no one such latency."""
    with suppress(ValueError):
        if metric_of(key.removesuffix("_ms")) not in PER_REQUEST:
            return ""
    return f" {fixed(done.latencies_p90_ms[key], 1)} ms" if key in done.latencies_p90_ms else ""


def _phase(state: LiveState, newest: WindowSoFar | None, width: int) -> Iterator[str]:
    name = " ".join(filter(None, (state.verb, state.run_id)))
    if name:
        yield name
    if newest is not None and newest.budget_s:
        left_s = max(0.0, newest.budget_s - newest.elapsed_s)
        clocks = f" {clock(newest.elapsed_s)} of {clock(newest.budget_s)}, {clock(left_s)} left"
        room = max(1, width - len(clocks) - 2)
        full = round(room * min(1.0, newest.elapsed_s / newest.budget_s))
        yield f"[{'#' * full}{'.' * (room - full)}]{clocks}"
    done, of_about = len(state.windows), ""
    if state.now and newest and newest.budget_s and done and newest.elapsed_s > 0:  # at the pace so far
        to_come = (newest.budget_s - newest.elapsed_s) * done / newest.elapsed_s
        of_about = f"window {done + 1} of about {done + max(1, round(to_come))}: "
    yield from _wrapped(f"{of_about}{state.phase}", width)


def _running(now: WindowSoFar | None, width: int) -> Iterator[str]:
    if now is None:
        return
    offered, achieved = fixed(now.rate_qps_per_node, 2), fixed(now.achieved_qps_per_node, 2)
    flying, lag = fixed(now.in_flight), fixed(now.lag_p99_ms, 1)
    yield ""
    yield from _wrapped(f"offered {offered}, achieved {achieved} QPS per node; {flying} in flight", width)
    yield from _wrapped(f"send lag p99 {lag} ms, its gate {fixed(now.lag_gate_ms)} ms", width)
    out = fixed(now.pending_pct)
    failed = failures.line(now.failures, now.sent) or f"{now.failed} failed"
    counts = f"{now.sent} sent, {failed}, {out} % of answers still out"
    yield from _wrapped(f"window so far, provisional: {counts}", width)
    yield f"{INDENT}{'':<12} {'p50 ms':>9} {'p90 ms':>9} {'bound':>9} {'over':>9}"
    for key, latency in now.latencies.items():
        over = f"{fixed(latency.over_pct, 1)} %"
        cells = fixed(latency.p50_ms, 1), fixed(latency.p90_ms, 1), fixed(latency.bound_ms), over
        yield f"{INDENT}{_words(key):<12} {' '.join(cell.rjust(9) for cell in cells)}"


def _belief(state: LiveState, width: int) -> Iterator[str]:
    belief = state.belief
    if belief is None:
        return
    limit = f", limited by {_words(belief.binding)}" if belief.binding else ""
    yield ""
    if belief.low is None or belief.certified is None:
        text = f"capacity at most {belief.high:.2f} QPS per node, as the queue still grew{limit}"
    else:
        text = (
            f"capacity so far {belief.qps_per_node:.2f} QPS per node, 95 % interval [{belief.low:.2f}, "
            f"{belief.high:.2f}], 5 % quantile {belief.certified:.2f}{limit}"
        )
    yield from _wrapped(text, width)
    yield INDENT + interval_axis(belief, state.beliefs, width - len(INDENT))


def _windows(windows: Sequence[DoneWindow], width: int) -> list[str]:
    """A line for each window, with the p90s of the two bounds that all runs have, where it has them."""
    lines = [f"{'#':>3} {'kind':<8} {'QPS/node':>8} {'n':>6} {'TTFT ms':>8} {'TPOT ms':>8} verdict"]
    for window in windows:
        p90s = window.latencies_p90_ms
        ttft, tpot = (next((p90s[key] for key in p90s if key.startswith(each)), None) for each in LIMITS)
        latencies = f"{fixed(ttft):>8} {fixed(tpot, 1):>8}"
        rate = fixed(window.rate_qps_per_node, 3)
        figures = f"{rate:>8} {window.requests:>6} {latencies}"
        line = f"{window.index:>3} {window.kind[:8]:<8} {figures} {window.judged}"
        lines.append(line if len(line) <= width else f"{line[: width - 3].rsplit(' ', 1)[0]} ...")
    return lines


def _words(key: str) -> str:
    """A bound in words by its name or its key (`ttft_p90_ms`); a stranger's stays as it is."""
    try:
        return label(key.removesuffix("_ms"))
    except ValueError:
        return key


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(printable(text), width, subsequent_indent=INDENT) or [""]
