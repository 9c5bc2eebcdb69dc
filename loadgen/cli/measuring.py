"""The verbs that put load on a service: check the words, print the plan or measure.

`verbs` measures. It is imported late, because Ray comes with it.
"""

import argparse
from functools import partial

from analysis.results import summary
from conf.io import terminal
from conf.matrix import Matrix, matrix
from loadgen.cli import (
    config_check,
    engine_model,
    live_view,
    machine_check,
    output,
    quality_words,
    recommending,
)
from loadgen.cli.command_line import asked, resumed
from loadgen.drive import fixed_rate, require
from loadgen.search import pacing
from loadgen.studies import comparison_words, matrix_cells


def sweep(arguments: argparse.Namespace) -> int:
    """Measure the capacity of a deployed or external service, or of every cell of a grid of them."""
    if (words := matrix(arguments.words)).axes:
        return _sweep_cells(arguments, words)
    experiment = config_check.experiment(arguments.verb, arguments.words, arguments.config)
    machine_check.refuse(experiment)
    if arguments.dry_run:
        return output.plan(experiment, pacing.swept_s(experiment))
    from loadgen.cli import verbs

    return output.answer(arguments, (experiment,), lambda site, show: verbs.sweep(experiment, site, show))


def _sweep_cells(arguments: argparse.Namespace, words: Matrix) -> int:
    cells = matrix_cells.of(words, partial(config_check.experiment, arguments.verb, config=arguments.config))
    machine_check.refuse(cells.first)
    if arguments.dry_run:
        lines = [*matrix_cells.lines(cells), "the first one is below"]
        terminal.tell("\n".join(f"# {line}" for line in lines))
        return output.plan(cells.first, cells.load_s, cells.deployments, runs=len(cells.asked))
    from loadgen.cli import verbs

    measured = tuple(cells.asked.values())
    return output.answer(arguments, measured, lambda site, show: verbs.matrix(cells, site, show))


def probe(arguments: argparse.Namespace) -> int:
    """Offer one load without a search, and judge it."""
    experiment = config_check.experiment(arguments.verb, arguments.words, arguments.config)
    if arguments.require:
        require.refuse(experiment)
    machine_check.refuse(experiment)
    if arguments.dry_run:
        return output.plan(experiment, (require if arguments.require else fixed_rate).seconds(experiment))
    from loadgen.cli import verbs

    return output.answer(
        arguments, (experiment,), lambda site, show: verbs.probe(experiment, site, show, arguments.require)
    )


def compare(arguments: argparse.Namespace) -> int:
    """Measure two services on the same requests."""
    a, b = comparison_words.compared(
        arguments.words, arguments.config, partial(config_check.experiment, arguments.verb)
    )
    machine_check.refuse(a)
    if arguments.dry_run:
        terminal.tell(comparison_words.text(a, b))
        return output.plan(a, pacing.compared_s(a), services=2)
    from loadgen.cli import verbs

    return output.answer(arguments, (a, b), lambda site, show: verbs.compare(a, b, site, show))


def quality(arguments: argparse.Namespace) -> int:
    """Ask two configurations the same questions, idle or under load: same, degraded or undecided."""
    if folders := quality_words.folders(arguments.words):
        live_view.refuse_without_load(arguments, "these answers are on record")
        return output.result(quality_words.recorded(*folders), arguments.json)
    a, b = quality_words.sides(
        arguments.words, arguments.config, partial(config_check.experiment, arguments.verb)
    )
    machine_check.refuse(a)
    if arguments.dry_run:
        terminal.tell(quality_words.text(a, b))
        return summary.EXIT_OK
    from loadgen.cli import verbs

    return output.answer(arguments, (a, b), lambda site, show: verbs.quality(a, b, site, show))


def recipe(arguments: argparse.Namespace) -> int:
    """Record the probes from which the engine model's constants are fitted."""
    from loadgen.cli import verbs
    from loadgen.studies import calibration_probes

    calibration_probes.refuse(arguments.words)
    experiment = asked(arguments.verb, arguments.words, arguments.config)
    study = calibration_probes.of(experiment, engine_model.guess_qps(calibration_probes.checked(experiment)))
    parts = [study.part(name, {}) for name in study.names]
    for part in parts:
        config_check.refuse_misfit(part)
    machine_check.refuse(experiment)
    if arguments.dry_run:
        total = calibration_probes.total(parts, engine_model.closed_s)
        terminal.tell("\n".join([*map(calibration_probes.line, parts), total]))
        return summary.EXIT_OK
    guess_qps = study.asked.rate_qps
    return output.answer(arguments, (), lambda site, show: verbs.recipe(experiment, guess_qps, site, show))


def resume(arguments: argparse.Namespace) -> int:
    """Recover what a killed run or study left, and continue it."""
    path = resumed(arguments)
    from loadgen.cli import verbs

    experiment = partial(config_check.experiment, verbs.verb(path), [])
    if arguments.dry_run:
        terminal.tell(verbs.left(path, experiment))
        return summary.EXIT_OK
    return output.answer(
        arguments,
        (),
        lambda site, show: verbs.resume(path, experiment, site, show),
        lambda _: recommending.concluded(path, arguments.json),
    )
