"""Ray Serve's autoscaling settings for a planned layout, by Little's law, and the file that holds them."""

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from analysis.planning.evidence import answers, valid_windows
from analysis.planning.sizing import fleet
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
class ServeScaling:
    """Settings of Ray Serve's `AutoscalingConfig` under its names, in engines, and the reasons in words."""

    config: Mapping[str, int | float]
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings in a file for Ray Serve, and what to know before the file is used."""

    file: str
    autoscaling_config: Mapping[str, int | float]
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

    A node is to work at its certified rate less the headroom. The target is, by Little's law, the rate of an
    engine times the mean life of a request.
    """
    certified = _certified_qps_per_node(plan)
    working = certified * (1 - plan.care.headroom)
    life, source = mean_life(run, working, certified)
    target, scale_up_s = life.times(working / per_node), 60 * _scale_up_minutes(plan)
    least, least_of = _least_nodes(plan)
    upscale_s = min(RAY_UPSCALE_DELAY_S, max(REPORT_S, SHARE_OF_START * scale_up_s))
    config = {
        "min_replicas": least * per_node,
        "max_replicas": max(plan.nodes, least) * per_node,
        "target_ongoing_requests": float(f"{target.value:.4g}"),
        "upscale_delay_s": round(upscale_s, 1),
        "downscale_delay_s": round(max(RAY_DOWNSCALE_DELAY_S, STARTS_BEFORE_LESS * scale_up_s), 1),
        "downscaling_factor": DOWNSCALING_FACTOR,
        "look_back_period_s": LOOK_BACK_S,
    }
    reasons = (
        f"target_ongoing_requests: {target.value:.4g} {_ends(target)} by Little's law, rate x mean life. "
        f"Rate: {working / per_node:.4g} QPS per engine, the certified {certified / per_node:.4g} less "
        f"{100 * plan.care.headroom:g} % (plan.headroom). Life: {life.value:.4g} s {_ends(life)}, {source}.",
        f"min_replicas, max_replicas: the plan's nodes for {least_of} and for the peak, with spares, x "
        f"{per_node} engines. A first deployment begins with the fewest.",
        f"upscale_delay_s, downscale_delay_s: by the {scale_up_s:g} s until a new engine serves.",
        "docs/planning.md has the rule of each setting.",
    )
    return ServeScaling(config, reasons)


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


def mean_life(run: Run, working_qps: float, certified_qps: float) -> tuple[Estimate, str]:
    """Mean seconds from due to the last token, and which answers it rests on.

    They are of the windows at rates from `working_qps` to `certified_qps` (QPS per node), or of the nearest.
    The interval is that of the answers, by batch means; its ends are None where it is unknown. Raises
    RunError for a run without an answer in a valid window.
    """
    rows, windows = answers(run), valid_windows(run)
    if not windows or not rows.num_rows:
        raise RunError(f"{run.path} has no answer in a valid window, so that no request's life is known")
    low, high = (1 - NEAR) * working_qps, (1 + NEAR) * certified_qps
    near = [row for row in windows if low <= row["rate_qps_per_node"] <= high]
    chosen = near or [min(windows, key=lambda row: abs(row["rate_qps_per_node"] - working_qps))]
    of_windows = pa.array([row["index"] for row in chosen], pa.int16())
    life_s = metrics.e2e(rows.filter(pc.is_in(rows.column("window_index"), value_set=of_windows))) / 1e3
    rates = sorted(row["rate_qps_per_node"] for row in chosen)
    how = "" if near else "the nearest window, "
    source = f"mean of {len(life_s)} answers, {how}at {rates[0]:.3g} to {rates[-1]:.3g} QPS per node"
    ends: tuple[float | None, float | None] = None, None
    if len(life_s) >= LEAST_ANSWERS:
        ends = repeated([float(part.mean()) for part in np.array_split(life_s, BATCHES)]).mean.ends
    return Estimate(float(life_s.mean()), *ends), source


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
    """The whole file: comments with what it is `of`, the reasons and the front's, then the application.

    The settings take the place of every `autoscaling_config` of the application's tree.
    """
    tree = {**front.options, "applications": [_with(application, scaling.config)]}
    lines = [
        f"Ray Serve's autoscaling, written by python -m analysis plan from {of}.",
        "Use it on a running cluster: serve deploy FILE. A replica is one engine.",
        *("", *scaling.reasons),
        *("", *(f"note: {note}" for note in front.notes)),
    ]
    if front.environment:
        lines.append("On all nodes before ray start; these variables decide, too, who chooses a replica:")
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="  ", break_long_words=False)
    comments = [part for line in lines for part in wrapper.wrap(printable(line)) or [""]]
    variables = front.environment.items()
    comments += [f"export {name}={shlex.quote(printable(value))}" for name, value in variables]
    text = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=WIDTH)
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


def _ends(figure: Estimate) -> str:
    """The 95 % interval; says so where it is unknown."""
    if figure.low is None or figure.high is None:
        return "[interval unknown]"
    return f"[{figure.low:.4g}, {figure.high:.4g}]"
