"""The end of every verb: print a plan, or measure and print the result."""

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from analysis.results import summary
from analysis.results.json_border import to_tree
from analysis.results.studies import PartVerdict
from analysis.results.types.prediction_verdict import GridVerdict
from analysis.results.types.verdict import Verdict
from conf import Experiment
from conf.io import terminal
from conf.specs.experiment import SimulatedEngine
from loadgen.cli import config_check, dry_run, engine_model, live_view
from loadgen.run import progress
from loadgen.run.folder import finite
from loadgen.run.progress import Emit

if TYPE_CHECKING:
    from loadgen.run.measure import Site


def plan(
    experiment: Experiment, load_s: float | None, services: int | None = None, runs: int | None = None
) -> int:
    """Print the plan of a dry run."""
    guess_qps, kernels = engine_model.guess_qps(experiment), config_check.kernels(experiment)
    terminal.tell(dry_run.text(experiment, load_s, guess_qps, services, runs, kernels))
    return summary.EXIT_OK


def answer(
    arguments: argparse.Namespace,
    measured: tuple[Experiment, ...],
    act: "Callable[[Site, Emit], PartVerdict]",
    conclude: Callable[[PartVerdict], int | None] = lambda _: None,
) -> int:
    """Measure, write the report and print the result; Ray is imported late, for `predict` must not pay.

    `conclude` may print another answer in the result's place, and then returns the exit code.
    """
    from loadgen.cli.deployment import service
    from loadgen.run import failed_start, report_file
    from loadgen.run.measure import Site

    # A simulated engine's kernels are noted with its result.
    real = (one for one in measured if not isinstance(one.engine, SimulatedEngine))
    for line in config_check.all_kernels(real):
        terminal.note(line)
    with (
        terminal.own_stdout() as out,
        progress.shown(arguments.json, out, arguments.quiet) as progress_show,
        live_view.shown(arguments, progress_show) as show,
    ):
        verdict = act(Site(engine_model.start, service, engine_model.constants_ratio), show)
        if arguments.verb != "resume":
            verdict = failed_start.removed(verdict)
        verdict = report_file.written(verdict, show)
        show.end(verdict)
    code = conclude(verdict)
    return result(verdict, arguments.json) if code is None else code


def result(verdict: Verdict | GridVerdict, as_json: bool) -> int:
    """Print a result, a grid always as JSON, and return its exit code."""
    if as_json or isinstance(verdict, GridVerdict):
        terminal.data(json.dumps(finite({"event": "result", **to_tree(verdict)}), default=str))
    else:
        terminal.tell(summary.text(verdict))
    assert verdict.exit_code is not None
    return verdict.exit_code
