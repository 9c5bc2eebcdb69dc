"""Predictions outside of what the constants were fitted to: what is transferred, and how much that adds.

The spreads are sds of ln step time, as transfers between the shipped models were seen to miss
(`python -m tests.benchmarks.transfers`).
"""

import math
from dataclasses import dataclass, replace

from conf.specs.experiment import Constant, Experiment
from conf.specs.step_time import Z95

DEPLOYMENT, LAYOUT = "model.step_time.deployment_scale", "model.step_time.layout_scale"
MODEL_LN_SD = 0.4
"""The rms over four models with grouped-query attention, each by the constants of the others."""
GPU_LN_SD = 0.25
"""Our choice: without its own pace MI325X was .1 to .2 off from MI300X, which has the same compute units."""
BEGINS = "assumed outside of the fit: "
LAYOUT_LN_SD = 0.08
"""Our choice: two layouts of one model are met to .05 by one set of constants that was fitted to both."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Something outside of the evidence as text, and the constant that it widens, by `ln_sd`."""

    text: str
    path: str
    ln_sd: float


def transfers(experiment: Experiment) -> list[Transfer]:
    """What the fit behind the model's constants did not have; empty for a model without a fit."""
    fit, layout = experiment.model.posterior, experiment.layout
    if not fit.model:
        return []
    found = []
    if experiment.model.name != fit.model:
        found.append(
            Transfer(f"model {experiment.model.name} (fitted: {fit.model})", DEPLOYMENT, MODEL_LN_SD)
        )
    if experiment.hardware.name not in fit.hardware:
        known = ", ".join(fit.hardware)
        found.append(Transfer(f"GPU {experiment.hardware.name} (fitted: {known})", DEPLOYMENT, GPU_LN_SD))
    if other := [kind for kind in layout.engine_kinds if kind not in fit.layouts]:
        known = ", ".join(fit.layouts)
        found.append(Transfer(f"layout {', '.join(other)} (fitted: {known})", LAYOUT, LAYOUT_LN_SD))
    return found


def widened(constant: Constant, beyond: Transfer) -> Constant:
    """The constant with the spread of a transfer beside its own; unchanged if it is exact."""
    if constant.low is None:
        return constant
    below, above = (math.exp(Z95 * math.hypot(sd, beyond.ln_sd)) for sd in constant.ln_sd)
    before = f"{constant.source}; " if constant.source.startswith(BEGINS) else ""
    source = f"{before or BEGINS}{beyond.text}"
    return replace(constant, low=constant.value / below, high=constant.value * above, source=source)
