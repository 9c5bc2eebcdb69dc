"""Due times of an open loop: at a rate or under a profile, from a process or from a trace.

Knows due times only; knows no lengths. A new arrival process goes into `processes`.
"""

import numpy as np

from conf.specs.experiment import Arrivals
from loadgen.traffic.lengths import Ints
from loadgen.traffic.processes import Floats, Profile, first_ns, renewal_ns, scaled_ns
from loadgen.traffic.schedule import NS, Bounds, span_ns
from loadgen.traffic.trace import Trace
from loadgen.traffic.vllm_bench_arrivals import bench_arrivals_s


class OpenArrivals:
    """The arrival process of one workload; `recorded` are the arrivals of kind `trace`."""

    def __init__(self, arrivals: Arrivals, recorded: Trace | None) -> None:
        self._arrivals, self._recorded = arrivals, recorded

    def within(
        self, rate_qps: float | Profile, parts: int, bounds_ns: Bounds, rng: np.random.Generator
    ) -> tuple[Ints, Ints | None]:
        """Due times within the phases under one of `parts` equal parts of the rate, and their trace lines."""
        start_ns, end_ns = span_ns(bounds_ns)
        if isinstance(rate_qps, Profile):
            due, lines = self._under(rate_qps, parts, bounds_ns, rng)
        else:
            due, lines = self._at(rate_qps / parts, start_ns, end_ns, rng)
        return np.maximum.accumulate(due.astype(np.int64).clip(start_ns, end_ns - 1)), lines

    def first(self, count: int, rate_qps: float, seed: int, rng: np.random.Generator) -> Ints:
        """Due times of the first `count` requests of a segment that begins at 0.

        Arrivals of kind `vllm_bench` are those that `vllm bench serve` draws from `seed`.
        """
        if self._arrivals.kind == "vllm_bench":
            due = bench_arrivals_s(count, rate_qps, seed, self._arrivals.burstiness) * NS
        else:
            due = first_ns(self._arrivals, rate_qps, count, rng)
        return due.astype(np.int64)

    def _under(
        self, profile: Profile, parts: int, bounds_ns: Bounds, rng: np.random.Generator
    ) -> tuple[Floats, Ints | None]:
        """Arrivals at unit rate, mapped through the inverse of the profile's integral."""
        origin_ns = bounds_ns["window"][0]
        before, after = (float(profile.expected((at - origin_ns) / NS)) for at in span_ns(bounds_ns))
        unit, lines = self._at(1.0, 0, (after - before) / parts * NS, rng)
        return origin_ns + profile.when_s(before + unit * (parts / NS)) * NS, lines

    def _at(
        self, rate_qps: float, start_ns: int, end_ns: float, rng: np.random.Generator
    ) -> tuple[Floats, Ints | None]:
        if self._arrivals.kind != "trace":
            return renewal_ns(self._arrivals, rate_qps, start_ns, end_ns, rng), None
        assert self._recorded is not None
        return scaled_ns(self._recorded, rate_qps, start_ns, end_ns, rng)
