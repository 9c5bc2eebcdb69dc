"""Predictions for every cell of a grid, on the same requests and the same drawn constants."""

import math
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from analysis.results import summary
from analysis.results.predictions import GridCell, GridRefusal, GridVerdict, PredictionVerdict, ReplayForecast
from analysis.stats.estimate import Estimate
from conf import ConfigError, Experiment
from conf.matrix import Matrix
from loadgen.predict import replay
from loadgen.predict.capacity import quiet
from loadgen.predict.draws import drawn
from loadgen.predict.uncertainty import MANY_DRAWS, Z95, ParallelMap, interval_end, smoothed
from loadgen.traffic.schedule import Floats

Predict = Callable[[Experiment], PredictionVerdict]
Asked = tuple[PredictionVerdict, Experiment]
"""A cell's answer, and the experiment that was asked for."""


def experiments(make: Callable[[list[str]], Experiment], grid: Matrix) -> list[Experiment | str]:
    """The experiment of every cell, or the reason for its refusal. Raises ConfigError if all are refused."""
    cells: list[Experiment | str] = []
    for cell in grid.cells():
        try:
            cells.append(make(grid.words(cell)))
        except ConfigError as error:
            cells.append(str(error))
    if all(isinstance(one, str) for one in cells):
        raise ConfigError(str(cells[0]))
    return cells


def are_replays(experiments: Sequence[Experiment | str]) -> bool:
    """True if the cells are replays of so many requests. Raises ConfigError where some are and some not."""
    kinds = {one.is_replay for one in experiments if isinstance(one, Experiment)}
    if len(kinds) > 1:
        raise ConfigError(
            "some cells are replays of a number of requests and some are steady states; use one grid for each"
        )
    return kinds == {True}


def predicted(
    grid: Matrix,
    experiments: Sequence[Experiment | str],
    predict: Predict,
    parallel_map: ParallelMap,
    say: Callable[[str], None] = quiet,
) -> GridVerdict:
    """The verdict of a grid: every cell with its answer, and its ratio to the first cell that has one."""
    predictions = iter(parallel_map(predict, [cell for cell in experiments if isinstance(cell, Experiment)]))
    answers: list[PredictionVerdict | GridRefusal] = []
    for cell in experiments:
        if isinstance(cell, str):
            answers.append(GridRefusal(exit_code=summary.EXIT_USAGE, reason=cell))
        else:
            answers.append(next(predictions))
        say(f"cell {len(answers)} of {len(experiments)} is done")
    first: Asked | None = None
    cells = []
    for at, answer, experiment in zip(grid.cells(), answers, experiments, strict=True):
        over = None
        if isinstance(answer, PredictionVerdict) and isinstance(experiment, Experiment) and _compares(answer):
            first = first or (answer, experiment)
            over = ratio((answer, experiment), first)
        cells.append(GridCell(at=at, answer=answer, ratio=over))
    return GridVerdict(
        axes=tuple(grid.axes), cells=tuple(cells), exit_code=max(answer.exit_code for answer in answers)
    )


def ratio(second: Asked, first: Asked) -> Estimate:
    """Capacity, or a replay's output tok/s, over the first cell's, draw by draw: common constants err alike.

    If the numbers of draws differ, over all pairs. Noise is added as if the requests differed: rather too
    wide.
    """
    cell, of = second[0], first[0]
    if cell is of:
        return Estimate(1.0, 1.0, 1.0)
    if cell.replay and of.replay:
        value, low, high = _throughput_over(cell.replay, of.replay)
    else:
        assert cell.capacity and of.capacity
        value = math.log(cell.capacity.qps_per_node.value / of.capacity.qps_per_node.value)
        noise = math.hypot(*((one.forecast and one.forecast.noise_pct or 0.0) / 100 for one in (cell, of)))
        moved = _moved(second, first)
        low, high = (interval_end(moved, share, noise) for share in (0.025, 0.975))
    return Estimate(math.exp(value), math.exp(value + low), math.exp(value + high))


def _throughput_over(ours: ReplayForecast, theirs: ReplayForecast) -> tuple[float, float, float]:
    """ln of the output tok/s over the other's, and the distances of its ends, draw by draw, seed by seed."""
    value, of = (
        math.log(figure.value) if (figure := one.figures[replay.THROUGHPUT]) else math.nan
        for one in (ours, theirs)
    )
    moved = _differences(ours.ln_throughput, theirs.ln_throughput) - (value - of)
    chance = _differences(ours.ln_throughput_of_seeds, theirs.ln_throughput_of_seeds) - (value - of)
    return value - of, *replay.spread(moved, chance)


def _differences(ours: Sequence[float], theirs: Sequence[float]) -> Floats:
    """Of two rows draw by draw; of all pairs if their numbers differ, of zeros without any."""
    one, other = (np.array(each or [0.0]) for each in (ours, theirs))
    pairs: Floats = one - other if len(one) == len(other) else np.subtract.outer(one, other).ravel()
    return pairs


def _moved(second: Asked, first: Asked) -> Sequence[float]:
    """ln ratio over its estimate, draw by draw; in many more draws where these show how it answers."""
    drawn = [one.forecast and one.forecast.of_capacity for one, _ in (second, first)]
    ours, theirs = ((one and one.ln_ratios) or (0.0,) for one in drawn)
    moved: list[float] = _differences(ours, theirs).tolist()
    unknown = len(ours) != len(theirs) or any(one and one.open_draws for one in drawn)
    if unknown or len(moved) < 2 or max(moved) == min(moved):
        return moved
    sets, many = (_of_both(second[1], first[1], count) for count in (len(moved), MANY_DRAWS))
    return smoothed(sets, moved, many)


def _of_both(second: Experiment, first: Experiment, count: int) -> list[dict[str, float]]:
    """The drawn constants of two cells; those that both share stand once."""
    ours, theirs = drawn(second, count), drawn(first, count)
    errors = [{path: [one[path] for one in sets] for path in sets[0]} for sets in (ours, theirs)]
    shared = {path for path, values in errors[0].items() if errors[1].get(path) == values}
    return [
        a | {f"{path} of the first": value for path, value in b.items() if path not in shared}
        for a, b in zip(ours, theirs, strict=True)
    ]


def _compares(one: PredictionVerdict) -> bool:
    """True of a replay, and of a capacity with two ends."""
    capacity = one.capacity
    closed = capacity is not None and not capacity.open_above and not capacity.open_below
    return closed or one.replay is not None


SCOUT_S = 120.0
"""Virtual node seconds of each rate of a first look: it gives a capacity to some 15 %."""
RANKING_S = 7200.0
"""The same for the ranking: Monte Carlo noise of 1.5 % (95 %), a twentieth of the interval."""
WORTHLESS = 0.5
"""A shape with less than this part of the best QPS gets few draws: constants that err by 12 % (sd) in each
leave four sd between the two."""
FEW_DRAWS = 12


def joint_ln_qps(experiment: Experiment, answer: PredictionVerdict, alone: bool = False) -> Floats:
    """ln capacity in `MANY_DRAWS` sets of constants, the same sets in the same order for every experiment.

    They follow from the answer's own draws (`uncertainty.smoothed`), with Monte Carlo noise of its own. Where
    these are `alone` or some lie beyond an end of the search they are repeated, and not joint with the
    others.
    """
    capacity, forecast = answer.capacity, answer.forecast
    assert capacity is not None and forecast is not None
    draws, layout = forecast.of_capacity, experiment.layout
    seed = zlib.crc32(f"{layout.name} {layout.max_num_batched_tokens} {layout.prefill}".encode())
    moved = np.zeros(MANY_DRAWS)
    if draws and draws.ln_ratios:
        sets = drawn(experiment, draws.draws)
        many = [] if alone or draws.open_draws else drawn(experiment, MANY_DRAWS)
        moved = np.array(smoothed(sets, draws.ln_ratios, many))
        if len(moved) != MANY_DRAWS:
            rng = np.random.default_rng(seed)
            moved = rng.permutation(np.resize(moved, MANY_DRAWS))
    noise = np.random.default_rng([1, seed]).standard_normal(MANY_DRAWS)
    sd = (forecast.noise_pct or 0.0) / 100 / Z95
    joint: Floats = math.log(capacity.qps_per_node.value) + moved + sd * noise
    return joint
