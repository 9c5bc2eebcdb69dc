"""`serve_apps.engine_model.cost.architecture`: the weights on each GPU of data-parallel ranks."""

import pytest

from serve_apps.engine_model.cost import architecture
from tests.support.virtual.engines import QWEN, specs


def test_each_rank_holds_all_but_the_routed_experts_which_the_gpus_of_all_ranks_share() -> None:
    asked = specs(QWEN, layout="dp8_attention_ep8")
    model, layout = asked.model, asked.layout
    assert (layout.data_parallel, layout.gpus_per_replica) == (8, 8)
    routed, whole = architecture.routed_bytes(model), architecture.weight_bytes(model)
    found = architecture.weight_bytes_on_gpu(model, layout)
    assert found == pytest.approx(whole - routed + routed / 8, rel=1e-9)
    # Eight GPUs hold the routed experts once and the rest eight times.
    assert 8 * found == pytest.approx(routed + 8 * (whole - routed), rel=1e-9)
