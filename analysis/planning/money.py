"""Cost and energy of requests and tokens, from the price and the watts of a node.

The price has no default. Each figure carries the whole cost: per request, or per prompt, answer or any
token. The denominator changes the number 41-fold at 5600 tokens in and 140 out, so that all four are given.
"""

from dataclasses import dataclass

from analysis.planning.evidence import MeanLengths, Source, evidence_of
from analysis.stats.estimate import Estimate

HOURS, SECONDS_PER_HOUR = 24, 3600.0
GIVEN = "as given"
"""Source of watts that no run measured."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The same cost over four denominators, in US dollars; None without known lengths.

    `use` is the share of the capacity at which nodes are used on average: 1 is full use.
    """

    node_hour_usd: float
    use: float
    per_1k_requests_usd: Estimate
    per_1m_input_tokens_usd: Estimate | None
    per_1m_output_tokens_usd: Estimate | None
    per_1m_total_tokens_usd: Estimate | None


@dataclass(frozen=True, slots=True)
class FleetCost:
    """Cost of the planned fleet at full use of its capacity, and at the rate that it serves.

    It serves `served_qps`, the mean `load` if it is known, else the peak. The ends of its cost are those of
    fleets planned on the ends of the capacity.
    """

    full_use: Cost
    planned: Cost
    served_qps: float
    load: str


@dataclass(frozen=True, slots=True)
class FleetPower:
    """Energy of a fleet whose every node draws `node_watts` all the time; None without known lengths.

    It serves `served_qps`, the mean `load` if it is known, else the peak. `source` says where the watts are
    from.
    """

    node_watts: float
    fleet_kw: float
    kwh_per_day: float
    served_qps: float
    load: str
    wh_per_request: float
    kwh_per_1m_output_tokens: float | None
    source: str


def cost(source: Source, node_hour_usd: float, use: float = 1.0) -> Cost:
    """The cost on one node at `use` times its capacity, with the interval of that capacity.

    Raises ValueError for a price or a use that is not positive.
    """
    evidence = evidence_of(source)
    return cost_of(evidence.qps_per_node, evidence.lengths, node_hour_usd, use)


def cost_of(qps: Estimate, lengths: MeanLengths | None, node_hour_usd: float, use: float = 1.0) -> Cost:
    """`cost` from plain figures."""
    if node_hour_usd <= 0 or use <= 0:
        raise ValueError(f"node_hour_usd={node_hour_usd:g} and use={use:g} must be positive")
    value = node_hour_usd / (qps.value * use * SECONDS_PER_HOUR)
    low, high = (end and node_hour_usd / (end * use * SECONDS_PER_HOUR) for end in (qps.high, qps.low))
    return _over(Estimate(value, low, high), lengths, node_hour_usd, use)


def fleet_cost(
    nodes: Estimate, served_qps: float, use: float, lengths: MeanLengths | None, node_hour_usd: float
) -> Cost:
    """The cost on a whole fleet that serves `served_qps` on average; `nodes` has the interval of its size."""
    return _over(nodes.times(node_hour_usd / (served_qps * SECONDS_PER_HOUR)), lengths, node_hour_usd, use)


def _over(one: Estimate, lengths: MeanLengths | None, node_hour_usd: float, use: float) -> Cost:
    tokens: list[Estimate | None] = [None, None, None]
    if lengths is not None:
        n_in, n_out = lengths.input_tokens, lengths.output_tokens
        tokens = [one.times(1e6 / n) for n in (n_in, n_out, n_in + n_out)]
    return Cost(node_hour_usd, use, one.times(1e3), *tokens)


def fleet_power(
    nodes: int,
    node_watts: float,
    served_qps: float,
    load: str,
    lengths: MeanLengths | None,
    source: str = GIVEN,
) -> FleetPower:
    """The power of so many nodes, and its share of each request and of a million output tokens."""
    watts = nodes * node_watts
    wh = watts / (served_qps * SECONDS_PER_HOUR)
    per_tokens = None if lengths is None else wh / lengths.output_tokens * 1e6 / 1e3
    return FleetPower(node_watts, watts / 1e3, HOURS * watts / 1e3, served_qps, load, wh, per_tokens, source)
