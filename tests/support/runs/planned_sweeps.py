"""Sweeps in the form that a plan rests on."""

from typing import Any

from tests.support.runs.golden import GOLDEN, sweep_json

GOLDEN_SWEEP = sweep_json(GOLDEN)


def sweep(low: float, estimate: float, high: float, nodes: int = 1, **more: Any) -> dict[str, Any]:
    """The tree of a valid run, as far as a plan reads it."""
    real = {"engine": "vllm", "gpus_per_node": 8, "nodes": nodes, "replicas": nodes}
    figures = {"value": estimate, "low": low, "high": high, "certified": (low + estimate) / 2}
    return {
        "run_id": f"run{nodes}",
        "experiment": GOLDEN_SWEEP["experiment"] | real | more.pop("experiment", {}),
        "basis": GOLDEN_SWEEP["basis"] | {"input_tokens": 5600, "output_tokens": 140} | more.pop("basis", {}),
        "capacity": {"qps_per_node": figures, "binding": "tpot"},
        "valid": True,
        "exit_code": 0,
        "reason": "",
    } | more
