"""Figure of the load generator's own lateness, and how busy its actors were.

The gates are those of `analysis.capacity.client_checks`.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from analysis.capacity.client_checks import CPU_SHARE, RUN_SHARE, send_lag
from analysis.capacity.window_counts import NS
from analysis.figures import canvas
from analysis.figures.canvas import Axes, Floats, Look
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.windows import LAG, WindowRows, counted, measured, ms, qps, share
from analysis.results.runs import Run
from analysis.rows import metrics
from analysis.stats.quantiles import quantile

HEIGHT_IN = 5.8
QUANTILES = (0.5, 0.9, 0.99)
TAIL = 0.01
"""The gate is on the 99th percentile: this share may be later."""
MOST_STEPS = 150
LEAST_MS = 0.01
"""Left edge of the lag's axis: a smaller lag is not worth a decade."""


def plot_client_lag(run: Run, ax: Axes | None = None) -> Axes:
    """Share of the sends later than each lag (ms, both log); CPU and run share of the load actors over time.

    The curve must pass below the gate's corner, 1 % at the allowed lag; sends that never left keep it up.
    Each of the other two has a panel of its own with its own bound.
    Raises NoData without a window.
    """
    ax = ax or canvas.new_axes(HEIGHT_IN)
    windows, clients = measured(run, LAG), run.clients()
    gate = _gate_ms(run, windows)
    lag, health = _panels(ax, clients.num_rows > 0)
    worst = max(windows, key=_p99)
    _draw_curve(lag, "all windows", np.concatenate([_lags(window) for window in windows]), canvas.STYLES[0])
    named = f"worst window ({qps(worst.rate)} QPS per node)"
    _draw_curve(lag, named, _lags(worst), canvas.STYLES[1])
    _draw_gate(lag, gate)
    canvas.legend(lag, columns=2)
    if health:
        cpu, own = health
        _draw_health(cpu, own, clients)
    return ax


def client_lag_table(run: Run) -> pa.Table:
    """One row per window: sends, never sent, send lag p50, p90, p99 and longest in ms, the gate in ms.

    A request that never left is infinitely late. Raises NoData without a window.
    """
    windows = measured(run, LAG)
    gate = _gate_ms(run, windows)
    return pa.Table.from_pylist([_row(window, gate) for window in windows])


def client_lag_alt(run: Run) -> str:
    """The worst window's p99 send lag against the gate, and how busy the busiest actor was."""
    windows, clients = measured(run, LAG), run.clients()
    gate, worst = _gate_ms(run, windows), max(windows, key=_p99)
    unsent = sum(int(np.isinf(_lags(window)).sum()) for window in windows)
    state = "above" if _p99(worst) > gate else "within"
    said = [
        f"The p99 send lag of the worst of {counted(len(windows), 'window')} is {ms(_p99(worst))}, {state}"
        f" the gate of {ms(gate)}; {counted(unsent, 'request')} never left."
    ]
    if clients.num_rows:
        cpu = metrics.numbers(clients, "cpu_share")
        said.append(f"The load actors used at most {share(float(np.nanmax(cpu)))} of a core in any second.")
    return " ".join(said)


def _lags(window: WindowRows) -> Floats:
    return metrics.send_lag(window.rows)


def _p99(window: WindowRows) -> float:
    """p99 of the lag in ms; -inf if unknown, so that it is never the worst."""
    found = quantile(_lags(window), 0.99)
    return -np.inf if found is None else found


def _gate_ms(run: Run, windows: Sequence[WindowRows]) -> float:
    """The gate of the run's own check, or computed anew if the run wrote none."""
    for check in run.checks:
        if check["name"] == "send_lag_p99" and check["bound"] is not None:
            return float(check["bound"])
    bound = send_lag(windows[0].rows, run.config.slo).bound
    if bound is None:
        raise NoData("no bound of the send lag is known")
    return bound


def _row(window: WindowRows, gate_ms: float) -> dict[str, float | int | None]:
    lags = _lags(window)
    known = lags[np.isfinite(lags)]
    return {
        "window": window.window.index,
        "rate_qps_per_node": window.rate,
        "requests": len(lags),
        "never_sent": int(np.isinf(lags).sum()),
        **{f"lag_p{100 * q:g}_ms": quantile(lags, q) for q in QUANTILES},
        "lag_longest_sent_ms": float(known.max()) if len(known) else None,
        "gate_p99_ms": gate_ms,
    }


def _panels(ax: Axes, with_health: bool) -> tuple[Axes, tuple[Axes, Axes] | None]:
    """The curves above, and below them the actors' CPU and run share where these were recorded."""
    ax.set_axis_off()
    if not with_health:
        return ax.inset_axes((0, 0, 1, 0.9)), None
    lag, cpu = ax.inset_axes((0, 0.55, 1, 0.39)), ax.inset_axes((0, 0.23, 1, 0.18))
    own = ax.inset_axes((0, 0, 1, 0.18), sharex=cpu)
    cpu.tick_params(labelbottom=False)
    for panel in (lag, cpu, own):
        panel.yaxis.set_label_coords(-0.085, 0.5)
    return lag, (cpu, own)


def _draw_curve(ax: Axes, name: str, lags: Floats, style: canvas.Style) -> None:
    """The share that is later than each lag; what never left is later than any."""
    known = np.sort(lags[~np.isnan(lags)])
    later = 1 - np.arange(1, len(known) + 1) / max(len(known), 1)
    drawn = np.isfinite(known) & (later > 0)
    # Even steps of the logarithm: the tail, which is judged, keeps its points.
    steps = np.unique(np.geomspace(1, max(drawn.sum(), 1), MOST_STEPS).round().astype(int))
    from_end = -steps[steps <= drawn.sum()][::-1]
    at, part = known[drawn][from_end], later[drawn][from_end]
    text = f"{name}, {counted(len(known), 'send')}"
    marks: Look = {**style.drawn, "markevery": max(1, len(at) // 6)}
    ax.plot(np.maximum(at, LEAST_MS), part, **marks, label=text)


def _draw_gate(ax: Axes, gate_ms: float) -> None:
    """The corner that no curve may enter: more than 1 % later than the gate."""
    curves = [(line.get_xdata(), line.get_ydata()) for line in ax.get_lines()]
    lags, parts = (np.concatenate([np.asarray(one[i], dtype=np.float64) for one in curves]) for i in (0, 1))
    right = 1.3 * max(2.5 * gate_ms, float(lags.max(initial=0)))
    ax.set_xlim(float(lags.min(initial=LEAST_MS * 10)) / 1.2, right)
    ax.set_ylim(min(TAIL / 5, float(parts.min(initial=1)) / 2), 1)
    canvas.log_axis(ax, "x")
    canvas.log_axis(ax, "y")
    corner: Look = {"facecolor": "none", "edgecolor": canvas.VERMILLION, "hatch": "///", "linewidth": 0}
    ax.fill_between([gate_ms, right], TAIL, 1, **corner, alpha=0.45)
    ax.plot([gate_ms, gate_ms, right], [1, TAIL, TAIL], **canvas.LIMIT)
    text = f"gate: at most 1 % later than {ms(gate_ms)}"
    canvas.note(ax, right, TAIL, text, ha="right", va="top", xytext=(-2, -3))
    canvas.label(ax, "send lag behind the planned time (ms)", "share of sends later")


def _draw_health(cpu: Axes, own: Axes, clients: pa.Table) -> None:
    """CPU share of the busiest actor and run share of the most crowded one, second by second."""
    at, used, run_share = _by_second(clients)
    drawn: Look = {"markevery": max(1, len(at) // 8), "markersize": 4, "linewidth": 1}
    cpu.plot(at, used, color=canvas.BLUE, marker="o", **drawn, label="CPU, busiest actor")
    canvas.bound(cpu, CPU_SHARE, f"gate: at most {CPU_SHARE:g} over a window")
    style: Look = {"color": canvas.GREEN, "marker": "^", "linestyle": "-."}
    own.plot(at, run_share, **style, **drawn, label="run share, most crowded actor")
    if np.isnan(run_share).all():
        canvas.note(own, 0.5, 0.5, "not told", xycoords="axes fraction", ha="center", va="center")
    # It informs and makes no window void: no line that must not be crossed.
    noted: Look = {"color": canvas.PALE, "linewidth": 1, "linestyle": ":"}
    own.axhline(RUN_SHARE, **noted, label=f"noted below {RUN_SHARE:g} over a window")
    for panel, words in ((cpu, "of a core"), (own, "of its time")):
        panel.set_ylim(0, 1.05)
        canvas.label(panel, "", words)
        canvas.legend(panel)
    own.set_xlabel("time since the start of the run's clock (s)")


def _by_second(clients: pa.Table) -> tuple[Floats, Floats, Floats]:
    """Seconds, the largest CPU share and the smallest run share in each bin of time; nan if not reported."""
    at = metrics.numbers(clients, "clock_ns") / NS
    edges = np.linspace(at.min(), at.max(), min(canvas.MOST_POINTS, max(2, len(np.unique(at.round())))))
    of = np.clip(np.searchsorted(edges, at, "right") - 1, 0, len(edges) - 1)
    cpu, own = np.full(len(edges), -np.inf), np.full(len(edges), np.inf)
    np.fmax.at(cpu, of, metrics.numbers(clients, "cpu_share"))
    np.fmin.at(own, of, metrics.numbers(clients, "run_share"))
    return edges, np.where(np.isinf(cpu), np.nan, cpu), np.where(np.isinf(own), np.nan, own)


EXHIBIT = Exhibit(
    "client_lag",
    "The load generator's own lateness",
    plot_client_lag,
    client_lag_table,
    client_lag_alt,
    "requests/*.parquet: send_offset_ns, time_scale, status; clients.parquet: clock_ns, cpu_share, "
    "run_share; sweep.json: checks",
    HEIGHT_IN,
)
