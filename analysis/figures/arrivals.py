"""Figure of the arrivals: sends against the plan, and the plan against a Poisson process.

Knows planned and actual send times of windows; knows no answer.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from analysis.capacity.window_counts import NS
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Floats, Look
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.windows import LAG, WindowRows, counted, measured
from analysis.results.runs import Run
from analysis.rows import metrics
from analysis.stats.pooling import NORMAL_975

HEIGHT_IN = 5.6
MOST_STEPS, LEAST_STEPS, MOST_DOTS = 400, 8, 80
"""Points of all windows' lines together, of one window's at least, and of the Q-Q plot (our choice)."""
WEDGE_STEPS = 9
POISSON = "poisson"


def plot_arrivals(run: Run, ax: Axes | None = None) -> Axes:
    """Sends minus what the rate asks for, planned and actual, window by window; Q-Q plot of the planned gaps.

    Above, both lines are one where the client kept the plan; 95 % of Poisson processes are within the grey
    wedge at any moment. Below, gaps times the rate against a standard exponential. Raises NoData for a
    closed loop, which plans no arrivals, and without a window.
    """
    ax = ax or canvas.new_axes(HEIGHT_IN)
    windows = _open_loop(run)
    ax.set_axis_off()
    kept, gaps = ax.inset_axes((0, 0.57, 1, 0.36)), ax.inset_axes((0, 0, 1, 0.42))
    _draw_deviations(kept, windows, _kind(run) == POISSON)
    canvas.label(kept, "time since the start of the run's clock (s)", "requests beyond rate x time")
    canvas.legend(kept, columns=3)
    _draw_gaps(gaps, _normal_gaps(windows), _kind(run))
    for panel in (kept, gaps):
        panel.yaxis.set_label_coords(-0.085, 0.5)
    return ax


def arrivals_table(run: Run) -> pa.Table:
    """One row per window: due, sent and expected requests; mean (in units of 1 / rate) and CV of the gaps.

    Of Poisson arrivals both are 1 but for chance. `most_behind_requests` were at most due and not yet sent
    when another was sent. Raises NoData as the figure does.
    """
    rows = []
    for window in _open_loop(run):
        gaps, due, sent = _gaps(window), *_times_s(window)
        mean = float(gaps.mean()) if len(gaps) else None
        rows.append(
            {
                "window": window.window.index,
                "rate_qps_per_node": window.rate,
                "window_s": window.window.seconds,
                "expected_requests": window.window.rate_qps * window.window.seconds,
                "due_requests": len(due),
                "sent_requests": len(sent),
                "most_behind_requests": _most_behind(due, sent),
                "gap_mean_over_planned": mean,
                "gap_cv": float(gaps.std() / mean) if mean else None,
            }
        )
    return pa.Table.from_pylist(rows)


def arrivals_alt(run: Run) -> str:
    """Number of due requests that were sent, how far sends fell behind, and how exponential the gaps are."""
    table = arrivals_table(run)
    due, sent = (sum(table[f"{name}_requests"].to_pylist()) for name in ("due", "sent"))
    behind = max(table["most_behind_requests"].to_pylist())
    gaps = _normal_gaps(_open_loop(run))
    said = (
        f"{sent:,} of {due:,} due requests were sent in {counted(table.num_rows, 'window')}; sends fell at"
        f" most {counted(behind, 'request')} behind the plan."
    )
    if len(gaps) < 2:
        return said
    cv = float(gaps.std() / gaps.mean())
    meant = ", whose gaps have 1" if _kind(run) == POISSON else ""
    return f"{said} The planned gaps' coefficient of variation is {cv:.2f}; arrivals are {_kind(run)}{meant}."


def exponential_scores(count: int) -> tuple[Floats, Floats]:
    """Mean and sd of so many standard exponentials in order: sums of independent spacings (Renyi, 1953)."""
    left = 1.0 / np.arange(count, 0, -1)
    return np.cumsum(left), np.sqrt(np.cumsum(left**2))


def _open_loop(run: Run) -> list[WindowRows]:
    windows = [window for window in measured(run, LAG) if not window.window.concurrency]
    if not windows:
        raise NoData("a closed loop plans no arrivals")
    return windows


def _kind(run: Run) -> str:
    return run.config.workload.arrivals.kind


def _times_s(window: WindowRows) -> tuple[Floats, Floats]:
    """Planned times in order, and the begun sends' actual times in order."""
    due = metrics.numbers(window.rows, "due_ns")
    sent = due + metrics.numbers(window.rows, "send_offset_ns")
    return due / NS, np.sort(sent[~np.isnan(sent)]) / NS


def _gaps(window: WindowRows) -> Floats:
    """Planned gaps inside the window in units of the mean gap that its rate asks for."""
    return np.diff(_times_s(window)[0]) * window.window.rate_qps


def _normal_gaps(windows: Sequence[WindowRows]) -> Floats:
    return np.sort(np.concatenate([_gaps(window) for window in windows]))


def _most_behind(due_s: Floats, sent_s: Floats) -> int:
    """Most requests that were due, and not sent, when another was sent, that one itself left out."""
    if not len(sent_s):
        return len(due_s)
    behind = np.searchsorted(due_s, sent_s, "right") - np.arange(1, len(sent_s) + 1)
    return max(int(behind.max()), len(due_s) - len(sent_s), 0)


def _draw_deviations(ax: Axes, windows: Sequence[WindowRows], poisson: bool) -> None:
    """All windows' lines as one, and for Poisson arrivals a wedge for each."""
    if poisson:
        _draw_wedges(ax, windows)
    most = max(LEAST_STEPS, MOST_STEPS // len(windows))
    planned: list[tuple[Floats, ...]] = []
    sent: list[tuple[Floats, ...]] = []
    for window in windows:
        for lines, times in zip((planned, sent), _times_s(window), strict=True):
            beyond = np.arange(1, len(times) + 1) - window.window.rate_qps * (times - _start_s(window))
            lines.append(canvas.thinned(times, beyond, most=most))
    for lines, look in (
        (planned, {"color": canvas.SKY, "linewidth": 4.0, "label": "planned"}),
        (sent, {"color": canvas.INK, "linewidth": 1.0, "linestyle": "--", "label": "sent"}),
    ):
        canvas.segments(ax, [list(x) for x, _ in lines], [list(y) for _, y in lines], **look)


def _draw_wedges(ax: Axes, windows: Sequence[WindowRows]) -> None:
    at, wide = [], []
    for window in windows:
        since = window.window.seconds * np.linspace(0, 1, WEDGE_STEPS) ** 2
        at.append([*(_start_s(window) + since), np.nan])
        wide.append([*(NORMAL_975 * np.sqrt(window.window.rate_qps * since)), np.nan])
    x, half = np.concatenate(at), np.concatenate(wide)
    ax.fill_between(x, -half, half, facecolor=canvas.GRID, linewidth=0, label="Poisson: 95 % at each moment")


def _start_s(window: WindowRows) -> float:
    return window.window.window_start_ns / NS


def _draw_gaps(ax: Axes, gaps: Floats, kind: str) -> None:
    """Gaps against the exponential's, with the band that holds each of them in 95 % of Poisson plans."""
    mean, sd = exponential_scores(len(gaps))
    x, y, low, high = _tailed(mean, gaps, mean - NORMAL_975 * sd, mean + NORMAL_975 * sd)
    band: Look = {"facecolor": canvas.GRID, "linewidth": 0, "label": "Poisson: 95 % at each point"}
    ax.fill_between(x, np.maximum(low, 0), high, **band)
    ends = [0.0, float(max(x.max(initial=1), y.max(initial=1)))]
    ax.plot(ends, ends, color=canvas.PALE, linewidth=1, linestyle="--", label="exponential")
    ax.plot(x, y, linestyle="", marker="o", markersize=3.5, color=canvas.BLUE, label=f"planned gaps, {kind}")
    ax.set_xlim(0, ends[1] * 1.03)
    ax.set_ylim(0, ends[1] * 1.03)
    canvas.label(ax, "exponential gap (mean gaps)", "planned gap (mean gaps)")
    if kind != POISSON:
        text = f"{kind} arrivals are not meant to lie on the line"
        canvas.note(ax, 0.99, 0.03, text, xycoords="axes fraction", ha="right", va="bottom")
    canvas.legend(ax, columns=3)


def _tailed(*columns: Floats) -> tuple[Floats, ...]:
    """The columns at rows that are even over x, so that the few long gaps all stay."""
    x = columns[0]
    if len(x) <= MOST_DOTS:
        return columns
    wanted = np.linspace(x[0], x[-1], MOST_DOTS)
    kept = np.unique(np.clip(np.searchsorted(x, wanted), 0, len(x) - 1))
    return tuple(column[kept] for column in columns)


EXHIBIT = Exhibit(
    "arrivals",
    "Planned and actual arrivals",
    plot_arrivals,
    arrivals_table,
    arrivals_alt,
    "requests/*.parquet: due_ns, send_offset_ns; dwells.parquet: rate_qps, window_start_ns, window_end_ns; "
    "config.yaml: workload.arrivals",
    HEIGHT_IN,
)
