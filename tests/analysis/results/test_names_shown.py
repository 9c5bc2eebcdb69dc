"""analysis.results.summary and .planning name what was measured: lengths, a changed file, unknowns."""

from typing import Any

from analysis import planning
from analysis.results.asked import describe
from analysis.results.json_border import to_tree
from analysis.views.plan import answer
from conf import Experiment, load
from tests.support.runs.golden import GOLDEN, sweep_json
from tests.support.runs.verdict_trees import text_of

SHORT = ["workload.input_tokens=200", "workload.output_tokens=50"]
EXTERNAL = load([*SHORT, "engine=external", "target.urls=[http://x:1]"])
OVERRIDDEN = load([*SHORT, "layout.replicas_per_node=4", "layout.tensor_parallel=2"])
LOAD = "workload chat_5600_140 changed: 200/50 tokens"


def measured(experiment: Experiment) -> dict[str, Any]:
    """The golden run's verdict as that of another experiment."""
    tree = sweep_json(GOLDEN)
    if experiment.engine.kind == "external":
        tree["capacity"]["qps_per_replica"] = None
    return tree | {"asked": to_tree(describe(experiment))}


def test_the_screen_of_external_endpoints_says_what_is_unknown() -> None:
    text = text_of(measured(EXTERNAL))
    assert text.splitlines()[0].endswith("certified 2.59; requests of 200/50 tokens")
    assert f"  service: unknown model on unknown hardware, external engine, {LOAD}, arrivals poisson" in text
    assert "Qwen" not in text and "MI325X" not in text and "dp1" not in text


def test_a_plan_on_external_endpoints_names_no_machine_and_counts_no_gpus() -> None:
    tree = planning.plan(measured(EXTERNAL), 200)
    text = str(answer(tree))
    assert tree.gpus is None and ", GPUs unknown, for 200 QPS" in text
    assert "unknown model on unknown hardware, unknown layout, external engine, routing unknown" in text
    assert "Qwen" not in text and "MI325X" not in text and "dp1" not in text


def test_an_overridden_layout_is_shown_as_it_is_and_its_gpus_are_counted() -> None:
    text = text_of(measured(OVERRIDDEN))
    assert "4 replica(s), layout 4 x TP2/EP2, on 1 node(s) of MI325X, routing leastconn" in text
    assert "dp1_tp8" not in text and LOAD in text
    tree = planning.plan(measured(OVERRIDDEN), 200)
    assert tree.gpus == 8 * tree.nodes
    assert "on MI325X, 4 x TP2/EP2, simulated engine" in str(answer(tree))
