"""Figure of the search: the rate of each window over time, and the posterior after it."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.capacity.window_counts import NS
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Look
from analysis.figures.exhibit import WORDS, CapacityRow, Exhibit, Row, RunData, counted, mark, plot_of, qps
from analysis.views.rates import VOID

SHAPES = {"ramp": "^", "window": "o", "hold": "s"}
"""Kinds of windows and their marks."""
NAMES = {"ramp": ", step of the ramp", "hold": ", hold of the 5 % quantile", "window": ""}
FAINT: Look = {"alpha": 0.4}
"""The ramp only looks for where to measure."""


class Search(Exhibit):
    """Offered QPS per node of each window over the minutes of the run, with the posterior's 95 % band.

    The bar at the right is the final answer, in which late finishers count; a void run has none. Raises
    NoData without a window.
    """

    name = "search"
    title = "The search's path"
    source = (
        "windows.parquet: window_start_ns, window_end_ns, rate_qps_per_node, valid; events.jsonl: capacity "
        "of each window_done; sweep.json: capacity"
    )

    def __init__(self, data: RunData) -> None:
        self.lines, self.answer = data.lines(SHAPES), data.capacity
        done = [event for event in data.run.events() if event.get("event") == "window_done"]
        # Of a window that was measured again the last posterior.
        posteriors = {e["index"]: e["capacity"] for e in done if (e["capacity"] or {}).get("windows")}
        self.rows = [_row(line, data.outcome(line), posteriors.get(line["index"], {})) for line in self.lines]
        self.beliefs = [row for row in self.rows if row["posterior_qps_per_node"] is not None]
        """The windows after which there was a posterior."""

    def draw(self, figure: Figure) -> None:
        ax = figure.subplots()
        rates = [row["rate_qps_per_node"] for row in self.rows]
        start = _minutes(min(line["start_ns"] for line in self.lines))
        end = _minutes(self.lines[-1]["window_end_ns"])
        canvas.label(ax, "time since the start of the run's clock (min)", "rate offered (QPS per node)")
        ax.set_xlim(start, end + 0.12 * (end - start))
        shown = [0.97 * rate for rate in (self.answer.low, self.answer.certified) if rate]
        low = min([0.8 * min(rates), *(rate for rate in shown if rate > 0.5 * min(rates))])
        ax.set_ylim(low, max(1.25 * max(rates), min(1.03 * (self.answer.high or 0.0), 1.6 * max(rates))))
        _draw_beliefs(ax, self.beliefs, end + 0.06 * (end - start))
        for look in sorted({(row["kind"], row["outcome"]) for row in self.rows}):
            self._draw_windows(ax, *look)
        if self.answer.claim:
            _draw_answer(ax, self.answer, end + 0.09 * (end - start))

    def alt(self) -> str:
        """Number of windows, their rates and outcomes, and how the interval narrowed."""
        rates, outcomes = (
            [row["rate_qps_per_node"] for row in self.rows],
            [row["outcome"] for row in self.rows],
        )
        states = ", ".join(f"{outcomes.count(name)} {name}" for name in WORDS if name in outcomes)
        span = f"from {qps(min(rates))} to {qps(max(rates))} QPS per node"
        said = [f"{counted(len(rates), 'window')} {span}: {states}."]
        answer, ends = self.answer, [_ends(row) for row in self.beliefs]
        if ends:
            narrowed = f"from {ends[0]} after the first counted window to {ends[-1]} after the last"
            said.append(f"The 95 % interval goes {narrowed}.")
        said.append(f"The answer is {answer.words}." if answer.claim else "No answer is claimed.")
        claimed = answer.sampling or answer.closed
        if ends and claimed and ends[-1] != f"[{qps(claimed.low or 0.0)}, {qps(claimed.high or 0.0)}]":
            said.append(
                "It may differ from the last interval, which was printed while answers were out: the answer "
                "counts every window again with all its rows."
            )
        return " ".join(said)

    def _draw_windows(self, ax: Axes, kind: str, ended: str) -> None:
        """A bar as long as each window, with the outcome's mark in its middle."""
        pairs = zip(self.lines, self.rows, strict=True)
        lines = [line for line, row in pairs if (row["kind"], row["outcome"]) == (kind, ended)]
        spans = [(_minutes(line["window_start_ns"]), _minutes(line["window_end_ns"])) for line in lines]
        rates = [line["rate_qps_per_node"] for line in lines]
        look = FAINT if kind == "ramp" else {}
        bar: Look = {"color": canvas.PALE if ended == VOID else canvas.BLUE, "linewidth": 2.2, **look}
        canvas.segments(ax, spans, [[rate] * 2 for rate in rates], **bar, solid_capstyle="butt")
        name, middles = f"{WORDS[ended]}{NAMES[kind]}", [sum(span) / 2 for span in spans]
        ax.plot(middles, rates, **mark(ended, SHAPES[kind]), **look, label=name)


plot_search = plot_of(Search)


def _row(line: Mapping[str, Any], outcome: str, posterior: Mapping[str, Any]) -> Row:
    return {
        "window": line["index"],
        "kind": line["kind"],
        "window_end_s": line["window_end_ns"] / NS,
        "rate_qps_per_node": line["rate_qps_per_node"],
        "requests": line["requests"],
        "outcome": outcome,
        "posterior_qps_per_node": posterior.get("qps_per_node"),
        "posterior_low_qps_per_node": posterior.get("low"),
        "posterior_high_qps_per_node": posterior.get("high"),
        "open": bool(posterior.get("open_above") or posterior.get("open_below")),
        "reason": line["reason"],
    }


def _ends(row: Row) -> str:
    low, high = row["posterior_low_qps_per_node"], row["posterior_high_qps_per_node"]
    return f"[{qps(low)}, {qps(high)}]{' (leaning on the prior)' if row['open'] else ''}"


def _minutes(ns: float) -> float:
    return ns / NS / 60


def _draw_beliefs(ax: Axes, beliefs: Sequence[Row], last_min: float) -> None:
    """A band from each window's end to the next one's, hatched where an end of it is open."""
    ends = [row["window_end_s"] / 60 for row in beliefs]
    for row, start, end in zip(beliefs, ends, [*ends[1:], last_min], strict=False):
        band: Look = {"facecolor": canvas.BAND, "edgecolor": canvas.PALE, "linewidth": 0}
        hatch, name = (
            ("///", "interval leaning on the prior") if row["open"] else ("", "95 % interval so far")
        )
        low, high = row["posterior_low_qps_per_node"], row["posterior_high_qps_per_node"]
        ax.fill_between([start, end], low, high, **band, hatch=hatch, label=name)
        median = [row["posterior_qps_per_node"]] * 2
        ax.plot([start, end], median, **canvas.line(canvas.PALE, "--", 1), label="median so far")


def _draw_answer(ax: Axes, answer: CapacityRow, at_min: float) -> None:
    """The answer's interval; an open end runs to the edge."""
    low, high = ax.get_ylim()
    ends = low if answer.low is None else answer.low, high if answer.high is None else answer.high
    bar: Look = {**canvas.line(canvas.INK, width=1.8), "marker": "_", "markersize": 9}
    ax.plot([at_min] * 2, ends, **bar, label=f"answer, 95 % interval: {answer.words}")
    if answer.closed:
        ax.plot([at_min], [answer.closed.value], **canvas.dots(canvas.INK, "D"))
    if answer.certified is not None:
        ax.plot([at_min], [answer.certified], **canvas.dots(canvas.INK, "<"), label=answer.certified_words)
