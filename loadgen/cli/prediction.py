"""The verb `predict`: what it refuses, its work spread over processes, its answer printed and written.

The engine model bound to an experiment is in `engine_model`.
"""

import argparse
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import active_children, cpu_count, get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.results import predictions
from analysis.results.experiment_facts import describe
from analysis.results.json_border import to_tree
from analysis.results.predictions import GridCell, GridVerdict, PredictionVerdict
from analysis.results.runs import refuse_out
from analysis.results.summary import EXIT_OK
from analysis.views import prediction as prediction_view
from conf import ConfigError, Experiment
from conf.io import terminal
from conf.matrix import matrix
from loadgen.cli import engine_model, output
from loadgen.cli.output import planned_run
from loadgen.cli.words import all_kernels, checked_experiment
from loadgen.predict import grid, replay
from loadgen.predict.capacity import quiet
from loadgen.predict.grid import Cell
from loadgen.predict.uncertainty import ParallelMap
from loadgen.studies import published_ladder

CHUNKS = 4
"""Chunks of work per process: with several, no process waits long for the last one."""


def checked(words: Sequence[str], config: Path | None, sensitivity: bool = False) -> Experiment:
    """The experiment of a prediction or of a grid cell. Raises ConfigError for what it cannot answer."""
    experiment = checked_experiment("predict", words, config)
    if (experiment.rate_qps or experiment.concurrency) and sensitivity:
        key = "rate_qps" if experiment.rate_qps else "concurrency"
        raise ConfigError(f"--sensitivity explains a capacity; leave {key}=... out")
    engine_model.refuse_queue_limits(experiment.engine)
    if experiment.concurrency:
        replay.played(experiment, engine_model.simulate)  # some engines play no closed loop
    return experiment


def answered(
    cells: Sequence[Cell], sensitivity: bool = False, say: Callable[[str], None] = quiet
) -> PredictionVerdict | GridVerdict:
    """The answer for the one experiment, or for every cell of a grid."""
    predict = partial(engine_model.predict, sensitivity=sensitivity)
    with processes() as parallel_map:
        if cells[0].at:
            return grid.predicted(cells, predict, parallel_map, say)
        (experiment,) = _experiments(cells)
        return predict(experiment, parallel_map=parallel_map)


def _experiments(cells: Sequence[Cell]) -> list[Experiment]:
    return [cell.experiment for cell in cells if cell.experiment]


@contextmanager
def processes() -> Iterator[ParallelMap]:
    """A map over one process per core.

    The processes are forked from a server that has imported the engine model and runs nothing else: a fork of
    this process would copy the locks that threads of numpy, Arrow and numba may hold.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([engine_model.__name__])
    others = active_children()
    ignore_interrupts = signal.SIGINT, signal.SIG_IGN  # this process ends its workers
    with ProcessPoolExecutor(
        mp_context=context, initializer=signal.signal, initargs=ignore_interrupts
    ) as pool:

        def parallel_map(function: Callable[[Any], Any], values: Iterable[Any]) -> Iterable[Any]:
            # The function is sent with every chunk, and may hold hours of conversations.
            every = list(values)
            return pool.map(function, every, chunksize=max(1, len(every) // (CHUNKS * (cpu_count() or 1))))

        try:
            yield parallel_map
        except BaseException:  # an interrupted prediction does not wait for its workers
            for worker in set(active_children()).difference(others):
                worker.kill()
            raise


def requests(cells: Sequence[Cell]) -> pa.Table:
    """A row per request of every replay of a grid, with the cell's axis values as columns."""
    tables = []
    for cell in cells:
        if cell.experiment:
            schedule = replay.planned(cell.experiment)
            times = replay.played(cell.experiment, engine_model.simulate, schedule, cell.experiment.seed)
            table = replay.request_rows(schedule, times)
            for place, (key, value) in enumerate(cell.at.items()):
                table = table.add_column(place, f"experiment.{key}", pa.array([str(value)] * len(table)))
            tables.append(table)
    return pa.concat_tables(tables)


def predicted_ladder(experiment: Experiment, say: Callable[[str], None] = quiet) -> PredictionVerdict:
    """The MI325X paper's benchmark on the virtual clock, each run with a seed of its own."""
    runs = []
    for number in range(experiment.progressive.runs):
        say(f"{experiment.model.name}: run {number + 1} of {experiment.progressive.runs}")
        drawn = replace(experiment, seed=drawn_seed(experiment.seed, number))
        runs.append(published_ladder.play(drawn, partial(played, drawn), quiet if number else say))
    verdict = PredictionVerdict(experiment=describe(experiment), exit_code=EXIT_OK)
    return published_ladder.concluded(verdict, experiment, runs)


def level_seconds(experiment: Experiment) -> list[float] | None:
    """Seconds of each level by the engine model; None for a service that is not one simulated engine."""
    if experiment.engine.kind != "simulated" or experiment.replicas != 1:
        return None
    return [level.seconds for level in published_ladder.play(experiment, partial(played, experiment), quiet)]


def played(experiment: Experiment, number: int, level: published_ladder.LevelPlan) -> pa.Table:
    """The request rows of one level, a closed loop on one empty engine."""
    schedule, seed = level.schedule(number, 0, 0), drawn_seed(experiment.seed, number)
    return replay.progress_rows(schedule, engine_model.simulate(experiment, schedule, 1, seed))


def drawn_seed(seed: int, number: int) -> int:
    """The seed of a run, or of a level within a run."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def predict(arguments: argparse.Namespace) -> int:
    """Answer from the engine model alone: direct simulation on a virtual clock, of one point or a grid."""
    make = partial(checked, config=arguments.config, sensitivity=arguments.sensitivity)
    cells = grid.cells_of(matrix(arguments.words), make)
    experiments, are_replays = _experiments(cells), grid.are_replays(cells)
    refuse_out(arguments.out, *output.SUFFIXES)
    if arguments.requests and not are_replays:
        raise ConfigError("--requests writes those of a replay; add requests=N, or leave it out")
    refuse_out(arguments.requests, *output.TABLES, flag="--requests")
    if arguments.dry_run:
        return max(output.plan(arguments, planned_run(experiment, 0)) for experiment in experiments)
    answer = answered(cells, arguments.sensitivity, output.noting(arguments))
    if arguments.requests:
        output.write(arguments.requests, requests(cells), to_tree(answer))
    if arguments.out:
        rows = answer.cells if isinstance(answer, GridVerdict) else (GridCell(at={}, answer=answer),)
        output.write(arguments.out, predictions.grid_rows(rows, are_replays), to_tree(answer))
    if isinstance(answer, GridVerdict) and not arguments.json:
        terminal.tell("\n".join([prediction_view.grid_text(answer), *all_kernels(experiments)]))
        return answer.exit_code
    return output.printed(answer, arguments.json)
