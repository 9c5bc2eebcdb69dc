"""serve_apps/engine_model/cost/node.py: experts and memory that a layout can hold, of both sides."""

import pytest

from conf import load
from conf.specs.experiment import SimulatedEngine
from serve_apps.engine_model.cost.node import refuse_experts, refuse_small, sides


def judged(*words: str) -> str:
    """The refusal of an experiment, or an empty line."""
    experiment = load(list(words))
    assert isinstance(experiment.engine, SimulatedEngine)
    try:
        refuse_experts(experiment.model, experiment.layout)
        refuse_small(
            experiment.engine,
            experiment.model,
            experiment.hardware,
            experiment.layout,
            "engine.max_model_len",
        )
    except ValueError as error:
        return str(error)
    return ""


def test_a_split_layout_has_two_sides() -> None:
    prefill, decode = sides(load(["layout=3p1d_tp2_ep2"]).layout)
    assert (prefill.replicas_per_node, prefill.prefill) == (3, None)
    assert (decode.replicas_per_node, decode.prefill) == (1, None)
    assert len(sides(load([]).layout)) == 1


@pytest.mark.parametrize(
    "words",
    [
        *[[f"layout={it}"] for it in ("dp1_tp8_ep8", "dp2_tp4_ep4", "dp4_tp2_ep2", "1p1d_tp4_ep4", "2p1d")],
        ["layout=dp1_tp1", "engine.max_model_len=16384"],
        ["layout=dp1_tp1", "engine.num_gpu_blocks=600"],  # blocks that are given are believed
    ],
)
def test_what_fits_is_not_refused(words: list[str]) -> None:
    assert judged(*words) == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("layout=dp1_tp1",), "may have 32768"),
        (("layout=dp1_tp1",), "lower engine.max_model_len"),
        (("model=llama31_405b_fp8", "layout=dp1_tp8_ep8"), "layout dp1_tp8_ep8 has expert parallelism but"),
        (("model.experts=126", "layout=dp1_tp8_ep8"), "126 experts"),
        (
            ("model.experts=126", "layout=1p1d_tp4_ep4", "layout.expert_parallel=false"),
            "1 x TP4 decode (prefill): 126 experts",
        ),
        (
            ("layout=1p1d_tp4_ep4", "layout.prefill.tensor_parallel=1"),
            "1 x TP4/EP4 decode (prefill): MI325X has",
        ),
    ],
)
def test_either_side_is_refused(words: tuple[str, ...], message: str) -> None:
    assert message in judged(*words)
