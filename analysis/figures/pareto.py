"""Figure of throughput per GPU against interactivity, on the axes that InferenceX uses.

Draws what `analysis.results.per_gpu` defines.
"""

import pyarrow as pa

from analysis.capacity.window_counts import NS
from analysis.figures import canvas
from analysis.figures.canvas import Axes
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.windows import (
    LATENCY,
    bounds_ms,
    counted,
    draw_points,
    measured,
    outcome,
    qps,
    requests,
)
from analysis.results import per_gpu
from analysis.results.runs import Run
from analysis.rows import metrics
from analysis.stats.quantiles import quantile

HEIGHT_IN = 3.8


def plot_pareto(run: Run, ax: Axes | None = None) -> Axes:
    """Output tokens per second and GPU against the median interactivity (tok/s/user), by valid window.

    Both are measured: tokens that came within the window, and 1000 / the median TPOT of its requests.
    Named by the offered QPS per node. Raises NoData where the GPUs are not known or no window is valid.
    """
    whole, ax = canvas.single(ax, HEIGHT_IN, top=0.1)
    rows = pareto_table(run).to_pylist()
    x = [row["interactivity_median_tok_per_s_user"] for row in rows]
    y = [row["output_tok_per_s_gpu"] for row in rows]
    ended = [row["outcome"] for row in rows]
    draw_points(ax, list(zip(x, y, ended, strict=True)))
    for i in _named(x, y):
        name = qps(rows[i]["rate_qps_per_node"])
        canvas.note(ax, x[i], y[i], f"{name} QPS", xytext=(7, 0), ha="left", va="center")
    ax.set_xlim(0.85 * min(x), 1.2 * max(x) or 1.0)
    ax.set_ylim(0.85 * min(y), 1.1 * max(y) or 1.0)
    canvas.label(ax, "interactivity, 1000 / median TPOT (tok/s/user)", "output (tok/s/GPU)")
    canvas.legend(ax)
    return whole


def pareto_table(run: Run) -> pa.Table:
    """One row per valid window by rate: output tokens/s/GPU, and the median interactivity in tokens/s/user.

    Raises NoData as the figure does.
    """
    asked = run.config
    if reason := per_gpu.unknown(asked):
        raise NoData(reason)
    bounds = bounds_ms(run)
    windows = sorted((w for w in measured(run, LATENCY) if not w.void), key=lambda window: window.rate)
    came = per_gpu.Came(requests(run, per_gpu.COLUMNS))
    rows = []
    for window in windows:
        per_user = per_gpu.interactivity(quantile(metrics.tpot(window.rows), 0.5))
        gpus = per_gpu.gpus(asked, window.window.nodes)
        if per_user is None or gpus is None:
            continue
        start, end = window.window.window_start_ns / NS, window.window.window_end_ns / NS
        rows.append(
            {
                "window": window.window.index,
                "rate_qps_per_node": window.rate,
                "interactivity_median_tok_per_s_user": per_user,
                "output_tok_per_s_gpu": came.outputs(start, end) / (end - start) / gpus,
                "gpus": gpus,
                "outcome": outcome(window.line, bounds),
            }
        )
    if not rows:
        raise NoData("no valid window has a time per output token")
    return pa.Table.from_pylist(rows)


def pareto_alt(run: Run) -> str:
    """Both figures at the lowest and at the highest rate, and the number of GPUs."""
    rows = pareto_table(run).to_pylist()
    said = [
        f"{row['output_tok_per_s_gpu']:.3g} output tokens/s/GPU at"
        f" {row['interactivity_median_tok_per_s_user']:.3g} tokens/s/user when"
        f" {qps(row['rate_qps_per_node'])} QPS per node are offered"
        for row in (rows[:1] if len(rows) == 1 else (rows[0], rows[-1]))
    ]
    return f"{'; '.join(said)}; {counted(len(rows), 'window')} on {rows[0]['gpus']} GPUs that serve."


def _named(x: list[float], y: list[float]) -> list[int]:
    """The points whose names do not lie on each other, the first and the last before all others."""
    kept: list[int] = []
    for i in dict.fromkeys((0, len(x) - 1, *range(len(x)))):
        high, wide = 0.08 * (1.1 * max(y) - 0.85 * min(y)), 0.2 * (1.2 * max(x) - 0.85 * min(x))
        apart = [abs(y[i] - y[j]) > high or abs(x[i] - x[j]) > wide for j in kept]
        if all(apart):
            kept.append(i)
    return kept


EXHIBIT = Exhibit(
    "pareto",
    "Throughput per GPU against interactivity",
    plot_pareto,
    pareto_table,
    pareto_alt,
    "requests/*.parquet: token offsets, output_tokens; config.yaml: layout, cluster.nodes; dwells.parquet: "
    "rate_qps_per_node, valid",
    HEIGHT_IN,
)
