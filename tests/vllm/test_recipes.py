"""`serve_apps.vllm_recipes` against the installed vLLM's own parser and Ray's own configuration of it.

The parser proves names, types and choices.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import vllm
from ray.serve.llm import LLMConfig
from vllm import envs

from conf.words import groups
from serve_apps.__main__ import main
from serve_apps.vllm_engine import config_file
from serve_apps.vllm_engine.config_file import VllmService
from serve_apps.vllm_engine.rendering import render
from serve_apps.vllm_recipes import recipes, vllm_flags
from serve_apps.vllm_recipes.recipes import Recipe, tables
from tests.support.words.recipe_words import PROCESS, experiment, resolve

pytestmark = pytest.mark.vllm

Parse = Callable[[Sequence[str]], Any]
MODELS = [name for name in groups()["model"] if name != "tiny_qwen3_moe"]
LAYOUTS = ["dp1_tp8_ep8", "dp2_tp4_ep4", "dp1_tp8", "dp1_tp4"]
VERSION = str(vllm.__version__)


@pytest.fixture(scope="module")
def parse() -> Parse:
    """Words after `vllm serve` to a namespace; SystemExit where vLLM would stop."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    return lambda words: parser.parse_args(list(words))


def resolved(*words: str) -> Recipe:
    return resolve(words, VERSION)


def rejects(parse: Parse, *words: str) -> bool:
    try:
        parse(["model", *words])
    except (SystemExit, ValueError):
        return True
    return False


@pytest.mark.parametrize("model, layout", list(product(MODELS, LAYOUTS)))
def test_the_parser_takes_every_recipe_that_is_accepted(model: str, layout: str, parse: Parse) -> None:
    words = f"model={model}", f"layout={layout}", "engine.server=process"
    asked = experiment(words).model
    for profile in tables()["profiles"]:
        try:
            recipe = resolved(*words, f"engine.profile={profile}")
        except ValueError as error:
            assert "dense" in str(error)
            continue
        result = vars(parse(recipes.command(recipe, asked)))
        assert result["model_tag"] == asked.served_name
        for name, value in recipe.args.items():
            read = result[name]
            assert str(read).rpartition(".")[2] == str(value) or read == value, (name, read, value)


VALUES = {"swap_space": "16", "num_scheduler_steps": "10", "max_num_partial_prefills": "2"} | {
    "attention_backend": "ROCM_AITER_FA",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "64",
}


@pytest.mark.parametrize("known", vllm_flags.flags()["arguments"], ids=lambda known: known.name)
def test_flags_are_rejected_by_the_versions_said_to(known: vllm_flags.Known, parse: Parse) -> None:
    value = VALUES.get(known.name)
    words = [f"--{known.name.replace('_', '-')}", *([value] if value else [])]
    assert rejects(parse, *words) == (not known.known_to(vllm_flags.parse(VERSION)))


@pytest.mark.parametrize("key", vllm_flags.flags()["compilation_keys"], ids=lambda key: key.name)
def test_compilation_keys_are_rejected(key: vllm_flags.Known, parse: Parse) -> None:
    assert vllm_flags.parse(VERSION) >= key.rejected
    assert rejects(parse, "--compilation-config", f'{{"{key.name}": 0}}')


def test_the_remedies_are_taken(parse: Parse) -> None:
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    assert not rejects(parse, "--compilation-config", '{"cudagraph_mode": "PIECEWISE"}')
    assert not rejects(parse, "--max-cudagraph-capture-size", "512")
    assert not rejects(parse, "--attention-backend", "ROCM_ATTN")
    assert not rejects(parse, "--no-enable-prefix-caching")
    assert not rejects(parse, "--max_num_batched_tokens", "8192")
    assert "fp8_per_channel" in QUANTIZATION_METHODS and "ptpc_fp8" not in QUANTIZATION_METHODS


@pytest.mark.parametrize(
    "backend", ["rocm_attn.RocmAttentionBackend", "rocm_aiter_fa.AiterFlashAttentionBackend"]
)
@pytest.mark.parametrize("tokens", [1, 8, 16, 24, 32, 48, 64, 128, 544])
def test_rocms_attention_takes_the_blocks_that_are_accepted(backend: str, tokens: int) -> None:
    module, _, name = backend.partition(".")
    takes = getattr(import_module(f"vllm.v1.attention.backends.{module}"), name).supports_block_size(tokens)
    try:
        recipe = resolved("layout=dp1_tp8_ep8", f"engine.args.block_size={tokens}")
    except ValueError as error:
        assert not takes, error
    else:
        assert takes and recipe.args["attention_backend"] == "ROCM_AITER_FA"


def test_kimis_processor_is_loaded_as_the_flag_says() -> None:
    """It is read and not run: nobody has the checkpoint here."""
    result = find_spec("vllm.model_executor.models.kimi_k25")
    assert result and result.origin
    assert "trust_remote_code=self.ctx.model_config.trust_remote_code" in Path(result.origin).read_text()


@pytest.mark.parametrize("known", vllm_flags.flags()["variables"], ids=lambda known: known.name)
def test_variables_are_known_to_the_versions_said_to(known: vllm_flags.Known) -> None:
    assert (known.name in envs.environment_variables) == known.known_to(vllm_flags.parse(VERSION))


def test_every_variable_of_a_modern_recipe_is_known() -> None:
    for model in MODELS:
        for name in resolved(f"model={model}", "layout=dp1_tp4").env:
            assert not name.startswith("VLLM_") or name in envs.environment_variables, name


@pytest.mark.parametrize("printed", tables()["recipes"], ids=lambda printed: f"{printed.model}-{printed.cut}")
def test_published_flags_are_parsed_or_refused_as_said(printed: Any, parse: Parse) -> None:
    """One by one, vLLM stops at those that are refused here and at no other."""
    refused = set()
    for name, value in printed.args.items():
        words = recipes.flags(Recipe({name: value}, {}))
        if rejects(parse, *words):
            refused.add(name)
    said = vllm_flags.rejected(printed.args, vllm_flags.parse(VERSION))
    assert refused == {name for name in printed.args if any(name in line.partition(":")[0] for line in said)}


@pytest.mark.parametrize("layout", ["dp1_tp8_ep8", "dp2_tp4_ep4"])
def test_rays_own_configuration_takes_the_recipe(layout: str) -> None:
    words = f"layout={layout}", "engine.node_resource=mi325x_node"
    asked = experiment(words)
    config = config_file.llm_config(asked, asked.layout, resolved(*words))
    engine = LLMConfig(**config).get_engine_config()
    assert engine.placement_strategy == "STRICT_PACK"
    assert [bundle["GPU"] for bundle in engine.placement_bundles] == [1.0] * asked.layout.tensor_parallel
    told = engine.get_initialization_kwargs()
    assert told["distributed_executor_backend"] == "ray"
    assert told["model"] == asked.model.served_name
    assert engine.frontend_kwargs == {"enable_prompt_tokens_details": True}


def test_ray_refuses_what_the_executor_rule_refuses() -> None:
    asked = experiment([PROCESS])
    config = config_file.llm_config(asked, asked.layout, resolved(PROCESS))
    config["engine_kwargs"]["distributed_executor_backend"] = "mp"
    with pytest.raises(ValueError, match="ray"):
        LLMConfig(**config).get_engine_config().get_initialization_kwargs()


def test_arguments_are_fields_of_vllms_own() -> None:
    """What Ray's LLM library looks names up in; an alias of the command line would be unknown to it."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    known = {field.name for kind in (AsyncEngineArgs, FrontendArgs) for field in fields(kind)}
    for model in MODELS:
        for layout in ("dp1_tp8", "dp1_tp4"):
            assert set(resolved(f"model={model}", f"layout={layout}").args) <= known


def test_every_argument_of_the_parser_is_known(parse: Parse) -> None:
    assert set(vars(parse([]))) - {"help"} <= vllm_flags.flags()["argument_names"]


SPLITS = [("1p1d_tp4_ep4", "moriio"), ("1p1d_tp4_ep4", "nixl"), ("2p1d", "nixl"), ("3p1d_tp2_ep2", "moriio")]


@pytest.mark.parametrize("layout, connector", SPLITS)
def test_vllm_and_ray_take_both_sides_of_a_split_layout(layout: str, connector: str, parse: Parse) -> None:
    """vLLM's parser takes the commands, and Ray keeps ports and roles of its configuration."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    rendering = render(
        VllmService(experiment([f"layout={layout}", f"layout.connector={connector}"]), VERSION)
    )
    for process in rendering.processes:
        words = process.command[process.command.index("serve") + 1 :]
        result = parse(words).kv_transfer_config
        assert result.kv_role == {"prefill": "kv_producer", "decode": "kv_consumer"}[process.side]
        assert result.kv_connector in KVConnectorFactory._registry
    assert rendering.application is not None
    args = rendering.application["applications"][0]["args"]
    for name in ("prefill_config", "decode_config"):
        made = LLMConfig(**args[name])
        assert args[name]["experimental_configs"].items() <= made.experimental_configs.items()
        assert made.get_engine_config().get_initialization_kwargs()["kv_transfer_config"]["kv_role"]


def test_the_command_model_writes_a_folder_with_weights(tmp_path: Path) -> None:
    assert main(["model", str(tmp_path / "tiny")]) == 0
    assert {"config.json", "model.safetensors"} <= {path.name for path in (tmp_path / "tiny").iterdir()}
