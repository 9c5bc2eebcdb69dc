"""Specs of a recommendation: the the shapes of a node to compare, and the demand to serve."""

from dataclasses import dataclass, field

from conf.io.check import require
from conf.specs.planning import Care, Demand

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
    budgets: list[int] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("layouts", "budgets", "hits"):
            values = getattr(self, name)
            require(len(set(values)) == len(values), f"recommend.{name}={values} has a value twice")
        bad = next((budget for budget in self.budgets if budget < 1), None)
        require(bad is None, f"recommend.budgets: {bad} must be at least 1 token, such as 8192")
        out = next((hit for hit in self.hits if not 0 <= hit < 1), None)
        require(out is None, f"recommend.hits: {out} must be in [0, 1), such as 0.5")


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The words demand.*, plan.* and recommend.* of `python -m loadgen recommend`."""

    demand: Demand
    plan: Care = field(default_factory=Care)
    recommend: Recommend = field(default_factory=Recommend)

    def __post_init__(self) -> None:
        care = self.plan
        require(
            care.scale_up_minutes is None,
            "plan.scale_up_minutes is of a day's plan (python -m analysis plan); leave it out",
        )
