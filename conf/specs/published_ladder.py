"""The spec of the MI325X paper's benchmark, run by `python -m loadgen progressive`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from conf.io.check import require
from conf.specs.ranges import Range

MULTIPLIERS = {"quick": 0.5, "default": 1.0, "thorough": 3.0}
MOST_PER_USER = 1000


@dataclass(frozen=True, slots=True)
class Progressive:
    """The part of the paper's procedure that is run, and its repeats.

    `profile` multiplies its request counts by 0.5, 1 or 3. `requests_per_user` above 0 sends so many requests
    for each one in flight instead, in every scaling and saturation level. `runs` are whole repeats, each with
    a new deployment, or with its own seed on the virtual clock. `clock` is `virtual` for the engine model
    alone or `wall` over HTTP; the default is virtual for the simulated engine. `prompts` are all the `same`
    text, as in the paper, or `unique`. `lengths` are the paper's, or those of `workload`.
    """

    profile: Literal["quick", "default", "thorough"] = "default"
    requests_per_user: Annotated[int, Range(ge=0, le=MOST_PER_USER)] = 0
    runs: Annotated[int, Range(ge=1, le=100)] = 5
    clock: Literal["auto", "virtual", "wall"] = "auto"
    prompts: Literal["same", "unique"] = "same"
    lengths: Literal["paper", "workload"] = "paper"

    def __post_init__(self) -> None:
        count = self.requests_per_user
        require(
            not count or self.profile == "default",
            f"progressive.requests_per_user={count} decides the counts; leave progressive.profile out",
        )

    @property
    def multiplier(self) -> float:
        """Factor on the paper's request counts."""
        return MULTIPLIERS[self.profile]

    @property
    def as_published(self) -> bool:
        """True if the requests have the counts, prompts and lengths of the published tables."""
        alike = self.prompts == "same" and self.lengths == "paper"
        return alike and self.profile == "default" and not self.requests_per_user
