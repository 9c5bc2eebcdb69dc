"""Predictions for every cell of a grid: all cells see the same requests and the same drawn constants.

Knows cells and how they compare; the engine model is handed in.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis import summary
from analysis.summary import Tree
from conf import ConfigError, Experiment
from conf.matrix import Matrix
from loadgen import replay
from loadgen.forecast import quiet
from loadgen.uncertainty import Spread, drawn_quantile

Predict = Callable[[Experiment], Tree]


def experiments(asked: Callable[[list[str]], Experiment], grid: Matrix) -> list[Experiment | str]:
    """The experiment of every cell, or why it cannot be. Raises ConfigError where none can."""
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
    """Whether the cells are replays of so many requests. Raises ConfigError where some are and some not."""
    kinds = {one.is_replay for one in found if isinstance(one, Experiment)}
    if len(kinds) > 1:
        raise ConfigError(
            "some cells are replays of so many requests and some are steady states; ask for each in a grid "
            "of its own"
        )
    return kinds == {True}


def predicted(
    grid: Matrix,
    found: Sequence[Experiment | str],
    predict: Predict,
    spread: Spread,
    say: Callable[[str], None] = quiet,
) -> Tree:
    """The tree of a grid: every cell with its answer, and its ratio to the first cell that has one."""
    answers = iter(spread(predict, [one for one in found if isinstance(one, Experiment)]))
    cells: list[Tree] = []
    for at, one in zip(grid.cells(), found, strict=True):
        cell = _refused(one) if isinstance(one, str) else next(answers)
        cells.append({"at": at, **cell})
        say(f"cell {len(cells)} of {len(found)} is done")
    first = next((cell for cell in cells if _answered(cell)), None)
    for cell in cells:
        if first is not None and _answered(cell):
            cell["ratio"] = ratio(cell, first)
    replays = [cell for cell in cells if cell.get("replay")]
    for cell in replays:
        cell["ratio"] = replay.ratio(cell, replays[0])
    code = max(cell["exit_code"] for cell in cells)
    return {"axes": list(grid.axes), "cells": cells, "exit_code": code}


def ratio(cell: Tree, first: Tree) -> dict[str, float]:
    """Capacity over that of the first cell, with a 95 % interval.

    Draw by draw, since a constant that both have errs alike in both; every pair of draws where their numbers
    differ. The noise of both is added as if the requests were others, which they are not: the interval is
    rather too wide.
    """
    q, of = (one["capacity"]["qps_per_node"]["estimate"] for one in (cell, first))
    value = math.log(q / of)
    if cell is first:
        return {"value": 1.0, "low": 1.0, "high": 1.0}
    ours, theirs = (np.array(one["forecast"].get("ln_ratios") or [0.0]) for one in (cell, first))
    moved = ours - theirs if len(ours) == len(theirs) else np.subtract.outer(ours, theirs).ravel()
    noise = math.hypot(*((one["forecast"]["noise_pct"] or 0.0) / 100 for one in (cell, first)))
    low, high = (
        side * math.hypot(max(0.0, side * drawn_quantile(moved.tolist(), share)), noise)
        for side, share in ((-1, 0.025), (1, 0.975))
    )
    return {"value": math.exp(value), "low": math.exp(value + low), "high": math.exp(value + high)}


def _answered(cell: Mapping[str, Any]) -> bool:
    capacity = cell.get("capacity")
    return capacity is not None and not capacity["open_above"] and not capacity["open_below"]


def _refused(why: str) -> Tree:
    return {"exit_code": summary.EXIT_USAGE, "reason": why, "valid": False, "passed": False}
