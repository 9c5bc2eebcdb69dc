"""Specs of a recommendation: the shapes of a node to compare, and the demand to serve."""

from dataclasses import dataclass, field

from conf.io.check import require
from conf.specs.planning import Demand, Margins
from conf.specs.ranges import AtLeastOne, BelowOne

MOST_SHAPES = 200
"""Most shapes of one command: some four minutes of two cores (our choice)."""


@dataclass(frozen=True, slots=True)
class Recommend:
    """The shapes to compare: every one of `layouts` with every one of `budgets`, at each of `hits`.

    An empty list of layouts means all files of conf/layout, of budgets (tokens of a step,
    max_num_batched_tokens) the layout's own, its half and its double, of hits the workload's own. A hit rate
    is the share of a prompt that the prefix cache holds; it is no choice, so that each has a ranking of its
    own.
    """

    layouts: list[str] = field(default_factory=list)
    budgets: list[AtLeastOne] = field(default_factory=list)
    hits: list[BelowOne] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("layouts", "budgets", "hits"):
            values = getattr(self, name)
            require(len(set(values)) == len(values), f"recommend.{name}={values} has a value twice")


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The words demand.*, plan.* and recommend.* of `python -m loadgen recommend`."""

    demand: Demand
    plan: Margins = field(default_factory=Margins)
    recommend: Recommend = field(default_factory=Recommend)

    def __post_init__(self) -> None:
        care = self.plan
        require(
            care.scale_up_minutes is None,
            "plan.scale_up_minutes is of a day's plan (python -m analysis plan); leave it out",
        )
