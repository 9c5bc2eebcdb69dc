"""Definition of each latency, in words and as one vectorised function over a request table.

All results are float64 in ms: a failed request is +inf, a pending or not applicable one is nan (unknown,
never 0).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analysis.rows import records
from analysis.stats.quantiles import Floats as Floats

Bools = NDArray[np.bool_]

NS_PER_MS = 1e6
INEXACT = 2.0**53
"""The least integer beyond which float64 skips some: such a column is left to a cast, which refuses it."""
UNSENT = ("missed", "lost")
"""Failures of the load generator: the request never left it, or whether it did is unknown."""
BURST_TOKENS, BURST_READS = 10, 2
"""An answer of at least so many tokens in at most so many reads was held back on its way (our choice)."""
BURST_SHARE = 0.25
"""It was held back too if more than this share of its tokens came with the first read (our choice)."""
BURST_FIRST = 4
"""But not if these are so few: an answer may begin with tokens that print nothing (our choice)."""
BURST_PACE_MS = 0.3
"""And if its tokens came faster than this, in real time: no engine makes 3,300 a second for one request."""
HIDDEN_SHARE = 0.25
"""An answer hides tokens if its text accounts for less than the rest of the counted ones (our choice)."""


def numbers(requests: pa.Table, name: str) -> Floats:
    """A numeric column as float64; null is nan."""
    column = requests.column(name)
    if pa.types.is_integer(column.type):  # numpy takes a tenth of the time of a cast
        known: Floats = column.to_numpy().astype(np.float64, copy=False)
        if not (np.abs(known) >= INEXACT).any():
            return known
    values: Floats = column.cast(pa.float64()).to_numpy()
    return values


def chosen(requests: pa.Table, mask: Bools) -> pa.Table:
    """The rows of a mask; a table of which all are chosen is returned as it is, as a copy is costly."""
    return requests if mask.all() else requests.filter(pa.array(mask))


def word_in(requests: pa.Table, column: str, *words: str) -> Bools:
    """Mask of the rows whose column, of strings or a dictionary of them, is one of `words`; null is none."""
    texts = pa.array(words, pa.string())
    masks = [_word_in(chunk, texts) for chunk in requests.column(column).chunks]
    return masks[0] if len(masks) == 1 else np.concatenate([np.zeros(0, bool), *masks])


def _word_in(values: pa.Array, words: pa.Array) -> Bools:
    if not pa.types.is_dictionary(values.type):
        matches: Bools = pc.is_in(values, value_set=words).to_numpy(zero_copy_only=False)
        return matches
    # A few words are looked up instead of one per row; the last place is that of a null.
    known = pc.is_in(values.dictionary, value_set=words).to_numpy(zero_copy_only=False)
    places = values.indices.fill_null(len(known)) if values.null_count else values.indices
    mask: Bools = np.append(known, False)[places.to_numpy()]
    return mask


def status_in(requests: pa.Table, *statuses: str) -> Bools:
    """Mask of the rows whose status is one of `statuses`."""
    return word_in(requests, "status", *statuses)


def time_scale(requests: pa.Table) -> Floats:
    """Speed of the run's clock over the real one, per row."""
    return np.nan_to_num(numbers(requests, "time_scale"), nan=1.0)


def whole_time_scale(requests: pa.Table) -> float:
    """Speed of the run's clock over the real one, taken over all rows; 1 of no rows."""
    return float(np.max(time_scale(requests), initial=1.0))


def token_offset_ns(requests: pa.Table, which: str) -> Floats:
    """The `first` or `last` token from the due time: by the engine's own clock, and the path in real time.

    The wait of a turn for the one before it counts as the engine's time.
    """
    offset, by_engine = numbers(requests, f"{which}_token_offset_ns"), f"engine_{which}_token_ns"
    if requests.column(by_engine).null_count == requests.num_rows:
        return offset
    engine = numbers(requests, by_engine) + blocked_ns(requests)
    return np.where(np.isnan(engine), offset, engine + (offset - engine) / time_scale(requests))


def blocked_ns(requests: pa.Table) -> Floats:
    """Time that a turn waited for its session's turn before it, per row, on the run's clock; mostly 0."""
    return np.nan_to_num(numbers(requests, "turn_blocked_ns"))


def path(requests: pa.Table) -> Floats:
    """Real time to the first token outside an engine that told its own: client, network, Serve.

    Per row; nan where the engine reported no time.
    """
    outside = numbers(requests, "first_token_offset_ns") - numbers(requests, "engine_first_token_ns")
    return (outside - blocked_ns(requests)) / time_scale(requests) / NS_PER_MS


def send_lag(requests: pa.Table) -> Floats:
    """The client's own lateness, in real time: send begun, from due or the end of the turn waited for.

    Per row; +inf if the client never sent it, nan while it is planned but not sent. Not a latency of the
    service: a request that was sent in time and then failed keeps its lag.
    """
    lag = (numbers(requests, "send_offset_ns") - blocked_ns(requests)) / time_scale(requests) / NS_PER_MS
    return np.where(status_in(requests, *UNSENT), np.inf, lag)


def first_read_tokens(requests: pa.Table) -> Floats:
    """Output tokens that had come with the first read of output, per row; 1 where that was not recorded."""
    return np.nan_to_num(numbers(requests, "first_read_tokens"), nan=1.0)


def streamed_tokens(requests: pa.Table) -> Floats:
    """Output tokens that the streamed text accounts for, per row; all where that was not recorded."""
    streamed = numbers(requests, "streamed_tokens")
    return np.where(np.isnan(streamed), numbers(requests, "output_tokens"), streamed)


def hidden(requests: pa.Table) -> Bools:
    """Mask of whole answers of 10 tokens or more of which many were not streamed, as of hidden reasoning."""
    tokens = numbers(requests, "output_tokens")
    hides = streamed_tokens(requests) < (1 - HIDDEN_SHARE) * tokens
    return status_in(requests, records.OK) & (tokens >= BURST_TOKENS) & hides


def burst(requests: pa.Table) -> Bools:
    """Mask of answers, whole or in flight, of 10 tokens or more that were held back on their way.

    They came in one or two reads, with much of them in the first, or faster than any engine makes tokens.
    How fast the engine made them cannot be known then. False where reads were not counted. An engine that
    reports its own times may have the first read late, but its tokens are where they were.
    """
    tokens, first = numbers(requests, "output_tokens"), first_read_tokens(requests)
    answered = status_in(requests, records.OK, records.PENDING) & (tokens >= BURST_TOKENS)
    late_first = (first > np.maximum(BURST_SHARE * tokens, BURST_FIRST)) & ~_engine_reports(requests)
    return answered & ((numbers(requests, "reads") <= BURST_READS) | late_first | _too_fast(requests))


def _engine_reports(requests: pa.Table) -> Bools:
    """Mask of the rows whose engine reported the times of its tokens."""
    return ~np.isnan(numbers(requests, "engine_first_token_ns"))


def _too_fast(requests: pa.Table) -> Bools:
    """Mask of answers read faster than an engine makes tokens; none where it reports its own times."""
    first, last = (numbers(requests, f"{which}_token_offset_ns") for which in ("first", "last"))
    after = np.maximum(streamed_tokens(requests) - first_read_tokens(requests), 1)
    pace = (last - first) / time_scale(requests) / after / NS_PER_MS
    reads_known = ~np.isnan(numbers(requests, "reads"))
    return reads_known & ~_engine_reports(requests) & (pace < BURST_PACE_MS)


def ttft(requests: pa.Table) -> Floats:
    """First read with an output token, from the due time."""
    return _judged(requests, token_offset_ns(requests, "first") / NS_PER_MS)


def ttft_from_send(requests: pa.Table) -> Floats:
    """First read with an output token, from the actual send: blind to a late client, as other tools are."""
    sent = numbers(requests, "send_offset_ns") / time_scale(requests)
    return _judged(requests, (token_offset_ns(requests, "first") - sent) / NS_PER_MS)


def tpot(requests: pa.Table) -> Floats:
    """Mean time per token after the first read (mostly 1 token), of one request; unknown if held back or
    hidden.

    Of the streamed tokens that came after the first read of output. That read is one token of most servers;
    with more in it, it says nothing of the time before it. nan for fewer than 2 tokens (planned ones, if the
    request failed), and of an answer that was held back or hides tokens: theirs may have taken any time, and
    what is left would flatter. Where the engine reports its own time, only the way to the first read is real:
    the tokens that came with it count less on a fast clock.
    """
    failed = status_in(requests, *records.FAILURES)
    tokens = np.where(failed, numbers(requests, "requested_output_tokens"), streamed_tokens(requests))
    scale = np.where(_engine_reports(requests), time_scale(requests), 1.0)
    after = tokens - 1 - np.where(failed, 0, (first_read_tokens(requests) - 1) / scale)
    applies = (after > 0) & ~burst(requests) & ~hidden(requests) & (failed | ~_too_fast(requests))
    first, last = token_offset_ns(requests, "first"), token_offset_ns(requests, "last")
    paces = (last - first) / np.where(applies, after, np.nan) / NS_PER_MS
    return np.where(applies, _judged(requests, paces), np.nan)


def e2e(requests: pa.Table) -> Floats:
    """Last read with an output token, from the due time."""
    return _judged(requests, token_offset_ns(requests, "last") / NS_PER_MS)


def itl(requests: pa.Table) -> Floats:
    """Gaps between reads with output, pooled over all requests; where a server sends several tokens an
    event, gaps between events; in seconds of the run's clock.

    A failed request stands for one +inf per gap it was asked for. Empty if gaps were not recorded.
    """
    ok = requests.filter(pa.array(status_in(requests, records.OK))).column("itl_us")
    if len(ok) and ok.null_count == len(ok):
        return np.empty(0)
    failed = requests.filter(pa.array(status_in(requests, *records.FAILURES)))
    lost_gaps = np.maximum(np.nan_to_num(numbers(failed, "requested_output_tokens"), nan=2.0) - 1, 1)
    gaps: Any = pc.list_flatten(ok).cast(pa.float64()).to_numpy()
    return np.concatenate([gaps / 1e3, np.full(int(lost_gaps.sum()), np.inf)])


def own_itl(requests: pa.Table) -> Floats:
    """A quantile of the request's own gaps, per row; nan for fewer than 2 tokens, and while in flight.

    Of a failed request the tokens that were asked for count.
    """
    tokens = numbers(requests, "output_tokens")
    tokens = np.where(status_in(requests, records.OK), tokens, numbers(requests, "requested_output_tokens"))
    applies = (tokens >= 2) & ~burst(requests) & ~hidden(requests)
    return np.where(applies, _judged(requests, numbers(requests, "own_itl_us") / 1e3), np.nan)


def gaps_over(requests: pa.Table) -> tuple[Floats, Floats]:
    """Each request's gaps over the bound on pooled gaps, and all its gaps, in units of their mean number.

    A failed request has as many gaps as it was asked for, all of them over; one in flight none that is known.
    """
    gaps, over = (np.nan_to_num(numbers(requests, name)) for name in ("gaps", "gaps_over"))
    failed, done = status_in(requests, *records.FAILURES), status_in(requests, records.OK)
    lost = np.maximum(np.nan_to_num(numbers(requests, "requested_output_tokens"), nan=2.0) - 1, 0)
    gaps, over = (np.where(failed, lost, np.where(done, known, 0.0)) for known in (gaps, over))
    mean = float(gaps[gaps > 0].mean()) if np.any(gaps > 0) else 1.0
    return over / mean, gaps / mean


def queue(requests: pa.Table) -> Floats:
    """Time in the server's queue up to the first step that computes the request, by the server's word.

    Per row; nan where it tells none.
    """
    return _judged(requests, numbers(requests, "queue_us") / 1e3)


def _judged(requests: pa.Table, latency_ms: Floats) -> Floats:
    """Latencies of complete answers; +inf for failures, nan for pending rows."""
    known = np.where(status_in(requests, records.OK), latency_ms, np.nan)
    return np.where(status_in(requests, *records.FAILURES), np.inf, known)


def ttft_ms(due_s: Floats, first_s: Floats) -> Floats:
    """TTFT of requests that are all answered, from plain columns in seconds."""
    return (first_s - due_s) * 1e3


def tpot_ms(first_s: Floats, last_s: Floats, output_tokens: Floats) -> Floats:
    """TPOT of requests that are all answered, from plain columns; nan of answers of one token."""
    return (last_s - first_s) * 1e3 / np.where(output_tokens >= 2, output_tokens - 1, np.nan)


def prefix_hit(requests: pa.Table) -> float | None:
    """Share of the prompt tokens that the prefix cache served, by the server's usage; None without any.

    A version of vLLM leaves the count out where it is 0: once one answer has it, one without it had no hit.
    """
    prompt, cached = numbers(requests, "prompt_tokens"), numbers(requests, "cached_tokens")
    reported = prompt > 0
    if np.isnan(cached[reported]).all():
        return None
    return float(np.nansum(cached[reported]) / prompt[reported].sum())


def prefix_shared(requests: pa.Table, rest_tokens: int = 0) -> float:
    """Share of the planned prompt tokens that earlier prompts have, less up to `rest_tokens` of each.

    They are those of every prompt, or what a trace says.
    """
    shared, planned = numbers(requests, "shared_tokens"), numbers(requests, "requested_input_tokens")
    if reused(requests):
        shared = numbers(requests, "reusable_tokens")
    return float(np.nansum(np.maximum(shared - rest_tokens, 0)) / (np.nansum(planned) or 1.0))


def reused(requests: pa.Table) -> bool:
    """True if a trace says which tokens earlier prompts have."""
    known = "reusable_tokens" in requests.column_names
    return known and requests["reusable_tokens"].null_count < len(requests)


@dataclass(frozen=True, slots=True)
class Metric:
    """A latency in ms: its function, whose docstring begins with the meaning, and its formula."""

    of: Callable[[pa.Table], Floats]
    formula: str

    @property
    def name(self) -> str:
        return self.of.__name__

    @property
    def meaning(self) -> str:
        """The first paragraph of the function's docstring as part of a sentence."""
        words = " ".join(str(self.of.__doc__).partition("\n\n")[0].split()).removesuffix(".")
        return words[0].lower() + words[1:]


_PACE = "(last_token_offset_ns - first_token_offset_ns) / (streamed_tokens - first_read_tokens) / 1e6"
METRICS = (
    Metric(send_lag, "(send_offset_ns - turn_blocked_ns) / time_scale / 1e6"),
    Metric(ttft, "first_token_offset_ns / 1e6"),
    Metric(ttft_from_send, "(first_token_offset_ns - send_offset_ns) / 1e6"),
    Metric(tpot, _PACE),
    Metric(path, "(first_token_offset_ns - engine_first_token_ns) / time_scale / 1e6"),
    Metric(e2e, "last_token_offset_ns / 1e6"),
    Metric(queue, "queue_us / 1e3"),
    Metric(itl, "itl_us / 1e3"),
)
"""Definitions, the method, section 1.

Where the engine reported its own time, token offsets are that time plus `path` as it was: the clock's speed
multiplies what the engine does, and must not multiply what the machine in front of it does. Only `itl` is
as it was read, in seconds of the run's clock: a fast one multiplies in it the jitter of the way too.
"""

LATENCIES = tuple(m for m in METRICS if m.name in ("send_lag", "ttft", "tpot", "e2e"))
NAMES = tuple(f"{metric.name}_ms" for metric in LATENCIES)
"""Names of the latency columns."""
NEEDED = (
    *("phase", "status", "time_scale", "turn_blocked_ns", "send_offset_ns"),
    *("first_token_offset_ns", "last_token_offset_ns", "engine_first_token_ns", "engine_last_token_ns"),
    *("output_tokens", "requested_output_tokens", "reads", "first_read_tokens", "streamed_tokens"),
)
"""Columns of the record that the latencies are made of."""


def _field(metric: Metric) -> pa.Field:
    infinite = "never sent" if metric.name == "send_lag" else "failed"
    doc = f"{metric.meaning}; infinite: {infinite}; null: unknown"
    metadata = {"unit": "ms", "doc": doc, "formula": metric.formula}
    return pa.field(f"{metric.name}_ms", pa.float32(), metadata=metadata)


FILE = pa.schema(
    [*records.REQUESTS, *map(_field, LATENCIES)],
    metadata={**records.REQUESTS.metadata, b"formulas": json.dumps({m.name: m.formula for m in METRICS})},
)
"""Arrow schema of requests/*.parquet: the record and, after it, these latencies."""


def with_latencies(requests: pa.Table) -> pa.Table:
    """A table that has the columns `NEEDED` with its latencies after them, in the fields of schema `FILE`."""
    withdrawn = word_in(requests, "phase", "retracted")
    latencies = [metric.of(requests) for metric in LATENCIES]
    # nan is null, and a request that the search retracted before it was due has no latency.
    columns = [pa.array(ms.astype(np.float32), mask=withdrawn | np.isnan(ms)) for ms in latencies]
    fields = [FILE.field(name) for name in (*requests.column_names, *NAMES)]
    return pa.table([*requests.columns, *columns], schema=pa.schema(fields, metadata=FILE.metadata))
