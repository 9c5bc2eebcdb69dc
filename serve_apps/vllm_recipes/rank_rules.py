"""Rules about data-parallel ranks of attention, and their arguments."""

from typing import Any

from conf.specs.experiment import Layout
from serve_apps.vllm_recipes.rules import RecipeRule

KEPT = ("data_parallel_size", "data_parallel_backend")
"""Arguments about ranks that leave their number and place to the layout."""


def rank_args(layout: Layout) -> dict[str, Any]:
    """vLLM's arguments for the ranks of a layout; none where each replica is one."""
    return {"data_parallel_size": layout.data_parallel} if layout.data_parallel > 1 else {}


RANK_RULES = {
    "data-parallel-dense": RecipeRule(
        lambda d: d.layout.data_parallel > 1 and not d.model.experts,
        "layout {d.layout.name} has data-parallel ranks but {d.model.name} is dense: vLLM runs such ranks as "
        "engines of their own; use layout.replicas_per_node",
        "vllm/v1/engine/core.py (DPEngineCoreProc) of 0.32.0",
    ),
    "data-parallel-cpu": RecipeRule(
        lambda d: d.layout.data_parallel > 1 and d.engine.kind == "vllm_cpu",
        "layout {d.layout.name} has data-parallel ranks: engine=vllm_cpu runs one process on one device; use "
        "engine=simulated, or layout=dp1_tp1",
        "ours",
    ),
    "data-parallel-emulated": RecipeRule(
        lambda d: d.layout.data_parallel > 1 and d.engine.kind == "vllm_emulated",
        "layout {d.layout.name} has data-parallel ranks: engine=vllm_emulated does not make a step of all "
        "ranks last as long as the slowest; use engine=simulated",
        "ours",
    ),
    "data-parallel": RecipeRule(
        lambda d: (
            d.args.get("data_parallel_size", 1) != d.layout.data_parallel
            or any(name.startswith("data_parallel") and name not in KEPT for name in d.args)
        ),
        "engine.args.data_parallel_*: ranks and their place are the layout's ({d.layout.name} has "
        "data_parallel={d.layout.data_parallel}); ranks of a group fail and restart together; leave it out "
        "and set layout.data_parallel or, for independent engines, layout.replicas_per_node",
        "dp_server.py of ray 2.60",
    ),
}
