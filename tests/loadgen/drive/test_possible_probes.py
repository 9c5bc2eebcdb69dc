"""`loadgen.run.verdicts.probe_verdict`: no figure of a short window is impossible, whatever the answers."""

import math
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.results.figures import Quantile
from conf import load
from loadgen.drive import programs
from loadgen.fleet.target import Observation
from loadgen.run import verdicts
from loadgen.traffic.schedule import ArrivalSchedule
from tests.support.runs.verdict_trees import screen
from tests.support.virtual.virtual_drivers import driver, virtual
from tests.support.virtual.virtual_target import VirtualTarget

BOUNDS = ["slo.e2e_p50_ms=9000", "slo.queue_p99_ms=50"]
OFFSETS = ("first_token_offset_ns", "last_token_offset_ns", "end_offset_ns")


class Erratic(VirtualTarget):
    """A node whose answers come later by random times, in stretches."""

    def __init__(self, seed: int, spread: float) -> None:
        super().__init__(virtual(load([]))._service)
        self._seed, self._spread = seed, spread

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        seen = super().run(schedule, until_ns)
        return Observation(self._later(seen.ended), seen.pending)

    def _later(self, rows: pa.Table) -> pa.Table:
        stretch = rows["due_ns"].to_numpy() // 10_000_000_000
        lags_ns = [
            int(1e8 * np.random.default_rng([self._seed, at]).exponential(self._spread)) for at in stretch
        ]
        for name in OFFSETS:
            moved = [
                None if at is None else at + lag
                for at, lag in zip(rows[name].to_pylist(), lags_ns, strict=True)
            ]
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(name), pa.array(moved, pa.int64()))
        return rows


def check(rate_qps: float, seconds: float, seed: int, spread: float) -> None:
    """Each quantile is a time that may be, in an interval around it or in none; the screen shows no nan."""
    drive, experiment, _ = driver(BOUNDS, target=Erratic(seed, spread))
    programs.offer_rate(drive, rate_qps, seconds, 5)
    verdict = verdicts.probe_verdict(experiment, drive)
    assert verdict.probe is not None
    for found in verdict.probe.limits.values():
        possible(found)
    assert not re.search(r"\bnan\b|-\d+(\.\d+)? ms", screen(verdict))


def possible(found: Quantile) -> None:
    assert found.ms is None or found.ms.value >= 0
    if found.ms is None or not found.has_interval:
        return
    low_ms, high_ms = found.ms.ends
    assert low_ms is not None and 0 <= low_ms <= found.ms.value and math.isfinite(low_ms)
    assert high_ms is None or found.ms.value <= high_ms


questions: dict[str, Any] = {
    "rate_qps": st.floats(0.3, 4.0),
    "seconds": st.floats(10.0, 90.0),
    "seed": st.integers(0, 1000),
    "spread": st.sampled_from([0.0, 1.0, 50.0, 2000.0]),
}


@settings(max_examples=3)
@given(**questions)
def test_a_probe_shows_possible_latencies(**question: Any) -> None:
    check(**question)


@pytest.mark.slow
@settings(max_examples=60)
@given(**questions)
def test_so_do_many_more(**question: Any) -> None:
    check(**question)
