"""Every rate that was measured: its load, latencies, tokens per second, and whether it kept the bounds."""

from collections.abc import Collection, Mapping, Sequence

from analysis.capacity import window_table
from analysis.results.figures import WindowRow
from analysis.stats.estimate import number
from analysis.views.shown import Table
from conf.specs.bounds import LIMITS, Limit, Slo, allowed_over, column, label

COUNTED = ("window", "hold")
"""Kinds of windows that are measurements; a ramp step only looks for where to measure."""
PASS, FAIL, VOID, UNKNOWN = "pass", "fail", "void", "unknown"
TITLE = "every rate, in QPS per node; latencies in ms; tokens/s per node"
HEADS = (
    *("offered", "arrived", "TTFT p50", "p90", "p99", "TPOT p50", "p90", "p99"),
    *("tokens/s in", "out", "verdict"),
)


def table(lines: Sequence[WindowRow], slo: Slo) -> Table:
    """A row for each measured window by the load that arrived."""
    measured = sorted((line for line in lines if line["kind"] in COUNTED), key=load)
    rows = tuple((*_figures(line), words(line, slo)) for line in measured)
    tones = tuple("" if line["valid"] else "failed" for line in measured)
    return Table(TITLE, HEADS, rows, tones=tones, state=len(HEADS) - 1)


def words(line: WindowRow, slo: Slo) -> str:
    """The verdict on a window: within the bounds, the bounds that it missed, or the reason why it is void."""
    if not line["valid"]:
        return f"VOID: {line['void_reason']}"
    kept = _kept_bounds(line, {bound.limit: float(bound.ms) for bound in slo.bounds})
    if missed := [label(limit) for limit, is_kept in kept.items() if is_kept is False]:
        return f"over {' and '.join(missed)}"
    return "within" if True in kept.values() else "unknown"


def figures(line: WindowRow) -> str:
    """The limited latencies of a window, and its tokens per second."""
    own = [(label(limit), line[column(limit)]) for limit in LIMITS]
    others = [(label(bound["bound"]), bound["quantile_ms"]) for bound in line.get("bounds") or ()]
    latencies = ", ".join(f"{name} {number(ms, 3)} ms" for name, ms in [*own, *others] if ms is not None)
    rate_in, rate_out = line["prompt_token_rate_per_node"], line["output_token_rate_per_node"]
    return f"{latencies}; {number(rate_in, 3)} tokens/s in, {number(rate_out, 3)} out"


def load(line: WindowRow) -> float:
    """The load that arrived, as QPS per node of mean requests; the offered rate where no row tells it."""
    arrived = line["work_qps_per_node"]
    return float(arrived) if arrived is not None and arrived > 0 else _offered(line)


def outcome(line: WindowRow, bounds: Mapping[Limit, float], limits: Collection[Limit] | None = None) -> str:
    """`void`; `fail` where one of `limits`, by default all, is not kept; `unknown` where none is known; or
    `pass`.

    A p90 of TTFT or TPOT is compared with its bound, of another bound the share over it with what is allowed.
    """
    if not line["valid"]:
        return VOID
    kept = _kept_bounds(line, {limit: bounds[limit] for limit in limits or bounds if limit in bounds})
    if False in kept.values():
        return FAIL
    return PASS if True in kept.values() else UNKNOWN


def _kept_bounds(line: WindowRow, bounds: Mapping[Limit, float]) -> dict[Limit, bool | None]:
    return {limit: _kept(line, limit, most_ms) for limit, most_ms in bounds.items()}


def _kept(line: WindowRow, limit: Limit, most_ms: float) -> bool | None:
    if limit in LIMITS:
        p90 = line[column(limit)]
        return None if p90 is None else bool(p90 <= most_ms)
    share = window_table.over_share(line, limit)
    return None if share is None else share <= allowed_over(limit)


def _offered(line: WindowRow) -> float:
    return float(line["rate_qps_per_node"])


def _figures(line: WindowRow) -> tuple[str, ...]:
    latencies = (line[f"{limit}_p{q}_ms"] for limit in LIMITS for q in window_table.QUANTILES)
    rates = line["prompt_token_rate_per_node"], line["output_token_rate_per_node"]
    return (
        number(_offered(line), 3),
        number(line["work_qps_per_node"], 3),
        *(number(ms, 3) for ms in latencies),
        *(number(rate, 3) for rate in rates),
    )
