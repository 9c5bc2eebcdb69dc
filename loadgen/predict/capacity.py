"""Predicted capacity: the rate at which a service just keeps its bounds, by direct simulation at a few rates.

The same requests arrive at every rate, only faster (common random numbers), so that a few runs find the rate
at which a p90 meets its bound. The engine model is handed in; its constants are unknown here.
"""

import math
from dataclasses import dataclass, replace

from analysis.stats.quantiles import least_values
from conf.specs.bounds import quantile_of
from conf.specs.experiment import Experiment
from loadgen.predict.operating_point import Effort, OperatingPoint, RateSimulator, Simulate
from loadgen.predict.root_finding import RateRoot, find_root

MANY_NODES = 8
"""Nodes on which uncertainty is sampled: a larger pooled service gains little by pooling (our choice)."""
MOST_NODES = 64
"""Nodes simulated of a larger fleet with sessions (`operating_point.RateSimulator`)."""
QUICK_S = 1200.0
"""Node seconds of one rough run: the constants move an answer far more than its noise does."""
ROUGH, FINE = 0.004, 0.002
"""Tolerances of ln rate."""
DIGITS = 4
"""A claimed rate is rounded down to the digits that are printed beside its latencies."""
LEAST_STEP_DOWN, MOST_STEPS_DOWN = 0.0005, 8
"""Steps of ln rate down from a rate that misses its bounds, and their number (our choice)."""
SLOPE = 2.0
"""First guess of d ln p90 / d ln rate near the bound."""
APART = 0.05
"""ln rate to each side of an answer at which its slope is read: about ten times its noise."""
LEAST_SLOPE = 0.01
MOST_NOISE = math.log(2.0)
"""Largest noise of ln rate that says something of an answer: a factor of two to each side (our choice)."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The rate at which a simulator just keeps its bounds, and the operating point nearest to it."""

    root: RateRoot
    point: OperatingPoint

    @property
    def noise(self) -> float | None:
        """95 % half width of ln rate by Monte Carlo noise; None if unknown, as at an open end or a jump."""
        limit = self.point.binding
        p90, ends = self.point.quantile_ms(limit), self.point.interval_ms(limit)
        if self.root.side or p90 is None or ends is None or not math.isfinite(ends[1]):
            return None
        noise = (ends[1] - ends[0]) / 2 / p90 / self.root.slope
        return noise if noise <= MOST_NOISE else None

    @property
    def jumps(self) -> bool:
        """True if the binding quantile jumps with the rate: its noise is unknown for all its requests."""
        q, values = quantile_of(self.point.binding), self.point.latency(self.point.binding)
        return not self.root.side and self.noise is None and len(values) >= least_values(q)


def solve(simulator: RateSimulator, start_qps: float, slope: float, tolerance: float) -> Solution:
    """The rate between the ends of the search at which a p90 meets its bound."""
    search = simulator.experiment.search
    seen: list[OperatingPoint] = []

    def excess(rate_qps: float) -> float:
        seen.append(simulator.at(rate_qps))
        return seen[-1].worst

    root = find_root(excess, start_qps, (search.lowest_qps, search.highest_qps), slope, tolerance)
    return Solution(root, min(seen, key=lambda point: abs(math.log(point.rate_qps / root.rate_qps))))


def with_slope(simulator: RateSimulator, solution: Solution) -> Solution:
    """The solution with the slope of ln p90 between two rates well apart, where noise does not decide it."""
    if solution.root.side:
        return solution
    search, limit, rate_qps = simulator.experiment.search, solution.point.binding, solution.root.rate_qps
    below_qps = max(rate_qps * math.exp(-APART), search.lowest_qps)
    above_qps = min(rate_qps * math.exp(APART), search.highest_qps)
    rise = simulator.at(above_qps).excess(limit) - simulator.at(below_qps).excess(limit)
    slope = max(rise / math.log(above_qps / below_qps), LEAST_SLOPE)
    return replace(solution, root=replace(solution.root, slope=slope))


def at_simulated_rate(simulator: RateSimulator, solution: Solution) -> Solution:
    """The solution at a rate that was itself simulated and keeps its bounds, as it will be printed.

    Between simulated rates a p90 may be a few per cent off. If no rate some steps below keeps the bounds, the
    root stays.
    """
    root = solution.root
    if root.side:
        return solution
    rate_qps = rounded_down(root.rate_qps)
    for _ in range(MOST_STEPS_DOWN):
        point = simulator.at(rate_qps)
        excess = point.worst
        if excess <= 0:
            return Solution(replace(root, rate_qps=rate_qps), point)
        step = max(excess / root.slope, LEAST_STEP_DOWN)
        rate_qps = rounded_down(rate_qps * math.exp(-step))
    return solution


def rounded_down(rate_qps: float) -> float:
    """The rate as it is printed, never above itself."""
    unit = 10.0 ** (math.floor(math.log10(rate_qps)) + 1 - DIGITS)
    return float(f"{math.floor(rate_qps / unit * (1 + 1e-12)) * unit:.{DIGITS}g}")


@dataclass(frozen=True, slots=True)
class PredictedCapacity:
    """The solution of long runs, and that of the short ones against which other constants are compared."""

    answer: Solution
    quick: Solution
    simulator: RateSimulator


def simulated_nodes(experiment: Experiment) -> int:
    """Nodes to simulate: one if nodes are independent, and a part of a large fleet with sessions."""
    if experiment.streams:
        return 1
    nodes = experiment.cluster.nodes
    return min(nodes, MOST_NODES) if experiment.workload.has_sessions else nodes


def quiet(_: str) -> None:
    """Ignore a progress line."""


def predicted_capacity(
    experiment: Experiment,
    simulate: Simulate,
    guess_qps: float,
    kv_tokens: float = 0.0,
) -> PredictedCapacity:
    """The capacity from `search.budget_s` node seconds at each rate; rough runs find the place.

    One node stands for all if each has a stream of its own. `kv_tokens` is a node's KV capacity, which
    sessions fill.
    """
    nodes = simulated_nodes(experiment)
    if experiment.streams:
        experiment = replace(experiment, cluster=replace(experiment.cluster, nodes=1))
    quick_s = min(QUICK_S, experiment.search.budget_s)
    whole = experiment.workload.has_sessions
    simulator = RateSimulator(
        experiment, simulate, Effort.from_budget(quick_s, min(nodes, MANY_NODES), whole), kv_tokens
    )
    quick = solve(simulator, guess_qps, SLOPE, ROUGH)
    if quick.root.side:
        return PredictedCapacity(quick, quick, simulator)
    budget = Effort.from_budget(experiment.search.budget_s, nodes, whole)
    long = RateSimulator(experiment, simulate, budget, kv_tokens)
    answer = solve(long, quick.root.rate_qps, quick.root.slope, FINE)
    return PredictedCapacity(at_simulated_rate(long, with_slope(long, answer)), quick, simulator)
