"""Figure of the search: the rate of each window over time, and the posterior after it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from analysis.capacity.window_counts import NS
from analysis.figures import canvas, several
from analysis.figures.canvas import Axes, Look
from analysis.figures.exhibit import Exhibit
from analysis.figures.several import CapacityRow
from analysis.figures.windows import (
    PASS,
    VOID,
    WORDS,
    bounds_ms,
    counted,
    lines,
    mark,
    name_outcomes,
    outcome,
    qps,
)
from analysis.results.runs import Run

HEIGHT_IN = 3.6
KINDS = ("ramp", "dwell", "hold")
SHAPES = {"ramp": "^", "dwell": "o", "hold": "s"}
LIGHT = "#faeed1"
"""`canvas.ORANGE` at 18 % on white."""
NAMES = {"ramp": "step of the ramp", "hold": "hold of the 5 % quantile"}


@dataclass(frozen=True, slots=True)
class _Belief:
    """The posterior after one window, in QPS per node; an open end is only the prior's."""

    at_min: float
    median: float
    low: float
    high: float
    is_open: bool


def plot_search(run: Run, ax: Axes | None = None) -> Axes:
    """Offered QPS per node of each window over the minutes of the run, with the posterior's 95 % band.

    The bar at the right is the final answer, in which late finishers count; a void run has none. Raises
    NoData without a window.
    """
    whole, ax = canvas.single(ax, HEIGHT_IN, top=0.2)
    found, bounds, answer = lines(run, KINDS), bounds_ms(run), several.of_run(run)
    rates = [line["rate_qps_per_node"] for line in found]
    start, end = _minutes(min(line["start_ns"] for line in found)), _minutes(found[-1]["window_end_ns"])
    canvas.label(ax, "time since the start of the run's clock (min)", "QPS per node")
    last = end + 0.06 * (end - start)
    ax.set_xlim(start, end + 0.12 * (end - start))
    high = answer.high or 0.0
    ax.set_ylim(0.8 * min(rates), max(1.25 * max(rates), min(1.03 * high, 1.6 * max(rates))))
    _draw_beliefs(ax, list(_beliefs(run).values()), last)
    _draw_windows(ax, found, [outcome(line, bounds) for line in found])
    if answer.known:
        _draw_answer(ax, answer, end + 0.09 * (end - start))
    name_outcomes(ax, {outcome(line, bounds) for line in found})
    for kind in sorted({line["kind"] for line in found} & NAMES.keys()):
        ax.plot([], [], **mark(PASS, SHAPES[kind]), label=NAMES[kind])
    canvas.legend(ax, columns=2)
    return whole


def search_table(run: Run) -> pa.Table:
    """One row per window in order: kind, offered QPS per node, outcome, and the posterior after it.

    Raises NoData without a window.
    """
    found, bounds = lines(run, KINDS), bounds_ms(run)
    beliefs, rows = _beliefs(run), []
    for line in found:
        belief = beliefs.get(line["index"])
        rows.append(
            {
                "window": line["index"],
                "kind": line["kind"],
                "window_end_s": line["window_end_ns"] / NS,
                "rate_qps_per_node": line["rate_qps_per_node"],
                "requests": line["requests"],
                "outcome": outcome(line, bounds),
                "posterior_qps_per_node": belief.median if belief else None,
                "posterior_low_qps_per_node": belief.low if belief else None,
                "posterior_high_qps_per_node": belief.high if belief else None,
                "open": bool(belief and belief.is_open),
                "reason": line["reason"],
            }
        )
    return pa.Table.from_pylist(rows)


def search_alt(run: Run) -> str:
    """Number of windows, their rates and outcomes, and how the interval narrowed."""
    found, bounds = lines(run, KINDS), bounds_ms(run)
    outcomes = [outcome(line, bounds) for line in found]
    rates = [line["rate_qps_per_node"] for line in found]
    states = ", ".join(f"{outcomes.count(name)} {name}" for name in WORDS if name in outcomes)
    said = [
        f"{counted(len(found), 'window')} from {qps(min(rates))} to {qps(max(rates))} QPS per node: {states}."
    ]
    if beliefs := list(_beliefs(run).values()):
        first, last = beliefs[0], beliefs[-1]
        said.append(
            f"The 95 % interval goes from {_ends(first)} after the first counted window to {_ends(last)}"
            " after the last."
        )
    answer = several.of_run(run)
    said.append(f"The answer is {answer.words}." if answer.known else "No answer is claimed.")
    ends = answer.sampling or answer.closed
    if beliefs and ends and _ends(beliefs[-1]) != f"[{qps(ends[1])}, {qps(ends[2])}]":
        said.append(
            "It may differ from the last interval, which was printed while answers were out: the answer "
            "counts every window again with all its rows."
        )
    return " ".join(said)


def _beliefs(run: Run) -> dict[int, _Belief]:
    """The posterior after each window that gave one, by its number; of one measured again the last."""
    found = {}
    for event in run.events():
        capacity = event.get("capacity")
        if event.get("event") == "segment_done" and capacity and capacity["dwells"]:
            figures = (capacity["qps_per_node"], capacity["low"], capacity["high"])
            at_min = _minutes(event["window"]["window_end_ns"])
            is_open = capacity["open_above"] or capacity["open_below"]
            found[int(event["index"])] = _Belief(at_min, *figures, is_open)
    return found


def _ends(belief: _Belief) -> str:
    prior = " (leaning on the prior)" if belief.is_open else ""
    return f"[{qps(belief.low)}, {qps(belief.high)}]{prior}"


def _minutes(ns: float) -> float:
    return ns / NS / 60


def _draw_beliefs(ax: Axes, beliefs: Sequence[_Belief], last_min: float) -> None:
    """A band from each window's end to the next one's, hatched where an end of it is open."""
    ends = [*(belief.at_min for belief in beliefs[1:]), last_min][: len(beliefs)]
    named: set[str] = set()
    for belief, until in zip(beliefs, ends, strict=True):
        name = "interval leaning on the prior" if belief.is_open else "95 % interval so far"
        band: Look = {
            # A browser that prints leaves the transparency of a hatched area out.
            "facecolor": LIGHT if belief.is_open else (canvas.ORANGE, 0.18),
            "edgecolor": canvas.PALE,
            "linewidth": 0,
            "hatch": "///" if belief.is_open else "",
        }
        span = [belief.at_min, until]
        ax.fill_between(span, belief.low, belief.high, **band, label="" if name in named else name)
        line: Look = {"color": canvas.PALE, "linewidth": 1, "linestyle": "--"}
        ax.plot(span, [belief.median] * 2, **line, label="" if named else "median so far")
        named.add(name)


def _draw_windows(ax: Axes, found: Sequence[Mapping[str, Any]], outcomes: Sequence[str]) -> None:
    """A bar as long as each window, with the outcome's mark in its middle."""
    spans = [(_minutes(line["window_start_ns"]), _minutes(line["window_end_ns"])) for line in found]
    rates = [line["rate_qps_per_node"] for line in found]
    for void, colour in ((False, canvas.BLUE), (True, canvas.PALE)):
        kept = [i for i, ended in enumerate(outcomes) if (ended == VOID) is void]
        bar: Look = {"color": colour, "linewidth": 2.2, "solid_capstyle": "butt"}
        canvas.segments(ax, [spans[i] for i in kept], [[rates[i]] * 2 for i in kept], **bar)
    for look in sorted({(line["kind"], ended) for line, ended in zip(found, outcomes, strict=True)}):
        at = [i for i, line in enumerate(found) if (line["kind"], outcomes[i]) == look]
        kind, ended = look
        ax.plot([sum(spans[i]) / 2 for i in at], [rates[i] for i in at], **mark(ended, SHAPES[kind]))


def _draw_answer(ax: Axes, answer: CapacityRow, at_min: float) -> None:
    """The answer's interval; an open end runs to the edge."""
    low, high = ax.get_ylim()
    ends = low if answer.low is None else answer.low, high if answer.high is None else answer.high
    bar: Look = {"color": canvas.INK, "linewidth": 1.8, "marker": "_", "markersize": 9}
    ax.plot([at_min] * 2, ends, **bar, label=f"answer, 95 % interval: {answer.words}")
    if answer.estimate is not None:
        ax.plot([at_min], [answer.estimate], color=canvas.INK, marker="D", markersize=6, linestyle="")


EXHIBIT = Exhibit(
    "search",
    "The search's path",
    plot_search,
    search_table,
    search_alt,
    "dwells.parquet: window_start_ns, window_end_ns, rate_qps_per_node, valid; events.jsonl: capacity of "
    "each segment_done; sweep.json: capacity",
    HEIGHT_IN,
)
