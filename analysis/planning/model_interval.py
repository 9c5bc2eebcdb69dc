"""The uncertainty of the engine model's constants, carried into the capacity of a simulated run.

Knows evidence and a prediction that is handed in; knows no demand and no engine.
"""

from collections.abc import Callable
from dataclasses import replace

from analysis.planning.evidence import Evidence, IntervalEstimate
from analysis.results.runs import RunError
from analysis.results.types.prediction_verdict import PredictionVerdict
from conf import ConfigError, Experiment
from conf.io.one_line import reason

CARRIED = (
    "simulated, not measured: the interval joins this run's sampling noise and what is unknown of the engine "
    "model's constants; what the model lacks is not in it"
)
NOT_CARRIED = (
    "simulated, not measured: the interval is this run's sampling noise ALONE; what is unknown of the engine "
    "model's constants is not in it ({})"
)

Modelled = Callable[[Experiment], PredictionVerdict]
"""The engine model's capacity of an experiment, with the interval of its constants."""


def with_constants(found: Evidence, modelled: Modelled | None) -> Evidence:
    """The evidence with the ratio that other constants of the engine model would make.

    Evidence that is not simulated is returned as it is. Without `modelled`, or where the engine model has no
    answer, the caution says that the constants are left out.
    """
    if found.word != "simulated":
        return found
    try:
        return replace(found, constants=_ratio(found, modelled), caution=CARRIED)
    except (RunError, ConfigError) as error:
        return replace(found, caution=NOT_CARRIED.format(reason(error)))


def _ratio(found: Evidence, modelled: Modelled | None) -> IntervalEstimate:
    if modelled is None:
        raise RunError("plan.model_interval=false")
    if found.experiment is None:
        raise RunError("its experiment is unknown")
    capacity = modelled(found.experiment).capacity
    ends = capacity and capacity.qps_per_node
    if not ends or ends.low is None or ends.high is None:
        raise RunError("the engine model finds no interval")
    return IntervalEstimate(1.0, ends.low / ends.estimate, ends.high / ends.estimate)
