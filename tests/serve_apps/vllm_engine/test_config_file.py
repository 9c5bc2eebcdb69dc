"""serve_apps/vllm_engine/config_file.py: a sweep and a rendered file deploy the same; what cannot start."""

from importlib import import_module
from itertools import product
from pathlib import Path

import pytest
import yaml

from conf import load
from conf.specs.experiment import VllmEngine
from conf.words import groups
from loadgen.cli.deployment import service_plan
from serve_apps.vllm_engine import config_file as module
from serve_apps.vllm_engine.app import application
from serve_apps.vllm_engine.config_file import (
    OUR_BUILDER,
    VllmService,
    environment,
    folder_of,
    prepared,
    with_folder,
)
from serve_apps.vllm_engine.rendering import render
from serve_apps.vllm_recipes.recipes import Recipe
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
    experiment = load([*words, *routed(name), *more])
    plan = service_plan(experiment)
    (swept,) = plan.build.args  # type: ignore[attr-defined]
    made = render(VllmService(experiment, NEWEST)).application
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
    assert isinstance(experiment.engine, VllmEngine)
    assert environment(experiment.engine, experiment.routing) == plan.environment


def test_the_files_builder_is_that_of_a_sweep() -> None:
    module, _, name = OUR_BUILDER.partition(":")
    assert getattr(import_module(module), name) is application


def ready(words: list[str], monkeypatch: pytest.MonkeyPatch, installed: str = "0.32.0") -> Recipe:
    monkeypatch.setattr(module, "installed_vllm", lambda: installed)
    return prepared(load(words), 300)[1]


DATA = Path(__file__).parents[2] / "data" / "unstartable_vllm.yaml"


@pytest.mark.parametrize(("words", "installed", "line"), yaml.safe_load(DATA.read_text()))
def test_what_cannot_start_is_refused(
    words: list[str], installed: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        ready(words, monkeypatch, installed)
    assert "\n" not in str(caught.value)


def test_a_driver_without_vllm_may_deploy_on_nodes_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed_vllm", lambda: "")
    experiment = load(["engine=vllm", "engine.vllm_version=0.33.0"])
    service, recipe = prepared(experiment, 300)
    assert recipe.args["tensor_parallel_size"] == 8
    assert with_folder(experiment) is experiment  # weights are on the nodes
    assert service.described(recipe)["vllm"] is None
    assert not any("no vLLM here" in note for note in recipe.notes)
    guessed = ready(["engine=vllm"], monkeypatch, installed="")
    assert any("those of 0.33.0; set engine.vllm_version" in note for note in guessed.notes)


def test_an_emulated_vllm_gets_the_recipe_of_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real, emulated = (ready([f"engine={name}"], monkeypatch).args for name in ("vllm", "vllm_emulated"))
    assert "kv_cache_dtype" in real
    for name in ("tensor_parallel_size", "enable_expert_parallel"):
        assert emulated[name] == real[name]
    assert "emu" in emulated["additional_config"]


def test_a_folder_belongs_to_one_architecture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tiny = ["model=tiny_qwen3_moe", "layout=dp1_tp1"]
    model, deeper = load(tiny).model, load([*tiny, "model.layers=3"]).model
    assert folder_of(model, True) != folder_of(deeper, True) != folder_of(deeper, False)
    assert folder_of(model, True).is_relative_to(tmp_path)
