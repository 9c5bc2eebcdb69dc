"""The spec of a search and its budget, and the bounds on every load."""

from dataclasses import dataclass
from typing import Annotated, Literal

from conf.io.check import require
from conf.specs.ranges import AtLeastOne, Positive, Range

MOST_QPS = 1e5
"""Highest rate per node: 150 times that of a load actor on one core (our choice)."""
MOST_S = 30 * 86400.0
"""Longest time of a run in seconds: a month (our choice)."""
MOST_REQUESTS = 100_000_000
"""Most planned requests of a run, which the driver holds in memory: 3 GB (our choice)."""


@dataclass(frozen=True, slots=True)
class Search:
    """The budget and the timing of the search "ramp, then focus".

    `start=prediction` replaces the ramp by `expected_qps`, or without one by the engine model's own answer,
    which only the simulated engine has; every other engine then ramps, in steps of at least `ramp_step_s` by
    `ramp_factor`, for at most a third of the budget. Rates are per node.
    `deployments` divides the budget between so many sweeps, each with a new deployment and its own seed, and
    pools them; `repeats` repeats everything, budget included, for a mean and its spread.
    After the budget the certified rate is held for `confirm_s`, which may veto the answer but never raise it.
    """

    name: str
    budget_s: Annotated[float, Range(gt=0, le=MOST_S)]
    start: Literal["ramp", "prediction"] = "ramp"
    min_windows: AtLeastOne = 6
    ramp_step_s: Positive = 4.0
    ramp_factor: Annotated[float, Range(gt=1)] = 2.0
    first_transition_s: Positive = 30.0
    transition_s: Positive = 15.0
    window_s: Positive = 45.0
    settle_s: Positive = 120.0
    lowest_qps: Positive = 0.05
    highest_qps: Annotated[float, Range(gt=0, le=MOST_QPS)] = 200.0
    confirm_s: Annotated[float, Range(ge=0, le=MOST_S)] = 0.0
    expected_qps: Positive | None = None
    deployments: AtLeastOne = 1
    repeats: AtLeastOne = 1

    def __post_init__(self) -> None:
        require(self.lowest_qps < self.highest_qps, "search.lowest_qps must be below search.highest_qps")
        needs_prediction = self.expected_qps is not None and self.start != "prediction"
        require(not needs_prediction, "search.expected_qps needs search.start=prediction")
        share_s, least_s = self.budget_s / self.deployments, self.least_s
        require(
            self.deployments == 1 or share_s >= least_s,
            f"search.deployments={self.deployments} leaves each {share_s:g} s, too short for "
            f"search.min_windows={self.min_windows}; raise search.budget_s to {self.deployments * least_s:g} "
            "or lower search.deployments",
        )

    @property
    def least_s(self) -> float:
        """Seconds of the least number of measurement windows, which are granted also beyond the budget."""
        return self.min_windows * (self.transition_s + self.window_s)

    @property
    def parts(self) -> int:
        """Number of sweeps that give the answer together."""
        return self.deployments * self.repeats
