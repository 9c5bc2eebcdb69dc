"""What every command ends with: a plan that is printed, or a measurement and its printed result."""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from analysis.results import summary
from analysis.results.json_border import to_tree
from analysis.results.predictions import GridVerdict
from analysis.results.verdicts import RunVerdict, StudyVerdict, Verdict
from analysis.views import answers
from conf import Experiment
from conf.compose import UNKNOWN
from conf.io import terminal
from conf.specs.experiment import SimulatedEngine
from loadgen.cli import config_check, dry_run, engine_model, live_view
from loadgen.cli.live_view import LiveShow
from loadgen.run import progress
from loadgen.run.run_folder import finite

if TYPE_CHECKING:
    from loadgen.run.jobs import Site

Measured = TypeVar("Measured", bound=RunVerdict | StudyVerdict)


def plan(
    arguments: argparse.Namespace,
    experiment: Experiment,
    load_s: float | None,
    lines: Sequence[str] = (),
    **how: Any,
) -> int:
    """Print the plan of a dry run, after `lines` about all of its runs; `how` are fields of `PlannedRun`."""
    planned = planned_run(experiment, load_s, **how)
    if arguments.json:
        tree = dry_run.tree(planned)
        return _plan_as_json(tree | {"notes": [*lines, *tree["notes"]]})
    terminal.tell("\n".join([*(f"# {line}" for line in lines), dry_run.text(planned, arguments.all)]))
    return summary.EXIT_OK


def planned_run(experiment: Experiment, load_s: float | None, **how: Any) -> dry_run.PlannedRun:
    """The plan of a command; `how` are fields of `PlannedRun`."""
    known = experiment.hardware.name != UNKNOWN
    guess_qps, kernels = (
        engine_model.guess_qps(experiment) if known else None,
        config_check.kernels(experiment),
    )
    return dry_run.PlannedRun(experiment, load_s, guess_qps, kernels=kernels, **how)


def plan_lines(arguments: argparse.Namespace, text: str) -> int:
    """Print a plan that is only lines of text."""
    if arguments.json:
        return _plan_as_json({"notes": [line.removeprefix("# ") for line in text.splitlines()]})
    terminal.tell(text)
    return summary.EXIT_OK


def _plan_as_json(tree: Mapping[str, Any]) -> int:
    terminal.data(json.dumps(finite({"event": "plan", **tree}), default=str))
    return summary.EXIT_OK


@dataclass(frozen=True, slots=True)
class Measuring:
    """A command that measures: the `site` of its runs, and `show`, which gets their events."""

    site: "Site"
    show: LiveShow
    keeps_folder: bool

    def ended(self, verdict: Measured) -> Measured:
        """The verdict with its report's path; a failed start leaves no folder, unless it `keeps_folder`."""
        from loadgen.run import failed_start, report_file

        if not self.keeps_folder:
            verdict = failed_start.removed(verdict)
        verdict = report_file.announced(verdict)
        self.show.end(verdict)
        return verdict


@contextmanager
def measuring(
    arguments: argparse.Namespace, *experiments: Experiment, planned: dry_run.PlannedRun | None = None
) -> Iterator[Measuring]:
    """Measure in the block, with progress and perhaps a page; Ray is imported late, for `predict` needs none.

    Kernels of unknown speed of the `experiments` are noted first, then the time of what is `planned`.
    """
    from loadgen.cli.service import service
    from loadgen.run.jobs import Site

    # A simulated engine's kernels are noted with its result.
    real = (each for each in experiments if not isinstance(each.engine, SimulatedEngine))
    for line in config_check.all_kernels(real):
        noting(arguments)(line)
    with (
        terminal.own_stdout() as out,
        progress.shown(arguments.json, out, arguments.quiet) as progress_show,
        live_view.shown(arguments, progress_show) as show,
    ):
        if planned:
            show("plan", text=dry_run.duration(planned))
        site = Site(engine_model.start, service, engine_model.constants_ratio)
        yield Measuring(site, show, keeps_folder=arguments.verb == "resume")


def reported(verdict: RunVerdict | StudyVerdict, as_json: bool) -> int:
    """Print a measured result and return its exit code; then write its report, for which nobody waits."""
    code = printed(verdict, as_json)
    write_report(verdict)
    return code


def write_report(verdict: RunVerdict | StudyVerdict) -> None:
    """Write the report that the verdict announces."""
    from loadgen.run import report_file

    report_file.write(verdict)


def noting(arguments: argparse.Namespace) -> Callable[[str], None]:
    """What prints a note on stderr; nothing with `--quiet`."""
    return (lambda _: None) if arguments.quiet else terminal.note


def printed(verdict: Verdict | GridVerdict, as_json: bool) -> int:
    """Print a result, a grid always as JSON, and return its exit code."""
    if as_json or isinstance(verdict, GridVerdict):
        terminal.data(json.dumps(finite({"event": "result", **to_tree(verdict)}), default=str))
    else:
        terminal.tell(str(answers.brief(verdict)))
    assert verdict.exit_code is not None
    return verdict.exit_code
