"""The verb `progressive`: the MI325X paper's benchmark, by the engine model alone or over HTTP."""

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.results import summary
from analysis.results.runs import refuse_out
from analysis.results.types.prediction_verdict import PredictionVerdict
from analysis.results.types.study_verdict import StudyVerdict
from conf import ConfigError, Experiment
from conf.io import terminal
from loadgen.cli import config_check, machine_check, output, virtual_ladder
from loadgen.run import export
from loadgen.run.folder import finite
from loadgen.run.progress import Emit
from loadgen.studies import published_ladder as ladder
from loadgen.studies import published_tables, published_verdict

if TYPE_CHECKING:
    from loadgen.run.measure import Site


def progressive(arguments: argparse.Namespace) -> int:
    """Run the MI325X paper's benchmark: by the engine model alone, or over HTTP."""
    first, *others = published_tables.asked(arguments.words, arguments.config)
    found = [_checked(first, arguments)]
    virtual = ladder.is_virtual(found[0])
    if others and not virtual:
        raise ConfigError(
            "progressive over HTTP deploys one model: choose one, such as model=llama31_405b_fp8"
        )
    found += [_checked(words, arguments) for words in others]
    refuse_out(arguments.out, *export.SUFFIXES)
    if not virtual:
        machine_check.refuse(found[0])
    if arguments.dry_run:
        for one in found:
            terminal.tell("\n".join(published_verdict.plan(one, virtual_ladder.level_seconds(one))))
        return summary.EXIT_OK
    if virtual:
        return _print_models([virtual_ladder.progressive(one, terminal.note) for one in found], arguments)
    from loadgen.cli import verbs

    def measured(site: "Site", show: Emit) -> StudyVerdict:
        verdict = verbs.progressive(found[0], site, show)
        if verdict.progressive:  # every level was played
            published_verdict.write(arguments.out, [verdict])
        return verdict

    return output.answer(arguments, (), measured)


def _print_models(verdicts: Sequence[PredictionVerdict], arguments: argparse.Namespace) -> int:
    """Write and print the tables of several models; return the highest exit code."""
    published_verdict.write(arguments.out, verdicts)
    whole = published_verdict.whole(verdicts)
    if arguments.json:
        terminal.data(json.dumps(finite(whole), default=str))
    else:
        terminal.tell("\n\n".join(map(summary.text, verdicts)))
    return int(whole["exit_code"])


def _checked(words: Sequence[str], arguments: argparse.Namespace) -> Experiment:
    """One model's experiment with the workload of its levels, of which even the longest fits."""
    experiment = ladder.ready(config_check.experiment(arguments.verb, words, arguments.config))
    ladder.is_virtual(experiment)
    config_check.refuse_misfit(ladder.longest(experiment))
    return experiment
