"""The verb `progressive`: the MI325X paper's benchmark."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from analysis.results.predictions import PredictionVerdict
from analysis.results.published_ladder import LevelFigures
from analysis.results.runs import refuse_out
from analysis.views import answers
from conf import ConfigError, Experiment
from conf.io import terminal
from loadgen.cli import config_check, engine_model, machine, output
from loadgen.cli.arguments import refuse_page_without_load
from loadgen.predict import replay
from loadgen.predict.capacity import quiet
from loadgen.run import export
from loadgen.run.run_folder import finite
from loadgen.studies import published_ladder, published_tables
from loadgen.studies import published_ladder as ladder


def progressive(arguments: argparse.Namespace) -> int:
    """Run the MI325X paper's benchmark: by the engine model alone, or over HTTP."""
    first, *others = published_tables.words_by_model(arguments.words, arguments.config)
    found = [_checked(first, arguments)]
    virtual = ladder.is_virtual(found[0])
    if others and not virtual:
        raise ConfigError(
            "progressive over HTTP deploys one model: choose one, such as model=llama31_405b_fp8"
        )
    found += [_checked(words, arguments) for words in others]
    refuse_out(arguments.out, *export.SUFFIXES)
    if virtual:
        refuse_page_without_load(arguments, "this clock is virtual (progressive.clock=wall loads)")
    else:
        machine.refuse(found[0])
    if arguments.dry_run:
        lines = [line for one in found for line in published_ladder.plan_lines(one, level_seconds(one))]
        return output.plan_lines(arguments, "\n".join(lines))
    if virtual:
        return _print_models([predicted_ladder(one, output.noting(arguments)) for one in found], arguments)
    from loadgen.cli import verbs
    from loadgen.studies.published_ladder import LadderStudy

    with output.measuring(arguments) as here:
        verdict = verbs.run_in_new_folder(LadderStudy(found[0]), here.site, here.show)
        if verdict.progressive:  # every level was played
            published_ladder.write(arguments.out, [verdict])
        verdict = here.ended(verdict)
    return output.reported(verdict, arguments.json)


def _print_models(verdicts: Sequence[PredictionVerdict], arguments: argparse.Namespace) -> int:
    published_ladder.write(arguments.out, verdicts)
    whole = published_ladder.models_tree(verdicts)
    if arguments.json:
        terminal.data(json.dumps(finite(whole), default=str))
    else:
        terminal.tell("\n\n".join(str(answers.answer(one)) for one in verdicts))
    return int(whole["exit_code"])


def _checked(words: Sequence[str], arguments: argparse.Namespace) -> Experiment:
    """One model's experiment with the workload of its levels, of which even the longest fits."""
    experiment = ladder.with_level_workload(config_check.experiment(arguments.verb, words, arguments.config))
    ladder.is_virtual(experiment)
    config_check.refuse_misfit(ladder.longest(experiment))
    return experiment


def predicted_ladder(experiment: Experiment, say: Callable[[str], None] = quiet) -> PredictionVerdict:
    """The MI325X paper's benchmark on the virtual clock, each run with a seed of its own."""
    runs = []
    for number in range(experiment.progressive.runs):
        say(f"{experiment.model.name}: run {number + 1} of {experiment.progressive.runs}")
        one = replace(experiment, seed=ladder.drawn_seed(experiment.seed, number))
        runs.append(_run(one, quiet if number else say))
    return published_ladder.predicted(experiment, runs)


def level_seconds(experiment: Experiment) -> list[float] | None:
    """Seconds of each level by the engine model; None for a service that is not one simulated engine."""
    if experiment.engine.kind != "simulated" or experiment.replicas != 1:
        return None
    return [level.seconds for level in _run(experiment)]


def _run(experiment: Experiment, say: Callable[[str], None] = quiet) -> list[LevelFigures]:
    return published_ladder.play_levels(ladder.levels(experiment), partial(played, experiment), say)


def played(experiment: Experiment, number: int, level: ladder.LevelPlan) -> pa.Table:
    """The request rows of one level, a closed loop on one empty engine."""
    schedule, seed = level.schedule(number, 0, 0), ladder.drawn_seed(experiment.seed, number)
    return replay.progress_rows(schedule, engine_model.replayed(experiment, schedule, seed))
