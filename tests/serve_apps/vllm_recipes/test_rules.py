"""serve_apps/vllm_recipes/rules.py: a case for and a case against each rule about a real vLLM."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conf.specs.experiment import VllmEngine
from serve_apps.vllm_recipes import recipes
from serve_apps.vllm_recipes.rules import NOTED, REFUSED, texts
from tests.support.words.recipe_words import (
    CPU,
    DEEPSEEK,
    KIMI,
    LLAMA,
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


class Case(NamedTuple):
    """`bad` is refused or noted by the rule with `said` in the line, `good` is neither.

    `changed` are facts of the bad model that no configuration would let through.
    """

    said: str
    bad: Sequence[str]
    good: Sequence[str]
    bad_version: str = NEWEST
    good_version: str = NEWEST
    changed: dict[str, Any] = {}  # noqa: RUF012 - read only


OFFLOAD = ("engine.args.kv_offloading_backend=native", "engine.args.kv_offloading_size=64")
TRANSFER = "engine.args.kv_transfer_config"
OF_EIGHT = "layout.prefill={tensor_parallel: 8}"
CASES = {
    "split-process": Case("engine.server=process with layout 1p1d", [SPLIT, PROCESS], [SPLIT]),
    "split-published": Case("use modern", [SPLIT, "engine.recipe=published"], [SPLIT]),
    "moriio-amd": Case(
        "is ROCm's", [*CPU, "layout=1p1d_tp1", "layout.connector=moriio"], [*CPU, "layout=1p1d_tp1"]
    ),
    "moriio-version": Case("0.15.0 is the first", [SPLIT], [SPLIT], "0.14.1", "0.15.0"),
    "moriio-prefix-cache": Case(
        "lists of blocks differ",
        [SPLIT, "engine.args.enable_prefix_caching=true"],
        [SPLIT, NIXL, "engine.args.enable_prefix_caching=true"],
    ),
    "tp-multiple": Case(
        "a multiple of the other",
        [SPLIT, "model.heads=60", "layout.prefill={tensor_parallel: 3, expert_parallel: false}"],
        [SPLIT, NIXL, "layout.prefill={tensor_parallel: 2}"],
    ),
    "moriio-tp": Case("has 4 KV heads", ["layout=2p1d", "layout.connector=moriio"], ["layout=2p1d"]),
    "nixl-tp": Case(
        "cannot feed a smaller TP",
        ["cluster.gpus_per_node=16", SPLIT, NIXL, OF_EIGHT],
        ["cluster.gpus_per_node=16", SPLIT, NIXL, OF_EIGHT, "layout.tensor_parallel=8"],
    ),
    "split-offload": Case("in place of", [SPLIT, "engine.args.kv_offloading_size=64"], [SPLIT]),
    "own-connector": Case(
        "layout.connector and layout.transfer_mode",
        [SPLIT, f"{TRANSFER}.kv_role=kv_both"],
        [SPLIT, f"{TRANSFER}.kv_load_failure_policy=recompute"],
    ),
    "shared-ports": Case(
        "each is given its own", [SPLIT, NIXL, env("VLLM_NIXL_SIDE_CHANNEL_PORT", 5600)], [SPLIT, NIXL]
    ),
    "moriio-rdma": Case(
        "backend=xgmi", [SPLIT], [SPLIT, f"{TRANSFER}.kv_connector_extra_config.backend=xgmi"]
    ),
    "nixl-rocm": Case("RIXL", [SPLIT, NIXL], [SPLIT]),
    "cpu-one-device": Case("layout=dp1_tp1", [*CPU, TP4], [*CPU, "layout=dp1_tp1"]),
    "heads": Case("TP8 does not divide the 60", [QWEN], [QWEN], changed={"heads": 60}),
    "layout-tp": Case("is not the 8", ["engine.args.tensor_parallel_size=4"], [TP4]),
    "layout-ep": Case(
        "layout.expert_parallel",
        [TP4, "engine.args.enable_expert_parallel=false"],
        [TP4, "layout.expert_parallel=false"],
    ),
    "data-parallel": Case(
        "layout.replicas_per_node", ["engine.args.data-parallel-size=2"], ["engine.args.data_parallel_size=1"]
    ),
    "data-parallel-dense": Case(
        "vLLM runs such ranks", [LLAMA[0], "layout=dp1_tp4", "layout.data_parallel=2"], LLAMA
    ),
    "data-parallel-cpu": Case(
        "one process", [*CPU, "layout=dp1_tp1", "layout.data_parallel=2"], [*CPU, "layout=dp1_tp1"]
    ),
    "data-parallel-emulated": Case(
        "as long as the slowest",
        ["engine=vllm_emulated", QWEN, "layout=dp8_attention_ep8"],
        ["engine=vllm_emulated", QWEN, TP8],
    ),
    "more-gpus": Case("multiplies", ["engine.args.pipeline_parallel_size=2"], [TP4]),
    "fp8-blocks": Case(
        "192 columns of an expert", ["layout=dp1_tp8"], ["layout=dp1_tp8"], "0.20.0", "0.32.0"
    ),
    "fp8-blocks-refined": Case("cut finer", ["layout=dp1_tp8"], [TP4, "layout.expert_parallel=false"]),
    "kv-duplicated": Case("2 times", [TP8], [TP4]),
    "mla-fp8-kv": Case("ValueError", [*DEEPSEEK, "engine.args.kv_cache_dtype=fp8"], DEEPSEEK),
    "mla-offload": Case("KeyError", [*DEEPSEEK, *OFFLOAD], [*VISION, *OFFLOAD], "0.14.1", "0.14.1"),
    "mla-offload-unchecked": Case("later versions are unchecked", [*DEEPSEEK, *OFFLOAD], [*VISION, *OFFLOAD]),
    "kimi-aiter": Case("engine.env.VLLM_ROCM_USE_AITER=0", [*KIMI, env("VLLM_ROCM_USE_AITER", 1)], [*KIMI]),
    "aiter-mla-heads": Case(
        "32 heads of DeepSeek",
        [DEEPSEEK[0], TP4, env("VLLM_ROCM_USE_AITER_MLA", 1)],
        [DEEPSEEK[0], TP4],
        "0.14.1",
        "0.14.1",
    ),
    "aiter-mla-block": Case(
        "engine.args.block_size=1", [*DEEPSEEK, "engine.args.block_size=16"], DEEPSEEK, "0.14.1", "0.14.1"
    ),
    "deepseek-vskip": Case("AITER #1143", [*DEEPSEEK, env("AITER_ENABLE_VSKIP", "null")], DEEPSEEK),
    "rocm-block-size": Case(
        "multiple of 16", ["engine.args.block_size=64"], ["engine.args.block_size=64"], "0.14.1"
    ),
    "quantised-otherwise": Case(
        "fbgemm_fp8: vLLM raises ValueError",
        [*LLAMA, "engine.args.quantization=fp8"],
        [*LLAMA, "engine.args.quantization=fp8", "engine.model_path=/models/of-another-kind"],
    ),
    "quantised-otherwise-unchecked": Case(
        "from 0.29 on", [*LLAMA, "engine.args.quantization=fp8"], LLAMA, "0.14.1", "0.14.1"
    ),
    "fbgemm-deprecated": Case(
        "allow_deprecated_quantization=true",
        [*LLAMA, "engine.args.allow_deprecated_quantization=false"],
        LLAMA,
    ),
    "kimi-remote-code": Case("code of the checkpoint", [*KIMI, "engine.args.trust_remote_code=null"], KIMI),
    "vision-fp8": Case(
        "4304 wide",
        [*VISION, "engine.args.quantization=fp8"],
        [*VISION, "model.weights=fp8", "layout.expert_parallel=true", "engine.args.quantization=fp8"],
    ),
    "fp8-redundant": Case("redundant", ["engine.args.quantization=fp8"], [QWEN]),
    "attention-default": Case("default is ROCM_ATTN", ["engine.args.attention_backend=null"], [QWEN]),
    "executor": Case(
        "engine.server=process",
        ["engine.args.distributed_executor_backend=mp"],
        ["engine.args.distributed_executor_backend=mp", PROCESS],
    ),
    "ours-to-set": Case("engine.model_path", ["engine.args.served-model-name=x"], ["model.served_name=x"]),
    "accelerator-type": Case(
        "has no accelerator",
        [*CPU, "layout=dp1_tp1", "engine.accelerator_type=MI325X"],
        [QWEN, "engine.accelerator_type=MI325X"],
    ),
    "plain-numbers": Case("max_model_len is text", ["engine.args.max_model_len=32k"], [QWEN]),
    "metrics-on": Case("metrics", ["engine.args.disable_log_stats=true"], [QWEN]),
    "rocr-alone": Case(
        "RuntimeError", [env("ROCR_VISIBLE_DEVICES", "'0,1'")], [env("HIP_VISIBLE_DEVICES", "'0,1'")]
    ),
    "hip-cuda-differ": Case(
        "only HIP_VISIBLE_DEVICES",
        [env("HIP_VISIBLE_DEVICES", 0), env("CUDA_VISIBLE_DEVICES", 1)],
        [env("HIP_VISIBLE_DEVICES", 0), env("CUDA_VISIBLE_DEVICES", 0)],
    ),
    "devices-shared": Case(
        "share the same GPUs",
        [TP4, env("HIP_VISIBLE_DEVICES", "'0,1,2,3'")],
        [TP8, env("HIP_VISIBLE_DEVICES", "'0,1,2,3,4,5,6,7'")],
    ),
    "unknown-variable": Case(
        "would not start",
        ["engine.args.fail_on_environ_validation=true", env("VLLM_USE_V1", 1)],
        ["engine.args.fail_on_environ_validation=true", env("VLLM_ROCM_USE_AITER_CUSTOM_AR", 0)],
    ),
    "step-budget": Case(
        "below max_num_seqs=1024",
        ["engine.args.max_num_batched_tokens=512", "engine.args.max_num_seqs=1024"],
        ["engine.args.max_num_batched_tokens=1024", "engine.args.max_num_seqs=1024"],
    ),
    "context": Case("is beyond", ["engine.args.max_model_len=300000"], ["engine.args.max_model_len=262144"]),
}


def test_every_rule_has_a_case_a_reason_and_a_source() -> None:
    assert set(CASES) == REFUSED.keys() ^ NOTED.keys()
    assert (texts()["refused"].keys(), texts()["noted"].keys()) == (REFUSED.keys(), NOTED.keys())
    for name, rule in {**texts()["refused"], **texts()["noted"]}.items():
        fact, _, reason = rule["message"].partition(": ")
        assert fact and reason and rule["source"], name
        assert "; " in reason or name in NOTED, name


@pytest.mark.parametrize("name", CASES)
def test_rules_refuse_and_pass(name: str) -> None:
    case = CASES[name]
    asked = experiment(case.bad)
    assert isinstance(asked.engine, VllmEngine)
    engine, model = asked.engine, replace(asked.model, **case.changed)

    def told() -> str:
        try:
            result = recipes.resolve(engine, model, asked.layout, case.bad_version, asked.hardware)
        except ValueError as error:
            assert name in REFUSED
            return str(error)
        assert name in NOTED, f"accepted: {result}"
        return "\n".join(result.notes)

    line = told()
    assert case.said in line
    assert name in NOTED or "\n" not in line
    said_of_good = resolve(case.good, case.good_version).notes
    assert not any(case.said in note for note in said_of_good)


def test_the_page_lists_every_rule() -> None:
    page = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text()
    assert not [name for name in CASES if f"`{name}`" not in page]
