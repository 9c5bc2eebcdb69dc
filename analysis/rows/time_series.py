"""Samples of once a second during a run: of the engines by their own count, of the load actors, of the power.

Seconds are those of the run's clock, milliseconds are real.
"""

from pathlib import Path

import pyarrow as pa

from analysis.rows import parquet
from analysis.rows.parquet import Column, schema

SCHEMA_VERSION = 1
_VERSION = {"schema_version": str(SCHEMA_VERSION)}

_WHEN: tuple[Column, ...] = (
    ("at", pa.timestamp("us"), "", "time of the sample, in UTC"),
    ("clock_ns", pa.int64(), "ns", "time of the sample since the start of the run's clock"),
)
_SERVER_COLUMNS: tuple[Column, ...] = (
    *_WHEN,
    ("replica", pa.string(), "", "x-replica-id, else the name of its URL"),
    ("running", pa.int64(), "requests", "in the engine's batch; the sum if an answer has several engines"),
    ("waiting", pa.int64(), "requests", "queued in the engine"),
    ("kv_usage", pa.float64(), "share", "KV cache in use, 0 to 1; the mean of several engines"),
    ("prefix_queries", pa.int64(), "tokens", "looked up in the prefix cache since the engine started"),
    ("prefix_hits", pa.int64(), "tokens", "of these, found"),
    ("preemptions", pa.int64(), "", "requests put back in the queue since the engine started"),
    ("prompt_tokens", pa.int64(), "tokens", "prefilled since the engine started"),
    ("generation_tokens", pa.int64(), "tokens", "generated since the engine started"),
    ("finished", pa.int64(), "requests", "ended since the engine started, for any reason"),
    ("error", pa.string(), "", "why the sample is missing, else null"),
)
_CLIENT_COLUMNS: tuple[Column, ...] = (
    ("client_id", pa.int16(), "", "load actor"),
    *_WHEN,
    ("span_s", pa.float64(), "s", "time that the other figures cover, up to `at`, on the run's clock"),
    ("sends", pa.int32(), "requests", "sends begun"),
    ("missed", pa.int32(), "requests", "due and not sent"),
    ("in_flight", pa.int32(), "requests", "sent and not ended, at the end of the span"),
    ("in_flight_mean", pa.float64(), "requests", "mean over the span"),
    ("lag_p50_ms", pa.float64(), "ms", "median send lag, in real time; null without a send"),
    ("lag_p99_ms", pa.float64(), "ms", "99th percentile of the send lag, in real time; null without a send"),
    ("lag_max_ms", pa.float64(), "ms", "longest send lag, in real time; null without a send"),
    ("cpu_share", pa.float64(), "share", "CPU time of the process over real time; 1 is one core"),
    (
        "run_share",
        pa.float64(),
        "share",
        "share of the wanted CPU time that the loop's thread got; null if unknown",
    ),
    ("stall_ms", pa.float64(), "ms", "longest pause of the event loop, in real time"),
    ("gc_pauses", pa.int16(), "", "runs of the garbage collector"),
    ("gc_ms", pa.float64(), "ms", "their time, in real time"),
    ("reads", pa.int64(), "", "socket reads with output"),
    ("events", pa.int64(), "", "streamed events with output; more than reads if delivery was merged"),
)

_POWER_COLUMNS: tuple[Column, ...] = (
    *_WHEN,
    ("node", pa.string(), "", "address of the node"),
    ("idle", pa.bool_(), "", "the service was warm and nothing was sent yet"),
    ("gpu_watts", pa.list_(pa.float64()), "W", "power of each GPU; null if unknown"),
    ("node_watts", pa.float64(), "W", "power of the whole machine; null without a meter"),
    ("source", pa.string(), "", "source of the GPUs' readings: hwmon (the kernel) or amdsmi"),
    ("error", pa.string(), "", "why GPU power is missing, else null"),
)

SERVER = schema(_SERVER_COLUMNS, _VERSION)
"""Arrow schema of timeseries.parquet: one row per replica and second; a figure that a server does not report
is null."""

CLIENTS = schema(_CLIENT_COLUMNS, _VERSION)
"""Arrow schema of clients.parquet: one row per load actor and second."""


POWER = schema(_POWER_COLUMNS, _VERSION)
"""Arrow schema of power.parquet: one row per node and sample, about a second apart, or five where a tool must
be asked; there is none where the service uses no GPU, or nothing is known of its nodes."""


def write(series: pa.Table, path: Path) -> None:
    """Write a series as Parquet, sorted by `clock_ns`, complete or not at all (by rename)."""
    parquet.write(series.sort_by("clock_ns"), path)
