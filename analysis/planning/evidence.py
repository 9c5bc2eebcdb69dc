"""Evidence for a plan from a run, a study or a prediction.

The interval is that of the answer: for a run the sampling noise of its posterior, for a prediction the
uncertainty of the engine model's constants, for a simulated run both. `found_by` and `caution` say which.
"""

from dataclasses import dataclass
from typing import Any, Literal

from analysis.planning.request_means import MeanLengths
from analysis.results.runs import RunError
from analysis.results.types.shared_figures import AskedExperiment
from analysis.stats.estimate import Estimate
from conf.compose import UNKNOWN

FoundBy = Literal["measured", "simulated", "predicted"]


class NotPlannable(RunError):
    """A result that allows no plan; `exit_code` is that of the run."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class MeasuredWatts:
    """Mean power of a node in a window of `rate_qps_per_node`, of whole nodes or of GPUs alone (`of`)."""

    watts: float
    of: str
    rate_qps_per_node: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """One capacity and the measurements beside it; None is unknown.

    `open_above`: only a lower bound of the capacity is known. `ready_minutes` is the time from deployment
    until the service was warm. For a cell of a grid of predictions `own_ln_sd` is the sd of ln capacity that
    it does not share with the first cell. `engine_settings` is a fingerprint, known from a run folder only.
    `sampling_qps_per_node` is the capacity of a simulated run with the interval of its sampling noise alone.
    `gpus_per_node` counts those that engines use. `node_watts` are those that the nodes told.
    """

    name: str
    asked: AskedExperiment
    found_by: FoundBy
    caution: str
    qps_per_node: Estimate
    open_above: bool
    lengths: MeanLengths | None
    ready_minutes: float | None = None
    own_ln_sd: float | None = None
    engine_settings: str | None = None
    gpus_per_node: int | None = None
    sampling_qps_per_node: Estimate | None = None
    node_watts: MeasuredWatts | None = None

    @property
    def nodes(self) -> int:
        """Nodes of the measurement."""
        return self.asked.nodes

    @property
    def service(self) -> dict[str, Any]:
        """Properties that two capacities of one service have in common, whatever its size and load."""
        same = ("engine", "model", "hardware", "layout", "routing", "data_path", "slo", "arrivals")
        return {
            "predicted": self.found_by == "predicted",
            **{name: _said(getattr(self.asked, name)) for name in same},
            "engine settings": self.engine_settings,
        }


def _said(value: Any) -> Any:
    """A property of a service; None where it is unknown."""
    return None if value == UNKNOWN else value or None
