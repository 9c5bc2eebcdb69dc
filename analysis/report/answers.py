"""Tables behind a verdict: the asked load, p90s against their bounds, windows, errors."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.figures.exhibit import NoData
from analysis.figures.run_data import RunData, WindowRows
from analysis.report.blocks import Facts, Missing, Section, Table
from analysis.report.wording import UNKNOWN, bound, figure, table, value
from analysis.results.text.probe_text import unknown_interval
from analysis.results.types.probe_figures import HoldFigures, ProbeFigures, Quantile
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.shared_figures import RequestCounts, WindowRow
from analysis.results.types.study_verdict import StudyVerdict
from analysis.rows import failures, metrics, records
from analysis.rows.metrics import METRICS
from analysis.stats.estimate import interval, middle, number, span
from analysis.stats.quantiles import quantile
from conf.labels import named
from conf.specs.bounds import Limit, label, quantile_of

OF_ONE = ("compare", "matrix")
"""Studies with a configuration per part; study.json has that of the first."""
MOST_ROWS, MESSAGE_CHARACTERS = 30, 400
"""Our choice; requests/*.parquet has all of them."""
KINDS = ("status", "error_kind", "http_status")
SHOWN_METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL, gaps pooled", "e2e": "E2E"}
SHARES = (0.5, 0.9, 0.95, 0.99)
PERCENTILE_HEADS = ("window", "nominal rate", "latency", *(f"p{100 * share:g}" for share in SHARES))
_METRICS = tuple(one for one in METRICS if one.name in SHOWN_METRICS)


def rests_on(verdict: RunVerdict | StudyVerdict) -> Facts:
    """The configuration, and the amount of evidence."""
    asked, rows = verdict.asked, []
    if isinstance(verdict, StudyVerdict) and verdict.study in OF_ONE:
        rows.append(("these are of", f"{verdict.names[0]}, the first part"))
    bounds = ", ".join(bound(asked.slo, limit) for limit in asked.slo.limits)
    rows += [("bounds", bounds), ("engine", asked.engine)]
    if asked.engine == "external":
        nodes = f"{asked.nodes}, as was said of the endpoints, of {named('hardware', asked.hardware)}"
        rows += [("model", asked.model), ("nodes", nodes), ("layout", asked.layout)]
    else:
        nodes = f"{asked.nodes} x {asked.hardware}, {value(asked.replicas)} replica(s)"
        routing = f"{asked.layout}, {asked.routing} by {asked.data_path or UNKNOWN}"
        rows += [("model", asked.model), ("nodes", nodes), ("layout, routing", routing)]
    rows += [
        ("workload", f"{asked.load}, arrivals {asked.arrivals}"),
        ("search, seed", f"{asked.search}, {asked.seed}"),
        ("evidence", verdict.evidence or "none"),
        ("requests", _counted(verdict.requests)),
    ]
    if verdict.capacity and claims(verdict) and (replica := verdict.capacity.qps_per_replica):
        rows.append(("per replica", f"{span(replica)} QPS (95 %)"))
    if isinstance(verdict, RunVerdict) and verdict.prediction:
        q, how = verdict.prediction.qps_per_node, verdict.prediction.how
        rows.append(("predicted before", f"{span(q)} QPS per node (95 %; {how})"))
    return Facts(tuple(rows))


def claims(verdict: RunVerdict | StudyVerdict) -> bool:
    """True if a capacity is a number: valid, with both ends of its interval known."""
    capacity = verdict.capacity
    return verdict.valid and capacity is not None and not (capacity.open_above or capacity.open_below)


def confirmation_run(hold: HoldFigures) -> Table:
    """The confirmation run: p90s at the rate that was held, and whether they veto the answer."""
    held_qps = f"{figure(hold.rate_qps_per_node)} QPS per node, the 5 % quantile of the sampling noise"
    rate = f"{held_qps}, held for {hold.window_s:.0f} s"
    if not hold.valid:
        return p90s(f"{rate}: void ({hold.void_reason}), which confirms nothing", hold)
    most = f"alone it shows at most {number(hold.capacity_high_qps_per_node)} QPS per node (97.5 %)"
    return p90s(f"{rate}: {most} and {'vetoes' if hold.vetoed else 'does not veto'} the answer", hold)


def p90s(caption: str, measured: ProbeFigures | HoldFigures) -> Table:
    """Each limited quantile with its interval against its bound, of a probe or a confirmation run."""
    rows = [_quantile(limit, found) for limit, found in measured.limits.items()]
    states = tuple(
        "ok" if row[-1] == "within" else "failed" if row[-1] == "over" else "unknown" for row in rows
    )
    return Table(
        caption,
        ("bound on", "measured", "95 % interval", "bound", "verdict"),
        tuple(rows),
        tones=states,
        state=4,
    )


def _quantile(limit: Limit, found: Quantile) -> tuple[str, ...]:
    verdict = {True: "within", False: "over", None: "unknown or does not apply"}[found.passed]
    if found.share is not None:
        least = f"at least {100 * quantile_of(limit):g} %"
        return label(limit), f"{100 * found.share:.1f} %", UNKNOWN, least, verdict
    spread = f"unknown: {unknown_interval(found)}"
    if found.ms and found.has_interval:
        spread = f"{interval(found.ms)} ms"
    measured = f"{middle(found.ms)} ms" if found.ms else UNKNOWN
    return label(limit), measured, spread, f"{figure(found.bound_ms)} ms", verdict


def windows(lines: Sequence[WindowRow]) -> Table:
    """All windows in order of time, void ones marked."""
    heads = "window", "QPS per node", "requests", "failed", "p90 TTFT ms", "p90 TPOT ms", "p99 send lag ms"
    columns = "rate_qps_per_node", "requests", "failed", "ttft_p90_ms", "tpot_p90_ms", "lag_p99_ms"
    rows = tuple(
        (
            f"{line['kind']} {line['index']}",
            *(figure(line[name]) for name in columns),
            "valid" if line["valid"] else f"VOID: {line['void_reason']}",
        )
        for line in lines
    )
    return Table(
        "Every window that was measured (windows.parquet)",
        (*heads, "state"),
        rows,
        tones=tuple("" if line["valid"] else "failed" for line in lines),
        state=7,
    )


def percentiles(data: RunData) -> list[Table]:
    """Percentiles of every latency in each window, folded; none for a run without requests.

    The throughput is that of the answers due in the window, over its length.
    """
    try:
        windows = data.windows
    except NoData:
        return []
    rows = [line for window in windows for line in _percentile_lines(window)]
    return [Table("Percentiles of every window in ms", PERCENTILE_HEADS, tuple(rows), folded=True)]


def _percentile_lines(window: WindowRows) -> Iterator[tuple[str, ...]]:
    name = f"{window.line['kind']} {window.line['index']}"
    rate = f"{number(window.rate)} QPS per node"
    tokens = metrics.numbers(window.rows, "output_tokens")
    for one in _METRICS:
        values = one.of(window.rows)
        values = values[~np.isnan(values)]
        ends = (figure(quantile(values, share)) if len(values) else UNKNOWN for share in SHARES)
        yield name, rate, SHOWN_METRICS[one.name], *ends
    per_s = float(np.nansum(tokens)) / window.window.seconds
    yield name, rate, f"throughput {figure(per_s)} output tokens/s", "", "", "", ""


def errors(data: RunData) -> Section:
    """Failures by kind with the first message of each, most frequent first, or that there are none."""
    title = "Failed requests by kind (requests/*.parquet)"
    block: Table | Missing
    try:
        found = errors_table(data)
        note = f"The {MOST_ROWS} most frequent kinds at most." if found.num_rows == MOST_ROWS else ""
        words = frozenset({found.column_names.index("first_message")})
        block = replace(table(title, found, "none"), words=words, note=note)
    except NoData as why:
        block = Missing(title, str(why))
    purpose = "What failed, and in whose words. A failed request counts as infinitely late."
    return Section("errors", "Errors", purpose, (block,))


def errors_table(data: RunData) -> pa.Table:
    """Each status, kind and HTTP status of failures with its count, share in % and first message.

    The most frequent first, at most thirty rows. Raises NoData where nothing failed.
    """
    rows = data.requests.select((*KINDS, "error", "phase"))
    rows = rows.filter(pa.array(~metrics.word_in(rows, "phase", "retracted")))
    failed = rows.filter(pa.array(metrics.status_in(rows, *records.FAILURES)))
    if not failed.num_rows:
        raise NoData(f"no failures among {rows.num_rows:,} requests")
    plain = pa.table({name: failed[name].cast(pa.string()) for name in ("status", "error_kind", "error")})
    plain = plain.append_column("http_status", failed["http_status"])
    found = plain.group_by(KINDS, use_threads=False).aggregate([("status", "count"), ("error", "first")])
    shares = pc.multiply(100.0 / rows.num_rows, found["status_count"])
    words = pc.utf8_slice_codeunits(found["error_first"], 0, MESSAGE_CHARACTERS)
    columns = {"requests": found["status_count"], "share_pct": shares, "first_message": words}
    counted = pa.table({**{name: found[name] for name in KINDS}, **columns})
    order = [("requests", "descending"), *((name, "ascending") for name in KINDS)]
    return counted.sort_by(order).slice(0, MOST_ROWS)


def _counted(counted: RequestCounts | None) -> str:
    if not counted:
        return UNKNOWN
    states = ", ".join(f"{count:,} {status}" for status, count in sorted(counted.by_status.items()))
    failed = failures.line(counted.by_failure, counted.rows)
    rows = f"{counted.rows:,} rows of {counted.planned:,} planned requests ({states or 'none'})"
    return "; ".join(filter(None, (rows, failed)))
