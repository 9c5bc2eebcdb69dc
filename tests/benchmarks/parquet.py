"""What a run folder costs: bytes per request, and the time to write, read and summarise them.

    python -m tests.benchmarks.parquet                       1e6 requests, without and with the gaps
    python -m tests.benchmarks.parquet --rows 10000000       percentiles over so many; the gaps of 1e6 only

The rows are synthetic and written as `loadgen` writes them: Poisson arrivals, 30 windows, one request in a
thousand failed, 139 gaps each (lognormal around 25 ms with 5 % jitter, 6 % of them held up by a prefill). CPU
seconds are of all threads together; wall seconds depend on what else the machine does.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.results import tables
from analysis.results.runs import Run
from analysis.rows import metrics, records
from analysis.rows.metrics import NEEDED

WINDOWS, NODES, QPS_PER_NODE, GAPS = 30, 100, 5.0, 139
WITH_GAPS = 1_000_000
"""No more rows than these are written with their gaps: 300 MB on the disk."""
PART = {False: 1_000_000, True: 250_000}
"""Rows that are made and written at a time, without and with gaps: a few hundred MB of memory."""
PERCENTILES = (0.5, 0.9, 0.99)


def requests(first: int, count: int, whole: int, with_gaps: bool) -> pa.Table:
    """Rows `first` to `first + count` of a run of `whole` requests, of schema `records.REQUESTS`."""
    draw = np.random.default_rng(first)
    seq = np.arange(first, first + count)
    qps = NODES * QPS_PER_NODE
    due_ns = np.int64(first / qps * 1e9) + np.cumsum(draw.exponential(1e9 / qps, count)).astype(np.int64)
    within = seq * WINDOWS % whole / whole
    failed = draw.random(count) < 1e-3
    sent_ns = draw.lognormal(13.1, 0.4, count).astype(np.int64)
    first_ns = sent_ns + draw.lognormal(19.9, 0.45, count).astype(np.int64)
    gaps_us = _gaps_us(draw, count) if with_gaps else None
    answer_ns = (
        (draw.lognormal(10.4, 0.3, count) * GAPS * 1e3).astype(np.int64)
        if gaps_us is None
        else gaps_us.reshape(count, GAPS).sum(axis=1, dtype=np.int64) * 1000
    )
    last_ns = first_ns + answer_ns
    columns: dict[str, Any] = records.empty(records.SHARD, count) | {
        "seq": seq,
        "client_id": (seq % 8).astype(np.int16),
        "window_index": (seq * WINDOWS // whole).astype(np.int16),
        "phase": np.where(within < 0.25, "transition", np.where(within < 0.97, "window", "bridge")),
        "status": np.where(failed, "timeout", "ok"),
        "http_status": np.full(count, 200, np.int16),
        "finish_reason": pa.array(np.full(count, "length"), mask=failed),
        "session_id": np.full(count, -1, np.int32),
        "turn": np.zeros(count, np.int16),
        "replica_id": pa.array([f"r{i:03d}" for i in range(NODES)]).take(
            pa.array(draw.integers(0, NODES, count))
        ),
        "due_ns": due_ns,
        "scheduled_at": pa.array(1_795_000_000_000_000 + due_ns // 1000).cast(pa.timestamp("us")),
        "send_offset_ns": sent_ns,
        "first_byte_offset_ns": sent_ns + draw.lognormal(14.5, 0.3, count).astype(np.int64),
        "first_token_offset_ns": pa.array(first_ns, mask=failed),
        "last_token_offset_ns": pa.array(last_ns, mask=failed),
        "end_offset_ns": last_ns + draw.lognormal(13.1, 0.5, count).astype(np.int64),
        "requested_input_tokens": np.full(count, 5600, np.int32),
        "requested_output_tokens": np.full(count, GAPS + 1, np.int32),
        "shared_tokens": np.zeros(count, np.int32),
        "prompt_tokens": pa.array(np.full(count, 5600, np.int32), mask=failed),
        "cached_tokens": pa.array(np.zeros(count, np.int32), mask=failed),
        "output_tokens": np.where(failed, draw.integers(0, GAPS, count), GAPS + 1).astype(np.int32),
        "events": np.full(count, GAPS + 1, np.int32),
        "reads": (GAPS + 1 - draw.poisson(0.3, count)).astype(np.int32),
        "time_scale": np.ones(count),
    }
    if gaps_us is not None:
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * GAPS)
        columns["itl_us"] = pa.ListArray.from_arrays(offsets, pa.array(gaps_us))
    return pa.table(columns, schema=records.SHARD).cast(records.REQUESTS)


def _gaps_us(draw: np.random.Generator, count: int) -> np.ndarray:
    """Gaps of `count` answers: a pace of each, jitter, and prefills that hold some up."""
    pace = np.repeat(draw.lognormal(10.1, 0.15, count).astype(np.float32), GAPS)
    gaps = pace * (1 + 0.05 * draw.standard_normal(count * GAPS, np.float32))
    held = draw.random(count * GAPS, np.float32) < 0.06
    gaps[held] += draw.exponential(120_000, int(held.sum())).astype(np.float32)
    return gaps.astype(np.int32)


def write(folder: Path, rows: int, with_gaps: bool) -> float:
    """Write a run's requests in parts, and return the CPU seconds of making columns and files of them."""
    spent_s = 0.0
    for number, first in enumerate(range(0, rows, PART[with_gaps])):
        part = requests(first, min(PART[with_gaps], rows - first), rows, with_gaps)
        begun_s = time.process_time()
        records.write(metrics.with_latencies(part), folder / "requests" / f"part-{number:03d}.parquet")
        spent_s += time.process_time() - begun_s
    return spent_s


def timed(act: Callable[[], Any]) -> tuple[float, float, Any]:
    """CPU and wall seconds of the quickest of three calls, and what it returned."""
    best = (np.inf, np.inf, None)
    for _ in range(3):
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        result = act()
        best = min(
            best, (time.process_time() - cpu_s, time.perf_counter() - wall_s, result), key=lambda t: t[0]
        )
    return best


def ours(run: Run) -> np.ndarray:
    """TTFT and TPOT per window from the raw offsets, by `analysis.results.tables`."""
    rows = run.requests(columns=["window_index", *NEEDED], phase="window")
    both = [tables.percentiles_of(rows, metric, PERCENTILES) for metric in ("ttft", "tpot")]
    return np.column_stack([table.column(name) for table in both for name in table.column_names[3:]])


def costs(run: Run, rows: int, with_gaps: bool) -> None:
    """Print what it costs to keep and read these rows."""
    wrote_s = write(run.path, rows, with_gaps)
    size = sum(file.stat().st_size for file in (run.path / "requests").iterdir())
    columns = [name for name in records.REQUESTS.names if with_gaps or name != "itl_us"]
    read_s, wall_s, _ = timed(lambda: run.requests(columns=columns).num_rows)
    kind = "with the gaps" if with_gaps else "without gaps"
    print(
        f"{rows:>10} rows {kind:14s} {size / rows:6.1f} B/request; CPU s: write {wrote_s:.2f}, "
        f"read all {read_s:.2f} (wall {wall_s:.2f})"
    )


def percentiles(run: Run, rows: int) -> None:
    """Print what p50, p90 and p99 of TTFT and TPOT per window cost."""
    cpu_s, wall_s, _ = timed(lambda: ours(run))
    print(
        f"{rows:>10} rows p50/p90/p99 of TTFT and TPOT of {WINDOWS} windows: {cpu_s:.2f} CPU s ({wall_s:.2f})"
    )


def main() -> None:
    """Print what keeping and reading costs on this machine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=WITH_GAPS)
    rows = parser.parse_args().rows
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for with_gaps in (False, True):
        count = min(rows, WITH_GAPS) if with_gaps else rows
        with tempfile.TemporaryDirectory() as folder:
            run = Run(Path(folder), {}, None)
            costs(run, count, with_gaps)
            percentiles(run, count)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"load average {os.getloadavg()[0]:.1f}; peak memory {peak_gb:.1f} GB")


if __name__ == "__main__":
    main()
