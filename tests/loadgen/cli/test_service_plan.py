"""`loadgen.cli.deployment.service_plan`: what an experiment deploys."""

import pytest

from conf import load
from loadgen.cli.deployment import service_plan

SIMULATED = ["engine=simulated", "cluster=laptop_4n", "layout.quick_reduce=none"]


@pytest.mark.parametrize(
    ("words", "replicas", "prefill_replicas", "gpus"),
    [
        (["layout=dp1_tp8_ep8"], 4, 0, [8.0]),
        (["layout=dp2_tp4_ep4"], 8, 0, [4.0]),
        (["layout=dp2_tp4_ep4", "cluster.nodes=3"], 6, 0, [4.0]),
        (["layout=dp8_attention_ep8"], 4, 0, [8.0]),
        (["layout=2p1d"], 4, 8, [4.0, 2.0]),
    ],
)
def test_each_replica_takes_the_gpus_of_its_layout_on_one_node(
    words: list[str], replicas: int, prefill_replicas: int, gpus: list[float]
) -> None:
    plan = service_plan(load([*SIMULATED, *words]))
    assert (plan.replicas, plan.prefill_replicas) == (replicas, prefill_replicas)
    decode = plan.build()._bound_deployment
    prefill = [it._bound_deployment for it in decode.init_args if hasattr(it, "_bound_deployment")]
    assert [deployment.num_replicas for deployment in (decode, *prefill)] == [
        count for count in (replicas, prefill_replicas) if count
    ]
    for deployment, share in zip((decode, *prefill), gpus, strict=True):
        placed = deployment._replica_config
        assert placed.placement_group_bundles == [{"GPU": share, "CPU": 0.1}]
        assert placed.placement_group_strategy == "STRICT_PACK"


def test_ranks_of_one_vllm_engine_are_replicas_of_serve() -> None:
    plan = service_plan(load(["engine=vllm", "cluster=mi325x_4n", "layout=dp8_attention_ep8"]))
    assert plan.replicas == 4 * 8 and plan.built_in_cluster
