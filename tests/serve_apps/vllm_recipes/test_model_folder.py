"""serve_apps/vllm_recipes/model_folder.py: the folder of a checkpoint that we write ourselves."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from conf import load
from serve_apps.engine_model.cost.architecture import total_parameters
from serve_apps.vllm_recipes.model_folder import END_OF_TEXT, _shapes, write_folder

TINY = load(["model=tiny_qwen3_moe", "layout=dp1_tp1"]).model
BIG = load([]).model
DENSE = replace(load(["model=llama31_405b_fp8", "layout=dp1_tp8"]).model, vocab=300)
LATENT = load(["model=deepseek_v32_fp8", "layout=dp1_tp8"]).model


def read(folder: Path, name: str) -> dict[str, object]:
    tree: dict[str, object] = json.loads((folder / name).read_text())
    return tree


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each model, written once."""
    return {each.name: write_folder(each, tmp_path_factory.mktemp("m")) for each in (TINY, BIG, DENSE)}


@pytest.mark.slow
def test_every_id_is_a_token_of_its_own(folders: dict[str, Path]) -> None:
    for model in (TINY, BIG):
        folder = folders[model.name]
        vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        assert sorted(vocabulary.values()) == list(range(model.vocab))
        assert vocabulary[END_OF_TEXT] == read(folder, "config.json")["eos_token_id"] == model.vocab - 1


def test_the_config_says_what_the_weights_are(folders: dict[str, Path]) -> None:
    config, tiny, dense = (read(folders[each.name], "config.json") for each in (BIG, TINY, DENSE))
    assert config["quantization_config"]["weight_block_size"] == [128, 128]  # type: ignore[index]
    assert config["num_experts"] == 128 and config["architectures"] == ["Qwen3MoeForCausalLM"]
    assert "quantization_config" not in tiny
    assert dense["architectures"] == ["LlamaForCausalLM"] and "num_experts" not in dense


def test_tensors_have_the_parameters_of_the_architecture() -> None:
    """But for norms, which the engine model leaves out: less than a hundredth even of a tiny model."""
    written = sum(math.prod(shape) for _, shape in _shapes(TINY))
    assert written == 378_304  # the serving notes' own count of this model
    assert total_parameters(TINY) == pytest.approx(written, rel=0.01)
    names = [name for name, _ in _shapes(TINY)]
    assert len(names) == len(set(names))


def test_latent_attention_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give engine.model_path=FOLDER"):
        write_folder(LATENT, tmp_path)
    assert not list(tmp_path.iterdir())
