"""Maximum QPS per node of an LLM service within its latency bounds, with an interval.

examples:
  python -m loadgen sweep                               one simulated MI325X node on this machine (5 min)
  python -m loadgen sweep --dry-run search=standard     what would be done, and for how long
  python -m loadgen sweep matrix.layout=[dp1_tp8_ep8,dp2_tp4_ep4] matrix.slo.tpot_p90_ms=[50,100]
  python -m loadgen probe rate_qps=4 duration_s=60      hold one rate; exit 3 if a bound is missed
  python -m loadgen probe rate_qps=4 --require          pass or fail, ends when it is shown; exit 0, 3 or 6
  python -m loadgen predict layout=dp2_tp4_ep4          what the engine model says, in seconds
  python -m loadgen predict --sensitivity               and which of its constants to measure first
  python -m loadgen predict matrix.layout=[dp1_tp8_ep8,dp2_tp4_ep4] matrix.workload.prefix_hit=[0,.5,.95]
  python -m loadgen predict cluster.nodes=3000 rate_qps=10      many nodes behind one balancer at one rate
  python -m loadgen probe profile_qps=[[0,2],[60,6]]    ramp from 2 to 6 QPS per node within a minute
  python -m loadgen probe workload=trace workload.trace=FILE     replay a trace at its own times
  python -m loadgen probe concurrency=32                a closed loop, to compare with tools that use one
  python -m loadgen compare b.layout=dp2_tp4_ep4        capacity of B over that of A, on the same requests
  python -m loadgen recipe run=node7                    probes for python -m analysis calibrate runs/node7
  python -m loadgen resume runs/20261121-091200-a1b2    go on with a sweep that was cut short
  python -m loadgen verify runs/20261121-091200-a1b2    its certified rate once more, through an emulated vLLM
  python -m loadgen sweep engine=external target.urls=[http://127.0.0.1:8000] search=standard
"""

# The composition root: the only file of this room that may join the others.

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from analysis import forecasts, summary
from analysis.runs import RunError, refuse_out
from analysis.summary import Tree
from conf import ConfigError, Experiment
from conf.matrix import Matrix, matrix
from conf.schema import EmulatedEngine, Hardware, Layout, Model, SimulatedEngine, VllmEngine
from loadgen import dry_run, grid, hold, matrix_cells, prediction, progress, require, sides
from loadgen.arrivals import NS, ArrivalSchedule, Traffic
from loadgen.command_line import asked, parser, refuse_idle_flags, resumed, verified
from loadgen.folder import finite
from loadgen.forecast import Simulated, quiet
from loadgen.progress import Emit
from loadgen.search import Start
from loadgen.uncertainty import DRAWS, Spread
from serve_apps.emulation import has_gpu, installed_vllm, refuse_gpu_node
from serve_apps.engine_model import Engine, fast, whole
from serve_apps.engine_model.guess import guess_qps
from serve_apps.engine_model.virtual import POLICIES
from serve_apps.prepared import prepared

if TYPE_CHECKING:
    from loadgen.measure import Site

HOUR_S = 3600.0
"""Virtual time of the prediction that only places a dwell."""
WARM_OUTPUT_TOKENS = 8
"""Output tokens of the requests that warm a replica: enough for decode steps of every kind (our choice)."""
CPU_GUESS_QPS = 60.0
"""Short requests to the tiny model on two cores: 55 per second were well within the default bounds, 200 were
not (measured, 2026-11-22). It only says where a ramp begins."""
PLACES = "it places the first dwell and centres a wide prior, sd 25 %"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    arguments = parser(list(VERBS), __doc__).parse_intermixed_args(argv)
    _end_on_signals()
    try:
        refuse_idle_flags(arguments)
        return VERBS[arguments.verb](arguments)
    except (ConfigError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return summary.EXIT_USAGE
    except KeyboardInterrupt:
        return summary.EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone; the run folder, if any, is complete.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return summary.EXIT_INTERNAL
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return summary.EXIT_INTERNAL


def _end_on_signals() -> None:
    """Let SIGINT and SIGTERM both end a run like Ctrl-C; a background job starts with SIGINT ignored."""
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.default_int_handler)


def sweep(arguments: argparse.Namespace) -> int:
    """Measure the capacity of a deployed or external service, or of every cell of a grid of them."""
    if (words := matrix(arguments.words)).axes:
        return _sweep_cells(arguments, words)
    experiment = _experiment(arguments.verb, arguments.words, arguments.config)
    if arguments.dry_run:
        return _plan(experiment, dry_run.swept_s(experiment.search))
    from loadgen import verbs

    return _answer(arguments, lambda site, show: verbs.sweep(experiment, site, show))


def _sweep_cells(arguments: argparse.Namespace, words: Matrix) -> int:
    cells = matrix_cells.of(words, partial(_experiment, arguments.verb, config=arguments.config))
    if arguments.dry_run:
        print("\n".join(f"# {line}" for line in [*matrix_cells.lines(cells), "the first one is below"]))
        return _plan(cells.first, cells.load_s, cells.deployments, runs=len(cells.asked))
    from loadgen import verbs

    return _answer(arguments, lambda site, show: verbs.matrix(cells, site, show))


def probe(arguments: argparse.Namespace) -> int:
    """Offer one load without a search, and judge it."""
    experiment = _experiment(arguments.verb, arguments.words, arguments.config)
    if arguments.require:
        require.refuse(experiment)
    if arguments.dry_run:
        return _plan(experiment, (require if arguments.require else hold).seconds(experiment))
    from loadgen import verbs

    return _answer(arguments, lambda site, show: verbs.probe(experiment, site, show, arguments.require))


def predict(arguments: argparse.Namespace) -> int:
    """Answer from the engine model alone: direct simulation on a virtual clock, of one point or a grid."""
    cells = matrix(arguments.words)
    found = grid.experiments(partial(_foreseeable, arguments), cells)
    refuse_out(arguments.out)
    if arguments.dry_run:
        return max(_plan(one, 0) for one in found if isinstance(one, Experiment))
    one = next(one for one in found if isinstance(one, Experiment))
    act = partial(_predict, sensitivity=arguments.sensitivity, say=_say)
    with _processes() as spread:
        tree = grid.predicted(cells, found, act, spread, _say) if cells.axes else act(one, spread=spread)
    if arguments.out:
        pq.write_table(forecasts.rows(tree.get("cells", [{"at": {}, **tree}])), arguments.out)
    if cells.axes and not arguments.json:
        print(forecasts.table(tree["axes"], tree["cells"]))
        return int(tree["exit_code"])
    return _print(tree, arguments.json)


def _foreseeable(arguments: argparse.Namespace, words: Sequence[str]) -> Experiment:
    """What a prediction, or a cell of a grid, asks for. Raises ConfigError for what it cannot answer."""
    experiment = _experiment(arguments.verb, words, arguments.config)
    rate_qps, highest_qps = experiment.rate_qps, experiment.search.highest_qps
    if rate_qps and arguments.sensitivity:
        raise ConfigError("--sensitivity is that of the capacity; leave rate_qps=... out")
    engine = experiment.engine
    assert isinstance(engine, SimulatedEngine)
    if engine.max_num_queued_reqs is not None or engine.max_num_queued_tokens is not None:
        raise ConfigError(
            "predict knows no refusals: leave engine.max_num_queued_reqs and engine.max_num_queued_tokens "
            "out, or measure with sweep or probe"
        )
    if experiment.workload.sessions:
        raise ConfigError(
            f"predict knows no sessions yet but workload.sessions={experiment.workload.sessions}; leave it "
            "and workload.session_hit out, or measure with sweep or probe"
        )
    if rate_qps and rate_qps > highest_qps:
        raise ConfigError(
            f"rate_qps={rate_qps:g} is above search.highest_qps={highest_qps:g}; raise that too"
        )
    return experiment


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _processes() -> Iterator[Spread]:
    """The map of one process per core; forked, so that each begins with what is imported and compiled."""
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        try:
            yield pool.map
        except BaseException:  # who interrupts a prediction does not wait for its workers
            for worker in active_children():
                worker.kill()
            raise


def compare(arguments: argparse.Namespace) -> int:
    """Measure two services on the same requests."""
    a, b = sides.compared(arguments.words, arguments.config, partial(_experiment, arguments.verb))
    if arguments.dry_run:
        print(sides.text(a, b))
        return _plan(a, dry_run.compared_s(a.search), services=2)
    from loadgen import verbs

    return _answer(arguments, lambda site, show: verbs.compare(a, b, site, show))


def record(arguments: argparse.Namespace) -> int:
    """Record the probes from which the engine model's constants are fitted."""
    from loadgen import recipe, verbs

    recipe.refuse(arguments.words)
    experiment = asked(arguments.verb, arguments.words, arguments.config)
    study = recipe.of(experiment, _guess_qps(recipe.checked(experiment)))
    parts = [study.part(name, {}) for name in study.names]
    for part in parts:
        _refuse_misfit(part)
    if arguments.dry_run:
        print("\n".join([*map(recipe.line, parts), recipe.total(parts, _closed_s)]))
        return summary.EXIT_OK
    guess_qps = study.asked.rate_qps
    return _answer(arguments, lambda site, show: verbs.record(experiment, guess_qps, site, show))


def resume(arguments: argparse.Namespace) -> int:
    """Recover what a killed run or study left, and go on with it."""
    path = resumed(arguments)
    from loadgen import verbs

    asked = partial(_experiment, verbs.verb(path), [])
    if arguments.dry_run:
        print(verbs.left(path, asked))
        return summary.EXIT_OK
    return _answer(arguments, lambda site, show: verbs.resume(path, asked, site, show))


def verify(arguments: argparse.Namespace) -> int:
    """Replay a sweep's certified rate through vLLM itself, emulated; exit 3 if the two engines disagree."""
    path, words = verified(arguments)
    from loadgen import verify as replaying

    replay = replaying.Replay.asked(path, words, installed_vllm())
    _refuse_misfit(replay.emulated)
    if arguments.dry_run:
        return _plan(replay.emulated, hold.seconds(replay.emulated))
    return _answer(arguments, lambda site, show: replaying.run(replay, site, show, _simulate))


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "sweep": sweep,
    "probe": probe,
    "predict": predict,
    "compare": compare,
    "recipe": record,
    "resume": resume,
    "verify": verify,
}


def _experiment(verb: str, words: Sequence[str], config: Path | None) -> Experiment:
    """What the command line asks for, if it can be done at all."""
    experiment = asked(verb, words, config)
    engine = experiment.engine
    if isinstance(engine, EmulatedEngine) and not engine.vllm_version:
        # It belongs to the label of every figure.
        experiment = replace(experiment, engine=replace(engine, vllm_version=installed_vllm()))
    _refuse_misfit(experiment)
    return experiment


def _refuse_misfit(experiment: Experiment) -> None:
    """Refuse what the engine would: weights that do not fit, unknown hardware figures, long prompts."""
    spec = experiment.engine
    if isinstance(spec, VllmEngine):
        _refuse_vllm(spec, experiment)
    if not isinstance(spec, SimulatedEngine):
        return
    try:
        engine = Engine(spec, experiment.model, experiment.hardware, experiment.layout)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    context = experiment.model.max_context_tokens
    if spec.max_model_len > context:
        raise ConfigError(f"engine.max_model_len={spec.max_model_len} exceeds the model's {context} tokens")
    room = min(spec.max_model_len, engine.kv_blocks * spec.block_size)
    tokens = Traffic(experiment.workload).longest_request_tokens
    if tokens > room:
        raise ConfigError(
            f"workload: requests of up to {tokens} tokens exceed the {room} that the engine holds "
            "(engine.max_model_len, engine.num_gpu_blocks); shorten them"
        )


def _refuse_vllm(spec: VllmEngine, experiment: Experiment) -> None:
    """Refuse what this vLLM, or the hardware under it, would refuse, and an emulated one beside a GPU."""
    tokens = Traffic(experiment.workload).longest_request_tokens
    try:
        if isinstance(spec, EmulatedEngine):
            refuse_gpu_node()
        elif spec.kind == "vllm" and experiment.cluster.session != "address" and not has_gpu():
            raise ValueError(
                f"engine=vllm needs GPUs, which cluster={experiment.cluster.name} only pretends to have; use "
                "cluster=mi325x_1n in a Ray cluster of GPU nodes, or engine=vllm_emulated here"
            )
        prepared(spec, experiment.model, experiment.layout, experiment.hardware, tokens)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _plan(
    experiment: Experiment, load_s: float | None, services: int | None = None, runs: int | None = None
) -> int:
    """Say what would be done."""
    print(dry_run.text(experiment, load_s, _guess_qps(experiment), services, runs))
    return summary.EXIT_OK


def _answer(arguments: argparse.Namespace, act: "Callable[[Site, Emit], Tree]") -> int:
    """Measure and print. Ray comes with this import: it costs seconds that `predict` must not pay."""
    from loadgen.measure import Site
    from loadgen.site import service

    with progress.choose(arguments.json) as show:
        tree = act(Site(_start, service), show)
    return _print(tree, arguments.json)


def _start(experiment: Experiment, verb: str, emit: Emit) -> tuple[Start, Tree | None]:
    """What is known before the first request: a guess, and the model's own answer where that may be used."""
    start = Start(roofline_qps=_guess_qps(experiment))
    simulated = isinstance(experiment.engine, SimulatedEngine)
    if verb != "sweep" or experiment.search.start != "prediction":
        return start, None
    if expected := experiment.search.expected_qps:
        emit("prediction", text=f"{expected:g} QPS per node is expected (search.expected_qps): {PLACES}")
        return Start(start.roofline_qps, expected), None
    if not simulated:
        return start, None
    if experiment.workload.sessions:
        emit("prediction", text="no prediction of sessions yet, the search begins with a ramp")
        return start, None
    try:
        tree = _predict(replace(experiment, search=replace(experiment.search, budget_s=HOUR_S)), draws=0)
    except ValueError as error:  # what the model does not predict can be measured all the same
        emit("prediction", text=f"no prediction, the search begins with a ramp: {error}")
        return start, None
    if tree["exit_code"] != summary.EXIT_OK:
        emit("prediction", text=f"no prediction, the search begins with a ramp: {tree['reason']}")
        return start, None
    figures = tree["capacity"]["qps_per_node"]
    how = f"a virtual hour of the same engine: {PLACES}"
    emit("prediction", text=f"the engine model predicts {figures['estimate']:.2f} QPS per node ({how})")
    return Start(start.roofline_qps, figures["estimate"]), {"qps_per_node": figures, "how": how}


def _predict(
    experiment: Experiment,
    spread: Spread = map,
    draws: int = DRAWS,
    sensitivity: bool = False,
    say: Callable[[str], None] = quiet,
) -> Tree:
    model = replace(MODEL, say=say)
    if experiment.rate_qps:
        tree = prediction.at_rate(experiment, model, spread, draws)
    else:
        tree = prediction.predict(experiment, model, spread, draws, sensitivity)
    if (policy := _balancer(experiment)) != (wanted := experiment.routing.policy) and not experiment.streams:
        tree["evidence"] = f"{policy} stands for {wanted}, which the virtual service does not have"
    return tree


def _simulate(experiment: Experiment, arrivals: ArrivalSchedule, nodes: int, seed: int) -> Simulated:
    """All requests through so many nodes of the engine model."""
    engines = nodes * experiment.layout.replicas_per_node
    asked = arrivals.input_tokens, arrivals.output_tokens, arrivals.shared_tokens
    sent_s, policy = arrivals.due_ns / NS, _balancer(experiment)
    seen = whole.serve(*_parts(experiment), sent_s, asked, seed, engines, policy)
    return Simulated(seen.first_token_s, seen.last_token_s, seen.cached_tokens, seen.work._asdict())


def _closed_s(experiment: Experiment) -> float | None:
    """Seconds of a closed loop by the engine model, each replica with its share; None of another engine."""
    if not isinstance(experiment.engine, SimulatedEngine):
        return None
    machine = fast.Machine.of(*_parts(experiment))
    replicas = min(experiment.layout.replicas_per_node, experiment.concurrency or 1)
    held, count = (-(-each // replicas) for each in (experiment.concurrency or 1, experiment.closed_requests))
    workload = experiment.workload
    prompt, output = workload.input_tokens.mean, workload.output_tokens.mean
    lengths = prompt, output, round(workload.prefix_hit * prompt)
    times = fast.serve_closed(machine, held, [np.full(count, each) for each in lengths])
    return float(times.last_token_s.max())


def _balancer(experiment: Experiment) -> str:
    """The virtual service has no power of two choices; fewest connections is its limit of full knowledge."""
    return experiment.routing.policy if experiment.routing.policy in POLICIES else "leastconn"


def _parts(experiment: Experiment) -> tuple[SimulatedEngine, Model, Hardware, Layout]:
    assert isinstance(experiment.engine, SimulatedEngine)
    return experiment.engine, experiment.model, experiment.hardware, experiment.layout


def _machine(experiment: Experiment) -> prediction.Machine:
    parts = _parts(experiment)
    replicas = experiment.layout.replicas_per_node
    return prediction.Machine(replicas, *whole.peaks(*parts), partial(whole.shares, *parts[1:]))


def _guess_qps(experiment: Experiment) -> float | None:
    if experiment.engine.kind == "vllm_cpu":
        return CPU_GUESS_QPS  # the roofline is that of an accelerator
    return guess_qps(experiment.workload, experiment.model, experiment.hardware, experiment.layout)


MODEL = prediction.EngineModel(_simulate, _machine, _guess_qps)


def _print(tree: Tree, as_json: bool) -> int:
    """Show a result and return its exit code."""
    if as_json:
        print(json.dumps(finite({"event": "result", **tree}), default=str))
    else:
        print(summary.text(tree))
    return int(tree["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
