"""Cost and energy of requests and tokens, from the price and the watts of a node.

The price has no default. Each figure carries the whole cost: per request, or per prompt, answer or any
token. The denominator changes the number 41-fold at 5600 tokens in and 140 out, so that all four are given.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.planning.evidence import MeanLengths, Source, evidence_of
from analysis.stats.estimate import Estimate
from conf import ConfigError

HOURS, MINUTES, SECONDS_PER_HOUR = 24, 60, 3600.0


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


def cost(source: Source, node_hour_usd: float) -> Cost:
    """The cost on one node at full use, with the interval of its capacity.

    Raises ValueError for a price that is not positive.
    """
    evidence = evidence_of(source)
    return cost_at(evidence.qps_per_node, evidence.lengths, node_hour_usd)


def cost_at(qps: Estimate, lengths: MeanLengths | None, node_hour_usd: float) -> Cost:
    """The cost on one node that serves a rate."""
    if node_hour_usd <= 0:
        raise ValueError(f"node_hour_usd={node_hour_usd:g} must be positive")
    value = node_hour_usd / (qps.value * SECONDS_PER_HOUR)
    low, high = (end and node_hour_usd / (end * SECONDS_PER_HOUR) for end in (qps.high, qps.low))
    return cost_of(Estimate(value, low, high), lengths, node_hour_usd)


def cost_of(
    request_usd: Estimate, lengths: MeanLengths | None, node_hour_usd: float, use: float = 1.0
) -> Cost:
    """The cost by that of a mean request."""
    tokens: list[Estimate | None] = [None, None, None]
    if lengths is not None:
        n_in, n_out = lengths.input_tokens, lengths.output_tokens
        tokens = [request_usd.times(1e6 / n) for n in (n_in, n_out, n_in + n_out)]
    return Cost(node_hour_usd, use, request_usd.times(1e3), *tokens)


@dataclass(frozen=True, slots=True)
class Day:
    """Rates and nodes of each hour from midnight; the day repeats.

    Autoscaled nodes of an hour must serve before it begins, so that they are paid `scale_up_minutes` earlier.
    If that time is unknown (None), `autoscaled_node_hours` is a lower bound. Costs are None without a price.
    """

    qps: tuple[float, ...]
    nodes: tuple[int, ...]
    scale_up_minutes: float | None
    fixed_node_hours: float
    autoscaled_node_hours: float
    fixed_usd: float | None = None
    autoscaled_usd: float | None = None


def day(
    qps: Sequence[float],
    nodes: Sequence[int],
    scale_up_minutes: float | None,
    node_hour_usd: float | None = None,
) -> Day:
    """Node-hours of both fleets from the `nodes` that each hour needs, and their cost."""
    by_minute = np.repeat(nodes, MINUTES)
    lead = math.ceil(scale_up_minutes or 0)
    ahead = np.lib.stride_tricks.sliding_window_view(np.concatenate([by_minute, by_minute[:lead]]), lead + 1)
    fixed, autoscaled = float(HOURS * max(nodes)), float(ahead.max(axis=1).sum() / MINUTES)
    costs = (None, None) if node_hour_usd is None else (fixed * node_hour_usd, autoscaled * node_hour_usd)
    return Day(tuple(qps), tuple(nodes), scale_up_minutes, fixed, autoscaled, *costs)


def read_hourly(path: Path) -> tuple[float, ...]:
    """24 mean rates in QPS from midnight: all in one line, or one per line, also as `hour,QPS`.

    A header and a byte order mark are allowed. Raises ConfigError with one line for anything else.
    """
    key = f"demand.hourly={path}"
    try:
        rows = [
            row for row in csv.reader(path.read_text("utf-8-sig").splitlines()) if any(map(str.strip, row))
        ]
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"{key}: cannot be read: {error}") from error
    if len(rows) in (2, HOURS + 1) and not any(math.isfinite(_number(cell)) for cell in rows[0]):
        rows = rows[1:]
    lines = [[cell] for cell in rows[0]] if len(rows) == 1 else rows
    rates = tuple(_rate(key, hour, line) for hour, line in enumerate(lines))
    if len(rates) != HOURS:
        raise ConfigError(f"{key}: has {len(rates)} rates; write 24, one for each hour from midnight")
    if not any(rates):
        raise ConfigError(f"{key}: all rates are zero; there is nothing to plan")
    return rates


def _rate(key: str, hour: int, line: Sequence[str]) -> float:
    """The rate of a line, which may say its hour first."""
    *label, cell = line
    if label and (len(line) != 2 or label[0].strip() not in (str(hour), f"{hour:02d}", f"{hour:02d}:00")):
        raise ConfigError(f"{key}: line of hour {hour} is '{','.join(line)}'; write QPS, or {hour},QPS")
    if not 0 <= (rate := _number(cell)) < math.inf:
        raise ConfigError(f"{key}: '{cell.strip()}' of hour {hour} is not a rate; write QPS, 0 or more")
    return rate


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
