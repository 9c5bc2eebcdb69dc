"""Replays a sweep's certified rate through an emulated vLLM, and compares the simulated engine with it.

`analysis.results. engine_agreement` decides how far they may differ; the engine model is handed in.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity.window_counts import Window, in_window
from analysis.results import engine_agreement, integrity, studies, summary
from analysis.results.runs import load_run
from analysis.results.types.run_verdict import EngineCheck, EngineComparison, RunVerdict
from analysis.rows import metrics, records
from conf import ConfigError, Experiment, load
from conf.specs.experiment import EmulatedEngine, SimulatedEngine
from loadgen.drive import fixed_rate
from loadgen.drive.driver import Driver
from loadgen.predict.operating_point import Simulate
from loadgen.run import measure, verdicts
from loadgen.run.lifecycle import Conclude
from loadgen.run.measure import Site
from loadgen.run.progress import Emit
from loadgen.run.run_folder import RunFolder
from loadgen.traffic.schedule import NS, ArrivalSchedule

VERB = "verify"
DURATION_S = 120.0
WORDS = ("duration_s", "out", "run", "seed")
"""Keys that may be given besides the run; everything else stays as it was in the run."""


@dataclass(frozen=True, slots=True)
class EngineReplay:
    """One rate for both engines: `emulated` is loaded in real time, `simulated` gets the same arrivals."""

    emulated: Experiment
    simulated: Experiment
    of: str

    @classmethod
    def asked(cls, path: Path, words: list[str], vllm_version: str) -> "EngineReplay":
        """The replay of the run in `path`, with its engine's limits and constants on both sides.

        `vllm_version`, of the vLLM that will be started, is for the label. Raises RunError or ConfigError
        with the remedy if the run cannot be replayed.
        """
        for word in words:
            if word.partition("=")[0] not in WORDS:
                raise ConfigError(
                    f"verify replays what the run asked; {word} is not among {', '.join(WORDS)}: leave it out"
                )
        if studies.is_study(path):
            raise ConfigError(f"{path} is a study; verify one of its runs: {path}/NAME")
        run = load_run(path)
        rate_qps = _certified_qps(path, run.verdict)
        integrity.refuse_altered(path)
        asked = load(words, run.path / "config.yaml")
        if not any(word.startswith("out=") for word in words):
            # A copied run must not lead back to where the first one lies: the replay goes beside the folder.
            asked = replace(asked, out=os.path.relpath(path.resolve().parent))
        engine = asked.engine
        if not isinstance(engine, SimulatedEngine):
            raise ConfigError(
                f"{path} is a run of engine={engine.kind}; verify compares the simulated engine with vLLM"
            )
        _refuse(asked, engine)
        named = any(word.startswith("run=") for word in words)
        spec = replace(engine, step_noise_cv=0.0, drift_sd=0.0, stall_every_steps=0, time_scale=1.0)
        simulated = replace(
            asked,
            engine=spec,
            rate_qps=rate_qps,
            duration_s=asked.duration_s or DURATION_S,
            search=replace(asked.search, start="ramp", expected_qps=None, deployments=1, repeats=1),
            run=asked.run if named else None,
        )
        emulated = replace(simulated, engine=emulated_engine(simulated, vllm_version))
        return cls(emulated, simulated, str(path))


def emulated_engine(asked: Experiment, vllm_version: str) -> EmulatedEngine:
    """vLLM's arguments for the limits of a simulated engine, with one block more: vLLM's null block.

    Limits that the layout sets come before these on both sides.
    """
    spec, layout = asked.engine, asked.layout
    assert isinstance(spec, SimulatedEngine)
    # MoRI-IO runs without it, in the engine model too.
    without_cache = layout.prefill is not None and layout.connector == "moriio"
    args: dict[str, Any] = {
        "max_num_batched_tokens": spec.max_num_batched_tokens,
        "max_num_seqs": spec.max_num_seqs,
        "max_model_len": spec.max_model_len,
        "block_size": spec.block_size,
        "gpu_memory_utilization": spec.gpu_memory_utilization,
        "enable_prefix_caching": spec.enable_prefix_caching and not without_cache,
        "async_scheduling": spec.async_scheduling,
        "kv_cache_dtype": "fp8" if asked.model.kv_cache == "fp8" else "auto",
    }
    if spec.long_prefill_token_threshold:
        args["long_prefill_token_threshold"] = spec.long_prefill_token_threshold
    if spec.num_gpu_blocks is not None:
        args["num_gpu_blocks_override"] = spec.num_gpu_blocks + 1
    return EmulatedEngine(
        vllm_version=vllm_version,
        args=args,
        activation_bytes=spec.activation_bytes,
        constants=spec.constants,
        constants_covariance=spec.constants_covariance,
    )


def _certified_qps(path: Path, ended: RunVerdict | None) -> float:
    if ended is None or not ended.capacity:
        raise ConfigError(
            f"{path} is not a sweep that found a capacity; verify replays the certified rate of one"
        )
    if not ended.valid:
        raise ConfigError(f"{path} is void ({ended.reason}): it certifies no rate; measure again")
    if (certified := ended.capacity.sampling.certified) is None:
        raise ConfigError(f"{path} has an upper bound alone: it certifies no rate; measure longer")
    return certified


def _refuse(asked: Experiment, engine: SimulatedEngine) -> None:
    unknown = {
        "engine.max_num_queued_reqs": engine.max_num_queued_reqs is not None,
        "engine.max_num_queued_tokens": engine.max_num_queued_tokens is not None,
        "workload.sessions": bool(asked.workload.sessions),
        "workload.conversations": asked.workload.conversations is not None,
        "routing=per_node": asked.streams > 0,
        "kernels of its own (engine.kernels, engine.attention_backend)": engine.kernel_ratio is not None,
        f"model {asked.model.name} (latent attention)": asked.model.kv_lora_rank > 0,
        "a trace": asked.workload.arrivals.kind == "trace",
    }
    for what, given in unknown.items():
        if given:
            raise ConfigError(f"verify cannot replay a run with {what}; measure without it and verify that")
    if not engine.async_scheduling:
        raise ConfigError(
            "verify needs engine.async_scheduling=true: without it vLLM's own host time, which is real here, "
            "comes on top of the model's"
        )


def run(replay: EngineReplay, site: Site, show: Emit, simulate: Simulate) -> RunVerdict:
    """Load the emulated vLLM at the certified rate and compare; a run folder like that of a probe."""
    folder = measure.create(RunFolder, replay.emulated)

    def act(experiment: Experiment, driver: Driver) -> Conclude:
        fixed_rate.asked(driver, experiment)
        return lambda: concluded(replay, driver, simulate)

    return measure.measure(replay.emulated, VERB, folder, act, site, show)


def concluded(replay: EngineReplay, driver: Driver, simulate: Simulate) -> RunVerdict:
    """The probe's verdict, with both engines' p90s side by side and an exit code that is theirs; void stays
    void.
    """
    verdict = verdicts.of_probe(replay.emulated, driver)
    if not verdict.valid:
        return verdict
    rows = driver.windows.requests(0)
    window = driver.windows.outcomes[0].counts
    sent = pa.array(~metrics.status_in(rows, *metrics.UNSENT, records.PENDING))
    found = compare(replay, rows.filter(sent), window, simulate)
    verdict = replace(verdict, verify=EngineCheck(replay.of, tuple(found)))
    off = [one.limit.upper() for one in found if not one.agrees]
    if off:
        why = f"p90 {' and '.join(off)} of vLLM and of the simulated engine lie too far apart"
        return replace(verdict, passed=False, exit_code=summary.EXIT_SLO_MISSED, reason=why)
    return replace(verdict, passed=True, exit_code=summary.EXIT_OK, reason="")


def compare(
    replay: EngineReplay, rows: pa.Table, window: Window, simulate: Simulate
) -> list[EngineComparison]:
    """Serve the requests of `rows` once more, on the simulated engine, and compare those of the window."""
    rows, asked = rows.sort_by("due_ns"), _here(replay.simulated)
    seen = simulate(asked, _arrivals(rows), asked.cluster.nodes, asked.seed)
    due_s = metrics.numbers(rows, "due_ns") / NS
    numbered = rows.append_column("place", pa.array(np.arange(rows.num_rows)))
    inside = in_window(numbered, window)
    at = inside["place"].to_numpy()
    output = metrics.numbers(inside, "requested_output_tokens")
    first_s, last_s = np.asarray(seen.first_s)[at], np.asarray(seen.last_s)[at]
    return [
        engine_agreement.ttft(metrics.ttft(inside), metrics.ttft_ms(due_s[at], first_s)),
        engine_agreement.tpot(
            metrics.tpot(inside),
            metrics.tpot_ms(first_s, last_s, output),
            asked.workload.prefix_hit,
        ),
    ]


def _here(simulated: Experiment) -> Experiment:
    """The experiment without `front_end_latency_ms`, which belongs to another machine: vLLM's front end runs
    here.
    """
    times = simulated.model.step_time
    none = replace(times.front_end_latency_ms, value=0.0, low=None, high=None)
    return replace(
        simulated, model=replace(simulated.model, step_time=replace(times, front_end_latency_ms=none))
    )


def _arrivals(rows: pa.Table) -> ArrivalSchedule:
    columns = {
        name: rows[column].to_numpy().astype(np.int64)
        for name, column in (
            ("input_tokens", "requested_input_tokens"),
            ("output_tokens", "requested_output_tokens"),
            ("shared_tokens", "shared_tokens"),
        )
    }
    no_phase = np.zeros(rows.num_rows, dtype=np.int64)
    due_ns = rows["due_ns"].to_numpy()
    return ArrivalSchedule(
        window_index=0, seq=rows["seq"].to_numpy(), due_ns=due_ns, phase=no_phase, **columns
    )
