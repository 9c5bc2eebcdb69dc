"""Specs of what is measured: a search, the published ladder, the quality gate; and bounds on every load."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from conf.io.check import AtLeastOne, Positive, Range, Share, require
from conf.specs.rules import Ruled

MOST_QPS = 1e5
"""Highest rate per node: 150 times that of a load actor on one core (our choice)."""
MOST_S = 30 * 86400.0
"""Longest time of a run in seconds: a month (our choice)."""
MOST_REQUESTS = 100_000_000
"""Most planned requests of a run, which the driver holds in memory: 3 GB (our choice)."""


@dataclass(frozen=True, slots=True)
class Search(Ruled):
    """The budget and the timing of the search "ramp, then focus"; rates are per node.

    `start=prediction` replaces the ramp by `expected_qps`, or by the engine model's answer, which only
    the simulated engine has; others ramp, in steps of at least `ramp_step_s` by `ramp_factor`, for at
    most a third of the budget. `deployments` divides the budget between so many sweeps, each with a new
    deployment and seed, and pools them; `repeats` repeats everything, budget included, for a mean and its
    spread. After the budget the certified rate is held for `confirm_s`, which may veto the answer but
    never raise it.
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

    @property
    def least_s(self) -> float:
        """Seconds of the least number of measurement windows, which are granted also beyond the budget."""
        return self.min_windows * (self.transition_s + self.window_s)

    @property
    def least_budget_s(self) -> float:
        """The least budget that gives every deployment its windows."""
        return self.deployments * self.least_s

    @property
    def parts(self) -> int:
        """Number of sweeps that give the answer together."""
        return self.deployments * self.repeats


MULTIPLIERS = {"quick": 0.5, "default": 1.0, "thorough": 3.0}
MOST_PER_USER = 1000


@dataclass(frozen=True, slots=True)
class Progressive(Ruled):
    """The part of the paper's procedure that is run, and its repeats.

    `profile` multiplies its request counts by 0.5, 1 or 3; `requests_per_user` above 0 sends so many for
    each one in flight instead, in every level. `runs` are whole repeats, each with a new deployment, or
    seed on the virtual clock. `clock` is `virtual` for the engine model alone or `wall` over HTTP, by
    default virtual for the simulated engine. `prompts` are all the `same` text, as in the paper, or
    `unique`; `lengths` the paper's, or those of `workload`.
    """

    profile: Literal["quick", "default", "thorough"] = "default"
    requests_per_user: Annotated[int, Range(ge=0, le=MOST_PER_USER)] = 0
    runs: Annotated[int, Range(ge=1, le=100)] = 5
    clock: Literal["auto", "virtual", "wall"] = "auto"
    prompts: Literal["same", "unique"] = "same"
    lengths: Literal["paper", "workload"] = "paper"

    @property
    def multiplier(self) -> float:
        """Factor on the paper's request counts."""
        return MULTIPLIERS[self.profile]

    @property
    def as_published(self) -> bool:
        """True if the requests have the counts, prompts and lengths of the published tables."""
        alike = self.prompts == "same" and self.lengths == "paper"
        return alike and self.profile == "default" and not self.requests_per_user


MOST_PROMPTS, MOST_TOKENS = 10_000, 256
"""Bounds of the evidence, which is held in memory (our choice)."""
MOST_PROMPT_TOKENS = 8192
"""Answers are compared, not long prompts: a node's windows have those (our choice)."""
MOST_NATS = math.log(2)
"""Jensen-Shannon divergence of answers that share nothing."""
MOST_ALPHA = 0.2
"""A verdict may be wrong at most once in five (our choice)."""
IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Quality:
    """The margins within which answers are the same (our choice), and the prompts that show it.

    `load` is what the service carries meanwhile: nothing (`idle`), or a rate in QPS per node. At most
    `prompts` of `prompt_tokens` are answered with `answer_tokens` each. `margin_nats` bounds the mean
    Jensen-Shannon divergence from A beyond that of A's own repeat, in nats per token; `margin_broken` the
    share of broken prompts beyond the repeat's, where one position diverges by more than
    `broken_divergence` nats. `alpha` is the most that the chance of each wrong verdict may be.
    """

    name: str = "default"
    load: str = IDLE
    prompts: Annotated[int, Range(ge=1, le=MOST_PROMPTS)] = 768
    prompt_tokens: Annotated[int, Range(ge=1, le=MOST_PROMPT_TOKENS)] = 256
    answer_tokens: Annotated[int, Range(ge=1, le=MOST_TOKENS)] = 32
    margin_nats: Annotated[float, Range(gt=0, lt=MOST_NATS)] = 0.01
    margin_broken: Share = 0.01
    broken_divergence: Annotated[float, Range(gt=0, lt=MOST_NATS)] = 0.2
    alpha: Annotated[float, Range(gt=0, le=MOST_ALPHA)] = 0.025

    def __post_init__(self) -> None:
        rate = self.rate_qps
        require(
            self.load == IDLE or (rate is not None and 0 < rate <= MOST_QPS),
            f"quality.load={self.load} must be {IDLE} or a rate up to {MOST_QPS:g} QPS per node",
        )

    @property
    def rate_qps(self) -> float | None:
        """The rate that `load` is, per node; None if it is a word."""
        try:
            return float(self.load)
        except ValueError:
            return None
