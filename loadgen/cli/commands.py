"""Commands that put load on a service, and the way from a verb to its command, its exit code and its errors.

`measuring` is imported late: only a verb that measures needs the fleet and the report.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from analysis.results import published_ladder as ladder_figures
from analysis.results import summary
from analysis.results.json_border import to_tree
from analysis.results.locations import AlteredError, NewerError
from analysis.results.runs import RunError, refuse_out
from analysis.results.verdicts import Verdict
from analysis.views import answers
from conf import ConfigError, Experiment
from conf.io import terminal
from conf.matrix import matrix
from loadgen.cli import arguments as typed
from loadgen.cli import engine_model, machine, output, prediction, recommending, two_sides
from loadgen.cli.output import PlannedRun, planned_run
from loadgen.cli.words import checked_experiment, experiment_of, refuse_misfit
from loadgen.drive import programs
from loadgen.drive.programs import refuse_requirement, required_s
from loadgen.run import progress
from loadgen.run.jobs import Job, OfferLoad, RequireRate, SearchCapacity
from loadgen.search import pacing
from loadgen.studies import calibration_probes, matrix_study, published_ladder, published_tables
from loadgen.studies.comparison import Comparison
from loadgen.studies.matrix_study import MatrixStudy
from loadgen.studies.quality_study import QualityStudy, verdict_on_folders
from loadgen.studies.study import Study, several_sweeps


def sweep(arguments: argparse.Namespace) -> int:
    """Measure the capacity of a deployed or external service, or of every cell of a grid of them."""
    if (words := matrix(arguments.words)).axes:
        make = partial(checked_experiment, arguments.verb, config=arguments.config)
        grid = MatrixStudy(matrix_study.cells_of_words(words, make))
        load_s = sum(map(pacing.swept_s, grid.experiments.values()))
        planned = planned_run(grid.experiment, load_s, services=grid.deployments, runs=len(grid.experiments))
        return _measured(arguments, grid, planned, [*grid.lines(), "the first one is below"])
    experiment = checked_experiment(arguments.verb, arguments.words, arguments.config)
    work: Job | Study = SearchCapacity(experiment)
    if experiment.search.parts > 1:
        work = several_sweeps(experiment)
    elif not arguments.config and machine.is_free(experiment, arguments.words):
        fast = machine.fast(experiment)
        work = machine.SearchOnFastClock(fast if arguments.dry_run else machine.beside_neighbours(fast))
    clock = work.experiment.time_scale
    planned = planned_run(experiment, pacing.swept_s(experiment), clock=clock)
    return _measured(arguments, work, planned)


def probe(arguments: argparse.Namespace) -> int:
    """Offer one load without a search, and judge it."""
    experiment = checked_experiment(arguments.verb, arguments.words, arguments.config)
    if arguments.require:
        refuse_requirement(experiment)
    load_s = required_s(experiment) if arguments.require else programs.load_seconds(experiment)
    job = RequireRate(experiment) if arguments.require else OfferLoad(experiment)
    return _measured(arguments, job, planned_run(experiment, load_s))


def compare(arguments: argparse.Namespace) -> int:
    """Measure two services on the same requests."""
    a, b = two_sides.compared(arguments.words, arguments.config)
    planned = planned_run(a, pacing.compared_s(a), services=2)
    return _measured(arguments, Comparison(a, b), planned, two_sides.lines(a, b))


def quality(arguments: argparse.Namespace) -> int:
    """Ask two configurations the same questions, idle or under load: same, degraded or undecided."""
    if folders := two_sides.answer_folders(arguments.words):
        typed.refuse_page_without_load(arguments, "these answers are on record")
        return output.printed(verdict_on_folders(*folders), arguments.json)
    a, b = two_sides.gate_sides(arguments.words, arguments.config)
    return _measured(arguments, QualityStudy(a, b), None, two_sides.gate_plan(a, b))


def _measured(
    arguments: argparse.Namespace,
    work: Job | Study,
    planned: PlannedRun | None,
    lines: Sequence[str] = (),
) -> int:
    """Measure and report, or print the plan (`output.plan`)."""
    machine.refuse(work.experiment)
    if arguments.dry_run:
        return output.plan(arguments, planned, lines)
    from loadgen.cli import measuring

    return output.reported(measuring.measured(arguments, work, planned), arguments.json)


def progressive(arguments: argparse.Namespace) -> int:
    """Run the MI325X paper's benchmark: by the engine model alone, or over HTTP."""
    first, *others = published_tables.words_by_model(arguments.words, arguments.config)
    experiments = [_ladder_experiment(first, arguments)]
    virtual = published_ladder.is_virtual(experiments[0])
    if others and not virtual:
        raise ConfigError(
            "progressive over HTTP deploys one model: choose one, such as model=llama31_405b_fp8"
        )
    experiments += [_ladder_experiment(words, arguments) for words in others]
    refuse_out(arguments.out, *output.SUFFIXES)
    if virtual:
        typed.refuse_page_without_load(arguments, "this clock is virtual (progressive.clock=wall loads)")
    else:
        machine.refuse(experiments[0])
    if arguments.dry_run:
        plans = [published_ladder.plan_lines(each, prediction.level_seconds(each)) for each in experiments]
        return output.plan(arguments, None, [line for lines in plans for line in lines])
    if virtual:
        say = output.noting(arguments)
        verdicts = [prediction.predicted_ladder(experiment, say) for experiment in experiments]
        tree = _write_ladders(arguments, verdicts)
        if arguments.json:
            progress.json_line(None, "result", **tree)
        else:
            terminal.tell("\n\n".join(str(answers.answer(verdict)) for verdict in verdicts))
        return max(verdict.exit_code or 0 for verdict in verdicts)
    from loadgen.cli import measuring

    verdict = measuring.measured(arguments, published_ladder.LadderStudy(experiments[0]))
    if verdict.progressive:  # every level was played
        _write_ladders(arguments, [verdict])
    return output.reported(verdict, arguments.json)


def _ladder_experiment(words: Sequence[str], arguments: argparse.Namespace) -> Experiment:
    """One model's experiment with the workload of its levels, of which even the longest fits."""
    experiment = checked_experiment(arguments.verb, words, arguments.config)
    experiment = replace(experiment, workload=published_ladder.workload(experiment))
    refuse_misfit(published_ladder.longest(experiment))
    return experiment


def _write_ladders(arguments: argparse.Namespace, verdicts: Sequence[Verdict]) -> dict[str, object]:
    """The answers of several models as JSON, their levels written to the file of `--out`."""
    code = max(verdict.exit_code or 0 for verdict in verdicts)
    tree = {"exit_code": code, "models": [to_tree(verdict) for verdict in verdicts]}
    if arguments.out:
        ladders = [(each.experiment.model, each.progressive) for each in verdicts if each.progressive]
        output.write(arguments.out, ladder_figures.rows(ladders), tree)
    return tree


def recipe(arguments: argparse.Namespace) -> int:
    """Record the probes from which the engine model's constants are fitted."""
    experiment = experiment_of(arguments.verb, arguments.words, arguments.config)
    guess_qps = engine_model.guess_qps(calibration_probes.check_experiment(experiment))
    study = calibration_probes.CalibrationStudy(experiment, guess_qps)
    parts = list(study.experiments.values())
    for part in parts:
        refuse_misfit(part)
    lines: list[str] = []
    if arguments.dry_run:
        total = calibration_probes.total_line(parts, engine_model.closed_s)
        lines = [*map(calibration_probes.probe_line, parts), total]
    return _measured(arguments, study, None, lines)


def resume(arguments: argparse.Namespace) -> int:
    """Recover what a killed run or study left, and continue it."""
    if len(arguments.words) != 1 or arguments.config:
        raise ConfigError("resume takes one run folder and nothing else: python -m loadgen resume runs/NAME")
    path = Path(arguments.words[0])
    from loadgen.cli import measuring

    if arguments.dry_run:
        return output.plan(arguments, None, [measuring.left(path)])
    return output.reported(measuring.measured(arguments, path), arguments.json)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "sweep": sweep,
    "probe": probe,
    "predict": prediction.predict,
    "compare": compare,
    "recommend": recommending.recommend,
    "quality": quality,
    "progressive": progressive,
    "recipe": recipe,
    "resume": resume,
}


def run(arguments: argparse.Namespace) -> int:
    """Run the command of a verb; returns its exit code, with one line on stderr for what went wrong."""

    def command() -> int:
        typed.refuse_idle_flags(arguments)
        return COMMANDS[arguments.verb](arguments)

    damaged = (AlteredError, summary.EXIT_INTERNAL), (NewerError, summary.EXIT_INTERNAL)
    return terminal.exit_code(
        command, *damaged, (RunError, summary.EXIT_USAGE), (ConfigError, summary.EXIT_USAGE)
    )
