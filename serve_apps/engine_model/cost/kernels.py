"""The step time of an engine with the attention kernels that it chose; knows no batch."""

from dataclasses import replace

from conf.specs.experiment import Hardware, KernelRatio, Layout, Model, SimulatedEngine
from serve_apps.engine_model.cost.step_time import Roofline, roofline


def steps(spec: SimulatedEngine, model: Model, hardware: Hardware, layout: Layout) -> Roofline:
    """The step time of one replica of `layout`. Raises as `roofline` does."""
    return with_kernels(roofline(model, hardware, layout), spec.kernel_ratio)


def with_kernels(fitted: Roofline, ratio: KernelRatio | None) -> Roofline:
    """The step time with other kernels than those of the fit."""
    if ratio is None:
        return fitted
    changed = replace(
        fitted,
        context_token_s=fitted.context_token_s * ratio.kv_read.value,
        attention_pair_s=fitted.attention_pair_s * ratio.attention.value,
    )
    return changed.scaled(ratio.step.value)
