"""Nodes hour by hour over a day of 24 rates, and node-hours of a fixed and of an autoscaled fleet."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conf import ConfigError

HOURS, MINUTES = 24, 60


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
    if len(rows) in (2, HOURS + 1) and not any(_is_number(cell) for cell in rows[0]):
        rows = rows[1:]
    cells = rows[0] if len(rows) == 1 else [_rate_of(key, hour, row) for hour, row in enumerate(rows)]
    if len(cells) != HOURS:
        raise ConfigError(f"{key}: has {len(cells)} rates; write 24, one for each hour from midnight")
    rates = tuple(_rate(key, hour, cell) for hour, cell in enumerate(cells))
    if not any(rates):
        raise ConfigError(f"{key}: all rates are zero; there is nothing to plan")
    return rates


def _rate_of(key: str, hour: int, row: Sequence[str]) -> str:
    """The rate of a line, which may say its hour first."""
    if len(row) == 1:
        return row[0]
    if len(row) != 2 or row[0].strip() not in (str(hour), f"{hour:02d}", f"{hour:02d}:00"):
        raise ConfigError(f"{key}: line of hour {hour} is '{','.join(row)}'; write QPS, or {hour},QPS")
    return row[1]


def _rate(key: str, hour: int, cell: str) -> float:
    rate = float(cell) if _is_number(cell) else math.nan
    if not 0 <= rate < math.inf:
        raise ConfigError(f"{key}: '{cell.strip()}' of hour {hour} is not a rate; write QPS, 0 or more")
    return rate


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
