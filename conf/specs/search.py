"""The spec of a search and its budget, and the bounds on every load."""

import math
from dataclasses import dataclass
from typing import Literal

from conf.io.check import (
    require,
    require_at_least_one,
    require_not_negative,
    require_positive,
    require_within,
)

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
    budget_s: float
    start: Literal["ramp", "prediction"] = "ramp"
    min_dwells: int = 6
    ramp_step_s: float = 4.0
    ramp_factor: float = 2.0
    first_transition_s: float = 30.0
    transition_s: float = 15.0
    window_s: float = 45.0
    settle_s: float = 120.0
    lowest_qps: float = 0.05
    highest_qps: float = 200.0
    confirm_s: float = 0.0
    expected_qps: float | None = None
    deployments: int = 1
    repeats: int = 1

    def __post_init__(self) -> None:
        require_positive("search.", self, "budget_s", "ramp_step_s", "transition_s", "first_transition_s")
        require_positive("search.", self, "window_s", "settle_s", "lowest_qps", "highest_qps")
        require(
            1 < self.ramp_factor < math.inf,
            f"search.ramp_factor={self.ramp_factor} must be above 1 and finite",
        )
        require(self.lowest_qps < self.highest_qps, "search.lowest_qps must be below search.highest_qps")
        require_at_least_one("search.", self, "min_dwells", "deployments", "repeats")
        require_not_negative("search.", self, "confirm_s")
        require_within("search.", self, budget_s=MOST_S, highest_qps=MOST_QPS, confirm_s=MOST_S)
        require_positive("search.", self, "expected_qps")
        needs_prediction = self.expected_qps is not None and self.start != "prediction"
        require(not needs_prediction, "search.expected_qps needs search.start=prediction")
        share_s, least_s = self.budget_s / self.deployments, self.least_s
        require(
            self.deployments == 1 or share_s >= least_s,
            f"search.deployments={self.deployments} leaves each {share_s:g} s, too short for "
            f"search.min_dwells={self.min_dwells}; raise search.budget_s to {self.deployments * least_s:g} "
            "or lower search.deployments",
        )

    @property
    def least_s(self) -> float:
        """Seconds of the least number of measurement windows, which are granted also beyond the budget."""
        return self.min_dwells * (self.transition_s + self.window_s)

    @property
    def parts(self) -> int:
        """Number of sweeps that give the answer together."""
        return self.deployments * self.repeats
