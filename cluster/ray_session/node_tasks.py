"""Runs Ray tasks on chosen nodes and collects what they return in time."""

from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.ray_session.session import last_line


def on_node(node: str, task: Any, gpus: float = 0) -> Any:
    """`task` bound to one node; it takes no CPUs, so that it also runs where there are none."""
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    options = {"num_cpus": 0, "num_gpus": gpus, "max_retries": 0, "scheduling_strategy": strategy}
    return ray.remote(task).options(**options)


def gather(
    tasks: Mapping[str, Any], timeout_s: float, force: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """Results of the tasks that ended within `timeout_s`, and the reasons of the others, by key.

    Late tasks are cancelled, with `force` by ending their processes.
    """
    ready, late = ray.wait(list(tasks.values()), num_returns=len(tasks), timeout=timeout_s)
    for task in late:
        ray.cancel(task, force=force)
    results: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for key, task in tasks.items():
        if task not in ready:
            reasons[key] = f"no answer in {timeout_s:g} s"
            continue
        try:
            results[key] = ray.get(task)
        except RayError as error:
            reasons[key] = last_line(error)
    return results, reasons
