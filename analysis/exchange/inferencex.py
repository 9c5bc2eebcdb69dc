"""A run as result rows of InferenceX (SemiAnalysis), one per measured rate.

Keys, units (seconds, tokens/s per GPU) and `intvty` (1000 / TPOT in ms) are those of its own
`utils/process_result.py` at commit 843c625. `conc` is that of one replica and its GPUs, as theirs is.
Unknown is null, and so is what is infinite because requests failed; the rest of a window is below `maxqps`.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis import metrics
from analysis.exchange.windows import Measured, measured
from analysis.metrics import Floats
from analysis.quantiles import quantile
from analysis.runs import Run
from conf import Experiment

QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99}
MODELLED = ("simulated", "vllm_emulated")
"""Engines without a GPU: their hardware's name says so, lest a model pass for a measurement."""

Tree = dict[str, Any]


def text(runs: Sequence[Run]) -> str:
    """Strict JSON: a list of rows, in order of runs and windows."""
    rows = [row(run, asked, window) for run in runs for asked in [run.config] for window in measured(run)]
    return json.dumps(rows, indent=2, allow_nan=False) + "\n"


def row(run: Run, asked: Experiment, window: Measured) -> Tree:
    """One measured rate."""
    replicas = window.line["nodes"] * asked.layout.replicas_per_node
    gpus = replicas * asked.layout.tensor_parallel
    inputs, outputs = (window.tokens(f"{kind}_tokens") / window.seconds for kind in ("prompt", "output"))
    return {
        **service(asked),
        "conc": max(1, round(window.in_flight / replicas)),
        "isl": asked.workload.input_tokens.mean,
        "osl": asked.workload.output_tokens.mean,
        "tput_per_gpu": (inputs + outputs) / gpus,
        "output_tput_per_gpu": outputs / gpus,
        "input_tput_per_gpu": inputs / gpus,
        **_latencies(window),
        "maxqps": _beside(run, window, replicas, gpus) | _question(asked),
    }


def service(asked: Experiment) -> Tree:
    """What was served, on what. Replicas are independent, so that attention is never data parallel."""
    kind, hardware = asked.engine.kind, asked.hardware.name.lower()
    width = asked.layout.tensor_parallel
    return {
        "hw": f"modelled-{hardware}" if kind in MODELLED else None if kind == "vllm_cpu" else hardware,
        "image": None,
        "model": asked.model.served_name,
        "infmax_model_prefix": None,
        "framework": {"external": None, "simulated": "maxqps-simulated"}.get(kind, "vllm"),
        "precision": asked.model.weights,
        "spec_decoding": None,
        "disagg": False,
        "recipe_fingerprint": None,
        "is_multinode": False,
        "tp": width,
        "pp": 1,
        "dcp_size": 1,
        "pcp_size": 1,
        "ep": width if asked.layout.expert_parallel else 1,
        "dp_attention": "false",
    }


def _latencies(window: Measured) -> Tree:
    """Mean, median, p90 and p99 in seconds, and interactivity at those TPOTs in tokens/s per user."""
    found: Tree = {}
    for name, latency_ms in window.latencies_ms.items():
        for word, value_ms in _figures(latency_ms).items():
            found[f"{word}_{name}"] = None if value_ms is None else value_ms / 1e3
            if name == "tpot" and word != "std":
                found[f"{word}_intvty"] = 1e3 / value_ms if value_ms else None
    return found


def _figures(latency_ms: Floats) -> dict[str, float | None]:
    known = latency_ms[~np.isnan(latency_ms)]
    found: dict[str, float | None] = {"mean": float(known.mean()) if len(known) else None}
    found["std"] = float(known.std()) if len(known) and np.isfinite(known).all() else None
    found |= {word: quantile(known, q) for word, q in QUANTILES.items()}
    return {
        word: value if value is not None and math.isfinite(value) else None for word, value in found.items()
    }


def _beside(run: Run, window: Measured, replicas: int, gpus: int) -> Tree:
    """What the row rests on, under a key of its own."""
    line = window.line
    return {
        "run": run.name,
        "dwell": line["index"],
        "rate_qps_per_node": line["rate_qps_per_node"],
        "seconds": window.seconds,
        "requests": window.rows.num_rows,
        "failed": window.rows.num_rows - int(window.ok.sum()),
        "replicas": replicas,
        "gpus": gpus,
        "in_flight": window.in_flight,
        "conc_is": "measured, by Little's law per replica: the load is open, nothing held it",
        "latencies_are": "from the send; failed requests are infinite",
        "ttft_p90_s_from_due": _finite(quantile(metrics.ttft(window.rows), 0.9)),
    }


def _question(asked: Experiment) -> Tree:
    bounds_ms = {"ttft_p90_ms": asked.slo.ttft_p90_ms, "tpot_p90_ms": asked.slo.tpot_p90_ms}
    return {"engine": asked.engine.kind, "layout": asked.layout.name, "slo": bounds_ms}


def _finite(value_ms: float | None) -> float | None:
    return value_ms / 1e3 if value_ms is not None and math.isfinite(value_ms) else None
