"""A guess of the QPS of a node, by the roofline alone; knows no queue and no bound on latency."""

from conf.specs.experiment import Hardware, Layout, Model, Workload
from serve_apps.engine_model.cost.step_time import Batch, roofline

GUESS_BATCH = 64
"""Decoding sequences in the guess (the concurrency of the Character.ai post)."""


def guess_qps(workload: Workload, model: Model, hardware: Hardware, layout: Layout) -> float | None:
    """Requests per second and node if time went to prefill and full decode batches only.

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
