"""The joint interval of a simulated capacity: the engine model's constants and the run's sampling noise.

The two are independent: distances from the estimate to a quantile, in ln, add as squares.
"""

import math
from dataclasses import replace

from analysis.results.types.shared_figures import AskedExperiment, CapacityFigures
from analysis.stats.estimate import Estimate

JOINT, ALONE = "joint", "sampling noise alone"
"""Kinds of the interval of a simulated capacity."""
LEAD = "SIMULATED, "
"""Stands before the word of a verdict whose certified values are simulated."""
AND_CONSTANTS = "; joined with what is unknown of the engine model's constants"
NOT_RECORDED = "the result does not hold it"
HELD = (
    "the uncertainty of the engine model's constants, and sampling noise; what the model lacks is not in it"
)
MISSING = "what is unknown of the engine model's constants is not in it ({})"
"""What the interval of a simulated capacity holds, and what it lacks."""


def joined(capacity: CapacityFigures, constants: Estimate | str) -> CapacityFigures:
    """A capacity of sampling noise alone, joined with the constants, or with why they are unknown.

    `constants` are quantiles of the capacity under other constants of the engine model, over that under their
    values.
    """
    if isinstance(constants, str):
        return replace(capacity, constants_unknown=constants)
    sampling, replica = capacity.qps_per_node, capacity.qps_per_replica
    both = _joint(sampling, constants, capacity.open_above or capacity.open_below)
    return replace(
        capacity,
        qps_per_node=both,
        qps_per_replica=replica and both.per(sampling.value / replica.value),
        by_noise=sampling,
        constants=constants,
        interval=f"{capacity.interval}{AND_CONSTANTS}",
    )


def joined_like(capacity: CapacityFigures, other: CapacityFigures) -> CapacityFigures:
    """A capacity of sampling noise alone, joined with the constants of another one of the same engine."""
    constants = other.constants or other.constants_unknown
    return joined(capacity, constants) if constants else capacity


def kind(asked: AskedExperiment, capacity: CapacityFigures) -> str:
    """`JOINT` or `ALONE` for the interval of a simulated capacity, empty for a measured one."""
    if not asked.is_modelled:
        return ""
    return JOINT if capacity.constants else ALONE


def held(capacity: CapacityFigures) -> str:
    """What the interval of a simulated capacity holds, or lacks."""
    return HELD if capacity.constants else MISSING.format(why_unknown(capacity))


def why_unknown(capacity: CapacityFigures) -> str:
    """The reason why an interval holds no uncertainty of the constants."""
    return capacity.constants_unknown or NOT_RECORDED


def _joint(sampling: Estimate, constants: Estimate, is_open: bool) -> Estimate:
    """Estimate and quantiles of both; the bound of an open capacity is moved by the constants alone."""

    def quantile(qps: float | None, ratio: float | None, side: int) -> float | None:
        if qps is None or ratio is None:
            return None
        if is_open:
            return qps * ratio
        distance = math.hypot(math.log(qps / sampling.value), math.log(ratio))
        return sampling.value * math.exp(side * distance)

    return Estimate(
        sampling.value,
        low=quantile(sampling.low, constants.low, -1),
        high=quantile(sampling.high, constants.high, +1),
        certified=quantile(sampling.certified, constants.certified, -1),
    )
