"""serve_apps/vllm_recipes/recipes.py: published settings, the preset of today, and the words over them."""

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf import load
from conf.specs.experiment import VllmEngine
from conf.words import groups
from serve_apps.engine_model.cost.architecture import total_parameters
from serve_apps.vllm_recipes import recipes, vllm_flags
from serve_apps.vllm_recipes.model_folder import END_OF_TEXT, _shapes, write_folder
from tests.support.words.recipe_words import (
    CPU,
    DEEPSEEK,
    HAND,
    KIMI,
    MODERN_ENV,
    NEWEST,
    NIXL,
    PROCESS,
    QWEN,
    SPLIT,
    TP4,
    TP8,
    VISION,
    env,
    experiment,
    resolve,
)

PUBLISHED = yaml.safe_load((Path(__file__).parents[2] / "data" / "published_settings.yaml").read_text())


def paired(words: Sequence[str]) -> dict[str, str | None]:
    """Flags and their values from words."""
    pairs: dict[str, str | None] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            assert word not in pairs, f"{word} twice"
            pairs[word] = None if following.startswith("--") else following
    return pairs


@pytest.mark.parametrize("words", PUBLISHED)
def test_published_settings_are_those_printed(words: str) -> None:
    version, flags, env = PUBLISHED[words]
    recipe = resolve([*words.split(), *HAND], version)
    asked = experiment(words.split()).model
    model, *given = recipes.command(recipe, asked)
    assert paired(given) == paired(shlex.split(flags))
    assert recipe.env == dict(pair.split("=") for pair in env.split())
    assert model == asked.served_name
    assert version in recipe.notes[0] and "inferred" in recipe.notes[0]


@pytest.mark.parametrize("layout, tp", [(TP4, "4"), (TP8, "8")])
@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_the_modern_preset_of_the_blogs_model(layout: str, tp: str, version: str) -> None:
    recipe = resolve([QWEN, layout, PROCESS], version)
    wanted = (
        f"--tensor-parallel-size {tp} --enable-expert-parallel --kv-cache-dtype fp8 "
        "--attention-backend ROCM_AITER_FA --max-model-len 32768 --max-num-batched-tokens 32768 "
        "--gpu-memory-utilization 0.9 --distributed-executor-backend mp --enable-prompt-tokens-details"
    )
    assert paired(recipes.flags(recipe)) == paired(wanted.split())
    assert recipe.env == MODERN_ENV


def test_modern_settings_keep_what_still_means_the_same() -> None:
    deepseek, vision, kimi = (resolve(words) for words in (DEEPSEEK, VISION, KIMI))
    for recipe in (deepseek, vision, kimi):
        sizes = [recipe.args[n] for n in ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens")]
        assert sizes == [0.95, 2048, 65536]
        assert not {"block_size", "quantization", "kv_cache_dtype"} & set(recipe.args)
    assert deepseek.env["AITER_ENABLE_VSKIP"] == "0" and "attention_backend" not in deepseek.args
    assert kimi.args["trust_remote_code"] and not deepseek.args.get("trust_remote_code")
    assert kimi.env["VLLM_ROCM_USE_AITER"] == "0" and "attention_backend" not in kimi.args
    assert vision.args["attention_backend"] == "ROCM_AITER_FA" and vision.args["kv_offloading_size"] == 64


@pytest.mark.parametrize(
    "words, version, message",
    [
        ([env("VLLM_USE_V1", 1)], "0.11.2", "VLLM_USE_V1 is ignored"),
        ([env("SAFETENSORS_FAST_GPU", 1)], "0.33.0", "safetensors 0.3.0"),
        ([env("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", 1)], "0.14.1", "does not know it yet"),
    ],
)
def test_ignored_variables_are_noted_where_they_are(words: list[str], version: str, message: str) -> None:
    attention = "engine.args.attention_backend=null"
    assert any(message in note for note in resolve([QWEN, TP4, attention, *words], version).notes)
    assert not any(message in note for note in resolve([QWEN, TP4, attention], version).notes)


def test_words_go_over_the_recipe_and_null_removes() -> None:
    words = [
        "engine.args.max-num-seqs=64",
        "engine.args.kv_cache_dtype=null",
        "engine.args.enable_prefix_caching=false",
        env("NCCL_MIN_NCHANNELS", "null"),
        env("VLLM_ROCM_USE_AITER_MHA", "false"),
    ]
    recipe = resolve([QWEN, TP4, "engine.profile=balanced", *words])
    assert (recipe.args["max_num_seqs"], recipe.args["max_num_batched_tokens"]) == (64, 16384)
    assert "kv_cache_dtype" not in recipe.args and "NCCL_MIN_NCHANNELS" not in recipe.env
    assert recipe.env["VLLM_ROCM_USE_AITER_MHA"] == "0"
    assert "--no-enable-prefix-caching" in recipes.flags(recipe)


def test_a_cpu_is_told_only_what_was_asked() -> None:
    recipe = resolve([*CPU, "layout=dp1_tp1"])
    asked = experiment([*CPU, "layout=dp1_tp1"]).engine
    assert isinstance(asked, VllmEngine)
    assert recipe.args == {"tensor_parallel_size": 1, **asked.args}
    assert recipe.env == {name: str(value) for name, value in asked.env.items()}
    with pytest.raises(ValueError, match="leave it out"):
        resolve([*CPU, "layout=dp1_tp1", "engine.recipe=published"])


def test_other_hardware_is_spared_what_is_amds() -> None:
    recipe = resolve([QWEN, TP8, "hardware=h200"])
    assert recipe.env == {} and "attention_backend" not in recipe.args
    assert any("AMD" in note for note in recipe.notes)


def test_versions() -> None:
    assert [vllm_flags.parse(text) for text in ("0.14.1+rocm641", "v0.33", "0.11.1rc2")] == [
        (0, 14, 1),
        (0, 33, 0),
        (0, 11, 1),
    ]
    assert any("0.99.0 is unknown" in note for note in resolve([QWEN], "0.99.0").notes)
    assert resolve([QWEN], "") == resolve([QWEN], NEWEST)
    assert resolve([QWEN, "engine.vllm_version=0.32.0"], "") == resolve([QWEN], "0.32.0")


def test_long_requests_are_refused_and_chunks_noted() -> None:
    asked = experiment([QWEN, TP4])
    recipe = resolve([QWEN, TP4, "engine.args.max_num_batched_tokens=4096"])
    assert recipes.check_request(recipe, asked.model, 32768, 4096) == ()
    with pytest.raises(ValueError, match="up to 32769 tokens but max_model_len is 32768"):
        recipes.check_request(recipe, asked.model, 32769)
    assert "chunks of 4096" in recipes.check_request(recipe, asked.model, 5740, 5600)[0]
    free = replace(recipe, args={})
    with pytest.raises(ValueError, match="max_model_len is 262144"):
        recipes.check_request(free, asked.model, 262145)


@pytest.mark.parametrize("model", [name for name in groups()["model"] if "tiny" not in name])
@pytest.mark.parametrize("layout", ["dp1_tp8_ep8", "dp2_tp4_ep4", "dp1_tp8", "dp1_tp4"])
def test_the_modern_preset_fits_every_model_but_dense_ones_with_experts_apart(
    model: str, layout: str
) -> None:
    """Models and layouts are composed once each, not each with each."""
    asked, cut = experiment([f"model={model}"]), experiment([f"layout={layout}"]).layout
    parts: Any = asked.engine, asked.model, cut, NEWEST, asked.hardware
    if "llama" in model and "ep" in layout:
        with pytest.raises(ValueError, match="is dense"):
            recipes.resolve(*parts)
    else:
        told = recipes.resolve(*parts).args["tensor_parallel_size"]
        assert told == cut.tensor_parallel == int(layout.split("_tp")[1][0])


def test_the_users_words_go_over_both_sides_and_the_layouts_limits_over_the_recipes() -> None:
    limits = ["layout.max_num_seqs=64", "layout.prefill.max_num_seqs=16", "engine.profile=maximum"]
    own = ["engine.args.max_num_batched_tokens=2048", "engine.env.MINE=1"]
    own.append("engine.args.kv_transfer_config.kv_connector_extra_config.backend=xgmi")
    decode = resolve([SPLIT, *limits, *own])
    prefill = decode.prefill
    assert prefill is not None and prefill.prefill is None
    assert (prefill.args["max_num_seqs"], decode.args["max_num_seqs"]) == (16, 64)
    for side in (prefill, decode):
        assert side.args["max_num_batched_tokens"] == 2048 and side.env["MINE"] == "1"
        extra = {"read_mode": True, "backend": "xgmi"}
        assert side.args["kv_transfer_config"]["kv_connector_extra_config"] == extra
    assert resolve([TP4]).prefill is None and "kv_transfer_config" not in resolve([TP4]).args


@pytest.mark.parametrize(("version", "role"), [("0.20.0", "kv_both"), ("0.32.0", "kv_producer")])
def test_nixl_is_told_its_role_by_the_versions_that_want_it(version: str, role: str) -> None:
    prefill = resolve([SPLIT, NIXL], version).prefill
    assert prefill is not None and prefill.args["kv_transfer_config"]["kv_role"] == role
    assert "enable_prefix_caching" not in prefill.args


NEWER = (vllm_flags.NEWEST_READ[0], vllm_flags.NEWEST_READ[1] + 1, 0)


def test_a_misspelt_name_is_refused_with_the_nearest_and_one_like_no_other_may_be_newer() -> None:
    assert "is no argument of vLLM 0.32.0" in vllm_flags.misspelt(["quux"], vllm_flags.NEWEST_READ)
    assert vllm_flags.misspelt(["quux"], NEWER) == ""
    assert "did you mean 'block_size'" in vllm_flags.misspelt(["max_model_len", "blok_size"], NEWER)
    assert vllm_flags.misspelt(["max_model_len", "swap_space", "kv_transfer_config"], NEWER) == ""


TINY = load(["model=tiny_qwen3_moe", "layout=dp1_tp1"]).model
BIG = load([]).model
DENSE = replace(load(["model=llama31_405b_fp8", "layout=dp1_tp8"]).model, vocab=300)
LATENT = load(["model=deepseek_v32_fp8", "layout=dp1_tp8"]).model


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each model, written once."""
    return {each.name: write_folder(each, tmp_path_factory.mktemp("m")) for each in (TINY, BIG, DENSE)}


@pytest.mark.slow
def test_every_id_is_a_token_of_its_own(folders: dict[str, Path]) -> None:
    for model in (TINY, BIG):
        folder = folders[model.name]
        vocabulary = read(folder, "tokenizer.json")["model"]["vocab"]
        assert sorted(vocabulary.values()) == list(range(model.vocab))
        assert vocabulary[END_OF_TEXT] == read(folder, "config.json")["eos_token_id"] == model.vocab - 1


def test_the_config_says_what_the_weights_are(folders: dict[str, Path]) -> None:
    config, tiny, dense = (read(folders[each.name], "config.json") for each in (BIG, TINY, DENSE))
    assert config["quantization_config"]["weight_block_size"] == [128, 128]
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
