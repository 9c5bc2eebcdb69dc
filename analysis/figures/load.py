"""Figures of the load: the rates of the search with what was believed, and how late the generator was."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.capacity.checks import lag_gate_ms
from analysis.capacity.window_counts import NS
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure, Floats, Look, counted, qps
from analysis.figures.exhibit import WORDS, CapacityRow, Exhibit, NoData, Row, RunData, WindowRows, mark
from analysis.stats.quantiles import quantile
from analysis.views.rates import VOID

SHAPES = {"ramp": "^", "window": "o", "hold": "s"}
"""Kinds of windows and their marks."""
NAMES = {"ramp": ", step of the ramp", "hold": ", hold of the 5 % quantile", "window": ""}


class Search(Exhibit):
    """Offered QPS per node of each window over the minutes of the run, with the posterior's 95 % band.

    The bar at the right is the final answer, in which late finishers count; a void run has none. Raises
    NoData without a window.
    """

    def __init__(self, data: RunData) -> None:
        self.answer = data.capacity
        done = [event for event in data.run.events() if event.get("event") == "window_done"]
        # Of a window that was measured again the last posterior.
        posteriors = {e["index"]: e["capacity"] for e in done if (e["capacity"] or {}).get("windows")}
        self.rows = [
            _window_row(line, data.outcome(line), posteriors.get(line["index"], {}))
            for line in data.lines(SHAPES)
        ]
        self.beliefs = [row for row in self.rows if row["posterior_qps_per_node"] is not None]
        """The windows after which there was a posterior."""

    def draw(self, figure: Figure) -> None:
        ax = figure.subplots()
        start, end = self.rows[0]["window_start_s"] / 60, self.rows[-1]["window_end_s"] / 60
        canvas.label(ax, "time since the start of the run's clock (min)", "rate offered (QPS per node)")
        ax.set_xlim(start, end + 0.12 * (end - start))
        ax.set_ylim(*self.answer.rates_around(row["rate_qps_per_node"] for row in self.rows))
        _draw_beliefs(ax, self.beliefs, end + 0.06 * (end - start))
        for row in self.rows:
            # As long as the window, with its outcome's mark; a step of the ramp, which only looks, is faint.
            kind, ended, rate = row["kind"], row["outcome"], row["rate_qps_per_node"]
            first, last = row["window_start_s"] / 60, row["window_end_s"] / 60
            look: Look = {"alpha": 0.4 if kind == "ramp" else 1.0}
            color = canvas.PALE if ended == VOID else canvas.BLUE
            ax.hlines(rate, first, last, color=color, linewidth=2.2, **look)
            name = f"{WORDS[ended]}{NAMES[kind]}"
            ax.plot([(first + last) / 2], [rate], **mark(ended, SHAPES[kind]), **look, label=name)
        _draw_answer(ax, self.answer, end + 0.09 * (end - start))

    def alt(self) -> str:
        """The rates, how many windows ended how, the answer, and why the last interval may be another one."""
        outcomes = Counter(row["outcome"] for row in self.rows)
        states = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        sentences = [super().alt(), f"They ended: {states}.", self.answer.sentence]
        if self.beliefs:
            sentences.append("The last interval of the search lacks answers that were still out then.")
        return " ".join(sentences)


def _window_row(line: Mapping[str, Any], outcome: str, posterior: Mapping[str, Any]) -> Row:
    return {
        "window": line["index"],
        "kind": line["kind"],
        "window_start_s": line["window_start_ns"] / NS,
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


def _draw_beliefs(ax: Axes, beliefs: Sequence[Row], last_min: float) -> None:
    """A band from each window's end to the next one's, hatched where an end of it is open."""
    ends = [row["window_end_s"] / 60 for row in beliefs]
    for row, start, end in zip(beliefs, ends, [*ends[1:], last_min], strict=False):
        band: Look = {"facecolor": canvas.BAND, "edgecolor": canvas.PALE, "linewidth": 0}
        look: Look = {"hatch": "///", "label": "interval leaning on the prior"}
        look = look if row["open"] else {"label": "95 % interval so far"}
        low, high = row["posterior_low_qps_per_node"], row["posterior_high_qps_per_node"]
        ax.fill_between([start, end], low, high, **band, **look)


def _draw_answer(ax: Axes, answer: CapacityRow, at_min: float) -> None:
    """The answer's interval; an open end runs to the edge."""
    if not answer.claim:
        return
    ends = canvas.within(answer.claim, *ax.get_ylim())
    bar: Look = {**canvas.line(canvas.INK, width=1.8), "marker": "_", "markersize": 9}
    ax.plot([at_min] * 2, ends, **bar, label=f"answer, 95 % interval: {answer.words}")
    if answer.closed:
        ax.plot([at_min], [answer.closed.value], **canvas.dots(canvas.INK, "D"))
    if answer.certified is not None:
        ax.plot([at_min], [answer.certified], **canvas.dots(canvas.INK, "<"), label=answer.certified_words)


QUANTILES = (0.5, 0.9, 0.99)
TAIL = 0.01
"""The gate is on the 99th percentile: this share may be later."""
MOST_STEPS = 150
"""Most points of a curve."""
LEAST_MS = 0.01
"""Left edge of the lag's axis: a smaller lag is not worth a decade."""


class ClientLag(Exhibit):
    """Share of the sends later than each lag (ms, both log).

    The curve must pass below the gate's corner, 1 % at the allowed lag; sends that never left keep it up.
    Raises NoData without a window.
    """

    def __init__(self, data: RunData) -> None:
        self.windows, verdict = data.windows, data.run.verdict
        # The run's own gate, or one computed anew if the run wrote none.
        bounds = [check.bound for check in (verdict and verdict.checks) or () if check.name == "send_lag_p99"]
        gate_ms = bounds[0] if bounds else None
        gate_ms = lag_gate_ms(self.windows[0].rows, data.run.config.slo) if gate_ms is None else gate_ms
        if gate_ms is None:
            raise NoData("no bound of the send lag is known")
        self.gate_ms = float(gate_ms)
        self.rows = [_lag_row(window, self.gate_ms) for window in self.windows]
        self.worst = max(self.windows, key=lambda window: quantile(window.lag_ms, 0.99) or 0.0)
        """The window with the largest p99 send lag."""

    def draw(self, figure: Figure) -> None:
        ax, worst = figure.subplots(), self.worst
        _draw_curve(ax, "all windows", np.concatenate([w.lag_ms for w in self.windows]), canvas.STYLES[0])
        _draw_curve(ax, f"worst window ({qps(worst.rate)} QPS per node)", worst.lag_ms, canvas.STYLES[1])
        _draw_gate(ax, self.gate_ms)


def _lag_row(window: WindowRows, gate_ms: float) -> Row:
    lags = window.lag_ms
    sent = lags[np.isfinite(lags)]
    return {
        "window": window.window.index,
        "rate_qps_per_node": window.rate,
        "requests": len(lags),
        "never_sent": int(np.isinf(lags).sum()),
        **{f"lag_p{100 * q:g}_ms": quantile(lags, q) for q in QUANTILES},
        "lag_longest_sent_ms": float(sent.max()) if len(sent) else None,
        "gate_p99_ms": gate_ms,
    }


def _draw_curve(ax: Axes, name: str, lags: Floats, look: Look) -> None:
    """The share that is later than each lag; what never left is later than any."""
    known = np.sort(lags[~np.isnan(lags)])
    # Even steps of the logarithm: the tail, which is judged, keeps its points.
    later = np.unique(np.geomspace(1, max(len(known) - 1, 1), MOST_STEPS).round().astype(int))[::-1]
    later = later[later < len(known)]
    at = known[len(known) - 1 - later]
    sent = np.isfinite(at)
    at, part = np.maximum(at[sent], LEAST_MS), later[sent] / max(len(known), 1)
    ax.plot(at, part, **look, markevery=25, label=f"{name}, {counted(len(known), 'send')}")


def _draw_gate(ax: Axes, gate_ms: float) -> None:
    """The corner that no curve may enter: more than 1 % later than the gate."""
    (least_ms, rarest), (most_ms, _) = ax.dataLim.get_points()
    right = 1.3 * max(2.5 * gate_ms, most_ms)
    ax.set_xlim(min(LEAST_MS * 10, least_ms) / 1.2, right)
    ax.set_ylim(min(TAIL / 5, rarest / 2), 1)
    canvas.log_axis(ax, "x")
    canvas.log_axis(ax, "y")
    corner: Look = {"facecolor": "none", "edgecolor": canvas.VERMILLION, "hatch": "///", "linewidth": 0}
    ax.fill_between([gate_ms, right], TAIL, 1, **corner, alpha=0.45)
    ax.plot([gate_ms, gate_ms, right], [1, TAIL, TAIL], **canvas.LIMIT)
    text = f"gate: at most 1 % later than {gate_ms:,.10g} ms"
    canvas.note(ax, right, TAIL, text, ha="right", va="top", xytext=(-2, -3))
    canvas.label(ax, "send lag behind the planned time (ms)", "share of sends later")
