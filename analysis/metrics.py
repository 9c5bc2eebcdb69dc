"""What each latency means, in words and as one vectorised function over a request table.

Knows the columns of `records.REQUESTS`; knows no bound, no quantile and no rate. All results are
float64 in ms: a failed request is +inf, a pending or not applicable one is nan (unknown, never 0).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analysis import records

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NS_PER_MS = 1e6
UNSENT = ("missed", "lost")
"""Failures of the load generator: the request never left it, or nobody knows whether it did."""
BURST_TOKENS, BURST_READS = 10, 2
"""An answer of so many tokens that came in so few reads was held back on its way (our choice)."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A latency as a reader needs it beside the number."""

    name: str
    unit: str
    meaning: str
    formula: str


METRICS = (
    Metric("send_lag", "ms", "the client's own lateness: send begun, from due", "send_offset_ns / 1e6"),
    Metric("ttft", "ms", "first read with an output token, from the due time", "first_token_offset_ns / 1e6"),
    Metric(
        "ttft_from_send",
        "ms",
        "the same from the actual send: blind to a late client, for comparison with other tools",
        "(first_token_offset_ns - send_offset_ns) / 1e6",
    ),
    Metric(
        "tpot",
        "ms",
        "mean time per output token after the first, of one request with at least 2; unknown of a burst",
        "(last_token_offset_ns - first_token_offset_ns) / (output_tokens - 1) / 1e6",
    ),
    Metric("e2e", "ms", "last read with an output token, from the due time", "last_token_offset_ns / 1e6"),
    Metric("itl", "ms", "gaps between reads with output, pooled over all requests", "itl_us / 1e3"),
)
"""Definitions, the method, section 1."""


def numbers(requests: pa.Table, name: str) -> Floats:
    """A numeric column as float64; null is nan."""
    values: Floats = requests.column(name).cast(pa.float64()).to_numpy()
    return values


def word_in(requests: pa.Table, column: str, *words: str) -> Bools:
    """Mask of the rows whose column is one of `words`; null is none."""
    mask: Bools = pc.is_in(requests.column(column).cast(pa.string()), value_set=pa.array(words)).to_numpy()
    return mask


def status_in(requests: pa.Table, *statuses: str) -> Bools:
    """Mask of the rows whose status is one of `statuses`."""
    return word_in(requests, "status", *statuses)


def send_lag(requests: pa.Table) -> Floats:
    """Send lag per row; +inf if the client never sent it, nan while it is planned but not sent.

    Not a latency of the service: a request that was sent in time and then failed keeps its lag.
    """
    lag = numbers(requests, "send_offset_ns") / NS_PER_MS
    return np.where(status_in(requests, *UNSENT), np.inf, lag)


def burst(requests: pa.Table) -> Bools:
    """Mask of answers, whole or in flight, of 10 tokens or more that came in one or two reads.

    How fast the engine made the tokens cannot be known then. False where reads were not counted.
    """
    tokens, reads = numbers(requests, "output_tokens"), numbers(requests, "reads")
    answered = status_in(requests, records.OK, records.PENDING)
    return answered & (tokens >= BURST_TOKENS) & (reads <= BURST_READS)


def ttft(requests: pa.Table) -> Floats:
    """Time to first token from the due time, per row."""
    return _judged(requests, numbers(requests, "first_token_offset_ns") / NS_PER_MS)


def ttft_from_send(requests: pa.Table) -> Floats:
    """Time to first token from the actual send, per row."""
    first, sent = numbers(requests, "first_token_offset_ns"), numbers(requests, "send_offset_ns")
    return _judged(requests, (first - sent) / NS_PER_MS)


def tpot(requests: pa.Table) -> Floats:
    """Time per output token, per row; nan where fewer than 2 tokens came, or were asked of a failed one.

    Also nan of a burst: its tokens may have taken any time, and its two reads would flatter.
    """
    tokens = numbers(requests, "output_tokens")
    tokens = np.where(status_in(requests, records.OK), tokens, numbers(requests, "requested_output_tokens"))
    applies = (tokens >= 2) & ~burst(requests)
    gaps = np.where(applies, tokens - 1, np.nan)
    first, last = numbers(requests, "first_token_offset_ns"), numbers(requests, "last_token_offset_ns")
    return np.where(applies, _judged(requests, (last - first) / gaps / NS_PER_MS), np.nan)


def e2e(requests: pa.Table) -> Floats:
    """End to end from the due time to the last token, per row."""
    return _judged(requests, numbers(requests, "last_token_offset_ns") / NS_PER_MS)


def itl(requests: pa.Table) -> Floats:
    """Inter-token latencies pooled over the requests, not per row.

    A failed request stands for one +inf per gap it was asked for. Empty if gaps were not recorded.
    """
    ok = requests.filter(pa.array(status_in(requests, records.OK))).column("itl_us")
    if len(ok) and ok.null_count == len(ok):
        return np.empty(0)
    failed = requests.filter(pa.array(status_in(requests, *records.FAILURES)))
    lost_gaps = np.maximum(np.nan_to_num(numbers(failed, "requested_output_tokens"), nan=2.0) - 1, 1)
    gaps: Any = pc.list_flatten(ok).cast(pa.float64()).to_numpy()
    return np.concatenate([gaps / 1e3, np.full(int(lost_gaps.sum()), np.inf)])


def _judged(requests: pa.Table, latency_ms: Floats) -> Floats:
    """Latencies of complete answers; +inf for failures, nan for pending rows."""
    known = np.where(status_in(requests, records.OK), latency_ms, np.nan)
    return np.where(status_in(requests, *records.FAILURES), np.inf, known)
