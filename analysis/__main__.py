"""Reads run folders from the command line, and plans with what they say.

examples:
  python -m analysis show runs/20261121-091200-a1b2                the verdict and what it rests on
  python -m analysis show runs/20261121-091200-a1b2 --recompute    the same again from its Parquet files
  python -m analysis report runs/20261121-091200-a1b2              one HTML file with figures and provenance
  python -m analysis compare runs/tp8 runs/tp4                     capacities side by side, and their ratio
  python -m analysis plan runs/tp8 demand.peak_qps=200 plan.spare_nodes=1 plan.node_hour_usd=16
  python -m analysis plan layout=dp2_tp4_ep4 demand.peak_qps=200   the same of a prediction, without a run
  python -m analysis export runs/tp8 --format csv --out tp8.csv    or jsonl, inferencex, vllm-bench
  python -m analysis show profile_export.jsonl slo.ttft_p90_ms=2000    another tool's result, judged as ours
  python -m analysis calibrate runs/recipe --out node7.yaml        constants of the engine model from probes
"""

# A composition root: `calibrate` and `plan` ask the engine model.

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import yaml

from analysis import exchange
from analysis.calibration import fit
from analysis.calibration.observed import RecordedLoad, Served, observe
from analysis.exchange import side_by_side
from analysis.results import integrity, locations, recount, studies, summary
from analysis.results.runs import RunError, load_run, refuse_out
from conf import ConfigError, Experiment, load
from conf.io import terminal
from conf.io.one_line import OneLineParser, reason
from conf.specs.experiment import SimulatedEngine

WRONG_KIND = (
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
    AssertionError,
)
"""What reading raises where a tree or a table holds something else than a run writes."""
MACHINE = ("engine", "model", "hardware", "layout")
"""Groups whose words may say what a run did not know of the service it measured."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = parser().parse_args(words[:1]).verb
    arguments = grammar(verb).parse_intermixed_args(words[1:])
    try:
        return _done(verb, arguments)
    except (RunError, ConfigError) as error:
        terminal.error(error)
        damaged = isinstance(error, locations.NewerError | integrity.AlteredError)
        return summary.EXIT_INTERNAL if damaged else summary.EXIT_USAGE
    except KeyboardInterrupt:
        return summary.EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone.
        terminal.give_up_stdout()
        return summary.EXIT_INTERNAL
    except OSError as error:
        terminal.error(reason(error))
        return summary.EXIT_INTERNAL
    except pa.ArrowException as error:
        terminal.error(f"a table holds what no run wrote: {reason(error)}")
        return summary.EXIT_USAGE


def _done(verb: str, arguments: argparse.Namespace) -> int:
    """Do what a verb does, under a banner where what it reads was altered; then the exit code is 1.

    Raises what the verb raises, and AlteredError for a folder that holds what no run wrote.
    """
    places = [place for place in _places(arguments) if place.is_dir()]
    altered = [line for place in places for line in integrity.altered(place)]
    data_only = verb == "export" or getattr(arguments, "json", False)
    for line in altered:
        terminal.tell(f"ALTERED  {line}", sys.stderr if data_only else sys.stdout)
    try:
        code = VERBS[verb](arguments)
    except (RunError, ConfigError, pa.ArrowException) as error:
        if not altered:
            raise
        raise integrity.AlteredError(str(error)) from error
    except (*WRONG_KIND, RecursionError) as error:
        if not altered and all(map(integrity.is_sealed, places)):
            raise  # the files are as they were written: the mistake is ours
        named = ", ".join(map(str, places))
        what = f"{type(error).__name__}: {reason(error)}"
        raise integrity.AlteredError(f"{named} holds what no run wrote ({what})") from error
    return summary.EXIT_INTERNAL if altered else code


def _places(arguments: argparse.Namespace) -> list[Path]:
    """The folders of runs and studies that the words name."""
    given = [getattr(arguments, "run", None), *getattr(arguments, "runs", ())]
    if not any(given):
        given = [word for word in arguments.words if "=" not in word]
    return [locations.local(place) for place in given if place]


def parser() -> argparse.ArgumentParser:
    """The grammar of the command line up to the verb."""
    top = OneLineParser(
        prog="python -m analysis",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="every verb has its own --help\n\n"
        "exit codes: 0 done; 1 internal error, recomputed otherwise, or a run was altered after it ended;\n"
        "2 wrong usage; of plan: 4 the run is void, 6 only a lower bound is known",
    )
    top.add_argument("verb", choices=VERBS, help="what to do")
    return top


def grammar(verb: str) -> argparse.ArgumentParser:
    """The grammar of what follows a verb."""
    rest = OneLineParser(prog=f"python -m analysis {verb}", description=VERBS[verb].__doc__)
    _ARGUMENTS[verb](rest)
    return rest


def _place(word: str) -> Path:
    """A path, or where the copy lies of what a URI names."""
    try:
        return locations.local(word)
    except RunError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _show_arguments(rest: argparse.ArgumentParser) -> None:
    rest.add_argument(
        "run", type=_place, help="run folder, study, or result of vllm bench serve, GuideLLM, AIPerf"
    )
    rest.add_argument(
        "words",
        nargs="*",
        default=[],
        metavar="slo.key=value",
        help="bounds to judge another tool's result by",
    )
    rest.add_argument(
        "--recompute",
        action="store_true",
        help="compute counts and capacity again from Parquet; exit 1 if other",
    )


def _report_arguments(rest: argparse.ArgumentParser) -> None:
    rest.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders or studies")
    rest.add_argument(
        "--out", type=Path, metavar="FILE", help="default: report.html in the folder of a single run"
    )


def _compare_arguments(rest: argparse.ArgumentParser) -> None:
    rest.add_argument(
        "runs", nargs="+", type=_place, metavar="RUN", help="two or more runs, studies, or results"
    )


def _export_arguments(rest: argparse.ArgumentParser) -> None:
    rest.add_argument("run", type=_place, help="run folder; of a study, inferencex takes all parts")
    rest.add_argument("--format", required=True, choices=exchange.FORMATS)
    rest.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")


PLAN_WORDS = """words (docs/planning.md):
  demand.peak_qps=QPS            the rate of the whole service; or demand.mean_qps=QPS demand.peak_factor=F,
                                 or demand.hourly=FILE of 24 mean rates from midnight
  demand.input_tokens=N          lengths to come, also output_tokens and prefix_hit, where runs vary them
  plan.basis=low                 the end of the interval that is planned with; or certified, estimate
  plan.headroom=0.15             share of the capacity left free at the peak
  plan.spare_nodes=1             nodes that may be lost at the peak
  plan.node_hour_usd=USD         price of a node; without it there is no cost
  plan.node_availability=0.995   with plan.target_availability=0.9999: nodes so that enough are up
  plan.scale_up_minutes=M        how long a node takes until it serves

exit codes: 0 done; 2 wrong usage; 3, 4 or 5 that of a run that allows no plan (4: it is void); 6 only a lower
bound of the capacity is known"""


def _plan_arguments(rest: argparse.ArgumentParser) -> None:
    rest.formatter_class, rest.epilog = argparse.RawDescriptionHelpFormatter, PLAN_WORDS
    rest.add_argument(
        "words",
        nargs="+",
        metavar="RUN|key=value",
        help="runs to plan with (several node counts measure the scaling), demand.* and plan.* words; "
        "without a run, words of loadgen predict",
    )
    rest.add_argument("--json", action="store_true", help="the plan as one line of JSON")
    rest.add_argument("--out", type=Path, metavar="FILE.json", help="write the plan as JSON")


def _calibrate_arguments(rest: argparse.ArgumentParser) -> None:
    rest.add_argument(
        "words",
        nargs="+",
        metavar="RUN|key=value",
        help="folders of probes or of a recipe; words say what the runs do not, as the engine's "
        "max_num_batched_tokens, and with model=NAME hardware=NAME begin with the published constants",
    )
    rest.add_argument("--out", type=Path, metavar="FILE.yaml", help="write them for engine.constants=FILE")


def show(arguments: argparse.Namespace) -> int:
    """Print what a run concluded, or how far a killed one came."""
    path = arguments.run
    if arguments.recompute and exchange.is_foreign(path):
        raise RunError(f"{path} is another tool's result: it has no conclusion to recompute")
    if arguments.words or exchange.is_foreign(path):
        terminal.tell(exchange.show(path, arguments.words))
    elif arguments.recompute:
        return _recompute(path)
    else:
        terminal.tell(concluded(path))
    return summary.EXIT_OK


def _recompute(path: Path) -> int:
    """What a run concluded beside what its Parquet files give; exit code 1 if they differ."""
    if studies.is_study(path):
        raise RunError(f"{path} is a study: recompute one of its parts, {path}/NAME")
    run = load_run(path)
    lines, agrees = recount.text(run)
    terminal.tell(f"{'SAME' if agrees else 'DIFFERENT'}  {path} recomputed from its Parquet files\n{lines}")
    return summary.EXIT_OK if agrees else summary.EXIT_INTERNAL


def concluded(path: Path) -> str:
    """The summary of a run or a study; of a run that did not end, what can be read."""
    if studies.is_study(path):
        return summary.text(studies.load_study(path))
    run = load_run(path)
    return summary.text(run.sweep, studies.whole(path)) if run.sweep else summary.unfinished(run)


def report(arguments: argparse.Namespace) -> int:
    """Write one self-contained HTML file about runs: verdict, figures, provenance."""
    from analysis import report as pages

    if arguments.out and arguments.out.suffix not in (".html", ".htm"):
        raise RunError(f"--out {arguments.out}: a report is one HTML file; give it a name in .html")
    terminal.tell(pages.command(arguments.runs, arguments.out))
    return summary.EXIT_OK


def compare(arguments: argparse.Namespace) -> int:
    """Lay runs side by side: what differs, their capacities and the ratio."""
    terminal.tell(side_by_side.text(arguments.runs))
    return summary.EXIT_OK


def export(arguments: argparse.Namespace) -> int:
    """Write a run in another tool's format, or its requests as CSV or JSON lines."""
    refuse_out(arguments.out, *exchange.FORMATS[arguments.format])
    exchange.export(arguments.run, arguments.format, arguments.out)
    return summary.EXIT_OK


def plan(arguments: argparse.Namespace) -> int:
    """Say how many nodes a demand needs, which rule asks for them, and what they cost."""
    from analysis import planning

    refuse_out(arguments.out, ".json")
    asked = [word for word in arguments.words if planning.is_planning(word)]
    runs = [word for word in arguments.words if "=" not in word]
    machine = [word for word in arguments.words if "=" in word and not planning.is_planning(word)]
    if runs and machine:
        raise ConfigError(
            f"'{machine[0]}' is no word demand.* or plan.*, the only ones of a plan on a run; leave it out, "
            f"or leave {runs[0]} out to plan on a prediction"
        )
    tree = planning.command(runs, asked, partial(_predicted, machine))
    line = json.dumps(tree, default=str)
    if arguments.out:
        arguments.out.write_text(line + "\n")
    if arguments.json:
        terminal.data(line)
    else:
        terminal.tell(planning.text(tree))
    return int(tree["exit_code"])


def _predicted(words: Sequence[str]) -> summary.Tree:
    """What the engine model says of the words, as `python -m loadgen predict` does."""
    from conf.matrix import matrix
    from loadgen.cli import prediction
    from loadgen.predict import grid

    cells = matrix(words)
    return prediction.answered(cells, grid.experiments(partial(prediction.checked, config=None), cells))


def calibrate(arguments: argparse.Namespace) -> int:
    """Fit the engine model's constants to probes of one machine."""
    words, out = arguments.words, arguments.out
    given = [word for word in words if "=" in word]
    paths = [path for word in words if "=" not in word for path in studies.parts(Path(word))]
    if not paths:
        raise RunError("calibrate needs the folder of a run; see --help")
    _refuse_words(given)
    refuse_out(out, ".yaml", ".yml")
    resolved = [path.resolve() for path in paths]
    for path in paths:
        if resolved.count(path.resolve()) > 1:
            raise RunError(f"{path} is given twice; a run counts once")
    runs = [observe(path, partial(_simulated, given)) for path in paths]
    try:
        found = fit.calibrate(runs, _serve)
        terminal.tell(fit.text(found, _serve))
    except ValueError as error:
        raise RunError(f"the engine model cannot serve these runs: {error}") from error
    if out is not None:
        out.write_text(yaml.safe_dump(found.tree(), sort_keys=False))
        terminal.tell(f"  use them: python -m loadgen predict engine.constants={out}")
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
    chosen = [] if load(base=config).engine.kind == "simulated" else ["engine=simulated"]
    given = {word.partition("=")[0] for word in words}
    quiet = [*chosen, "engine.step_noise_cv=0", "engine.drift_sd=0", "engine.stall_every_steps=0"]
    return load([*(word for word in quiet if word.partition("=")[0] not in given), *words], config)


def _serve(experiment: Experiment, asked: RecordedLoad) -> Served:
    """The engine model; a closed loop over several replicas is one on each, of its share."""
    # numba takes a second to come, which `show` must not pay.
    from serve_apps.engine_model.compiled.fast_engine import FastSpec, serve_closed
    from serve_apps.engine_model.service.routed import serve_open

    spec, replicas = experiment.engine, experiment.replicas
    assert isinstance(spec, SimulatedEngine)
    machine = FastSpec.of(spec, experiment.model, experiment.hardware, experiment.layout)
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


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "show": show,
    "report": report,
    "compare": compare,
    "plan": plan,
    "export": export,
    "calibrate": calibrate,
}
_ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "show": _show_arguments,
    "report": _report_arguments,
    "compare": _compare_arguments,
    "plan": _plan_arguments,
    "export": _export_arguments,
    "calibrate": _calibrate_arguments,
}


if __name__ == "__main__":
    sys.exit(main())
