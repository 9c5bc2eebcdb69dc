"""Ray Serve's autoscaling settings for a planned layout, by Little's law, and the file that holds them."""

import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from analysis.planning.evidence import answers, valid_windows
from analysis.planning.sizing import fleet
from analysis.results.figures import WindowRow
from analysis.results.runs import Run, RunError
from analysis.rows import metrics
from analysis.stats.estimate import Estimate
from analysis.stats.pooling import repeated
from conf.io.one_line import printable

if TYPE_CHECKING:
    from analysis.planning.plan import Plan

RAY_UPSCALE_DELAY_S, RAY_DOWNSCALE_DELAY_S = 30.0, 600.0
LOOK_BACK_S, REPORT_S = 30.0, 10.0
"""Defaults of `AutoscalingConfig` in Ray 2.60: both delays, what is averaged over, time between reports."""
SHARE_OF_START = 0.1
"""Wait before more engines are asked for, as a share of their start, which it makes longer (our choice)."""
STARTS_BEFORE_LESS = 2.0
"""Starts of an engine for which fewer must be wanted before one goes (our choice): an engine that is wanted
again costs a whole start, during which the others are too few."""
DOWNSCALING_FACTOR = 0.25
"""Share of what is too many that goes at once (our choice; Ray's default is 1). Requests on an engine grow
faster than its rate, so that lightly loaded engines look superfluous: with 1 all of them may go at once and
then be missing (not measured here)."""


@dataclass(frozen=True, slots=True)
class RequestLife:
    """Mean time in seconds from due to the last token; `source` says which answers it rests on.

    The 95 % interval is that of the answers, by batch means; its ends are None where it is unknown.
    """

    seconds: Estimate
    source: str


@dataclass(frozen=True, slots=True)
class ServeScaling:
    """Settings of Ray Serve's `AutoscalingConfig` under its names, in engines, and what they rest on.

    `target_ongoing_requests` is `working_qps` of an engine times the mean `life` of a request; its interval
    is that of the life alone. A node holds `per_node` engines. `least_of` names the demand that wants the
    fewest.
    """

    min_replicas: int
    max_replicas: int
    target_ongoing_requests: Estimate
    upscale_delay_s: float
    downscale_delay_s: float
    per_node: int
    certified_qps: float
    working_qps: float
    headroom: float
    life: RequestLife
    scale_up_s: float
    least_of: str

    @property
    def config(self) -> dict[str, int | float]:
        """The values as they are written into `autoscaling_config`."""
        return {
            "min_replicas": self.min_replicas,
            "max_replicas": self.max_replicas,
            "target_ongoing_requests": float(f"{self.target_ongoing_requests.value:.4g}"),
            "upscale_delay_s": self.upscale_delay_s,
            "downscale_delay_s": self.downscale_delay_s,
            "downscaling_factor": DOWNSCALING_FACTOR,
            "look_back_period_s": LOOK_BACK_S,
        }


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings in a file for Ray Serve, what they rest on, and what to know before the file is used."""

    file: str
    autoscaling_config: Mapping[str, int | float]
    rests_on: ServeScaling
    notes: tuple[str, ...] = ()


def _certified_qps_per_node(plan: "Plan") -> float:
    evidence = plan.planned_on
    if evidence.open_above:
        raise RunError(
            f"{evidence.name} knows only a lower bound of its capacity: engines would be asked for too soon; "
            "measure at higher rates (search.highest_qps)"
        )
    certified = evidence.qps_per_node.certified
    if certified is None:
        raise RunError(f"{evidence.name} has no certified rate; measure a sweep to its end")
    return certified


def serve_scaling(plan: "Plan", run: Run, per_node: int) -> ServeScaling:
    """The settings of a plan on a run. Raises RunError, in one line with a remedy, for what they would lack.

    A node is to work at its certified rate less the headroom.
    """
    certified = _certified_qps_per_node(plan)
    working = certified * (1 - plan.care.headroom)
    life = mean_life(run, working, certified)
    scale_up_s = 60 * _scale_up_minutes(plan)
    least, least_of = _least_nodes(plan)
    upscale_s = min(RAY_UPSCALE_DELAY_S, max(REPORT_S, SHARE_OF_START * scale_up_s))
    return ServeScaling(
        min_replicas=least * per_node,
        max_replicas=max(plan.nodes, least) * per_node,
        target_ongoing_requests=life.seconds.times(working / per_node),
        upscale_delay_s=round(upscale_s, 1),
        downscale_delay_s=round(max(RAY_DOWNSCALE_DELAY_S, STARTS_BEFORE_LESS * scale_up_s), 1),
        per_node=per_node,
        certified_qps=certified / per_node,
        working_qps=working / per_node,
        headroom=plan.care.headroom,
        life=life,
        scale_up_s=scale_up_s,
        least_of=least_of,
    )


def _scale_up_minutes(plan: "Plan") -> float:
    """Minutes until a new engine serves: as given, or those of the run's own deployment. Raises RunError."""
    evidence, minutes = plan.planned_on, plan.care.scale_up_minutes
    minutes = evidence.ready_minutes if minutes is None else minutes
    if minutes is None:
        raise RunError(
            f"{evidence.name} loaded no model on a node, so that the time until a new engine serves is "
            "unknown; add plan.scale_up_minutes=MINUTES"
        )
    return minutes


def _least_nodes(plan: "Plan") -> tuple[int, str]:
    """The fewest nodes ever wanted, and the demand that wants them. Raises RunError if none is known."""
    if plan.day is not None:
        return min(plan.day.nodes), "the quietest hour"
    if plan.demand.mean_qps is None:
        raise RunError("the fewest engines need a demand by the hour, demand.hourly=FILE, or its mean")
    nodes = fleet(plan.demand.mean_qps, plan.service, plan.care)
    return nodes, "the mean demand, because its hours are not known"


NEAR = 0.10
"""Windows are near from this share below the working rate to as much above the certified one (our choice)."""
BATCHES = 10
"""Parts of the answers, in order of due time, whose means give the interval (our choice)."""
LEAST_ANSWERS = 100
"""Fewest answers for that interval: ten in each part (our choice)."""


def mean_life(run: Run, working_qps: float, certified_qps: float) -> RequestLife:
    """The mean life at rates from `working_qps` to `certified_qps` (QPS per node), or at the nearest window.

    Raises RunError for a run without an answer in a valid window.
    """
    rows, windows = answers(run), valid_windows(run)
    if not windows or not rows.num_rows:
        raise RunError(f"{run.path} has no answer in a valid window, so that no request's life is known")
    low, high = (1 - NEAR) * working_qps, (1 + NEAR) * certified_qps
    near = [row for row in windows if low <= row["rate_qps_per_node"] <= high]
    chosen = near or [min(windows, key=lambda row: abs(row["rate_qps_per_node"] - working_qps))]
    return _of_windows(rows, chosen, "" if near else "the nearest one, ")


def _of_windows(rows: pa.Table, windows: Sequence[WindowRow], how: str) -> RequestLife:
    of_windows = pa.array([row["index"] for row in windows], pa.int16())
    life_s = metrics.e2e(rows.filter(pc.is_in(rows.column("window_index"), value_set=of_windows))) / 1e3
    rates = sorted(row["rate_qps_per_node"] for row in windows)
    span = f"{rates[0]:.3g}" if len(rates) == 1 else f"{rates[0]:.3g} to {rates[-1]:.3g}"
    counted = f"{len(windows)} window{'' if len(windows) == 1 else 's'}"
    source = f"mean of {len(life_s)} answers in {counted}, {how}at {span} QPS per node"
    low = high = None
    if len(life_s) >= LEAST_ANSWERS:
        mean_s = repeated([float(part.mean()) for part in np.array_split(life_s, BATCHES)]).mean
        low, high = mean_s.low, mean_s.high
    return RequestLife(Estimate(float(life_s.mean()), low, high), source)


Tree = Mapping[str, Any]
WIDTH = 108
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ServeFront:
    """What stands around the application: `options` of Serve's front in the file, and in its comments the
    variables of Serve's processes and the notes.
    """

    options: Tree = field(default_factory=lambda: {"http_options": {"host": LOOPBACK}})
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


ALONE = ServeFront()


def serve_file(scaling: ServeScaling, application: Tree, of: str, front: ServeFront = ALONE) -> str:
    """The whole file: comments with what it is `of`, each rule and its numbers, then the application.

    The settings take the place of every `autoscaling_config` of the application's tree.
    """
    tree = {**front.options, "applications": [_with(application, scaling.config)]}
    text = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=WIDTH)
    comments = _wrapped(_reasons(scaling, of)) + _around(front)
    return "".join(f"# {line}".rstrip() + "\n" for line in comments) + text


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as it is."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = "|" if "\n" in data else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def _with(tree: Any, config: Tree) -> Any:
    """The tree with the settings wherever it has room for them."""
    if isinstance(tree, Mapping):
        room = "autoscaling_config"
        return {key: dict(config) if key == room else _with(value, config) for key, value in tree.items()}
    return [_with(value, config) for value in tree] if isinstance(tree, list | tuple) else tree


def _wrapped(reasons: Iterable[str]) -> list[str]:
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="  ", break_long_words=False)
    return [line for reason in reasons for line in wrapper.wrap(printable(reason)) or [""]]


def _around(front: ServeFront) -> list[str]:
    notes = ["", *(f"note: {note}" for note in front.notes)] if front.notes else []
    if not front.environment:
        return _wrapped(notes)
    head = "", "On all nodes before ray start; these variables decide, too, who chooses a replica:"
    variables = [
        f"export {name}={shlex.quote(printable(value))}" for name, value in front.environment.items()
    ]
    return [*_wrapped([*notes, *head]), *variables]


def _reasons(scaling: ServeScaling, of: str) -> list[str]:
    target, life, engines = scaling.target_ongoing_requests, scaling.life.seconds, scaling.per_node
    return [
        f"Ray Serve's autoscaling, written by python -m analysis plan from {of}.",
        "Use it on a running cluster: serve deploy FILE. Write it again after a new measurement. A "
        f"replica is one engine; a node holds {engines}.",
        "",
        f"target_ongoing_requests: {target.value:.4g} {ends(target)} by Little's law, rate x mean life. "
        f"Rate: {scaling.working_qps:.4g} QPS per engine, the certified {scaling.certified_qps:.4g} less "
        f"{100 * scaling.headroom:g} % (plan.headroom). Life: {life.value:.4g} s {ends(life)}, "
        f"{scaling.life.source}. The interval of the target is that of the life alone.",
        f"min_replicas: the plan's nodes for {scaling.least_of}, with spares, x {engines}. A first "
        "deployment begins with so many.",
        f"max_replicas: the plan's nodes for the peak, with spares, x {engines}.",
        f"upscale_delay_s: {100 * SHARE_OF_START:g} % of the {scaling.scale_up_s:g} s until a new engine "
        f"serves, at least a report's {REPORT_S:g} s, at most Ray's default of "
        f"{RAY_UPSCALE_DELAY_S:g} s (our choice).",
        f"downscale_delay_s: {STARTS_BEFORE_LESS:g} such starts, at least Ray's default of "
        f"{RAY_DOWNSCALE_DELAY_S:g} s (our choice).",
        "downscaling_factor: the share of what is too many that goes at once (our choice). "
        "With Ray's default of 1 all of it may go and then be missing, for requests on an engine grow faster "
        "than its rate (not measured here).",
        "look_back_period_s: Ray's default.",
    ]


def ends(figure: Estimate) -> str:
    """The 95 % interval; says so where it is unknown."""
    if figure.low is None or figure.high is None:
        return "[interval unknown]"
    return f"[{figure.low:.4g}, {figure.high:.4g}]"
