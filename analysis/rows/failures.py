"""Failed requests by kind: the meaning of each kind, its remedy, and whether load may be its cause.

A kind is the status of a request and its finer kind, as in `http_error 429` and `truncated no_usage`.
"""

from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.rows import metrics, records
from analysis.rows.metrics import Bools
from conf.io import bounded_yaml
from conf.io.one_line import one_line

MOST_KINDS = 4
"""Most kinds that a line names; the others are summed up (our choice)."""


@cache
def _tables() -> dict[str, Any]:
    """Kinds with their words, the remedies of those that are not listed, and which may be a load's."""
    tables: dict[str, Any] = bounded_yaml.read(Path(__file__).with_suffix(".yaml").read_text())
    return tables


NEARLY_ALL = 0.9
"""Failed share of the answers from which on they say nothing of a capacity (our choice)."""


def kinds(rows: pa.Table) -> dict[str, int]:
    """Failed requests by kind, the most frequent first; without what the search took back itself."""
    rows = metrics.chosen(rows, ~metrics.word_in(rows, "phase", "retracted"))
    rows = metrics.chosen(rows, metrics.status_in(rows, *records.FAILURES))
    words = pa.table({name: rows[name].cast(pa.string()) for name in ("status", "error_kind")})
    counts = words.group_by(words.column_names, use_threads=False).aggregate([([], "count_all")]).to_pylist()
    named = {f"{each['status']} {each['error_kind'] or ''}".rstrip(): each["count_all"] for each in counts}
    return dict(sorted(named.items(), key=lambda pair: (-pair[1], pair[0])))


def line(counts: Mapping[str, int], requests: int) -> str:
    """One line on failures by kind among so many requests; empty without a failure.

    >>> line({"http_error 429": 9, "truncated no_done": 3}, 40)
    'failed 12 of 40: 9 x http_error 429 (too many requests), 3 x truncated no_done (no [DONE] at the end)'
    """
    if not counts:
        return ""
    most = sorted(counts.items(), key=lambda pair: -pair[1])
    parts = [f"{count} x {described(kind)}" for kind, count in most[:MOST_KINDS]]
    if rest := sum(count for _, count in most[MOST_KINDS:]):
        parts.append(f"{rest} of other kinds")
    return f"failed {sum(counts.values())} of {requests}: {', '.join(parts)}"


def described(kind: str) -> str:
    """A kind of failure with its meaning, as far as it does not say that itself."""
    meaning = _tables()["kinds"].get(kind, {}).get("meaning", "")
    code = kind.removeprefix("http_error ")
    if not meaning and code.isascii() and code.isdigit() and int(code) in set(HTTPStatus):
        meaning = HTTPStatus(int(code)).phrase.lower()
    return f"{kind} ({meaning})" if meaning else kind


def remedy(kind: str) -> str:
    """Advice to the user for a kind of failure, as a sentence."""
    tables = _tables()
    if kind in tables["kinds"]:
        return str(tables["kinds"][kind]["remedy"])
    status, _, detail = kind.partition(" ")
    return str(tables["by_status"].get(detail[:1] if status == "http_error" else status, tables["other"]))


def malformed(rows: pa.Table) -> Bools:
    """Answers that failed for their form, or because the server refuses the request itself: never for load.

    An answer without [DONE] or of another length counts if the server ended it by itself.
    """
    ended = rows["finish_reason"].is_valid().to_numpy() & ~metrics.word_in(
        rows, "finish_reason", *_tables()["cut_off"]
    )
    table = _tables()
    refusals = {str(code) for code in range(300, 500)}.difference(map(str, table["may_be_load"]))
    form = metrics.word_in(rows, "error_kind", *table["never_load"], *refusals)
    by_end = metrics.word_in(rows, "error_kind", *table["if_ended"]) & ended
    mask: Bools = metrics.status_in(rows, *table["answered"]) & (form | by_end)
    return mask


def broken(rows: pa.Table) -> Bools:
    """Answers that broke off or hold an error, for a fault or for load."""
    table = _tables()
    own = metrics.word_in(rows, "error_kind", *table["broken"], *table["if_ended"])
    mask: Bools = metrics.status_in(rows, *table["answered"]) & own & ~malformed(rows)
    return mask


def most_malformed(rows: pa.Table) -> str:
    """The most frequent kind among answers that are malformed or broken; empty without one."""
    return next(iter(kinds(metrics.chosen(rows, malformed(rows) | broken(rows)))), "")


def nearly_all(rows: pa.Table) -> bool:
    """True if at least `NEARLY_ALL` of the requests that ended failed, for the target or for what was sent.

    A time-out does not count: a slow service may need longer than its requests may last.
    """
    failed = int(metrics.status_in(rows, *_tables()["answered"], "conn_error").sum())
    return failed > 0 and failed >= NEARLY_ALL * answered(rows)


def account(rows: pa.Table) -> str:
    """One line on the failures: the kinds, and of the most frequent the first message and the remedy."""
    rows = metrics.chosen(rows, ~metrics.status_in(rows, *metrics.UNSENT))
    counts = kinds(rows)
    most = next(iter(counts))
    status, _, detail = most.partition(" ")
    alike = metrics.status_in(rows, status) & (metrics.word_in(rows, "error_kind", detail) | (not detail))
    messages = rows["error"].filter(pa.array(alike)).drop_null()
    text = f'; the first says "{one_line(messages[0].as_py())}"' if len(messages) else ""
    return f"{line(counts, answered(rows))}{text}. {remedy(most)}"


def answered(rows: pa.Table) -> int:
    """Requests that left the load generator and have ended."""
    return int(np.sum(~metrics.status_in(rows, records.PENDING, *metrics.UNSENT)))
