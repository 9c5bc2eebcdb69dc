"""The verb `predict`: check the words and flags, ask the engine model, print and write its answer."""

import argparse
from functools import partial

from analysis.results import prediction_text, replay_text
from analysis.results.json_border import to_tree
from analysis.results.runs import refuse_out
from analysis.results.types.prediction_verdict import GridCell, GridVerdict
from conf import ConfigError, Experiment
from conf.io import terminal
from conf.matrix import matrix
from loadgen.cli import config_check, output, prediction
from loadgen.predict import grid
from loadgen.run import export


def predict(arguments: argparse.Namespace) -> int:
    """Answer from the engine model alone: direct simulation on a virtual clock, of one point or a grid."""
    cells = matrix(arguments.words)
    cell = partial(prediction.checked, config=arguments.config, sensitivity=arguments.sensitivity)
    found = grid.experiments(cell, cells)
    texts = replay_text if grid.are_replays(found) else prediction_text
    refuse_out(arguments.out, *export.SUFFIXES)
    if arguments.requests and texts is prediction_text:
        raise ConfigError("--requests writes those of a replay; add requests=N, or leave it out")
    refuse_out(arguments.requests, *export.TABLES, flag="--requests")
    if arguments.dry_run:
        return max(output.plan(one, 0) for one in found if isinstance(one, Experiment))
    answered = prediction.answered(cells, found, arguments.sensitivity, terminal.note)
    if arguments.requests:
        export.write(arguments.requests, prediction.requests(cells, found), to_tree(answered))
    if arguments.out:
        rows = answered.cells if isinstance(answered, GridVerdict) else (GridCell(at={}, answer=answered),)
        export.write(arguments.out, texts.rows(rows), {"event": "result", **to_tree(answered)})
    if isinstance(answered, GridVerdict) and not arguments.json:
        kernels = config_check.all_kernels(one for one in found if isinstance(one, Experiment))
        terminal.tell("\n".join([texts.table(answered.axes, answered.cells), *kernels]))
        return answered.exit_code
    return output.result(answered, arguments.json)
