"""The predicted capacity: the rate at which a service just keeps its bounds, or the reason why none does.

The same requests arrive at every rate, only faster (common random numbers), so that a few runs find it."""

import math
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from analysis.stats.quantiles import least_values, quantile
from conf.specs.bounds import GAPS, JOINT, Limit, Slo, allowed_over, metric_of, quantile_of
from conf.specs.experiment import Experiment
from loadgen.predict.operating_point import Effort, OperatingPoint, RateSimulator, Simulate
from loadgen.traffic.schedule import NS, PHASES, ArrivalSchedule

STEEPEST_STEP = math.log(2.0)
"""Longest step in ln rate while one end is unknown: beyond twice the capacity an engine only queues."""
LEAST_STEP = 0.02
CLOSEST = 0.1
"""A new rate stays this share of the bracket away from both ends."""
BEYOND = 1.2
"""Steps are this much longer than needed while one end is unknown, to bracket the root."""
LONGEST = 60

_Point = tuple[float, float]
"""ln rate, and the excess there."""


@dataclass(frozen=True, slots=True)
class RateRoot:
    """The root's rate and slope by ln rate; `side` is +1 or -1 if it lies beyond that end of the search."""

    rate_qps: float
    slope: float
    side: int = 0


def find_root(
    excess: Callable[[float], float],
    start_qps: float,
    ends_qps: tuple[float, float],
    slope: float,
    tolerance: float,
) -> RateRoot:
    """The rate at which `excess`, at most 0 while the bounds are kept, turns positive.

    `slope` is a first guess of its derivative by ln rate, `tolerance` is of ln rate. Once both signs are
    known it is a secant search within the bracket; the function may be flat far from the root, and noisy by
    less than the tolerance.
    """
    lowest, highest = (math.log(end) for end in ends_qps)
    at = min(max(math.log(start_qps), lowest), highest)
    points: list[_Point] = []
    widths: list[float] = []
    for _ in range(LONGEST):
        value = excess(math.exp(at))
        insort(points, (at, value))
        slope = _flattest(points, at, slope)
        if abs(value) <= tolerance * slope:
            return RateRoot(math.exp(at - value / slope), slope)
        below = max((point for point in points if point[1] <= 0), default=None)
        above = min((point for point in points if point[1] > 0), default=None)
        if below and above:
            widths.append(above[0] - below[0])
            if widths[-1] <= tolerance:
                return RateRoot(math.exp(_meet(below, above)), _slope(below, above))
            slow = len(widths) > 2 and widths[-1] > widths[-3] / 2
            at = (below[0] + above[0]) / 2 if slow else _within(below, above, at - value / slope)
        elif at in (lowest, highest) and (at == lowest) == (value > 0):
            return RateRoot(math.exp(at), slope, side=-1 if value > 0 else 1)
        else:
            step = min(max(BEYOND * abs(value) / slope, LEAST_STEP), STEEPEST_STEP)
            at = min(max(at - math.copysign(step, value), lowest), highest)
    return RateRoot(math.exp(at), slope)


def _flattest(points: list[_Point], at: float, guess: float) -> float:
    """The smaller slope to a neighbour of the point `at`: the root is no farther than it says."""
    place = next(i for i, point in enumerate(points) if point[0] == at)
    near = [_slope(*points[i : i + 2]) for i in (place - 1, place) if 0 <= i < len(points) - 1]
    return max(min(near), guess / 4) if near else guess


def _within(below: _Point, above: _Point, at: float) -> float:
    """`at` if it lies inside the bracket, else the root of the line through its ends; never close to one."""
    if not below[0] < at < above[0]:
        at = _meet(below, above)
    margin = CLOSEST * (above[0] - below[0])
    return min(max(at, below[0] + margin), above[0] - margin)


def _slope(left: _Point, right: _Point) -> float:
    return max((right[1] - left[1]) / (right[0] - left[0]), 1e-3)


def _meet(below: _Point, above: _Point) -> float:
    """The root of the line through both."""
    return below[0] - below[1] * (above[0] - below[0]) / (above[1] - below[1])


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
    points: list[OperatingPoint] = []

    def excess(rate_qps: float) -> float:
        points.append(simulator.at(rate_qps))
        return points[-1].worst

    root = find_root(excess, start_qps, (search.lowest_qps, search.highest_qps), slope, tolerance)
    return Solution(root, min(points, key=lambda point: abs(math.log(point.rate_qps / root.rate_qps))))


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

    Between simulated rates a p90 may be a few per cent off. If no rate some steps below keeps them, the root
    stays.
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

    One node stands for all if each has its own stream. Sessions fill `kv_tokens` of a node.
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


LONGEST_GAP = "itl_p99"
NEARLY_ALL = 1 - 1e-9
"""The quantile of a request's own gaps that is its longest gap."""
MET_BY_CHANCE = 1.0
"""Requests in flight per engine below which most meet no other: chance keeps a bound (our choice)."""


def missed_alone(simulator: RateSimulator, limit: Limit) -> str:
    """The reason why no rate keeps a bound, as even requests alone miss it; empty if these keep it."""
    experiment = simulator.experiment
    if experiment.workload.has_sessions or metric_of(limit) == JOINT:
        return ""
    alone_ms, bound_ms = simulator.alone().quantile_ms(limit), experiment.slo.bound_ms(limit)
    if alone_ms is None or alone_ms <= bound_ms:
        return ""
    words = experiment.slo.words(limit)
    return f"no rate keeps {words}: requests that meet no other have {_beyond(alone_ms, bound_ms)}"


def missed_beside_prompt(point: OperatingPoint, experiment: Experiment, simulate: Simulate) -> str:
    """The reason why no rate at which requests meet keeps a bound on gaps; empty if such rates may keep it.

    Where a bound on gaps limits `point`, and prompts that are computed beside answers break it, it is kept
    only while few requests meet, and a quantile of gaps jumps with the rate.
    """
    limit = point.binding
    engines = experiment.layout.replicas_per_node
    if metric_of(limit) not in GAPS or point.rate_qps * point.e2e_s / engines >= MET_BY_CHANCE:
        return ""
    gap_ms = gap_beside_prompt_ms(experiment, simulate)
    bound_ms = experiment.slo.bound_ms(limit)
    if gap_ms <= bound_ms or _where_requests_meet_ms(limit, experiment, gap_ms) <= bound_ms:
        return ""
    return (
        f"no rate keeps {experiment.slo.words(limit)} where requests meet: one prompt beside an answer "
        f"makes a gap of {_beyond(gap_ms, bound_ms)}; it is kept below {point.rate_qps:.2g} QPS per node, "
        "where few do"
    )


def _where_requests_meet_ms(limit: Limit, experiment: Experiment, gap_ms: float) -> float:
    """The least that the quantile of a bound on gaps is with one request in flight per engine.

    Each answer then meets a prompt in the mean, and every prompt makes a gap of `gap_ms`; other gaps count 0.
    """
    gaps = max(2, round(experiment.workload.output_tokens.mean)) - 1
    if metric_of(limit) == "itl_pooled":
        return gap_ms if 1 / gaps > allowed_over(limit) else 0.0
    long = min(prompts_met(quantile_of(limit)), gaps)
    own_ms = np.repeat([0.0, gap_ms], [gaps - long, long])
    return quantile(own_ms, experiment.slo.itl_within) or 0.0


def prompts_met(share: float) -> int:
    """Prompts that this share of answers meets at most, where an answer meets one in the mean (Poisson).

    >>> [prompts_met(share) for share in (0.5, 0.9, 0.99)]
    [1, 2, 4]
    """
    met, likely = 0, math.exp(-1)
    within = likely
    while within < share:
        met += 1
        likely /= met
        within += likely
    return met


def gap_beside_prompt_ms(experiment: Experiment, simulate: Simulate) -> float:
    """Longest gap of a mean answer, half of which has come when a mean prompt reaches the same engine."""
    workload = experiment.workload
    batch = replace(
        experiment,
        cluster=replace(experiment.cluster, nodes=1),
        layout=replace(experiment.layout, replicas_per_node=1),
        slo=Slo(at_most_ms={LONGEST_GAP: 1.0}, itl_within=NEARLY_ALL),
    )
    tokens = round(workload.prompt_tokens), max(2, round(workload.output_tokens.mean))
    shared = round(workload.prefix_hit * tokens[0])
    alone = simulate(batch, _due([0.0], tokens, shared), 1, experiment.seed)
    half_s = float(alone.first_s[0] + alone.last_s[0]) / 2
    pair = simulate(batch, _due([0.0, half_s], tokens, shared), 1, experiment.seed)
    assert pair.own_itl_s is not None
    return 1e3 * float(pair.own_itl_s[0])


def _due(at_s: list[float], tokens: tuple[int, int], shared: int) -> ArrivalSchedule:
    """Requests of equal lengths at these seconds."""
    inputs, outputs, shares, phase = (
        np.full(len(at_s), value, dtype=np.int64) for value in (*tokens, shared, PHASES.index("window"))
    )
    due_ns = np.array([round(second * NS) for second in at_s], dtype=np.int64)
    return ArrivalSchedule(0, np.arange(len(at_s)), due_ns, phase, inputs, outputs, shares)


def _beyond(found_ms: float, bound_ms: float) -> str:
    return f"{found_ms:.4g} ms, {100 * (found_ms / bound_ms - 1):.0f} % over it"
