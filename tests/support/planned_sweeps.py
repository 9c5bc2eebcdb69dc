"""Sweeps in the form that a plan rests on; knows no run folder."""

from typing import Any


def sweep(low: float, estimate: float, high: float, nodes: int = 1, **more: Any) -> dict[str, Any]:
    """The tree of a valid run, as far as a plan reads it."""
    asked = {
        "engine": "vllm",
        "model": "m",
        "hardware": "MI325X",
        "layout": "dp1_tp8_ep8",
        "routing": "leastconn",
        "arrivals": "poisson",
        "slo": {"ttft_p90_ms": 2000.0, "tpot_p90_ms": 100.0},
        "nodes": nodes,
        "replicas": nodes,
    }
    figures = {"estimate": estimate, "low": low, "high": high, "certified": (low + estimate) / 2}
    return {
        "run_id": f"run{nodes}",
        "asked": asked | more.pop("asked", {}),
        "basis": {"input_tokens": 5600, "output_tokens": 140, "prefix_hit": 0.0} | more.pop("basis", {}),
        "capacity": {"qps_per_node": figures, "open_above": False, "open_below": False},
        "valid": True,
        "exit_code": 0,
        "reason": "",
    } | more
