"""Outcomes of fleets that serve one simulated day: the question, and the figures with their intervals.

The day is simulated elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.planning.evidence import IntervalEstimate
from analysis.stats.pooling import repeated
from conf.specs.bounds import short

FLEETS = ("fixed", "scheduled", "autoscaled")
SPAN_S = 300.0
"""Length of one point of the curves in seconds."""
EITHER, CROWD, LOSS, FAILED, MINUTES, NODE_HOURS = "any", "crowd", "loss", "failed", "minutes", "node_hours"
"""Figures of a fleet beside the share over each bound, under the bound's name."""
NAMES = {
    EITHER: "over any bound",
    CROWD: "  from the crowd on",
    LOSS: "  from the loss on",
    FAILED: "requests lost",
    MINUTES: "minutes over a bound",
    NODE_HOURS: "node-hours",
}


@dataclass(frozen=True, slots=True)
class DayQuestion:
    """A day of 24 mean rates (QPS) with the plan's nodes of each hour and of the fixed fleet.

    A new engine serves `scale_up_s` after it was asked for.
    """

    hourly_qps: tuple[float, ...]
    hourly_nodes: tuple[int, ...]
    nodes: int
    scale_up_s: float


@dataclass(frozen=True, slots=True)
class FleetRun:
    """One simulated day of a fleet.

    `figures` are shares of the requests over each bound and under the names above, minutes of the day in
    which more requests than a bound allows were over it, requests that the lost node had, and node-hours of
    the planned fleet. The curves of `nodes`
    and of the share over any bound have a point for each `SPAN_S`.
    """

    figures: dict[str, float]
    nodes: tuple[float, ...]
    over: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """The figures of a fleet over several days that differ by their arrivals alone; intervals are 95 %."""

    name: str
    figures: dict[str, IntervalEstimate]
    nodes: tuple[float, ...]
    over: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ElasticDay:
    """All fleets on one day, simulated on `nodes` of the `planned_nodes`; rates and nodes are of the plan.

    Times are seconds from midnight; `shown_s` from the crowd's begin and from the loss are counted for them.
    """

    fleets: tuple[FleetOutcome, ...]
    planned_nodes: int
    nodes: int
    days: int
    requests: int
    scale_up_s: float
    crowd_from_s: float
    crowd_s: float
    crowd_factor: float
    lost_s: float
    shown_s: float
    ramp_s: float
    qps: tuple[float, ...]


def outcome(name: str, runs: Sequence[FleetRun]) -> FleetOutcome:
    """The figures of a fleet from two days or more."""
    figures = {key: mean_of([run.figures[key] for run in runs]) for key in runs[0].figures}
    nodes, over = ([run.nodes for run in runs], [run.over for run in runs])
    return FleetOutcome(name, figures, _mean_curve(nodes), _mean_curve(over))


def _mean_curve(curves: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(sum(at) / len(curves) for at in zip(*curves, strict=True))


def mean_of(values: Sequence[float]) -> IntervalEstimate:
    """Mean and 95 % interval (Student's t, never below 0) of independent values."""
    if max(values) == min(values):
        return IntervalEstimate(values[0], values[0], values[0])
    found = repeated(values).mean
    return IntervalEstimate(found.value, found.low, found.high)


def text(found: ElasticDay) -> list[str]:
    """Lines of a table with a column for each fleet, and what it assumes."""
    table = [("share of requests", [one.name for one in found.fleets]), *rows(found)]
    lines = ["  " + f"{name:<24}" + "".join(f"{cell:<25}" for cell in cells) for name, cells in table]
    return [simulated(found), *(line.rstrip() for line in lines), *assumed(found)]


def rows(found: ElasticDay) -> list[tuple[str, list[str]]]:
    """The name of each figure, and it for each fleet with its interval."""
    keys = found.fleets[0].figures
    return [(_named(key), [_cell(key, one.figures[key]) for one in found.fleets]) for key in keys]


def _named(key: str) -> str:
    return NAMES.get(key) or f"over the {short(key)} bound"


def _cell(key: str, figure: IntervalEstimate) -> str:
    is_share = key not in (MINUTES, NODE_HOURS, FAILED)
    scale, unit = (100, " %") if is_share else (1, "")
    form = ".2f" if is_share else ",.0f" if figure.value >= 100 else ".1f"
    value = f"{scale * figure.value:{form}}{unit}"
    if figure.low is None or figure.high is None or figure.low == figure.high:
        return value
    return f"{value} [{scale * figure.low:{form}}, {scale * figure.high:{form}}]"


def simulated(found: ElasticDay) -> str:
    """One line on how much was simulated."""
    fleet = f"{found.nodes} of the {found.planned_nodes} nodes"
    if found.nodes == found.planned_nodes:
        fleet = f"all {found.nodes} nodes"
    return (
        f"the day by the engine model: {fleet}, {found.requests:,} requests, {found.days} days that "
        "differ by their arrivals alone [95 % between days]"
    )


def assumed(found: ElasticDay) -> list[str]:
    """The crowd and the loss of the day, and every assumption, in lines."""
    minutes = found.shown_s / 60
    lines = [
        f"crowd: {found.crowd_factor:g} times the rate within a minute, at {clock(found.crowd_from_s)} for "
        f"{found.crowd_s / 60:g} minutes; loss: one node at {clock(found.lost_s)}, its requests fail; "
        f"{minutes:g} minutes are counted for each",
        f"assumed: rates change within {found.ramp_s / 60:g} minutes around each full hour; a new engine "
        f"serves {found.scale_up_s / 60:g} minutes after it is asked for, with an empty prefix cache, and "
        "there is always a node for it; an engine that goes ends its requests first",
        "assumed: nothing replaces the lost node of the fixed fleet, and it counts no more; a node "
        "counts from the request for its first engine to the end of its last one",
        "the interval is that of the arrivals; how far the engine model's step times may be off is not in it",
    ]
    if found.nodes < found.planned_nodes:
        lines.append(
            f"scaled down: rates and nodes times {found.nodes / found.planned_nodes:.3g}, hours' nodes "
            "rounded up; bursts are larger there than in the planned fleet, and so is the lost node's share"
        )
    return lines


def clock(at_s: float) -> str:
    """A time of day."""
    return f"{int(at_s // 3600):02d}:{int(at_s % 3600 // 60):02d}"
