"""Figure of the whole distribution of TTFT and TPOT at each rate, against the bounds.

A failed request is infinitely late, so its curve does not reach 1.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Floats, Look
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.windows import LATENCIES, LATENCY, WindowRows, bounds_ms, measured, ms, qps, share
from analysis.results.runs import Run
from analysis.stats.quantiles import quantile
from conf.specs.bounds import LIMITS, QUANTILE, Limit

HEIGHT_IN = 3.8
MOST_CURVES = 6
"""Most curves, evenly over the rates with the lowest and the highest among them: more are not told apart."""
MOST_STEPS = 100
QUANTILES = (0.5, 0.9, 0.99)


def plot_cdf(run: Run, ax: Axes | None = None) -> Axes:
    """Share of the requests answered within each TTFT and each TPOT (ms, log), one curve per rate.

    The mark is the bound at 90 %: a curve that passes to the left of it keeps the bound. At most six valid
    windows are drawn. Raises NoData without a valid window.
    """
    ax = ax or canvas.new_axes(HEIGHT_IN)
    shown, bounds = _shown(_valid(run)), bounds_ms(run)
    both = canvas.beside(ax, top=0.17)
    for panel, limit in zip(both, LIMITS, strict=True):
        _panel(panel, limit, shown, bounds.get(limit))
    both[1].set_ylabel("")
    canvas.legend(both[0], columns=3)
    return ax


def cdf_table(run: Run) -> pa.Table:
    """One row per valid window, by rate: p50, p90 and p99 in ms and the share within each bound.

    Quantiles of a window with failures are infinite where these reach. Raises NoData without a valid window.
    """
    bounds = bounds_ms(run)
    return pa.Table.from_pylist([_row(window, bounds) for window in _valid(run)])


def cdf_alt(run: Run) -> str:
    """Share of the requests within each bound at the lowest and at the highest rate."""
    valid, bounds = _valid(run), bounds_ms(run)
    ends = valid if len(valid) == 1 else [valid[0], valid[-1]]
    said = []
    for limit in (one for one in LIMITS if one in bounds):
        shares = [(_within(LATENCIES[limit](window.rows), bounds[limit]), window.rate) for window in ends]
        known = [f"{share(part)} at {qps(rate)} QPS per node" for part, rate in shares if part is not None]
        if known:
            said.append(f"Within the {limit.upper()} bound of {ms(bounds[limit])}: {', '.join(known)}.")
    failed = sum(window.line["failed"] for window in valid)
    if failed:
        said.append(f"{failed} requests failed and count as infinitely late: their curves end below 1.")
    return " ".join([*said, "90 % are asked for."])


def steps(values: Floats, most: int = MOST_STEPS) -> tuple[Floats, Floats]:
    """Finite `values` in order, and the share of all known ones that is not above each; thinned to `most`.

    Of n known values the last finite one stands at 1 only where none is infinite.
    """
    known = np.sort(values[~np.isnan(values)])
    parts = np.arange(1, len(known) + 1) / max(len(known), 1)
    finite = np.isfinite(known)
    thin = canvas.thinned(known[finite], parts[finite], most=most)
    return thin[0], thin[1]


def _valid(run: Run) -> list[WindowRows]:
    found = sorted((w for w in measured(run, LATENCY) if not w.void), key=lambda window: window.rate)
    if not found:
        raise NoData("every window is void")
    return found


def _shown(windows: Sequence[WindowRows]) -> list[WindowRows]:
    if len(windows) <= MOST_CURVES:
        return list(windows)
    kept = np.linspace(0, len(windows) - 1, MOST_CURVES).round().astype(int)
    return [windows[i] for i in kept]


def _within(values: Floats, bound_ms: float) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.mean(known <= bound_ms)) if len(known) else None


def _row(window: WindowRows, bounds: dict[Limit, float]) -> dict[str, float | int | None]:
    row: dict[str, float | int | None] = {
        "window": window.window.index,
        "rate_qps_per_node": window.rate,
        "requests": window.rows.num_rows,
        "failed": window.line["failed"],
    }
    for limit in LIMITS:
        values = LATENCIES[limit](window.rows)
        row |= {f"{limit}_p{100 * q:g}_ms": quantile(values, q) for q in QUANTILES}
        within = _within(values, bounds[limit]) if limit in bounds else None
        row[f"{limit}_within_bound_pct"] = None if within is None else 100 * within
    return row


def _panel(ax: Axes, limit: Limit, windows: Sequence[WindowRows], bound_ms: float | None) -> None:
    """One curve per window; that of one with failures ends below 1."""
    ends = [] if bound_ms is None else [bound_ms]
    for window, style in zip(windows, canvas.STYLES, strict=False):
        at, part = steps(LATENCIES[limit](window.rows))
        if not len(at):
            continue
        failed = window.line["failed"]
        name = f"{qps(window.rate)} QPS per node{f' ({failed} failed)' if failed else ''}"
        ax.plot(at, part, **style.drawn, markevery=max(1, len(at) // 4), label=name)
        ends += [float(at[0]), float(at[-1])]
    if ends:
        ax.set_xlim(min(ends) / 1.1, max(ends) * 1.15)
    ax.set_ylim(0, 1.02)
    canvas.log_axis(ax, "x")
    canvas.label(ax, f"{limit.upper()} (ms)", "share of requests within")
    if bound_ms is None:
        return
    ax.plot([bound_ms, bound_ms], [0, QUANTILE], **canvas.LIMIT)
    ax.plot([bound_ms], [QUANTILE], marker="<", markersize=8, color=canvas.VERMILLION, linestyle="")
    ax.axhline(QUANTILE, color=canvas.PALE, linewidth=0.8, linestyle=":")
    beside: Look = {"ha": "right", "xytext": (-3, 3), "rotation": 90, "va": "bottom"}
    canvas.note(ax, bound_ms, 0.02, f"bound {ms(bound_ms)}", **beside)


EXHIBIT = Exhibit(
    "cdf",
    "TTFT and TPOT of every request, by rate",
    plot_cdf,
    cdf_table,
    cdf_alt,
    "requests/*.parquet: token offsets of the windows' requests; dwells.parquet: rate_qps_per_node, failed",
    HEIGHT_IN,
)
