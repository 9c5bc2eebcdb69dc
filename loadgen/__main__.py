"""Maximum QPS per node of an LLM service within its latency bounds, with an interval.

examples:
  python -m loadgen sweep                               one simulated MI325X node on this machine (7 min)
  python -m loadgen sweep --dry-run search=standard     what would be done, and for how long
  python -m loadgen sweep matrix.layout=[dp1_tp8_ep8,dp2_tp4_ep4] matrix.slo.tpot_p90_ms=[50,100]
  python -m loadgen probe rate_qps=2.5 duration_s=60    hold one rate; exit 3 if a bound is missed
  python -m loadgen probe rate_qps=2.5 --require        pass or fail, ends when it is shown; exit 0, 3 or 6
  python -m loadgen predict layout=dp2_tp4_ep4          what the engine model says, in seconds
  python -m loadgen predict --sensitivity               and which of its constants to measure first
  python -m loadgen predict matrix.layout=[dp1_tp8_ep8,dp2_tp4_ep4] matrix.workload.prefix_hit=[0,.5,.95]
  python -m loadgen predict matrix.engine=[simulated_aiter,simulated_triton]    AITER's kernels, and Triton's
  python -m loadgen predict cluster.nodes=3000 rate_qps=2.5     many nodes behind one balancer at one rate
  python -m loadgen predict concurrency=100 requests=100        a benchmark of so many requests, replayed
  python -m loadgen predict rate_qps=8 requests=100 workload.arrivals.kind=vllm_bench seed=0    the tool's own
  python -m loadgen probe profile_qps=[[0,1],[60,4]]    ramp from 1 to 4 QPS per node within a minute
  python -m loadgen probe workload=trace workload.trace=FILE     replay a trace at its own times
  python -m loadgen probe concurrency=32                a closed loop, to compare with tools that use one
  python -m loadgen compare b.layout=dp2_tp4_ep4        capacity of B over that of A, on the same requests
  python -m loadgen progressive                         the MI325X paper's benchmark, its tables beside ours
  python -m loadgen progressive model=llama31_405b_fp8 layout=dp1_tp8 progressive.requests_per_user=10
  python -m loadgen progressive engine=simulated_aiter progressive.runs=10   with noise between runs
  python -m loadgen progressive engine=external target.urls=[http://127.0.0.1:8000] model=qwen3_235b_a22b_fp8
  python -m loadgen recipe run=node7                    probes for python -m analysis calibrate runs/node7
  python -m loadgen resume runs/20261121-091200-a1b2    go on with a sweep that was cut short
  python -m loadgen verify runs/20261121-091200-a1b2    its certified rate once more, through an emulated vLLM
  python -m loadgen sweep engine=external target.urls=[http://127.0.0.1:8000] search=standard
"""

# The composition root: the only file of this room that may join the others.

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from analysis.results import prediction_text, replay_text, summary
from analysis.results.integrity import AlteredError
from analysis.results.json_border import to_tree
from analysis.results.locations import NewerError
from analysis.results.published_ladder import LadderAnswer
from analysis.results.read_verdict import Verdict
from analysis.results.runs import RunError, refuse_out
from analysis.results.studies import PartVerdict
from analysis.results.types.prediction_verdict import GridCell, GridVerdict
from conf import ConfigError, Experiment
from conf.io import terminal
from conf.io.one_line import reason
from conf.matrix import Matrix, matrix
from conf.specs.experiment import SimulatedEngine
from loadgen.cli import config_check, dry_run, engine_model, machine_check
from loadgen.cli.command_line import asked, parser, refuse_idle_flags, resumed, verified
from loadgen.drive import fixed_rate, require
from loadgen.predict import grid
from loadgen.run import export, progress
from loadgen.run.folder import finite
from loadgen.run.progress import Emit
from loadgen.search import budget
from loadgen.studies import comparison_words, matrix_cells, published_tables
from loadgen.studies import published_ladder as ladder
from serve_apps.vllm_emulated.platform_plugin import installed_vllm

if TYPE_CHECKING:
    from loadgen.run.measure import Site


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    arguments = parser(list(VERBS), __doc__).parse_intermixed_args(argv)
    _end_on_signals()
    try:
        refuse_idle_flags(arguments)
        return VERBS[arguments.verb](arguments)
    except (ConfigError, RunError) as error:
        terminal.error(error)
        damaged = isinstance(error, AlteredError | NewerError)
        return summary.EXIT_INTERNAL if damaged else summary.EXIT_USAGE
    except KeyboardInterrupt:
        return summary.EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone; the run folder, if any, is complete.
        terminal.give_up_stdout()
        return summary.EXIT_INTERNAL
    except OSError as error:
        terminal.error(reason(error))
        return summary.EXIT_INTERNAL


def _end_on_signals() -> None:
    """Let SIGINT and SIGTERM both end a run like Ctrl-C; a background job starts with SIGINT ignored."""
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.default_int_handler)


def sweep(arguments: argparse.Namespace) -> int:
    """Measure the capacity of a deployed or external service, or of every cell of a grid of them."""
    if (words := matrix(arguments.words)).axes:
        return _sweep_cells(arguments, words)
    experiment = config_check.experiment(arguments.verb, arguments.words, arguments.config)
    machine_check.refuse(experiment)
    if arguments.dry_run:
        return _plan(experiment, budget.swept_s(experiment))
    from loadgen.cli import verbs

    _tell_kernels(experiment)
    return _answer(arguments, lambda site, show: verbs.sweep(experiment, site, show))


def _sweep_cells(arguments: argparse.Namespace, words: Matrix) -> int:
    cells = matrix_cells.of(words, partial(config_check.experiment, arguments.verb, config=arguments.config))
    machine_check.refuse(cells.first)
    if arguments.dry_run:
        terminal.tell(
            "\n".join(f"# {line}" for line in [*matrix_cells.lines(cells), "the first one is below"])
        )
        return _plan(cells.first, cells.load_s, cells.deployments, runs=len(cells.asked))
    from loadgen.cli import verbs

    _tell_kernels(*cells.asked.values())
    return _answer(arguments, lambda site, show: verbs.matrix(cells, site, show))


def probe(arguments: argparse.Namespace) -> int:
    """Offer one load without a search, and judge it."""
    experiment = config_check.experiment(arguments.verb, arguments.words, arguments.config)
    if arguments.require:
        require.refuse(experiment)
    machine_check.refuse(experiment)
    if arguments.dry_run:
        return _plan(experiment, (require if arguments.require else fixed_rate).seconds(experiment))
    from loadgen.cli import verbs

    _tell_kernels(experiment)
    return _answer(arguments, lambda site, show: verbs.probe(experiment, site, show, arguments.require))


def predict(arguments: argparse.Namespace) -> int:
    """Answer from the engine model alone: direct simulation on a virtual clock, of one point or a grid."""
    cells = matrix(arguments.words)
    cell = partial(engine_model.foreseeable, config=arguments.config, sensitivity=arguments.sensitivity)
    found = grid.experiments(cell, cells)
    told = replay_text if grid.are_replays(found) else prediction_text
    refuse_out(arguments.out, *export.SUFFIXES)
    if arguments.requests and told is prediction_text:
        raise ConfigError("--requests writes those of a replay; add requests=N, or leave it out")
    refuse_out(arguments.requests, *export.TABLES, flag="--requests")
    if arguments.dry_run:
        return max(_plan(one, 0) for one in found if isinstance(one, Experiment))
    answered = engine_model.answered(cells, found, arguments.sensitivity, terminal.note)
    if arguments.requests:
        export.write(arguments.requests, engine_model.requests(cells, found), to_tree(answered))
    if arguments.out:
        of_one = () if isinstance(answered, GridVerdict) else (GridCell(at={}, answer=answered),)
        rows = told.rows(answered.cells if isinstance(answered, GridVerdict) else of_one)
        export.write(arguments.out, rows, {"event": "result", **to_tree(answered)})
    if isinstance(answered, GridVerdict) and not arguments.json:
        kernels = config_check.all_kernels(one for one in found if isinstance(one, Experiment))
        terminal.tell("\n".join([told.table(answered.axes, answered.cells), *kernels]))
        return answered.exit_code
    return _print(answered, arguments.json)


def compare(arguments: argparse.Namespace) -> int:
    """Measure two services on the same requests."""
    a, b = comparison_words.compared(
        arguments.words, arguments.config, partial(config_check.experiment, arguments.verb)
    )
    machine_check.refuse(a)
    if arguments.dry_run:
        terminal.tell(comparison_words.text(a, b))
        return _plan(a, budget.compared_s(a), services=2)
    from loadgen.cli import verbs

    _tell_kernels(a, b)
    return _answer(arguments, lambda site, show: verbs.compare(a, b, site, show))


def record(arguments: argparse.Namespace) -> int:
    """Record the probes from which the engine model's constants are fitted."""
    from loadgen.cli import verbs
    from loadgen.studies import calibration_probes

    calibration_probes.refuse(arguments.words)
    experiment = asked(arguments.verb, arguments.words, arguments.config)
    study = calibration_probes.of(experiment, engine_model.guess_qps(calibration_probes.checked(experiment)))
    parts = [study.part(name, {}) for name in study.names]
    for part in parts:
        config_check.refuse_misfit(part)
    machine_check.refuse(experiment)
    if arguments.dry_run:
        terminal.tell(
            "\n".join(
                [*map(calibration_probes.line, parts), calibration_probes.total(parts, engine_model.closed_s)]
            )
        )
        return summary.EXIT_OK
    guess_qps = study.asked.rate_qps
    return _answer(arguments, lambda site, show: verbs.record(experiment, guess_qps, site, show))


def progressive(arguments: argparse.Namespace) -> int:
    """Run the MI325X paper's benchmark: by the engine model alone, or over HTTP."""
    first, *others = published_tables.asked(arguments.words, arguments.config)
    found = [_climbed(first, arguments)]
    if others and not ladder.is_virtual(found[0]):
        raise ConfigError(
            "progressive over HTTP deploys one model: choose one, such as model=llama31_405b_fp8"
        )
    found += [_climbed(words, arguments) for words in others]
    refuse_out(arguments.out, *export.SUFFIXES)
    if not ladder.is_virtual(found[0]):
        machine_check.refuse(found[0])
    if arguments.dry_run:
        for one in found:
            terminal.tell("\n".join(ladder.plan(one, engine_model.level_seconds(one))))
        return summary.EXIT_OK
    if ladder.is_virtual(found[0]):
        verdicts = [engine_model.progressive(one, terminal.note) for one in found]
        return _print_levels(verdicts, arguments)
    from loadgen.cli import verbs

    def climbed(site: "Site", show: Emit) -> PartVerdict:
        verdict = verbs.progressive(found[0], site, show)
        if verdict.progressive:  # it was played to its end
            ladder.write(arguments.out, [verdict])
        return verdict

    return _answer(arguments, climbed)


def _climbed(words: Sequence[str], arguments: argparse.Namespace) -> Experiment:
    """One model's experiment, with the workload of its levels, of which even the longest fits."""
    experiment = ladder.ready(config_check.experiment(arguments.verb, words, arguments.config))
    ladder.is_virtual(experiment)
    config_check.refuse_misfit(ladder.longest(experiment))
    return experiment


def _print_levels(verdicts: Sequence[LadderAnswer], arguments: argparse.Namespace) -> int:
    """Show the tables of several models and return the highest exit code."""
    whole = ladder.whole(verdicts)
    ladder.write(arguments.out, verdicts)
    if arguments.json:
        terminal.data(json.dumps(finite(whole), default=str))
    else:
        terminal.tell("\n\n".join(map(summary.text, verdicts)))
    return int(whole["exit_code"])


def resume(arguments: argparse.Namespace) -> int:
    """Recover what a killed run or study left, and go on with it."""
    path = resumed(arguments)
    from loadgen.cli import verbs

    asked = partial(config_check.experiment, verbs.verb(path), [])
    if arguments.dry_run:
        terminal.tell(verbs.left(path, asked))
        return summary.EXIT_OK
    return _answer(arguments, lambda site, show: verbs.resume(path, asked, site, show))


def verify(arguments: argparse.Namespace) -> int:
    """Replay a sweep's certified rate through vLLM itself, emulated; exit 3 if the two engines disagree."""
    path, words = verified(arguments)
    from loadgen.studies import engine_check as replaying

    replay = replaying.Replay.asked(path, words, installed_vllm())
    config_check.refuse_misfit(replay.emulated)
    machine_check.refuse(replay.emulated)
    if arguments.dry_run:
        return _plan(replay.emulated, fixed_rate.seconds(replay.emulated))
    return _answer(arguments, lambda site, show: replaying.run(replay, site, show, engine_model.simulate))


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "sweep": sweep,
    "probe": probe,
    "predict": predict,
    "compare": compare,
    "progressive": progressive,
    "recipe": record,
    "resume": resume,
    "verify": verify,
}


def _plan(
    experiment: Experiment, load_s: float | None, services: int | None = None, runs: int | None = None
) -> int:
    """Say what would be done."""
    terminal.tell(
        dry_run.text(
            experiment,
            load_s,
            engine_model.guess_qps(experiment),
            services,
            runs,
            config_check.kernels(experiment),
        )
    )
    return summary.EXIT_OK


def _tell_kernels(*measured: Experiment) -> None:
    """Say beside a measurement of vLLM what the engine model does not know; simulated ones say it later."""
    real = (one for one in measured if not isinstance(one.engine, SimulatedEngine))
    for line in config_check.all_kernels(real):
        terminal.note(line)


def _answer(arguments: argparse.Namespace, act: "Callable[[Site, Emit], PartVerdict]") -> int:
    """Measure, report and print. Ray comes with this import: it costs seconds that `predict` must not pay."""
    from loadgen.cli.deployment import service
    from loadgen.run import report_file
    from loadgen.run.measure import Site

    with terminal.own_stdout() as out, progress.choose(arguments.json, out) as show:
        verdict = report_file.written(act(Site(engine_model.start, service), show), show)
    return _print(verdict, arguments.json)


def _print(verdict: Verdict | GridVerdict, as_json: bool) -> int:
    """Show a result and return its exit code."""
    if as_json or isinstance(verdict, GridVerdict):
        terminal.data(json.dumps(finite({"event": "result", **to_tree(verdict)}), default=str))
    else:
        terminal.tell(summary.text(verdict))
    assert verdict.exit_code is not None
    return verdict.exit_code


if __name__ == "__main__":
    sys.exit(main())
