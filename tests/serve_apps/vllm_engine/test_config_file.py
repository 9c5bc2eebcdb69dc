"""serve_apps/vllm_engine/config_file.py: a sweep and a rendered file deploy the same arguments."""

from importlib import import_module
from itertools import product

import pytest

from conf import load
from conf.specs.experiment import VllmEngine
from conf.words import groups
from loadgen.cli.deployment import service_plan
from serve_apps.vllm_engine.app import application
from serve_apps.vllm_engine.config_file import OUR_BUILDER, environment
from serve_apps.vllm_engine.rendering import RenderingInput, render
from tests.support.words.recipe_words import NEWEST, NIXL, routed

LAYOUTS = "dp2_tp4_ep4", "dp8_attention_ep8", "1p1d_tp4_ep4"
ROUTINGS = [*groups()["routing"], "round_robin routing.data_path=python_proxy"]
# A split layout refuses kv_aware.
CASES = [pair for pair in product(ROUTINGS, LAYOUTS) if pair != ("kv_aware", "1p1d_tp4_ep4")]


@pytest.mark.parametrize(("routing", "layout"), CASES)
def test_a_sweep_deploys_the_arguments_of_the_file(routing: str, layout: str) -> None:
    name, *more = routing.split()
    if name == "per_node" and layout == "dp2_tp4_ep4":
        layout = "dp1_tp8_ep8"  # a node's stream goes to one replica
    words = ["engine=vllm", "cluster=mi325x_4n", f"engine.vllm_version={NEWEST}", f"layout={layout}", NIXL]
    asked = load([*words, *routed(name), *more])
    plan = service_plan(asked)
    (swept,) = plan.build.args  # type: ignore[attr-defined]
    made = render(RenderingInput(asked, NEWEST)).application
    assert made is not None
    (served,) = made["applications"]
    if served["import_path"] == OUR_BUILDER:
        assert served["args"] == swept
    else:  # Ray's own builder, which takes its class of engines by name and needs no word on the routing
        configs = [
            {name: value for name, value in config.items() if name != "server_cls"}
            for config in served["args"]["llm_configs"]
        ]
        assert {**served["args"], "llm_configs": configs, "routing": swept["routing"]} == swept
    assert isinstance(asked.engine, VllmEngine)
    assert environment(asked.engine, asked.routing) == plan.environment


def test_the_files_builder_is_that_of_a_sweep() -> None:
    module, _, name = OUR_BUILDER.partition(":")
    assert getattr(import_module(module), name) is application
