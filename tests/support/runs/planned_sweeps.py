"""Sweeps in the form that a plan rests on."""

import json
from typing import Any

from tests.support.runs.golden import GOLDEN

GOLDEN_BASIS: dict[str, Any] = json.loads((GOLDEN / "sweep.json").read_text())["basis"]


def sweep(low: float, estimate: float, high: float, nodes: int = 1, **more: Any) -> dict[str, Any]:
    """The tree of a valid run, as far as a plan reads it."""
    experiment = {
        "engine": "vllm",
        "model": "m",
        "hardware": "MI325X",
        "layout": "dp1_tp8_ep8",
        "gpus_per_node": 8,
        "routing": "leastconn",
        "workload": "fixed",
        "arrivals": "poisson",
        "slo": {"ttft_p90_ms": 2000.0, "tpot_p90_ms": 100.0},
        "nodes": nodes,
        "replicas": nodes,
    }
    figures = {"value": estimate, "low": low, "high": high, "certified": (low + estimate) / 2}
    return {
        "run_id": f"run{nodes}",
        "experiment": experiment | more.pop("experiment", {}),
        "basis": GOLDEN_BASIS | {"input_tokens": 5600, "output_tokens": 140} | more.pop("basis", {}),
        "capacity": {"qps_per_node": figures, "binding": "tpot"},
        "valid": True,
        "exit_code": 0,
        "reason": "",
    } | more
