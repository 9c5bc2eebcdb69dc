"""Power and energy of a fleet from the watts of a node, as given or as measured."""

from dataclasses import dataclass

from analysis.planning.request_means import MeanLengths

HOURS, SECONDS_PER_HOUR = 24, 3600.0
GIVEN = "as given"


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
