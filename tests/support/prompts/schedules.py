"""Drawn schedules."""

from typing import Any

from conf.specs.experiment import Workload
from loadgen.traffic.schedule import NS, ArrivalSchedule
from loadgen.traffic.traffic import Traffic


def drawn(workload: Workload, rate_qps: float, seconds: float, seed: int = 1, **more: Any) -> ArrivalSchedule:
    """A first window of so many seconds."""
    bounds = {"window": (0, int(seconds * NS))}
    numbers = {"window_index": 0, "first_seq": 0, "seed": seed}
    return Traffic(workload).draw(rate_qps, bounds, **{**numbers, **more})
