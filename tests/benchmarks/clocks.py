"""The simulated engine over HTTP, on the real clock and on a faster one, against the virtual clock.

Each run is a whole `loadgen probe` through Ray Serve and HAProxy. The virtual clock gets the arrivals of its
plan, so that what differs is the clock. The goal: p90 TTFT and TPOT within 3 % or 5 ms.

python -m tests.benchmarks.clocks [--quick]
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from analysis.results.runs import load_run
from analysis.rows import metrics
from conf import Experiment
from conf.specs.experiment import SimulatedEngine
from loadgen.traffic.schedule import NS
from serve_apps.engine_model import EngineKind
from tests.support.virtual.virtual_service import VirtualService

RATE_QPS = 4.0
SECONDS, QUICK_SECONDS = 240, 60
SCALES, SEEDS = (1.0, 5.0), (1, 2)
WITHIN, WITHIN_MS = 0.03, 5.0
LONGEST_S = 600.0


@dataclass(frozen=True, slots=True)
class Row:
    """One run: p90s over HTTP and on the virtual clock, the path outside the engine, the late steps."""

    time_scale: float
    valid: bool
    reason: str
    count: int
    ttft_ms: float
    virtual_ttft_ms: float
    tpot_ms: float
    virtual_tpot_ms: float
    path_ms: float
    late_share: float

    def __str__(self) -> str:
        compared = (
            f"{name} {seen:7.1f} ms ({virtual:7.1f}): {seen / virtual:.3f} x, {seen - virtual:+.1f} ms, "
            f"{'within' if within(seen, virtual) else 'BEYOND'}"
            for name, seen, virtual in (
                ("p90 TTFT", self.ttft_ms, self.virtual_ttft_ms),
                ("p90 TPOT", self.tpot_ms, self.virtual_tpot_ms),
            )
        )
        path = "not told" if np.isnan(self.path_ms) else f"{self.path_ms:.1f} ms real"
        verdict = "valid" if self.valid else f"void ({self.reason.split(':')[0]})"
        return (
            f"time_scale {self.time_scale:g}, n {self.count}: {'; '.join(compared)}; p90 path {path}; "
            f"late steps {self.late_share:.2%}; {verdict}"
        )


def within(seen: float, virtual: float) -> bool:
    return abs(seen - virtual) <= max(WITHIN * virtual, WITHIN_MS)


def p90(values: np.ndarray) -> float:
    return float(np.quantile(values, 0.9))


def measure(time_scale: float, seed: int, seconds: int, out: Path) -> Row:
    """One probe in a folder of its own, and the same arrivals on the virtual clock."""
    name = f"scale{time_scale:g}-seed{seed}"
    words = [f"rate_qps={RATE_QPS}", f"duration_s={seconds}", f"engine.time_scale={time_scale}"]
    words += [f"seed={seed}", f"out={out}", f"run={name}"]
    subprocess.run([sys.executable, "-m", "loadgen", "probe", *words], capture_output=True, check=False)
    run = load_run(out / name)
    if run.verdict is None or not run.requests().num_rows:
        raise SystemExit(f"{name}: no requests; {run.verdict.reason if run.verdict else 'see its folder'}")
    rows = run.requests()
    rows = rows.filter(pa.array(~metrics.word_in(rows, "phase", "retracted")))
    inside = (metrics.numbers(rows, "window_index") == 0) & metrics.word_in(rows, "phase", "window")
    ttft_ms, tpot_ms = (values[inside] for values in virtual(rows, run.config))
    seen = rows.filter(pa.array(inside))
    path_ms, late = metrics.path(seen), metrics.numbers(seen, "engine_late_steps")
    return Row(
        time_scale=time_scale,
        valid=run.verdict.valid,
        reason=run.verdict.reason,
        count=seen.num_rows,
        ttft_ms=p90(metrics.ttft(seen)),
        virtual_ttft_ms=p90(ttft_ms),
        tpot_ms=p90(metrics.tpot(seen)),
        virtual_tpot_ms=p90(tpot_ms),
        path_ms=p90(path_ms),
        late_share=float(np.nansum(late) / np.nansum(metrics.numbers(seen, "engine_steps"))),
    )


def virtual(rows: pa.Table, experiment: Experiment) -> tuple[np.ndarray, np.ndarray]:
    """TTFT and TPOT in ms of every row, in their order, had it come to the virtual clock when it was due."""
    spec = experiment.engine
    assert isinstance(spec, SimulatedEngine)
    parts = experiment.model, experiment.hardware, experiment.layout
    service = VirtualService(EngineKind.of(spec, *parts), experiment.replicas, seed=experiment.seed)
    due_s = metrics.numbers(rows, "due_ns") / NS
    names = ("requested_input_tokens", "requested_output_tokens", "shared_tokens")
    prompt, output, shared = (metrics.numbers(rows, name) for name in names)
    for key, at_s in enumerate(due_s):
        lengths = int(prompt[key]), int(output[key])
        service.submit(key, float(at_s), *lengths, shared_tokens=int(np.nan_to_num(shared[key])))
    service.advance(float(due_s.max()) + LONGEST_S)
    seen = sorted(service.observe(), key=lambda progress: progress.key)
    first_s, last_s = (
        np.array([getattr(each, f"{which}_token_s") for each in seen]) for which in ("first", "last")
    )
    return metrics.ttft_ms(due_s, first_s), metrics.tpot_ms(first_s, last_s, output)


if __name__ == "__main__":
    seconds = QUICK_SECONDS if "--quick" in sys.argv else SECONDS
    print(f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores; over HTTP (virtual clock)")
    with tempfile.TemporaryDirectory() as folder:
        for scale in SCALES:
            for seed in SEEDS:
                print(measure(scale, seed, seconds, Path(folder)), flush=True)
    print(f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
