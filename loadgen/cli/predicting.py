"""The verb `predict`: check the words and flags, ask the engine model, print and write its answer."""

import argparse
from functools import partial

from analysis.results import prediction_text, replay_text
from analysis.results.runs import refuse_out
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
    tree = prediction.answered(cells, found, arguments.sensitivity, terminal.note)
    if arguments.requests:
        export.write(arguments.requests, prediction.requests(cells, found), tree)
    if arguments.out:
        cells_of = tree.get("cells", [{"at": {}, **tree}])
        export.write(arguments.out, texts.rows(cells_of), {"event": "result", **tree})
    if not cells.axes:
        return output.result(tree, arguments.json)
    kernels = config_check.all_kernels(one for one in found if isinstance(one, Experiment))
    table = "\n".join([texts.table(tree["axes"], tree["cells"]), *kernels])
    return output.result(tree, arguments.json, lambda _: table)
