"""A load of another tool as request rows of ours, judged by our definitions, with notes on what is unknown.

Nothing here is valid or void, because no other tool proves that its client kept its schedule.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from analysis.rows import metrics, records
from analysis.rows.metrics import Floats

NS_PER_S, NS_PER_MS = 1e9, 1e6
WINDOW, WARMUP = "window", "warmup"
ERROR_CHARS = 300
"""Most letters of an error message; a tool may save a whole traceback (our choice)."""
CUT_OFF = ("payload is not completed", "incomplete", "peer closed", "disconnected")
"""Words of Python's HTTP clients for an answer that broke off."""
_OFFSETS = tuple(f"{name}_offset_ns" for name in ("first_byte", "first_token", "last_token", "end"))
_PHRASES = {status.phrase: int(status) for status in HTTPStatus}
_CODE = re.compile(r"(?:error|status|code)\W{1,3}([45]\d\d)\b", re.IGNORECASE)

Row = dict[str, Any]
Trio = tuple[float | None, float | None, float | None]
"""A tool's own p50, p90 and p99, None where it does not print them."""


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """The load that the tool was asked to offer, as far as its file says; None is unknown.

    `open_loop` is False where requests waited for answers or for a place among `concurrency`.
    """

    rate_qps: float | None = None
    arrivals: str = "unknown"
    concurrency: int | None = None
    model: str | None = None
    open_loop: bool | None = None


@dataclass(frozen=True, slots=True)
class Foreign:
    """One load that another tool offered, with its requests in the schema `records.REQUESTS`.

    Where `due_known`, times count from the planned send as ours do. Otherwise they count from the send, all
    latencies are "from send", and `send_offset_ns` is null, so that the client's lag is unknown and not zero.
    `own` are the tool's own quantiles in ms by our names.
    """

    path: Path
    tool: str
    version: str
    requests: pa.Table
    due_known: bool
    experiment: OfferedLoad
    own: Mapping[str, Trio]
    notes: tuple[str, ...]
    part: str = ""

    @property
    def name(self) -> str:
        """The name of the file, with the part of it."""
        return f"{self.path.name}{f' ({self.part})' if self.part else ''}"

    @property
    def measured(self) -> pa.Table:
        """Its requests without a warm-up."""
        return self.requests.filter(pa.array(metrics.word_in(self.requests, "phase", WINDOW)))

    @property
    def sent_ns(self) -> Floats:
        """Send time of each measured request since the first row; nan if unknown."""
        return metrics.numbers(self.from_send, "due_ns")

    @property
    def seconds(self) -> float | None:
        """Seconds from the first send to the last end; None if no times are known."""
        end = self.sent_ns + metrics.numbers(self.from_send, "end_offset_ns")
        if np.isnan(end).all():
            return None
        return float(np.nanmax(end) - np.nanmin(self.sent_ns)) / NS_PER_S

    @property
    def sent_qps(self) -> float | None:
        """Requests per second between the first and the last send; None if unknown."""
        sent_ns = self.sent_ns[~np.isnan(self.sent_ns)]
        span_s = float(np.ptp(sent_ns)) / NS_PER_S if len(sent_ns) > 1 else 0.0
        return (len(sent_ns) - 1) / span_s if span_s else None

    @property
    def from_send(self) -> pa.Table:
        """The measured requests with times from the actual send, as other tools count.

        Where the due times are known each is then due when it was sent, so that the lag is unknown.
        """
        rows = self.measured
        if not self.due_known:
            return rows
        sent = rows.column("send_offset_ns")
        columns = {name: rows.column(name) for name in rows.column_names}
        for name in _OFFSETS:
            columns[name] = pc.subtract(columns[name], sent)
        columns["due_ns"] = pc.add(columns["due_ns"], sent)
        columns["send_offset_ns"] = pa.nulls(len(sent), pa.int64())
        return pa.table(columns, schema=rows.schema)

    @property
    def latencies(self) -> dict[str, Floats]:
        """Each latency in ms by our definitions, from the send; a failure is infinite."""
        rows = self.from_send
        return {
            "ttft_from_send": metrics.ttft(rows),
            "tpot": metrics.tpot(rows),
            "itl": metrics.itl(rows),
            "e2e_from_send": metrics.e2e(rows),
        }


def table(rows: Iterable[Row]) -> pa.Table:
    """Rows in order of `due_ns`, which then counts from the first; null if unknown.

    No tool tells the asked length of a failed request, whose TPOT must still be infinite: such a row takes
    the median length of the answers.
    """
    rows = sorted(rows, key=lambda row: row.get("due_ns") or 0)
    first = min((row["due_ns"] for row in rows if row.get("due_ns") is not None), default=0)
    answered = [row["output_tokens"] for row in rows if row["status"] == records.OK]
    usual = int(np.median(answered)) if answered else None
    for seq, row in enumerate(rows):
        row |= {"seq": seq, "phase": row.get("phase", WINDOW), "session_id": -1, "turn": row.get("turn", 0)}
        if row.get("due_ns") is not None:
            row["due_ns"] -= first
        if (row.get("events") or math.inf) <= metrics.BURST_READS:
            row["reads"] = row["events"]  # there are no more reads than events: enough to know a burst
        if row["status"] in records.FAILURES and row.get("requested_output_tokens") is None:
            row["requested_output_tokens"] = usual
    return records.table(rows)


def failure(message: str, http_status: int | None = None, got_token: bool = False) -> Row:
    """Status and kind of a failed request from a tool's message; `unclear` if the message is."""
    text = " ".join(message.split())
    lower = text.lower()
    cut = any(word in lower for word in CUT_OFF)
    code = http_status or _PHRASES.get(text) or next(map(int, [] if cut else _CODE.findall(text)), None)
    if code:
        status, kind = "http_error", str(code)
    elif "timeout" in lower or "timed out" in lower:
        status, kind = "timeout", "timeout"
    elif cut or got_token:
        status, kind = "truncated", "cut_off"
    else:
        status, kind = "conn_error", "connection" if "connect" in lower else "unclear"
    return {"status": status, "error_kind": kind, "error": text[-ERROR_CHARS:], "http_status": code}


def shortage(output_tokens: int | None, first_token_ns: int | None) -> Row:
    """Status of a request that its tool calls a success: `ok`, or a failure by our definition."""
    if output_tokens is None or output_tokens < 1 or first_token_ns is None:
        return {"status": "truncated", "error_kind": "no_token"}
    return {"status": records.OK}


def ns(seconds: float | None) -> int | None:
    """Seconds as whole ns; None stays unknown."""
    return None if seconds is None else round(seconds * NS_PER_S)


def assumed_length(requests: pa.Table) -> list[str]:
    """Notes on the assumed length of failed requests; empty without failures."""
    failed = requests.filter(pa.array(metrics.status_in(requests, *records.FAILURES)))
    lengths = {int(n) for n in failed.column("requested_output_tokens").drop_null().to_pylist()}
    if not failed.num_rows:
        return []
    if not lengths:
        return ["no request was answered, so that TPOT and ITL are unknown"]
    return [
        "how many tokens a failed request had asked for is not reported: TPOT and ITL take the median of the "
        f"answers ({max(lengths)})"
    ]


def percentiles(tree: Mapping[str, Any], names: tuple[str, str, str], scale: float = 1.0) -> Trio:
    """Three figures of a tool's tree, in ms by `scale`; None for a missing one."""
    p50, p90, p99 = (None if tree.get(name) is None else float(tree[name]) * scale for name in names)
    return p50, p90, p99
