"""Figure of the failed requests by cause.

Knows the status of every planned request; a failure of the load generator is told from one of the service.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Look
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.windows import counted, requests, share
from analysis.results.runs import Run
from analysis.rows import metrics, records

HEIGHT_IN = 3.2
MOST_BARS, MOST_ROWS, MESSAGE_CHARACTERS = 8, 30, 400
"""Our choice; requests/*.parquet has all of them."""
COLUMNS = ("status", "error_kind", "http_status", "error", "phase")


def plot_errors(run: Run, ax: Axes | None = None) -> Axes:
    """Failed requests by status and kind, with count and share of all that were planned and not retracted.

    Hatched bars are the load generator's own failures. Raises NoData where nothing failed.
    """
    whole, ax = canvas.single(ax, HEIGHT_IN, top=0.1)
    rows = _kinds(run).slice(0, MOST_BARS).to_pylist()
    longest = max(row["requests"] for row in rows)
    named: set[bool] = set()
    for place, row in enumerate(rows):
        own = row["status"] in metrics.UNSENT
        style: Look = {
            "color": canvas.SKY if own else canvas.ORANGE,
            "edgecolor": canvas.INK,
            "linewidth": 0.6,
        }
        text = "of the load generator" if own else "of the service or the way to it"
        label: Look = {} if own in named else {"label": text}
        ax.barh([-place], [row["requests"]], height=0.5, hatch="///" if own else "", **style, **label)
        named.add(own)
        figures = f"{row['requests']:,} ({share(row['share_pct'] / 100)})"
        canvas.note(ax, row["requests"], -place, figures, xytext=(4, 0), ha="left", va="center")
        canvas.note(ax, 0, 0.28 - place, _name(row), xytext=(2, 0), va="bottom")
    ax.set_ylim(-max(len(rows), 3) + 0.3, 0.85)
    ax.set_xlim(0, 1.3 * longest)
    canvas.label_rows(ax, "failed requests")
    canvas.legend(ax)
    return whole


def errors_table(run: Run) -> pa.Table:
    """Each status, kind and HTTP status of failures with its count, share in % and first message, most first.

    At most thirty rows. Raises NoData where nothing failed.
    """
    return _kinds(run).slice(0, MOST_ROWS)


def errors_alt(run: Run) -> str:
    """Number of failures and their most frequent kind."""
    rows = _kinds(run).to_pylist()
    total, part = sum(row["requests"] for row in rows), sum(row["share_pct"] for row in rows) / 100
    most = rows[0]
    said = (
        f"{counted(total, 'request')} failed, {share(part)} of all, in {counted(len(rows), 'kind')}; the most"
        f" frequent is {_name(most)} with {most['requests']:,}."
    )
    return f"{said} The {MOST_BARS} most frequent are drawn." if len(rows) > MOST_BARS else said


def _kinds(run: Run) -> pa.Table:
    """Every kind of failure, the most frequent first."""
    rows = requests(run, COLUMNS)
    rows = rows.filter(pa.array(~metrics.word_in(rows, "phase", "retracted")))
    failed = rows.filter(pa.array(metrics.status_in(rows, *records.FAILURES)))
    if not failed.num_rows:
        raise NoData(f"no failures among {rows.num_rows:,} requests")
    keys = ["status", "error_kind", "http_status"]
    plain = pa.table({name: failed[name].cast(pa.string()) for name in ("status", "error_kind", "error")})
    plain = plain.append_column("http_status", failed["http_status"])
    found = plain.group_by(keys, use_threads=False).aggregate([("status", "count"), ("error", "first")])
    shares = pc.multiply(100.0 / rows.num_rows, found["status_count"])
    words = pc.utf8_slice_codeunits(found["error_first"], 0, MESSAGE_CHARACTERS)
    columns = {name: found[name] for name in keys}
    table = pa.table(
        {**columns, "requests": found["status_count"], "share_pct": shares, "first_message": words}
    )
    order = [("requests", "descending"), *((name, "ascending") for name in keys)]
    return table.sort_by(order)


def _name(row: dict[str, Any]) -> str:
    code = "" if row["http_status"] is None else f"HTTP {row['http_status']}"
    return ", ".join(word for word in (row["status"], row["error_kind"], code) if word)


EXHIBIT = Exhibit(
    "errors",
    "Failed requests by cause",
    plot_errors,
    errors_table,
    errors_alt,
    "requests/*.parquet: status, error_kind, http_status, error, phase",
    HEIGHT_IN,
)
