"""Write a run as result rows of InferenceX (SemiAnalysis), one per measured rate.

Keys, units (seconds, tokens/s per GPU) and `intvty` (1000 / TPOT in ms) are those of its own
`utils/process_result.py` at commit 843c625. `conc` counts one replica and its GPUs, as theirs does.
Unknown and infinite figures are null; what else is known of a window stands below `maxqps`.
Throughput and interactivity are those of the report's figure: `analysis.results.per_gpu` defines both.
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from analysis.capacity import dwell_table
from analysis.capacity.window_counts import NS
from analysis.exchange.windows import MeasuredWindow, measured
from analysis.results import per_gpu
from analysis.results.per_gpu import Came
from analysis.results.runs import Run
from analysis.rows import metrics
from analysis.rows.metrics import Floats
from analysis.stats.quantiles import quantile
from conf import Experiment
from conf.composed import UNKNOWN
from conf.specs.bounds import LIMITS, quantile_of

QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99}
MODELLED = ("simulated", "vllm_emulated")
"""Engines without a GPU; the name of their hardware says so, so that no model passes for a measurement."""

Tree = dict[str, Any]


def text(runs: Sequence[Run]) -> str:
    """Strict JSON: a list of rows, in order of runs and windows."""
    rows = [row for run in runs for row in _rows(run)]
    return json.dumps(rows, indent=2, allow_nan=False) + "\n"


def _rows(run: Run) -> Iterator[Tree]:
    windows = list(measured(run))
    asked, came = run.config, Came(run.requests(columns=per_gpu.COLUMNS))
    for window in windows:
        replicas = _replicas(asked, window)
        yield {
            **service(asked),
            "conc": replicas and max(1, round(window.in_flight / replicas)),
            "isl": asked.workload.input_tokens.mean,
            "osl": asked.workload.output_tokens.mean,
            **_throughput(asked, window, came),
            **_latencies(window),
            "maxqps": _beside(run, asked, window),
        }


def _throughput(asked: Experiment, window: MeasuredWindow, came: Came) -> Tree:
    gpus = per_gpu.gpus(asked, window.line["nodes"])
    if gpus is None:
        return dict.fromkeys(("tput_per_gpu", "output_tput_per_gpu", "input_tput_per_gpu"))
    span = window.line["window_start_ns"] / NS, window.line["window_end_ns"] / NS
    inputs, outputs = (tokens(*span) / window.seconds / gpus for tokens in (came.inputs, came.outputs))
    return {"tput_per_gpu": inputs + outputs, "output_tput_per_gpu": outputs, "input_tput_per_gpu": inputs}


def _replicas(asked: Experiment, window: MeasuredWindow) -> int | None:
    if asked.engine.kind == "external":
        return None
    return int(window.line["nodes"]) * asked.layout.replicas_per_node


def service(asked: Experiment) -> Tree:
    """Model, hardware and layout; `tp` counts all GPUs of an engine, those of data-parallel ranks too.

    Of a split node they are those of the engines that answer.

    Of an external endpoint at most the model is known: the configured hardware and layout are not its own.
    """
    kind, hardware = asked.engine.kind, asked.hardware.name.lower()
    width = asked.layout.gpus_per_replica
    found = {
        "hw": f"modelled-{hardware}" if kind in MODELLED else None if kind == "vllm_cpu" else hardware,
        "image": None,
        "model": None if asked.model.name == UNKNOWN else asked.model.served_name,
        "infmax_model_prefix": None,
        "framework": "maxqps-simulated" if kind == "simulated" else "vllm",
        "precision": asked.model.weights,
        "spec_decoding": None,
        "disagg": asked.layout.prefill is not None,
        "recipe_fingerprint": None,
        "is_multinode": False,
        "tp": width,
        "pp": 1,
        "dcp_size": 1,
        "pcp_size": 1,
        "ep": width if asked.layout.expert_parallel else 1,
        "dp_attention": str(asked.layout.data_parallel > 1).lower(),
    }
    return dict.fromkeys(found) | {"model": found["model"]} if kind == "external" else found


def _latencies(window: MeasuredWindow) -> Tree:
    """Mean, median, p90 and p99 in seconds, and interactivity at those TPOTs in tokens/s per user."""
    found: Tree = {}
    for name, latency_ms in window.latencies_ms.items():
        for word, value_ms in _figures(latency_ms).items():
            found[f"{word}_{name}"] = _finite(value_ms)
            if name == "tpot" and word != "std":
                found[f"{word}_intvty"] = per_gpu.interactivity(value_ms)
    return found


def _figures(latency_ms: Floats) -> dict[str, float | None]:
    known = latency_ms[~np.isnan(latency_ms)]
    found: dict[str, float | None] = {"mean": float(known.mean()) if len(known) else None}
    found["std"] = float(known.std()) if len(known) and np.isfinite(known).all() else None
    return found | {word: quantile(known, q) for word, q in QUANTILES.items()}


def _beside(run: Run, asked: Experiment, window: MeasuredWindow) -> Tree:
    line = window.line
    return {
        "run": run.name,
        "dwell": line["index"],
        "rate_qps_per_node": line["rate_qps_per_node"],
        "seconds": window.seconds,
        "requests": window.rows.num_rows,
        "failed": window.rows.num_rows - int(window.ok.sum()),
        "replicas": _replicas(asked, window),
        "gpus": per_gpu.gpus(asked, line["nodes"]),
        "in_flight": window.in_flight,
        "conc_is": "measured, by Little's law per replica: the load is open, nothing held it",
        "tput_is": "tokens that came within the window, of requests due in any",
        "latencies_are": "from the send; failed requests are infinite",
        "ttft_p90_s_from_due": _finite(quantile(metrics.ttft(window.rows), 0.9)),
        "engine": asked.engine.kind,
        "layout": asked.layout.name,
        "slo": {"ttft_p90_ms": asked.slo.ttft_p90_ms, "tpot_p90_ms": asked.slo.tpot_p90_ms, **_others(asked)},
        "share_over": {limit: dwell_table.over_share(line, limit) for limit in asked.slo.limits},
    }


def _others(asked: Experiment) -> dict[str, float]:
    """Bounds beside the two: ms by key, and of a joint one the share of requests within all."""
    return {
        bound.column if math.isfinite(bound.ms) else bound.limit: (
            bound.ms if math.isfinite(bound.ms) else quantile_of(bound.limit)
        )
        for bound in asked.slo.bounds
        if bound.limit not in LIMITS
    }


def _finite(value_ms: float | None) -> float | None:
    return value_ms / 1e3 if value_ms is not None and math.isfinite(value_ms) else None
