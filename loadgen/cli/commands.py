"""Commands that put load on a service, and the way from a verb to its command, its exit code and its errors.

`verbs` measures; it is imported late, because Ray comes with it.
"""

import argparse
from collections.abc import Callable
from functools import partial

from analysis.results import summary
from analysis.results.locations import AlteredError, NewerError
from analysis.results.runs import RunError
from conf import ConfigError
from conf.io import terminal
from conf.io.one_line import reason
from conf.matrix import Matrix, matrix
from loadgen.cli import (
    arguments as typed,
)
from loadgen.cli import (
    config_check,
    engine_model,
    machine,
    output,
    prediction,
    published_benchmark,
    quality_words,
    recommending,
)
from loadgen.drive import fixed_rate, require
from loadgen.search import pacing
from loadgen.studies import comparison_words, matrix_study


def sweep(arguments: argparse.Namespace) -> int:
    """Measure the capacity of a deployed or external service, or of every cell of a grid of them."""
    if (words := matrix(arguments.words)).axes:
        return _sweep_cells(arguments, words)
    experiment = config_check.experiment(arguments.verb, arguments.words, arguments.config)
    machine.refuse(experiment)
    is_free = not arguments.config and machine.is_free(experiment, arguments.words)
    fast = machine.fast(experiment) if is_free else experiment
    if arguments.dry_run:
        return output.plan(arguments, experiment, pacing.swept_s(experiment), clock=fast.time_scale)
    from loadgen.cli import verbs

    fast = machine.beside_neighbours(fast) if is_free else fast
    planned = output.planned_run(experiment, pacing.swept_s(experiment), clock=fast.time_scale)
    with output.measuring(arguments, experiment, planned=planned) as here:
        search = verbs.sweep_on_free_clock if is_free else verbs.sweep
        verdict = here.ended(search(fast, here.site, here.show))
    return output.reported(verdict, arguments.json)


def _sweep_cells(arguments: argparse.Namespace, words: Matrix) -> int:
    cells = matrix_study.cells_of_words(
        words, partial(config_check.experiment, arguments.verb, config=arguments.config)
    )
    machine.refuse(cells.first)
    counts = {"services": cells.deployments, "runs": len(cells.experiments)}
    if arguments.dry_run:
        lines = [*matrix_study.cell_lines(cells), "the first one is below"]
        return output.plan(arguments, cells.first, cells.load_s, lines, **counts)
    from loadgen.cli import verbs

    planned = output.planned_run(cells.first, cells.load_s, **counts)
    with output.measuring(arguments, *cells.experiments.values(), planned=planned) as here:
        verdict = here.ended(verbs.matrix(cells, here.site, here.show))
    return output.reported(verdict, arguments.json)


def probe(arguments: argparse.Namespace) -> int:
    """Offer one load without a search, and judge it."""
    experiment = config_check.experiment(arguments.verb, arguments.words, arguments.config)
    if arguments.require:
        require.refuse(experiment)
    load_s = require.seconds(experiment) if arguments.require else fixed_rate.load_seconds(experiment)
    machine.refuse(experiment)
    if arguments.dry_run:
        return output.plan(arguments, experiment, load_s)
    from loadgen.cli import verbs

    planned = output.planned_run(experiment, load_s)
    with output.measuring(arguments, experiment, planned=planned) as here:
        verdict = here.ended(verbs.probe(experiment, here.site, here.show, arguments.require))
    return output.reported(verdict, arguments.json)


def compare(arguments: argparse.Namespace) -> int:
    """Measure two services on the same requests."""
    a, b = comparison_words.compared(
        arguments.words, arguments.config, partial(config_check.experiment, arguments.verb)
    )
    machine.refuse(a)
    if arguments.dry_run:
        lines = comparison_words.lines(a, b)
        return output.plan(arguments, a, pacing.compared_s(a), lines, services=2)
    from loadgen.cli import verbs

    planned = output.planned_run(a, pacing.compared_s(a), services=2)
    with output.measuring(arguments, a, b, planned=planned) as here:
        verdict = here.ended(verbs.compare(a, b, here.site, here.show))
    return output.reported(verdict, arguments.json)


def quality(arguments: argparse.Namespace) -> int:
    """Ask two configurations the same questions, idle or under load: same, degraded or undecided."""
    if folders := quality_words.folders(arguments.words):
        typed.refuse_page_without_load(arguments, "these answers are on record")
        return output.printed(quality_words.recorded(*folders), arguments.json)
    a, b = quality_words.sides(
        arguments.words, arguments.config, partial(config_check.experiment, arguments.verb)
    )
    machine.refuse(a)
    if arguments.dry_run:
        return output.plan_lines(arguments, quality_words.text(a, b))
    from loadgen.cli import verbs

    with output.measuring(arguments, a, b) as here:
        verdict = here.ended(verbs.quality(a, b, here.site, here.show))
    return output.reported(verdict, arguments.json)


def recipe(arguments: argparse.Namespace) -> int:
    """Record the probes from which the engine model's constants are fitted."""
    from loadgen.cli import verbs
    from loadgen.studies import calibration_probes

    calibration_probes.refuse(arguments.words)
    experiment = typed.experiment_of(arguments.verb, arguments.words, arguments.config)
    guess_qps = engine_model.guess_qps(calibration_probes.check_experiment(experiment))
    study = calibration_probes.CalibrationStudy(experiment, guess_qps)
    parts = [study.part(name, {}) for name in study.names]
    for part in parts:
        config_check.refuse_misfit(part)
    machine.refuse(experiment)
    if arguments.dry_run:
        total = calibration_probes.total_line(parts, engine_model.closed_s)
        return output.plan_lines(arguments, "\n".join([*map(calibration_probes.probe_line, parts), total]))
    with output.measuring(arguments) as here:
        verdict = here.ended(verbs.run_in_new_folder(study, here.site, here.show))
    return output.reported(verdict, arguments.json)


def resume(arguments: argparse.Namespace) -> int:
    """Recover what a killed run or study left, and continue it."""
    path = typed.folder_to_resume(arguments)
    from loadgen.cli import verbs

    experiment = partial(config_check.experiment, verbs.verb(path), [])
    if arguments.dry_run:
        return output.plan_lines(arguments, verbs.left(path, experiment))
    with output.measuring(arguments) as here:
        verdict = here.ended(verbs.resume(path, experiment, here.site, here.show))
    return recommending.reported(verdict, path, arguments.json)


ACTS: dict[str, Callable[[argparse.Namespace], int]] = {
    "sweep": sweep,
    "probe": probe,
    "predict": prediction.predict,
    "compare": compare,
    "recommend": recommending.recommend,
    "quality": quality,
    "progressive": published_benchmark.progressive,
    "recipe": recipe,
    "resume": resume,
}


def run(arguments: argparse.Namespace) -> int:
    """Run the command of a verb; returns its exit code, with one line on stderr for what went wrong."""
    try:
        typed.refuse_idle_flags(arguments)
        return ACTS[arguments.verb](arguments)
    except (ConfigError, RunError) as error:
        terminal.error(error)
        damaged = isinstance(error, AlteredError | NewerError)
        return summary.EXIT_INTERNAL if damaged else summary.EXIT_USAGE
    except KeyboardInterrupt:
        return summary.EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone; the run folder, if any, is complete.
        terminal.give_up_stdout()
        return summary.EXIT_INTERNAL
    except OSError as error:
        terminal.error(reason(error))
        return summary.EXIT_INTERNAL
