"""The command of `vllm bench forward` that calibrates the engine model on one engine, and its batches: each
is there for a term of the step time, in sizes that differ by much."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

from conf.specs.experiment import Layout, Model, SimulatedEngine
from serve_apps.engine_model.cost.architecture import kv_blocks
from serve_apps.vllm_engine.rendering import RenderingInput, flag_lines
from serve_apps.vllm_recipes.recipes import Recipe, flags

LEAST_VERSION = (0, 33)
"""The first one with `vllm bench forward`."""
OUTPUT = "forward.json"
KINDS: Mapping[str, str] = {
    "decode": "launches, weight reads, experts touched, products of decode tokens",
    "context": "KV reads",
    "prompt": "products of prefill tokens, and where they become efficient",
    "attention": "attention of prefill apart from its products",
    "mixed": "both kinds of tokens in a step: that the terms add up",
}
"""What each kind of batch tells apart."""
DECODERS, SHORT = (1, 2, 4, 8, 16, 32, 64, 128, 256), 512
CONTEXTS = ((64, 4096), (64, 16384), (16, 16384), (16, 32768))
PROMPTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
CHUNKS = ((1024, 8192), (2048, 16384), (1024, 32768))
PIECES = ((8, 1024), (32, 256))
MIXED = ((512, 32, 4096), (2048, 64, 4096), (8000, 64, 4096))
NOT_OF_A_BENCH = ("enable_prefix_caching", "distributed_executor_backend", "enable_prompt_tokens_details")
"""Arguments that the bench sets itself or does not have."""


def cases(longest: int, most_tokens: int, room: int) -> Iterator[str]:
    """The batches as words of `--case`.

    Requests have at most `longest` tokens, steps `most_tokens`, and the KV of a batch at most `room`.
    """
    for count in DECODERS:
        yield f"decode-{count}={count}*1@{min(SHORT, longest)}"
    for count, context in CONTEXTS:
        if context <= longest and count * context <= room:
            yield f"context-{count}-{context}={count}*1@{context}"
    for tokens in PROMPTS:
        if tokens <= min(longest, most_tokens):
            yield f"prompt-{tokens}={tokens}"
    for new, context in CHUNKS:
        if new + context <= longest and new <= most_tokens:
            yield f"attention-{new}-{context}={new}@{new + context}c"
    for count, tokens in PIECES:
        if count * tokens <= most_tokens and tokens <= longest:
            yield f"attention-{count}x{tokens}={count}*{tokens}"
    for tokens, count, context in MIXED:
        fits = tokens + count <= most_tokens and tokens + count * context <= room
        if max(tokens, context) <= longest and fits:
            yield f"mixed-{tokens}-{count}={tokens},{count}*1@{context}"


def text(specs: RenderingInput, machine: Sequence[str]) -> str:
    """The command for the first engine of a node, then what to do with its file.

    `machine` are the words that chose model, hardware and layout. Raises ValueError for a version or layout
    without such times, and for weights that do not fit.
    """
    version, layout = specs.version, specs.experiment.layout
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if number < LEAST_VERSION:
        raise ValueError(
            f"vLLM {version} has no bench forward; it is there from 0.33 on: vllm_version=0.33.0, or measure "
            "with python -m loadgen recipe"
        )
    if layout.prefill is not None or layout.data_parallel > 1:
        raise ValueError(
            f"layout {layout.name}: the bench times one engine without ranks; render --calibrate one with "
            "the same tensor_parallel"
        )
    recipe = specs.recipe(by_hand=True)
    longest = int(recipe.args.get("max_model_len", specs.experiment.model.max_context_tokens))
    most_tokens = int(recipe.args.get("max_num_batched_tokens", max(PROMPTS)))
    spec = SimulatedEngine("simulated")
    asked = specs.experiment
    room = kv_blocks(spec, asked.model, asked.hardware, asked.layout) * spec.block_size
    batches = list(cases(longest, most_tokens, room))
    kinds = [
        f"#   {kind}: {why}" for kind, why in KINDS.items() if any(it.startswith(kind) for it in batches)
    ]
    return "\n".join(
        [
            f"# vLLM {version}, dummy weights: times of {len(batches)} batches on one engine, some minutes",
            *kinds,
            _command(specs, recipe, layout, specs.experiment.model, batches),
            "",
            "# then, on any machine: constants for predict and for engine=simulated",
            f"python -m analysis calibrate --forward {shlex.join([OUTPUT, *machine])} --out node.yaml",
        ]
    )


def _command(specs: RenderingInput, recipe: Recipe, layout: Layout, model: Model, batches: list[str]) -> str:
    gpus = layout.tensor_parallel
    kept = {name: value for name, value in recipe.args.items() if name not in NOT_OF_A_BENCH}
    words = flags(Recipe(kept, {}))
    starts = (
        f"torchrun --nproc-per-node={gpus} -m vllm.entrypoints.cli.main bench forward"
        if gpus > 1
        else "vllm bench forward"
    )
    named = model.served_name if not specs.engine.model_path else specs.engine.model_path
    env = {specs.devices: ",".join(map(str, range(gpus)))} | recipe.env
    lines = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    lines += [starts, f"--model {shlex.quote(named)}", *flag_lines(words, seen_server=True)]
    lines += [f"--kv-len-jitter 0 --output-json {OUTPUT}", *(f"--case {batch}" for batch in batches)]
    return " \\\n  ".join(lines)
