"""The engine model's answers to words: of one experiment, of a grid, and for the start of a search.

Knows what a prediction refuses and how its work is spread over processes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import active_children, cpu_count, get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.results import summary
from analysis.results.types.prediction_verdict import GridVerdict, PredictionVerdict
from analysis.results.types.run_verdict import PlacingPrediction
from conf import ConfigError, Experiment
from conf.matrix import Matrix
from conf.specs.experiment import SimulatedEngine
from loadgen.cli import config_check, engine_model
from loadgen.predict import grid, replay
from loadgen.predict.capacity import quiet
from loadgen.predict.uncertainty import ParallelMap
from loadgen.run.progress import Emit
from loadgen.search.start import FIRST_BELOW_PREDICTION, FIRST_BELOW_SESSIONS, Start

CHUNKS = 4
"""Chunks of work per process: with several, no process waits long for the last one."""
HOUR_S = 3600.0
"""Virtual time of the prediction that places the first window."""
PLACES = "it places the first dwell and centres a wide prior, sd 25 %"


def checked(words: Sequence[str], config: Path | None, sensitivity: bool = False) -> Experiment:
    """The experiment of a prediction or of a grid cell. Raises ConfigError for what it cannot answer."""
    experiment = config_check.experiment("predict", words, config)
    rate_qps, highest_qps = experiment.rate_qps, experiment.search.highest_qps
    if (rate_qps or experiment.concurrency) and sensitivity:
        asked = "rate_qps" if rate_qps else "concurrency"
        raise ConfigError(f"--sensitivity explains a capacity; leave {asked}=... out")
    engine = experiment.engine
    assert isinstance(engine, SimulatedEngine)
    if engine.max_num_queued_reqs is not None or engine.max_num_queued_tokens is not None:
        raise ConfigError(
            "predict does not model refused requests: leave engine.max_num_queued_reqs and "
            "engine.max_num_queued_tokens out, or measure with sweep or probe"
        )
    replay.refuse(experiment)
    if experiment.concurrency:
        engine_model.replayed(experiment, replay.planned(experiment))  # some engines play no closed loop
    if not experiment.is_replay and rate_qps and rate_qps > highest_qps:
        raise ConfigError(
            f"rate_qps={rate_qps:g} is above search.highest_qps={highest_qps:g}; raise that too"
        )
    return experiment


def answered(
    cells: Matrix,
    found: Sequence[Experiment | str],
    sensitivity: bool = False,
    say: Callable[[str], None] = quiet,
) -> PredictionVerdict | GridVerdict:
    """The answer for the one experiment, or for every cell of a grid (`grid.experiments`)."""
    act = partial(engine_model.predict, sensitivity=sensitivity, say=say)
    with processes() as parallel_map:
        if cells.axes:
            return grid.predicted(cells, found, act, parallel_map, say)
        return act(next(one for one in found if isinstance(one, Experiment)), parallel_map=parallel_map)


@contextmanager
def processes() -> Iterator[ParallelMap]:
    """A map over one process per core; forked, so that each has what is imported and compiled already."""
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:

        def parallel_map(function: Callable[[Any], Any], values: Iterable[Any]) -> Iterable[Any]:
            # The function is sent with every chunk, and may hold hours of conversations.
            every = list(values)
            return pool.map(function, every, chunksize=max(1, len(every) // (CHUNKS * (cpu_count() or 1))))

        try:
            yield parallel_map
        except BaseException:  # an interrupted prediction does not wait for its workers
            for worker in active_children():
                worker.kill()
            raise


def start(experiment: Experiment, verb: str, emit: Emit) -> tuple[Start, PlacingPrediction | None]:
    """The start of a search: a guess, and the engine model's answer if the search may use it."""
    below = FIRST_BELOW_SESSIONS if experiment.workload.has_sessions else FIRST_BELOW_PREDICTION
    start = Start(roofline_qps=engine_model.guess_qps(experiment), first_below=below)
    if verb != "sweep" or experiment.search.start != "prediction":
        return start, None
    if expected := experiment.search.expected_qps:
        emit("prediction", text=f"{expected:g} QPS per node is expected (search.expected_qps): {PLACES}")
        return replace(start, prediction_qps=expected), None
    if not isinstance(experiment.engine, SimulatedEngine):
        return start, None
    try:
        hour = replace(experiment.search, budget_s=HOUR_S)
        found = engine_model.predict(replace(experiment, search=hour), draws=0)
    except ValueError as error:  # what the model does not predict can be measured all the same
        emit("prediction", text=f"no prediction, the search begins with a ramp: {error}")
        return start, None
    if found.exit_code != summary.EXIT_OK or found.capacity is None:
        emit("prediction", text=f"no prediction, the search begins with a ramp: {found.reason}")
        return start, None
    figures = found.capacity.qps_per_node
    how = f"a virtual hour of the same engine: {PLACES}"
    emit("prediction", text=f"the engine model predicts {figures.estimate:.2f} QPS per node ({how})")
    return replace(start, prediction_qps=figures.estimate), PlacingPrediction(figures, how)


def requests(cells: Matrix, found: Sequence[Experiment | str]) -> pa.Table:
    """A row per request of every replay of a grid, with the cell's axis values as columns."""
    parts_of = []
    for at, one in zip(cells.cells(), found, strict=True):
        if isinstance(one, Experiment):
            schedule = replay.planned(one)
            table = replay.rows(schedule, engine_model.replayed(one, schedule, one.seed))
            for place, (key, value) in enumerate(at.items()):
                table = table.add_column(place, f"asked.{key}", pa.array([str(value)] * len(table)))
            parts_of.append(table)
    return pa.concat_tables(parts_of)
