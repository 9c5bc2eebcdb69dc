"""Reads run folders from the command line.

examples:
  python -m analysis show runs/20261121-091200-a1b2
  python -m analysis show runs/20261121-091200-a1b2 --recompute
  python -m analysis calibrate runs/recipe --out node7.yaml
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from analysis import calibration, recount, studies, summary
from analysis.observed import Load, Served, observe
from analysis.runs import RunError, load_run, refuse_out
from conf import ConfigError, Experiment, load
from conf.schema import SimulatedEngine

MACHINE = ("engine", "model", "hardware", "layout")
"""Groups whose words may say what a run did not know of the service it measured."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    arguments = parser().parse_args(argv)
    try:
        if arguments.verb == "calibrate":
            return calibrate(arguments.words, arguments.out)
        if arguments.recompute:
            return recompute(arguments.run)
        print(show(arguments.run))
    except (RunError, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return summary.EXIT_USAGE
    except BrokenPipeError:
        # Whoever read our output is gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return summary.EXIT_INTERNAL
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return summary.EXIT_INTERNAL
    return summary.EXIT_OK


def parser() -> argparse.ArgumentParser:
    """The grammar of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m analysis", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = top.add_subparsers(dest="verb", required=True)
    show_verb = verbs.add_parser("show", help="print what a run concluded, or how far a killed one came")
    show_verb.add_argument("run", type=Path, help="run folder")
    show_verb.add_argument(
        "--recompute",
        action="store_true",
        help="compute counts and capacity again from Parquet; exit 1 if other",
    )
    fit = verbs.add_parser("calibrate", help="fit the engine model's constants to probes of one machine")
    fit.add_argument(
        "words",
        nargs="+",
        metavar="RUN|key=value",
        help="folders of probes or of a recipe; words say what the runs do not, as the engine's "
        "max_num_batched_tokens, and with model=NAME hardware=NAME begin with the published constants",
    )
    fit.add_argument("--out", type=Path, metavar="FILE", help="write them for engine.constants=FILE")
    return top


def calibrate(words: Sequence[str], out: Path | None) -> int:
    """Fit, print, and write what `engine.constants` reads."""
    given = [word for word in words if "=" in word]
    paths = [path for word in words if "=" not in word for path in studies.parts(Path(word))]
    if not paths:
        raise RunError("calibrate needs the folder of a run; see --help")
    _refuse_words(given)
    refuse_out(out)
    resolved = [path.resolve() for path in paths]
    for path in paths:
        if resolved.count(path.resolve()) > 1:
            raise RunError(f"{path} is given twice; a run counts once")
    runs = [observe(path, partial(_simulated, given)) for path in paths]
    try:
        found = calibration.calibrate(runs, _serve)
        print(calibration.text(found, _serve))
    except ValueError as error:
        raise RunError(f"the engine model cannot serve these runs: {error}") from error
    if out is not None:
        out.write_text(yaml.safe_dump(found.tree(), sort_keys=False))
        print(f"  use them: python -m loadgen predict engine.constants={out}")
    return summary.EXIT_OK


def _refuse_words(given: Sequence[str]) -> None:
    """Raise RunError for a word that would overrule what a run recorded of its load."""
    for word in given:
        if word.partition("=")[0].partition(".")[0] not in MACHINE:
            raise RunError(
                f"'{word}' is not of the machine; calibrate takes {', '.join(MACHINE)} words, "
                "the runs say the rest"
            )


def _simulated(words: Sequence[str], config: Path) -> Experiment:
    """A run's experiment as the engine model serves it: without noise, for its figures are of many steps."""
    saved = yaml.safe_load(config.read_text())
    chosen = [] if saved["engine"]["kind"] == "simulated" else ["engine=simulated"]
    quiet = ["engine.step_noise_cv=0", "engine.drift_sd=0", "engine.stall_every_steps=0"]
    return load([*chosen, *quiet, *words], config)


def _serve(experiment: Experiment, asked: Load) -> Served:
    """The engine model; a closed loop over several replicas is one on each, of its share."""
    # numba takes a second to come, which `show` must not pay.
    from serve_apps.engine_model.fast import Machine, serve_closed, serve_open

    spec, replicas = experiment.engine, experiment.replicas
    assert isinstance(spec, SimulatedEngine)
    machine = Machine.of(spec, experiment.model, experiment.hardware, experiment.layout)
    tokens = [asked.input_tokens, asked.output_tokens, asked.shared_tokens]
    if not asked.concurrency:
        times = serve_open(machine, asked.due_s, tokens, experiment.seed, replicas)
        return Served(times.sent_s, times.first_token_s, times.last_token_s)
    found = np.zeros((3, len(asked.due_s)))
    for replica in range(min(replicas, asked.concurrency)):
        share = np.arange(replica, len(asked.due_s), replicas)
        held = len(range(replica, asked.concurrency, replicas))
        times = serve_closed(machine, held, [column[share] for column in tokens])
        found[:, share] = times.sent_s, times.first_token_s, times.last_token_s
    return Served(*found)


def recompute(path: Path) -> int:
    """What a run concluded beside what its Parquet files give; exit code 1 if they differ."""
    if studies.is_study(path):
        raise RunError(f"{path} is a study: recompute one of its parts, {path}/NAME")
    run = load_run(path)
    lines, identical = recount.text(run)
    print(f"{'IDENTICAL' if identical else 'DIFFERENT'}  {path} recomputed from its Parquet files\n{lines}")
    return summary.EXIT_OK if identical else summary.EXIT_INTERNAL


def show(path: Path) -> str:
    """The summary of a run; of one that did not end, what can be read."""
    if studies.is_study(path):
        return summary.text(studies.load_study(path))
    run = load_run(path)
    if run.sweep is not None:
        return summary.text(run.sweep, studies.whole(path))
    states = Counter(run.requests()["status"].to_pylist())
    counted = ", ".join(f"{count} {status}" for status, count in sorted(states.items())) or "none"
    lines = [
        f"UNFINISHED  {path} has no sweep.json",
        f"  requests: {counted}",
        f"  events: {len(run.events())}",
    ]
    if run.manifest.get("verb") == "sweep":
        lines.append(f"  to go on: python -m loadgen resume {studies.whole(path)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
