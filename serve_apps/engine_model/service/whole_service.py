"""A whole run of requests in one call: by the compiled loop where it may, block by block otherwise.

Also a guess of a node's QPS, its peaks and the shares of its busy time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine, Workload
from serve_apps.engine_model.compiled.fast_engine import FastSpec, Times, UnsupportedByFastPath, Work
from serve_apps.engine_model.compiled.lockstep import RanksSpec
from serve_apps.engine_model.cost import architecture
from serve_apps.engine_model.cost.step_time import Batch, roofline
from serve_apps.engine_model.cost.transfer import TransferSeconds
from serve_apps.engine_model.scheduler.lockstep import AnyEngine, engine_of
from serve_apps.engine_model.service.route_ranks import serve_ranks
from serve_apps.engine_model.service.routed import Replicas, Requests, serve_open
from serve_apps.engine_model.service.split_run import SplitSpec, serve_split
from serve_apps.engine_model.service.split_service import SplitService
from serve_apps.engine_model.service.virtual_service import SessionPrompt, VirtualService

LOOK_S = 60.0
"""Virtual seconds between two observations of a service that is served block by block."""
GUESS_BATCH = 64
"""Decoding sequences in the guess (the concurrency of the Character.ai post)."""
PREFILL = "prefill_"
"""The prefix of the fields of `Work` of engines that only compute prompts."""


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
    if layout.prefill is not None:
        return _serve_split(*parts, requests, replicas)
    try:
        if layout.data_parallel > 1:
            return serve_ranks(RanksSpec.of(*parts), requests, replicas)
        return serve_open(FastSpec.of(*parts), requests, replicas)
    except UnsupportedByFastPath:
        engines = [engine_of(*parts, seed=replicas.seed + i) for i in range(replicas.count)]
        return _block_by_block(engines, requests, replicas)


def _serve_split(
    spec: SimulatedEngine,
    model: Model,
    hardware: Hardware,
    layout: Layout,
    requests: Requests,
    replicas: Replicas,
) -> Times:
    parts = spec, model, hardware, layout
    try:
        return serve_split(SplitSpec.of(*parts), requests, replicas)
    except UnsupportedByFastPath:
        nodes = replicas.count // layout.replicas_per_node
        service = SplitService.of(*parts, nodes, replicas.balance, replicas.seed)
        seen = _observed(service, requests, spec.block_size)
        del seen["queue_s"]  # a request waits in two of them
        cached, outputs = seen.pop("cached").astype(np.int64), requests.asked[1].sum()
        return Times(requests.sent_s, **seen, cached_tokens=np.maximum(cached, 0), work=_unknown(outputs))


def _block_by_block(engines: Sequence[AnyEngine], requests: Requests, replicas: Replicas) -> Times:
    """The same by scheduler.

    The engines' counters alone tell their work: busy seconds and KV in use stay unknown (nan), and every
    prompt has the mean share of cached tokens.
    """
    service = VirtualService(engines, replicas.balance, replicas.seed)
    seen = _observed(service, requests, engines[0].block_size)
    del seen["cached"]
    queries = sum(engine.scheduler.prefix_queries for engine in engines)
    hit = sum(engine.scheduler.prefix_hits for engine in engines) / queries if queries else 0.0
    cached = np.rint(hit * requests.asked[0]).astype(np.int64)
    emitted = sum(engine.scheduler.generation_tokens_total for engine in engines)
    return Times(requests.sent_s, **seen, cached_tokens=cached, work=_unknown(emitted))


def _observed(service: VirtualService, requests: Requests, block_size: int) -> dict[str, Any]:
    """All requests to their end: times, replicas, cached tokens (-1 where the service does not say)."""
    _submit(service, requests, block_size)
    count = len(requests.sent_s)
    first_s, last_s, replica = np.full(count, np.nan), np.full(count, np.nan), np.zeros(count, np.int64)
    cached, queue_s = np.full(count, -1), np.full(count, np.nan)
    ended, now_s = 0, 0.0
    while ended < count:
        now_s += LOOK_S
        service.advance(now_s)
        for seen in service.observe():
            if seen.finished:
                first_s[seen.key], last_s[seen.key] = seen.first_token_s, seen.last_token_s
                replica[seen.key], cached[seen.key] = seen.replica, seen.cached_tokens
                queue_s[seen.key] = np.nan if seen.queue_s is None else seen.queue_s
                ended += 1
    times = {"first_token_s": first_s, "last_token_s": last_s, "queue_s": queue_s}
    return times | {"replica": replica, "cached": cached}


def _unknown(emitted: int) -> Work:
    """The work of engines that are served block by block, of which the emitted tokens alone are known."""
    unknown = float("nan")
    return Work(0, unknown, 0, 0, 0, unknown, int(emitted), unknown)


def _submit(service: VirtualService, requests: Requests, block_size: int) -> None:
    prefixes = requests.prefixes
    prompt, output, shared = (column.tolist() for column in requests.asked)
    for key, at_s in enumerate(requests.sent_s.tolist()):
        if prefixes is None:
            service.submit(key, at_s, prompt[key], output[key], shared_tokens=shared[key])
        else:
            session = -1 if prefixes.session is None else int(prefixes.session[key])
            begins = SessionPrompt(session, prefixes.chain(key, block_size))
            service.submit(key, at_s, prompt[key], output[key], begins=begins)


def shares(
    spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout, work: Mapping[str, float]
) -> dict[str, float]:
    """Shares of the busy time by term of the step time, from the fields of `Work`.

    Terms that are not linear in them (experts touched, quick reduce, noise) are one rest. Of a split node
    both sides' engines count, with the fields of `PREFILL` for those that compute prompts.
    """
    if layout.prefill_side is not None:
        known = {"decode": (layout.decode_side, work), "prefill": (layout.prefill_side, _of_prefill(work))}
        busy_s = sum(own["busy_s"] for _, own in known.values())
        return {
            f"{name} of {side} engines": share * own["busy_s"] / busy_s
            for side, (engines, own) in known.items()
            for name, share in shares(spec, model, hardware, engines, own).items()
        }
    if not work["busy_s"] > 0:
        return {}
    cost = roofline(model, hardware, layout, spec.kernel_ratio)
    terms: Mapping[str, float] = {
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
        terms = {**terms, "all-reduce": cost.all_reduce_token_s * tokens}
    rest = max(0.0, work["busy_s"] - sum(terms.values()))
    return {name: seconds / work["busy_s"] for name, seconds in {**terms, "experts and rest": rest}.items()}


def all_work(times: Times) -> dict[str, float]:
    """The work of all engines by name; that of engines that only compute prompts with `PREFILL` before it."""
    found: dict[str, float] = times.work._asdict()
    if times.prefill_work is not None:
        found |= {f"{PREFILL}{name}": value for name, value in times.prefill_work._asdict().items()}
    return found


def _of_prefill(work: Mapping[str, float]) -> dict[str, float]:
    return {name: work.get(f"{PREFILL}{name}", float("nan")) for name in Work._fields}


def peaks(
    spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout
) -> tuple[float, float | None, float, float]:
    """A node's tokens of KV and peak FLOP/s, and the FLOP that a token and a pair of tokens need.

    The peak is that of the weights' type, None where it is unknown; int4 experts compute in bf16. Of a split
    node the KV is that of the engines that decode, and the peak that of all.
    """
    if layout.prefill_side is not None:
        kv_tokens, own, *flop = peaks(spec, model, hardware, layout.decode_side)
        _, other, *_ = peaks(spec, model, hardware, layout.prefill_side)
        return kv_tokens, None if own is None or other is None else own + other, flop[0], flop[1]
    blocks = architecture.kv_blocks(spec, model, hardware, layout)
    peak = hardware.fp8_flop_per_s if model.weights == "fp8" else hardware.bf16_flop_per_s
    ranks = layout.replicas_per_node * layout.data_parallel
    return (
        float(blocks * spec.block_size * ranks),
        None if peak is None else peak * ranks * layout.tensor_parallel,
        float(architecture.linear_flop_per_token(model)),
        architecture.attention_flop_per_pair(model),
    )


def guess_qps(workload: Workload, model: Model, hardware: Hardware, layout: Layout) -> float | None:
    """Requests per second and node by the roofline alone, in prefill and full decode batches only.

    The share of prompts that `workload.prefix_hit` repeats counts as cached. Of a split node the slowest of
    prefill engines, links and decode engines counts. None where a figure of the hardware that is needed is
    unknown.
    """
    mean_in, mean_out = round(workload.prompt_tokens), workload.output_tokens.mean
    shared = round(workload.prefix_hit * mean_in)
    try:
        prefill_s, batch_s = (
            _guess_s(model, hardware, side, mean_in, shared)
            for side in (layout.prefill_side or layout, layout)
        )
    except ValueError:
        return None
    engines = layout.replicas_per_node
    if layout.prefill is None:
        return engines / (prefill_s[0] + mean_out * batch_s[1] / GUESS_BATCH)
    link_s = TransferSeconds.of(model, layout).work_s(mean_in - shared)
    return min(
        layout.prefill.per_node / prefill_s[0],
        engines / (mean_out * batch_s[1] / GUESS_BATCH),
        engines / link_s,
    )


def _guess_s(
    model: Model, hardware: Hardware, side: Layout, mean_in: int, shared: int
) -> tuple[float, float]:
    """Seconds of an engine for a prompt alone, and for a token each of a full batch."""
    step, prefill = roofline(model, hardware, side), Batch()
    prefill.add_chunk(mean_in - shared, shared)
    decode = Batch(decode_tokens=GUESS_BATCH, context_tokens=GUESS_BATCH * mean_in, sequences=GUESS_BATCH)
    return step.duration_s(prefill), step.duration_s(decode)
