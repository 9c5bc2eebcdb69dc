"""Duration of a forward pass alone: a step without logits, sampling and host work."""

from conf.specs.experiment import Hardware, Layout, Model
from serve_apps.engine_model.cost import architecture
from serve_apps.engine_model.cost.step_time import Batch, roofline, total_s


def forward_s(model: Model, hardware: Hardware, layout: Layout, batch: Batch) -> float:
    """Seconds of the layers of one step, as `vllm bench forward` times them.

    Left out of the step time are its fixed part, the read of the output projection, and the host. Raises
    ValueError as `roofline` does.
    """
    cost, constants = roofline(model, hardware, layout), model.step_time
    scale = constants.deployment_scale.value * constants.layout_scale.value
    head_bytes = 2.0 * architecture.lm_head_parameters(model) / layout.tensor_parallel
    head_s = scale * head_bytes / (hardware.hbm_bytes_per_s * hardware.efficiency.hbm.value)
    terms = cost.terms(batch)
    return total_s(terms) - scale * constants.step_ms.value * 1e-3 - head_s - terms[-1]
