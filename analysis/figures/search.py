"""Figure of the search: the rate of each window over time, and the posterior after it.

Knows windows and events as they were written; estimates nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from analysis.capacity.window_counts import NS
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Look
from analysis.figures.exhibit import Exhibit
from analysis.figures.outcomes import PASS, VOID, WORDS, mark, name_outcomes, outcome
from analysis.figures.windows import bounds_ms, counted, lines, qps
from analysis.results.runs import Run
from conf.specs.bounds import Limit

HEIGHT_IN = 3.6
KINDS = ("ramp", "dwell", "hold")
SHAPES = {"ramp": "^", "dwell": "o", "hold": "s"}
NAMES = {"ramp": "step of the ramp", "hold": "hold of the certified rate"}


@dataclass(frozen=True, slots=True)
class _Belief:
    """The posterior after one window, in QPS per node; an open end is only the prior's."""

    at_min: float
    median: float
    low: float
    high: float
    open_above: bool
    open_below: bool


def plot_search(run: Run, ax: Axes | None = None) -> Axes:
    """Offered QPS per node of each window over the minutes of the run, with the posterior's 95 % band.

    The bar at the right is the final answer, in which late finishers count; a void run has none. Raises
    NoData without a window.
    """
    whole, ax = canvas.single(ax, HEIGHT_IN, top=0.2)
    found, bounds, capacity = lines(run, KINDS), bounds_ms(run), run.capacity
    rates = [line["rate_qps_per_node"] for line in found]
    start, end = _minutes(min(line["start_ns"] for line in found)), _minutes(found[-1]["window_end_ns"])
    canvas.label(ax, "time since the start of the run's clock (min)", "QPS per node")
    last = end + 0.06 * (end - start)
    ax.set_xlim(start, end + 0.12 * (end - start))
    high = capacity["qps_per_node"]["high"] if capacity else 0.0
    ax.set_ylim(0.8 * min(rates), max(1.25 * max(rates), min(1.03 * high, 1.6 * max(rates))))
    _draw_beliefs(ax, list(_beliefs(run).values()), last)
    _draw_windows(ax, found, [outcome(line, bounds) for line in found])
    if capacity:
        _draw_answer(ax, capacity, end + 0.09 * (end - start))
    _name_marks(ax, found, bounds)
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
                "open": bool(belief and (belief.open_above or belief.open_below)),
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
    said.append(_answer(run.capacity) if run.capacity else "No answer is claimed.")
    return " ".join(said)


def _answer(capacity: Mapping[str, Any]) -> str:
    """The claim in words; with an open end there is no estimate."""
    q = capacity["qps_per_node"]
    if capacity["open_above"]:
        return f"The answer is a lower bound, {qps(q['low'])}."
    if capacity["open_below"]:
        return f"The answer is an upper bound, {qps(q['high'])}."
    return f"The answer is {qps(q['estimate'])} [{qps(q['low'])}, {qps(q['high'])}]."


def _beliefs(run: Run) -> dict[int, _Belief]:
    """The posterior after each window that gave one, by its number; of one measured again the last."""
    found = {}
    for event in run.events():
        capacity = event.get("capacity")
        if event.get("event") == "segment_done" and capacity and capacity["dwells"]:
            figures = (capacity["qps_per_node"], capacity["low"], capacity["high"])
            at_min = _minutes(event["window"]["window_end_ns"])
            ends = capacity["open_above"], capacity["open_below"]
            found[int(event["index"])] = _Belief(at_min, *figures, *ends)
    return found


def _ends(belief: _Belief) -> str:
    prior = " (leaning on the prior)" if belief.open_above or belief.open_below else ""
    return f"[{qps(belief.low)}, {qps(belief.high)}]{prior}"


def _minutes(ns: float) -> float:
    return ns / NS / 60


def _draw_beliefs(ax: Axes, beliefs: Sequence[_Belief], last_min: float) -> None:
    """A band from each window's end to the next one's, hatched where an end of it is open."""
    ends = [*(belief.at_min for belief in beliefs[1:]), last_min][: len(beliefs)]
    named: set[str] = set()
    for belief, until in zip(beliefs, ends, strict=True):
        is_open = belief.open_above or belief.open_below
        name = "interval leaning on the prior" if is_open else "95 % interval so far"
        band: Look = {
            "facecolor": (canvas.ORANGE, 0.18),
            "edgecolor": canvas.PALE,
            "linewidth": 0,
            "hatch": "///" if is_open else "",
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


def _draw_answer(ax: Axes, capacity: Mapping[str, Any], at_min: float) -> None:
    q = capacity["qps_per_node"]
    low = ax.get_ylim()[0] if capacity["open_below"] else q["low"]
    high = ax.get_ylim()[1] if capacity["open_above"] else q["high"]
    is_open = capacity["open_above"] or capacity["open_below"]
    middle = [] if is_open else [q["estimate"]]
    text = "answer, 95 % interval" + (" (open)" if is_open else f": {qps(q['low'])} to {qps(q['high'])}")
    ax.plot([at_min] * 2, [low, high], color=canvas.INK, linewidth=1.8, marker="_", markersize=9, label=text)
    ax.plot([at_min] * len(middle), middle, color=canvas.INK, marker="D", markersize=6, linestyle="")


def _name_marks(ax: Axes, found: Sequence[Mapping[str, Any]], bounds: Mapping[Limit, float]) -> None:
    """Legend entries of the marks there are."""
    kinds = {line["kind"] for line in found}
    name_outcomes(ax, {outcome(line, bounds) for line in found})
    for kind, words in NAMES.items():
        if kind in kinds:
            ax.plot([], [], **mark(PASS, SHAPES[kind]), label=words)


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
