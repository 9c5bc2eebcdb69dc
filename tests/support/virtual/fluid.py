"""Windows whose outcomes are drawn and not served: thousands of requests per second cost milliseconds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.capacity.kernel import Floats, Kernel
from analysis.capacity.posterior import Capacity, posterior
from analysis.capacity.share_curves import logit
from analysis.capacity.window_counts import BLOCK_S, LOOK_AHEAD, LOOK_BACK, NS, LimitCount, WindowCounts
from conf.specs.bounds import LIMITS, allowed_over
from conf.specs.experiment import Search
from loadgen.search.policy import next_window, prior
from loadgen.search.window_plan import MeasuredWindow, Start, Stop, WindowPlan, bad_step, counted_windows

DRAWS = 200_000
"""Of load and drift for a true capacity: they know it to 1e-4 (our choice)."""


@dataclass(slots=True)
class Fluid:
    """A service of `nodes` nodes whose share over the TTFT bound is known; TPOT is never over.

    Of the requests of each 5 s a share `floor` + (1 - `floor`) logistic(logit .1 + `slope` (ln load + drift -
    ln `root_qps`)) is over. The load is the mean work of the last 2.5 answers of `e2e_s` (`Kernel`), made of
    a Poisson number of requests whose work has variance `work_var`; drift is an AR(1) with standard deviation
    `drift_sd` and memory `memory_s`, the same for all requests of a block. Rates are QPS per node.
    """

    root_qps: float
    slope: float = 25.0
    drift_sd: float = 0.0
    memory_s: float = 120.0
    floor: float = 0.0
    seed: int = 0
    nodes: int = 1
    e2e_s: float = 10.0
    work_var: float = 0.2
    _load: list[float] = field(default_factory=list)
    _drift: float = 0.0
    _rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng([self.seed, 18])
        self._drift = self.drift_sd * self._rng.standard_normal()

    @property
    def elapsed_s(self) -> float:
        """Seconds of load so far."""
        return float(BLOCK_S * len(self._load))

    def window(self, plan: WindowPlan) -> MeasuredWindow:
        """Offer a window: its transition and its window, in whole blocks; the outcome is never void."""
        start_ns = self._now_ns()
        for _ in range(math.ceil(plan.transition_s / BLOCK_S)):
            self._block(plan.rate_qps)
        begin, before = self._now_ns(), self._load[-LOOK_BACK:]
        blocks = [self._block(plan.rate_qps) for _ in range(math.ceil(plan.window_s / BLOCK_S))]
        requests, over = (tuple(column) for column in zip(*blocks, strict=True))
        load = self._load[-len(blocks) :]
        unknown = LOOK_BACK - len(before)
        end = self._now_ns()
        counts = WindowCounts(
            *(plan.index, plan.kind, plan.rate_qps * self.nodes, self.nodes),
            *(start_ns, begin, end, end),
            requests=sum(requests),
            completed=sum(requests),
            median_e2e_s=self.e2e_s,
            log_work=math.log(max(float(np.mean(load)), 1e-9)),
            load=(*[None] * unknown, *before, *load, *[None] * LOOK_AHEAD),
            work_var=self.work_var,
            limits={
                "ttft": LimitCount(sum(over), sum(requests), over, requests),
                "tpot": LimitCount(0, sum(requests), (0,) * len(over), requests),
            },
        )
        return MeasuredWindow(plan, counts, bad=plan.kind == "ramp" and bad_step(counts))

    def capacity_qps(self) -> float:
        """The true capacity: the rate at which the share of all requests, over a long time, is .1.

        By `DRAWS` draws of the requests of a block, of the load around it and of the drift, from one seed,
        and bisection of the rate. A block counts by its requests, as a busy one holds more of them.
        """
        low, high = math.log(self.root_qps) - 1.0, math.log(self.root_qps) + 1.0
        while high - low > 1e-5:
            middle = (low + high) / 2
            is_below = self._mean_share(math.exp(middle)) < allowed_over(LIMITS[0])
            low, high = (middle, high) if is_below else (low, middle)
        return math.exp(low)

    def _mean_share(self, rate_qps: float) -> float:
        """The share of all requests over the bound, over a long time at one rate."""
        rng, blocks = np.random.default_rng(7), Kernel.of("ttft", self.e2e_s).back
        mean = rate_qps * self.nodes * BLOCK_S
        own = rng.poisson(mean, DRAWS)
        around = own + rng.poisson(mean * (blocks - 1), DRAWS)
        work = around + np.sqrt(around * self.work_var) * rng.standard_normal(DRAWS)
        felt = np.maximum(work / (BLOCK_S * self.nodes * blocks), 1e-9)
        drift = self.drift_sd * rng.standard_normal(DRAWS)
        return float(np.average(self._share(np.log(felt / self.root_qps) + drift), weights=own))

    def _share(self, above: Floats) -> Floats:
        """The share over the bound where ln load + drift is so far above the root."""
        odds = logit(allowed_over(LIMITS[0])) + self.slope * above
        share: Floats = self.floor + (1 - self.floor) * (0.5 + 0.5 * np.tanh(odds / 2))
        return share

    def _block(self, rate_qps: float) -> tuple[int, int]:
        """Offer a block; its requests, and how many of them are over."""
        kept = math.exp(-BLOCK_S / self.memory_s)
        self._drift *= kept
        self._drift += self.drift_sd * math.sqrt(1 - kept**2) * self._rng.standard_normal()
        requests = int(self._rng.poisson(rate_qps * self.nodes * BLOCK_S))
        work = requests + math.sqrt(requests * self.work_var) * self._rng.standard_normal()
        self._load.append(max(work, 0.0) / BLOCK_S / self.nodes)
        felt = float(np.mean(self._load[-Kernel.of("ttft", self.e2e_s).back :]))
        above = math.log(max(felt, 1e-9) / self.root_qps) + self._drift
        return requests, int(self._rng.binomial(requests, float(self._share(np.array(above)))))

    def _now_ns(self) -> int:
        return BLOCK_S * len(self._load) * NS


@dataclass(frozen=True, slots=True)
class Answer:
    """A search that ended, and why it did; the capacity is None where it never came to a window."""

    capacity: Capacity | None
    outcomes: Sequence[MeasuredWindow]
    stop: Stop
    elapsed_s: float


def searched(fluid: Fluid, spec: Search, start: Start) -> Answer:
    """A search by the search's own rule, such as `load(["search=quick"]).search` asks for it."""
    outcomes: list[MeasuredWindow] = []
    while not isinstance(step := next_window(spec, start, outcomes, fluid.elapsed_s), Stop):
        outcomes.append(fluid.window(step))
    belief = prior(spec, start, outcomes)
    capacity = None if belief is None else posterior(counted_windows(outcomes), belief)
    return Answer(capacity, outcomes, step, fluid.elapsed_s)
