"""Mean life of a request near the rate that a plan works at, from rows of valid windows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.planning import request_means
from analysis.results.runs import Run, RunError
from analysis.results.types.shared_figures import WindowRow
from analysis.rows import metrics
from analysis.stats.estimate import Estimate
from analysis.stats.pooling import repeated

NEAR = 0.10
"""Windows are near from this share below the working rate to as much above the certified one (our choice)."""
BATCHES = 10
"""Parts of the answers, in order of due time, whose means give the interval (our choice)."""
LEAST_ANSWERS = 100
"""Fewest answers for that interval: ten in each part (our choice)."""


@dataclass(frozen=True, slots=True)
class RequestLife:
    """Mean time in seconds from due to the last token; `source` says which answers it rests on.

    The 95 % interval is that of the answers, by batch means; its ends are None where it is unknown.
    """

    seconds: Estimate
    source: str


def mean_life(run: Run, working_qps: float, certified_qps: float) -> RequestLife:
    """The mean life at rates from `working_qps` to `certified_qps` (QPS per node), or at the nearest window.

    Raises RunError for a run without an answer in a valid window.
    """
    verdict, rows = run.verdict, request_means.answers(run)
    windows = [
        row for row in (verdict.windows if verdict else ()) if row["kind"] == "window" and row["valid"]
    ]
    if not windows or not rows.num_rows:
        raise RunError(f"{run.path} has no answer in a valid window, so that no request's life is known")
    low, high = (1 - NEAR) * working_qps, (1 + NEAR) * certified_qps
    near = [row for row in windows if low <= row["rate_qps_per_node"] <= high]
    chosen = near or [min(windows, key=lambda row: abs(row["rate_qps_per_node"] - working_qps))]
    return _of_windows(rows, chosen, "" if near else "the nearest one, ")


def _of_windows(rows: pa.Table, windows: Sequence[WindowRow], how: str) -> RequestLife:
    inside = pc.is_in(
        rows.column("window_index"), value_set=pa.array([w["index"] for w in windows], pa.int16())
    )
    life_s = metrics.e2e(rows.filter(inside)) / 1e3
    rates = sorted(row["rate_qps_per_node"] for row in windows)
    span = f"{rates[0]:.3g}" if len(rates) == 1 else f"{rates[0]:.3g} to {rates[-1]:.3g}"
    counted = f"{len(windows)} window{'' if len(windows) == 1 else 's'}"
    source = f"mean of {len(life_s)} answers in {counted}, {how}at {span} QPS per node"
    low = high = None
    if len(life_s) >= LEAST_ANSWERS:
        found = repeated([float(part.mean()) for part in np.array_split(life_s, BATCHES)]).mean
        low, high = found.low, found.high
    return RequestLife(Estimate(float(life_s.mean()), low, high), source)
