"""Predictions for every cell of a grid, on the same requests and the same drawn constants."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

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
Answered = tuple[PredictionVerdict, Experiment]
"""A cell's answer, and the experiment that was asked for."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination: its values `at` each axis, and its experiment or the reason why it is `refused`."""

    name: str
    at: Mapping[str, Any]
    experiment: Experiment | None
    refused: str = ""


def cells_of(grid: Matrix, make: Callable[[list[str]], Experiment]) -> list[Cell]:
    """The cells of a grid of words; `make` makes an experiment. Raises ConfigError if none has one."""
    cells = []
    for number, at in enumerate(grid.cells(), 1):
        experiment, refused = made(partial(make, grid.words(at)))
        cells.append(Cell(f"cell-{number}", at, experiment, refused))
    if all(cell.refused for cell in cells):
        raise ConfigError(cells[0].refused)
    return cells


def made(make: Callable[[], Experiment]) -> tuple[Experiment | None, str]:
    """The experiment that `make` makes, or the reason why it refuses to."""
    try:
        return make(), ""
    except ConfigError as error:
        return None, str(error)


def are_replays(cells: Sequence[Cell]) -> bool:
    """True if the cells are replays of so many requests. Raises ConfigError where some are and some not."""
    kinds = {cell.experiment.is_replay for cell in cells if cell.experiment}
    if len(kinds) > 1:
        raise ConfigError(
            "some cells are replays of a number of requests and some are steady states; use one grid for each"
        )
    return kinds == {True}


def predicted(
    cells: Sequence[Cell], predict: Predict, parallel_map: ParallelMap, say: Callable[[str], None] = quiet
) -> GridVerdict:
    """The verdict of a grid: every cell with its answer, and its ratio to the first cell that has one."""
    answers = iter(parallel_map(predict, [cell.experiment for cell in cells if cell.experiment]))
    first: Answered | None = None
    rows: list[GridCell] = []
    for cell in cells:
        if cell.experiment is None:
            refusal = GridRefusal(exit_code=summary.EXIT_USAGE, reason=cell.refused)
            rows.append(GridCell(at=cell.at, answer=refusal))
        else:
            answer, over = next(answers), None
            capacity = answer.capacity
            closed = capacity is not None and not capacity.open_above and not capacity.open_below
            if closed or answer.replay is not None:
                first = first or (answer, cell.experiment)
                over = ratio((answer, cell.experiment), first)
            rows.append(GridCell(at=cell.at, answer=answer, ratio=over))
        say(f"cell {len(rows)} of {len(cells)} is done")
    return GridVerdict(
        axes=tuple(cells[0].at), cells=tuple(rows), exit_code=max(row.answer.exit_code for row in rows)
    )


def ratio(second: Answered, first: Answered) -> Estimate:
    """Capacity, or a replay's output tok/s, over the first cell's, draw by draw: common constants err alike.

    Noise is added as if the requests differed: rather too wide.
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
        math.log(figure.value) if (figure := cell.figures[replay.THROUGHPUT]) else math.nan
        for cell in (ours, theirs)
    )
    moved = _differences(ours.ln_throughput, theirs.ln_throughput) - (value - of)
    chance = _differences(ours.ln_throughput_of_seeds, theirs.ln_throughput_of_seeds) - (value - of)
    return value - of, *replay.spread(moved, chance)


def _differences(ours: Sequence[float], theirs: Sequence[float]) -> Floats:
    """Of two rows draw by draw; one without any is of zeros."""
    mine, other = (np.array(each or [0.0]) for each in (ours, theirs))
    pairs: Floats = mine - other
    return pairs


def _moved(second: Answered, first: Answered) -> Sequence[float]:
    """ln ratio over its estimate, draw by draw; in many more draws where these show how it answers."""
    drawn = [draw.forecast and draw.forecast.of_capacity for draw, _ in (second, first)]
    ours, theirs = ((draw and draw.ln_ratios) or (0.0,) for draw in drawn)
    moved: list[float] = _differences(ours, theirs).tolist()
    unknown = len(ours) != len(theirs) or any(draw and draw.open_draws for draw in drawn)
    if unknown or len(moved) < 2 or max(moved) == min(moved):
        return moved
    sets, many = (_of_both(second[1], first[1], count) for count in (len(moved), MANY_DRAWS))
    return smoothed(sets, moved, many)


def _of_both(second: Experiment, first: Experiment, count: int) -> list[dict[str, float]]:
    """The drawn constants of two cells; those that both share stand once."""
    ours, theirs = drawn(second, count), drawn(first, count)
    errors = [
        {path: [errors_of_draw[path] for errors_of_draw in sets] for path in sets[0]}
        for sets in (ours, theirs)
    ]
    shared = {path for path, values in errors[0].items() if errors[1].get(path) == values}
    return [
        a | {f"{path} of the first": value for path, value in b.items() if path not in shared}
        for a, b in zip(ours, theirs, strict=True)
    ]


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
