"""Predictions outside of what the constants were fitted to: what is transferred, and how much that adds.

The spreads are sds of ln step time, as transfers between the shipped models were seen to miss
(`python -m tests.benchmarks.transfers`).
"""

import math
from dataclasses import dataclass, replace

from conf.kernels import listed, other_release
from conf.specs.experiment import Constant, Experiment, SimulatedEngine
from conf.specs.model import Z95

DEPLOYMENT, LAYOUT = "model.step_time.deployment_scale", "model.step_time.layout_scale"
KV_READ = "hardware.efficiency.kv_read"
MODEL_LN_SD = 0.4
"""The rms over four models with grouped-query attention, each by the constants of the others."""
GPU_LN_SD = 0.25
"""Our choice: without its own pace MI325X was .1 to .2 off from MI300X, which has the same compute units."""
WEIGHTS_LN_SD = 0.18
"""The rms of Qwen3-235B in FP8 and its twin with vision in BF16, each by the constants of the other."""
KV_LN_SD = 0.0
"""No source has one model with both; half the bytes are read at the same share of the bandwidth."""
LAYOUT_LN_SD = 0.08
"""Our choice: gaps of one layout are missed by .00 and .07 by a fit to the other alone."""
BEGINS = "assumed outside of the fit: "


@dataclass(frozen=True, slots=True)
class Transfer:
    """Something outside of the evidence as text, and the constant that it widens by `ln_sd`.

    No `path` for an engine release, whose `KernelRatio` has its spread.
    """

    text: str
    path: str
    ln_sd: float


def transfers(experiment: Experiment) -> list[Transfer]:
    """What the fit behind the model's constants did not have; empty for a model without a fit."""
    model, fit = experiment.model, experiment.model.posterior
    if not fit.model:
        return []
    engine = experiment.engine
    release = other_release(engine, model) if isinstance(engine, SimulatedEngine) else ""
    kinds = ", ".join(kind for kind in experiment.layout.engine_kinds if kind not in fit.layouts)
    cases = (
        ("model", model.name, [fit.model], DEPLOYMENT, MODEL_LN_SD),
        ("GPU", experiment.hardware.name, fit.hardware, DEPLOYMENT, GPU_LN_SD),
        ("engine", "" if listed(release, fit.releases) else release, fit.engines, "", 0.0),
        ("weights", model.weights, [fit.weights], DEPLOYMENT, WEIGHTS_LN_SD),
        ("KV cache", model.kv_cache, [fit.kv_cache], KV_READ, KV_LN_SD),
        ("layout", kinds, fit.layouts, LAYOUT, LAYOUT_LN_SD),
    )
    return [
        Transfer(f"{what} {here} (fitted: {', '.join(fitted)})", path, ln_sd)
        for what, here, fitted, path, ln_sd in cases
        if here and here not in fitted
    ]


def widened(constant: Constant, beyond: Transfer) -> Constant:
    """The constant with the spread of a transfer beside its own; unchanged if it is exact."""
    if constant.low is None:
        return constant
    below, above = (math.exp(Z95 * math.hypot(sd, beyond.ln_sd)) for sd in constant.ln_sd)
    before = f"{constant.source}; " if constant.source.startswith(BEGINS) else ""
    source = f"{before or BEGINS}{beyond.text}"
    return replace(constant, low=constant.value / below, high=constant.value * above, source=source)
