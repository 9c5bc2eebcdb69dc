"""serve_apps/engine_model/cost/node.py: experts and memory that a layout can hold, of both sides."""

from pathlib import Path

import pytest
import yaml

from conf import load
from loadgen.cli.engine_model import parts
from serve_apps.engine_model.cost.node import refuse_experts, refuse_small, sides


def judged(words: list[str]) -> str:
    """The refusal of an experiment, or an empty line."""
    engine, model, hardware, layout = parts(load(words))
    try:
        refuse_experts(model, layout)
        refuse_small(engine, model, hardware, layout, "engine.max_model_len")
    except ValueError as error:
        return str(error)
    return ""


def test_a_split_layout_has_two_sides() -> None:
    prefill, decode = sides(load(["layout=3p1d_tp2_ep2"]).layout)
    assert (prefill.replicas_per_node, prefill.prefill) == (3, None)
    assert (decode.replicas_per_node, decode.prefill) == (1, None)
    assert len(sides(load([]).layout)) == 1


JUDGED = yaml.safe_load((Path(__file__).parents[3] / "data" / "judged_nodes.yaml").read_text())


@pytest.mark.parametrize("words", JUDGED["fit"])
def test_what_fits_is_not_refused(words: list[str]) -> None:
    assert judged(words) == ""


@pytest.mark.parametrize(("words", "message"), JUDGED["refused"])
def test_either_side_is_refused(words: list[str], message: str) -> None:
    assert message in judged(words)
