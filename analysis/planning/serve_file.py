"""Ray Serve's config file with a plan's autoscaling, as text."""

import shlex
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from analysis.planning import serve_scaling as rules
from analysis.planning.serve_scaling import ServeScaling
from analysis.stats.estimate import Estimate
from conf.io.one_line import printable

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


def serve_file(found: ServeScaling, application: Tree, of: str, front: ServeFront = ALONE) -> str:
    """The whole file: comments with what it is `of`, each rule and its numbers, then the application.

    The settings take the place of every `autoscaling_config` of the application's tree.
    """
    tree = {**front.options, "applications": [_with(application, found.config)]}
    text = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=WIDTH)
    comments = _wrapped(_reasons(found, of)) + _around(front)
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
    lines = []
    for reason in reasons:
        lines += textwrap.wrap(printable(reason), WIDTH, subsequent_indent="  ", break_long_words=False) or [
            ""
        ]
    return lines


def _around(front: ServeFront) -> list[str]:
    """The notes, and the variables as a shell sets them."""
    notes = ["", *(f"note: {note}" for note in front.notes)] if front.notes else []
    if not front.environment:
        return _wrapped(notes)
    head = "", "On all nodes before ray start; these variables decide, too, who chooses a replica:"
    variables = [
        f"export {name}={shlex.quote(printable(value))}" for name, value in front.environment.items()
    ]
    return [*_wrapped([*notes, *head]), *variables]


def _reasons(found: ServeScaling, of: str) -> list[str]:
    target, life, engines = found.target_ongoing_requests, found.life.seconds, found.per_node
    return [
        f"Ray Serve's autoscaling, written by python -m analysis plan from {of}.",
        "Use it on a running cluster: serve deploy FILE. Write it again after a new measurement. A "
        f"replica is one engine; a node holds {engines}.",
        "",
        f"target_ongoing_requests: {target.value:.4g} {ends(target)} by Little's law, rate x mean life. "
        f"Rate: {found.working_qps:.4g} QPS per engine, the certified {found.certified_qps:.4g} less "
        f"{100 * found.headroom:g} % (plan.headroom). Life: {life.value:.4g} s {ends(life)}, "
        f"{found.life.source}. The interval of the target is that of the life alone.",
        f"min_replicas: the plan's nodes for {found.least_of}, with spares, x {engines}. A first deployment "
        "begins with so many.",
        f"max_replicas: the plan's nodes for the peak, with spares, x {engines}.",
        f"upscale_delay_s: {100 * rules.SHARE_OF_START:g} % of the {found.scale_up_s:g} s until a new engine "
        f"serves, at least a report's {rules.REPORT_S:g} s, at most Ray's default of "
        f"{rules.RAY_UPSCALE_DELAY_S:g} s (our choice).",
        f"downscale_delay_s: {rules.STARTS_BEFORE_LESS:g} such starts, at least Ray's default of "
        f"{rules.RAY_DOWNSCALE_DELAY_S:g} s (our choice).",
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
