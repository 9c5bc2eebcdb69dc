"""What the engine model says of an experiment, to every verb that asks it. A composition root.

Knows how an experiment becomes a simulated service; what a prediction is stands in `loadgen.prediction`.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path

import numpy as np

from analysis import summary
from analysis.summary import Tree
from conf import ConfigError, Experiment
from conf.matrix import Matrix
from conf.schema import Hardware, Layout, Model, SimulatedEngine
from loadgen import feasible, grid, prediction
from loadgen.arrivals import NS, ArrivalSchedule
from loadgen.forecast import Simulated, quiet
from loadgen.progress import Emit
from loadgen.search import Start
from loadgen.uncertainty import DRAWS, Spread
from serve_apps.engine_model import fast, whole
from serve_apps.engine_model.guess import guess_qps as roofline_qps
from serve_apps.engine_model.virtual import POLICIES

HOUR_S = 3600.0
"""Virtual time of the prediction that only places a dwell."""
CPU_GUESS_QPS = 60.0
"""Short requests to the tiny model on two cores: 55 per second were well within the default bounds, 200 were
not (measured, 2026-11-22). It only says where a ramp begins."""
PLACES = "it places the first dwell and centres a wide prior, sd 25 %"


def foreseeable(words: Sequence[str], config: Path | None, sensitivity: bool = False) -> Experiment:
    """What a prediction, or a cell of a grid, asks for. Raises ConfigError for what it cannot answer."""
    experiment = feasible.experiment("predict", words, config)
    rate_qps, highest_qps = experiment.rate_qps, experiment.search.highest_qps
    if rate_qps and sensitivity:
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


def answered(
    cells: Matrix,
    found: Sequence[Experiment | str],
    sensitivity: bool = False,
    say: Callable[[str], None] = quiet,
) -> Tree:
    """The tree of a prediction: of the one experiment, or of every cell of a grid (`grid.experiments`)."""
    act = partial(predict, sensitivity=sensitivity, say=say)
    with _processes() as spread:
        if cells.axes:
            return grid.predicted(cells, found, act, spread, say)
        return act(next(one for one in found if isinstance(one, Experiment)), spread=spread)


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


def start(experiment: Experiment, verb: str, emit: Emit) -> tuple[Start, Tree | None]:
    """What is known before the first request: a guess, and the model's own answer where that may be used."""
    start = Start(roofline_qps=guess_qps(experiment))
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
        tree = predict(replace(experiment, search=replace(experiment.search, budget_s=HOUR_S)), draws=0)
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


def predict(
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


def closed_s(experiment: Experiment) -> float | None:
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


def simulate(experiment: Experiment, arrivals: ArrivalSchedule, nodes: int, seed: int) -> Simulated:
    """All requests through so many nodes of the engine model."""
    engines = nodes * experiment.layout.replicas_per_node
    asked = arrivals.input_tokens, arrivals.output_tokens, arrivals.shared_tokens
    sent_s, policy = arrivals.due_ns / NS, _balancer(experiment)
    seen = whole.serve(*_parts(experiment), sent_s, asked, seed, engines, policy)
    return Simulated(seen.first_token_s, seen.last_token_s, seen.cached_tokens, seen.work._asdict())


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


def guess_qps(experiment: Experiment) -> float | None:
    if experiment.engine.kind == "vllm_cpu":
        return CPU_GUESS_QPS  # the roofline is that of an accelerator
    return roofline_qps(experiment.workload, experiment.model, experiment.hardware, experiment.layout)


MODEL = prediction.EngineModel(simulate, _machine, guess_qps)
"""The engine model as `prediction` asks it."""
