"""A whole run of requests in one call: by the compiled loop where it may, block by block otherwise.

Also a guess of a node's QPS, its peaks and the shares of its busy time; knows no rate and no bound.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine, Workload
from serve_apps.engine_model.compiled.fast_engine import FastSpec, Times, UnsupportedByFastPath, Work
from serve_apps.engine_model.cost import architecture
from serve_apps.engine_model.cost.step_time import Batch, roofline
from serve_apps.engine_model.scheduler.engine import BlockEngine
from serve_apps.engine_model.service.routed import Replicas, Requests, serve_open
from serve_apps.engine_model.service.virtual_service import SessionPrompt, VirtualService

LOOK_S = 60.0
"""Virtual seconds between two observations of a service that is served block by block."""
GUESS_BATCH = 64
"""Decoding sequences in the guess (the concurrency of the Character.ai post)."""


def serve(
    spec: SimulatedEngine,
    model: Model,
    hardware: Hardware,
    layout: Layout,
    requests: Requests,
    replicas: Replicas = Replicas(),  # noqa: B008  # frozen
) -> Times:
    """All requests to their end, by the compiled loop or, where that may not, block by block.

    Requests before `requests.from_s` only fill caches where they share several prefixes. Raises ValueError
    for a request that can never be served, weights that do not fit, an unknown figure, and for limits of the
    queue, whose refusals it does not model.
    """
    if spec.max_num_queued_reqs is not None or spec.max_num_queued_tokens is not None:
        raise ValueError(
            "the engine model does not predict refusals: leave out engine.max_num_queued_reqs and "
            "engine.max_num_queued_tokens, or measure with sweep or probe"
        )
    parts = spec, model, hardware, layout
    try:
        return serve_open(FastSpec.of(*parts), requests, replicas)
    except UnsupportedByFastPath:
        engines = [BlockEngine(*parts, seed=replicas.seed + i) for i in range(replicas.count)]
        return _block_by_block(engines, requests, replicas)


def _block_by_block(engines: Sequence[BlockEngine], requests: Requests, replicas: Replicas) -> Times:
    """The same by scheduler.

    The engines' counters alone tell their work: busy seconds and KV in use stay unknown (nan), and every
    prompt has the mean share of cached tokens.
    """
    service = VirtualService(engines, replicas.balance, replicas.seed)
    _submit(service, requests, engines[0].block_size)
    count, asked = len(requests.sent_s), requests.asked
    first_s, last_s, replica = np.full(count, np.nan), np.full(count, np.nan), np.zeros(count, np.int64)
    ended, now_s = 0, 0.0
    while ended < count:
        now_s += LOOK_S
        service.advance(now_s)
        for seen in service.observe():
            if seen.finished:
                first_s[seen.key], last_s[seen.key] = seen.first_token_s, seen.last_token_s
                replica[seen.key] = seen.replica
                ended += 1
    queries = sum(engine.scheduler.prefix_queries for engine in engines)
    hit = sum(engine.scheduler.prefix_hits for engine in engines) / queries if queries else 0.0
    cached = np.rint(hit * asked[0]).astype(np.int64)
    emitted = sum(engine.scheduler.generation_tokens_total for engine in engines)
    unknown = float("nan")
    work = Work(0, unknown, 0, 0, 0, unknown, emitted, unknown)
    return Times(requests.sent_s, first_s, last_s, cached, replica, work)


def _submit(service: VirtualService, requests: Requests, block_size: int) -> None:
    prefixes = requests.prefixes
    prompt, output, shared = (column.tolist() for column in requests.asked)
    for key, at_s in enumerate(requests.sent_s.tolist()):
        if prefixes is None:
            service.submit(key, at_s, prompt[key], output[key], shared_tokens=shared[key])
        else:
            begins = SessionPrompt(int(prefixes.session[key]), prefixes.chain(key, block_size))
            service.submit(key, at_s, prompt[key], output[key], begins=begins)


def shares(
    spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout, work: Mapping[str, float]
) -> dict[str, float]:
    """Shares of the busy time by term of the step time, from the fields of `Work`.

    Terms that are not linear in them (experts touched, quick reduce, noise) are one rest.
    """
    if not work["busy_s"] > 0:
        return {}
    cost = roofline(model, hardware, layout, spec.kernel_ratio)
    known: Mapping[str, float] = {
        "launch": cost.launch_s * work["steps"],
        "weight read": cost.weight_read_s * work["steps"],
        "decode GEMM": cost.decode_gemm_token_s * work["decode_tokens"],
        "prefill GEMM": cost.prefill_gemm_token_s * work["prefill_tokens"],
        "KV read": cost.context_token_s * work["context_tokens"],
        "attention": cost.attention_pair_s * work["attention_pairs"],
        "host": cost.host_sequence_s * work["sequences"],
    }
    if cost.quick_reduce_tokens == float("inf"):
        tokens = work["decode_tokens"] + work["prefill_tokens"]
        known = {**known, "all-reduce": cost.all_reduce_token_s * tokens}
    rest = max(0.0, work["busy_s"] - sum(known.values()))
    return {name: seconds / work["busy_s"] for name, seconds in {**known, "experts and rest": rest}.items()}


def peaks(
    spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout
) -> tuple[float, float | None, float, float]:
    """A node's tokens of KV and peak FLOP/s, and the FLOP that a token and a pair of tokens need.

    The peak is that of the weights' type, None where it is unknown; int4 experts compute in bf16.
    """
    blocks = architecture.kv_blocks(spec, model, hardware, layout)
    peak = hardware.fp8_flop_per_s if model.weights == "fp8" else hardware.bf16_flop_per_s
    gpus = layout.tensor_parallel * layout.replicas_per_node
    return (
        float(blocks * spec.block_size * layout.replicas_per_node),
        None if peak is None else peak * gpus,
        float(architecture.linear_flop_per_token(model)),
        architecture.attention_flop_per_pair(model),
    )


def guess_qps(workload: Workload, model: Model, hardware: Hardware, layout: Layout) -> float | None:
    """Requests per second and node by the roofline alone, in prefill and full decode batches only.

    The share of prompts that `workload.prefix_hit` repeats counts as cached. None where a figure of the
    hardware that is needed is unknown.
    """
    mean_in, mean_out = round(workload.prompt_tokens), workload.output_tokens.mean
    try:
        step = roofline(model, hardware, layout)
    except ValueError:
        return None
    prefill = Batch()
    shared = round(workload.prefix_hit * mean_in)
    prefill.add_chunk(mean_in - shared, shared)
    decode = Batch(decode_tokens=GUESS_BATCH, context_tokens=GUESS_BATCH * mean_in, sequences=GUESS_BATCH)
    per_request_s = step.duration_s(prefill) + mean_out * step.duration_s(decode) / GUESS_BATCH
    return layout.replicas_per_node / per_request_s
