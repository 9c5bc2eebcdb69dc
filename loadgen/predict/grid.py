"""Predictions for every cell of a grid, on the same requests and the same drawn constants.

Knows cells and their ratios; the engine model is handed in.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.results import summary
from analysis.results.summary import Tree
from conf import ConfigError, Experiment
from conf.matrix import Matrix
from loadgen.predict import replay
from loadgen.predict.capacity import quiet
from loadgen.predict.draws import drawn
from loadgen.predict.uncertainty import MANY_DRAWS, ParallelMap, interval_end, smoothed

Predict = Callable[[Experiment], Tree]
Answer = tuple[Tree, Experiment]
"""A cell's answer, and its experiment."""
ENDS = ("below", "above")


def experiments(asked: Callable[[list[str]], Experiment], grid: Matrix) -> list[Experiment | str]:
    """The experiment of every cell, or the reason for its refusal. Raises ConfigError if all are refused."""
    found: list[Experiment | str] = []
    for cell in grid.cells():
        try:
            found.append(asked(grid.words(cell)))
        except ConfigError as error:
            found.append(str(error))
    if all(isinstance(one, str) for one in found):
        raise ConfigError(str(found[0]))
    return found


def are_replays(found: Sequence[Experiment | str]) -> bool:
    """True if the cells are replays of a number of requests. Raises ConfigError if only some are."""
    kinds = {one.is_replay for one in found if isinstance(one, Experiment)}
    if len(kinds) > 1:
        raise ConfigError(
            "some cells are replays of a number of requests and some are steady states; use one grid for each"
        )
    return kinds == {True}


def predicted(
    grid: Matrix,
    found: Sequence[Experiment | str],
    predict: Predict,
    parallel_map: ParallelMap,
    say: Callable[[str], None] = quiet,
) -> Tree:
    """The tree of a grid: every cell with its answer, and its ratio to the first cell that has one."""
    answers = iter(parallel_map(predict, [one for one in found if isinstance(one, Experiment)]))
    cells: list[Tree] = []
    for at, one in zip(grid.cells(), found, strict=True):
        cell = _refused(one) if isinstance(one, str) else next(answers)
        cells.append({"at": at, **cell})
        say(f"cell {len(cells)} of {len(found)} is done")
    every = zip(cells, found, strict=True)
    pairs = [(cell, one) for cell, one in every if isinstance(one, Experiment) and _answered(cell)]
    for cell, one in pairs:
        cell["ratio"] = ratio((cell, one), pairs[0])
    replays = [cell for cell in cells if cell.get("replay")]
    for cell in replays:
        cell["ratio"] = replay.ratio(cell, replays[0])
    code = max(cell["exit_code"] for cell in cells)
    return {"axes": list(grid.axes), "cells": cells, "exit_code": code}


def ratio(second: Answer, first: Answer) -> dict[str, float]:
    """Capacity over that of the first cell, with a 95 % interval.

    It is taken draw by draw, since a constant that both cells have errs alike in both, and layout constants
    are drawn for each layout; if the numbers of draws differ, over all pairs. The noise of both is added as
    if the requests differed, which they do not: the interval is rather too wide.
    """
    cell, of = second[0], first[0]
    if cell is of:
        return {"value": 1.0, "low": 1.0, "high": 1.0}
    q, base = (one["capacity"]["qps_per_node"]["estimate"] for one in (cell, of))
    value = math.log(q / base)
    noise = math.hypot(*((one["forecast"]["noise_pct"] or 0.0) / 100 for one in (cell, of)))
    moved = _moved(second, first)
    low, high = (interval_end(moved, share, noise) for share in (0.025, 0.975))
    return {"value": math.exp(value), "low": math.exp(value + low), "high": math.exp(value + high)}


def _moved(second: Answer, first: Answer) -> Sequence[float]:
    """ln ratio over its estimate, draw by draw; in many more draws if the response is known."""
    ours, theirs = (np.array(cell["forecast"].get("ln_ratios") or [0.0]) for cell, _ in (second, first))
    if len(ours) != len(theirs):
        pairs: list[float] = np.subtract.outer(ours, theirs).ravel().tolist()
        return pairs
    moved: list[float] = (ours - theirs).tolist()
    unknown = any(cell["forecast"].get(f"open_draws_{end}") for cell, _ in (second, first) for end in ENDS)
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


def _answered(cell: Mapping[str, Any]) -> bool:
    capacity = cell.get("capacity")
    return capacity is not None and not capacity["open_above"] and not capacity["open_below"]


def _refused(why: str) -> Tree:
    return {"exit_code": summary.EXIT_USAGE, "reason": why, "valid": False, "passed": False}
