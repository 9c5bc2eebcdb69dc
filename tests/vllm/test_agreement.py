"""A probe of emulated vLLM: its p90s agree with those of the simulated engine on the same requests."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis.results.runs import Run
from analysis.rows import metrics, records
from analysis.stats.quantiles import quantile
from conf import load
from conf.constants import replaced
from loadgen.cli.engine_model import simulate
from loadgen.cli.service import service
from loadgen.run.jobs import OfferLoad
from loadgen.traffic.schedule import NS, ArrivalSchedule
from tests.vllm.running import Up

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SIMULATED = load(["engine.step_noise_cv=0", "engine.drift_sd=0", "engine.stall_every_steps=0"])
ENGINE = SIMULATED.engine
LIMITS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size", "gpu_memory_utilization")
EMULATED = [
    "engine=vllm_emulated",
    *(f"engine.args.{name}={getattr(ENGINE, name)}" for name in LIMITS),
    f"engine.activation_bytes={ENGINE.activation_bytes}",  # type: ignore[union-attr]
]
LOAD = "rate_qps=3", "duration_s=60"
TPOT_SHARE = 0.02
"""Most relative difference of p90 TPOT."""
TTFT_SHARE, TTFT_MS = 0.10, 30.0
"""Most relative difference of p90 TTFT, or so many ms if that is more: a real front end takes up to 20 ms
over its serial time."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with service(load(EMULATED), lambda *_, **__: None) as served:
        yield Up(served, EMULATED, tmp_path_factory.mktemp("runs"))


def test_both_engines_have_the_same_latencies(up: Up) -> None:
    def agree(tree: dict[str, Any], run: Run) -> None:
        if tree["valid"]:
            (emulated_ttft, simulated_ttft), (emulated_tpot, simulated_tpot) = p90s_ms(run)
            assert emulated_tpot == pytest.approx(simulated_tpot, rel=TPOT_SHARE)
            assert emulated_ttft == pytest.approx(simulated_ttft, rel=TTFT_SHARE, abs=TTFT_MS)

    up.until_valid(OfferLoad, agree, *LOAD)


def p90s_ms(run: Run) -> tuple[Any, Any]:
    """p90 TTFT and TPOT of the window's requests, each on emulated vLLM and on the simulated engine."""
    rows = run.requests().sort_by("due_ns")
    rows = rows.filter(pa.array(~metrics.status_in(rows, *metrics.UNSENT, records.PENDING)))
    # vLLM's front end runs on this machine; `front_end_latency_ms` belongs to another.
    experiment = replaced(SIMULATED, {"model.step_time.front_end_latency_ms": 0.0})
    names = "requested_input_tokens", "requested_output_tokens", "shared_tokens"
    tokens = (rows[name].to_numpy().astype(np.int64) for name in names)
    due_ns, no_phase = rows["due_ns"].to_numpy(), np.zeros(rows.num_rows, np.int64)
    again = ArrivalSchedule(0, rows["seq"].to_numpy(), due_ns, no_phase, *tokens)
    served = simulate(experiment, again, experiment.cluster.nodes, run.config.seed)
    (window,) = run.windows().to_pylist()
    at = np.flatnonzero((due_ns >= window["window_start_ns"]) & (due_ns < window["window_end_ns"]))
    inside = rows.take(pa.array(at))
    first_s, last_s = np.asarray(served.first_s)[at], np.asarray(served.last_s)[at]
    output = metrics.numbers(inside, "requested_output_tokens")
    ttft = metrics.ttft(inside), metrics.ttft_ms(due_ns[at] / NS, first_s)
    tpot = metrics.tpot(inside), metrics.tpot_ms(first_s, last_s, output)
    return tuple(quantile(it, 0.9) for it in ttft), tuple(quantile(it, 0.9) for it in tpot)
