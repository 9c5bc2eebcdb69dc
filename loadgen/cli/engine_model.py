"""The engine model as every verb asks it. A composition root.

Knows how an experiment becomes a simulated service; the rules of a prediction are in `loadgen.predict`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import active_children, cpu_count, get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.results import summary
from analysis.results.types.ladder_figures import LevelFigures
from analysis.results.types.prediction_verdict import GridVerdict, PredictionVerdict
from analysis.results.types.run_verdict import PlacingPrediction
from conf import ConfigError, Experiment
from conf.matrix import Matrix
from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine
from loadgen.cli import config_check
from loadgen.fleet.addresses import chosen
from loadgen.predict import answer, grid, replay, virtual_target
from loadgen.predict.capacity import quiet
from loadgen.predict.operating_point import Simulated
from loadgen.predict.uncertainty import DRAWS, Spread
from loadgen.run.progress import Emit
from loadgen.search.policy import FIRST_BELOW_PREDICTION, FIRST_BELOW_SESSIONS, Start
from loadgen.studies import published_ladder as ladder
from loadgen.traffic.prefix_sharing import alike, scattered
from loadgen.traffic.schedule import NS, PHASES, ArrivalSchedule
from serve_apps.engine_model.compiled import fast_engine
from serve_apps.engine_model.cost.guess import guess_qps as roofline_qps
from serve_apps.engine_model.service import whole_service
from serve_apps.engine_model.service.balancer import POLICIES, Balance
from serve_apps.engine_model.service.prefixes import Prefixes
from serve_apps.engine_model.service.replay import replay as served

CHUNKS = 4
"""Parts of its work that a process gets one after the other: so the last one does not wait for long."""
HOUR_S = 3600.0
"""Virtual time of the prediction that only places a dwell."""
CPU_GUESS_QPS = 60.0
"""Short requests to the tiny model on two cores: 55 per second were well within the default bounds, 200 were
not (measured, 2026-11-22). It only says where a ramp begins."""
PLACES = "it places the first dwell and centres a wide prior, sd 25 %"


def foreseeable(words: Sequence[str], config: Path | None, sensitivity: bool = False) -> Experiment:
    """What a prediction, or a cell of a grid, asks for. Raises ConfigError for what it cannot answer."""
    experiment = config_check.experiment("predict", words, config)
    rate_qps, highest_qps = experiment.rate_qps, experiment.search.highest_qps
    if (rate_qps or experiment.concurrency) and sensitivity:
        asked = "rate_qps" if rate_qps else "concurrency"
        raise ConfigError(f"--sensitivity is that of the capacity; leave {asked}=... out")
    engine = experiment.engine
    assert isinstance(engine, SimulatedEngine)
    if engine.max_num_queued_reqs is not None or engine.max_num_queued_tokens is not None:
        raise ConfigError(
            "predict knows no refusals: leave engine.max_num_queued_reqs and engine.max_num_queued_tokens "
            "out, or measure with sweep or probe"
        )
    replay.refuse(experiment)
    if experiment.concurrency:
        replayed(experiment, replay.planned(experiment))  # some engines play no closed loop
    if not experiment.is_replay and rate_qps and rate_qps > highest_qps:
        raise ConfigError(
            f"rate_qps={rate_qps:g} is above search.highest_qps={highest_qps:g}; raise that too"
        )
    return experiment


def answered(
    cells: Matrix,
    found: Sequence[Experiment | str],
    sensitivity: bool = False,
    say: Callable[[str], None] = quiet,
) -> PredictionVerdict | GridVerdict:
    """The prediction of the one experiment, or of every cell of a grid (`grid.experiments`)."""
    act = partial(predict, sensitivity=sensitivity, say=say)
    with processes() as spread:
        if cells.axes:
            return grid.predicted(cells, found, act, spread, say)
        return act(next(one for one in found if isinstance(one, Experiment)), spread=spread)


@contextmanager
def processes() -> Iterator[Spread]:
    """The map of one process per core; forked, so that each begins with what is imported and compiled."""
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:

        def spread(function: Callable[[Any], Any], values: Iterable[Any]) -> Iterable[Any]:
            # A function is sent once for every chunk, and may hold hours of conversations.
            every = list(values)
            return pool.map(function, every, chunksize=max(1, len(every) // (CHUNKS * (cpu_count() or 1))))

        try:
            yield spread
        except BaseException:  # who interrupts a prediction does not wait for its workers
            for worker in active_children():
                worker.kill()
            raise


def start(experiment: Experiment, verb: str, emit: Emit) -> tuple[Start, PlacingPrediction | None]:
    """The knowledge before the first request: a guess, and the model's own answer where that may be used."""
    below = FIRST_BELOW_SESSIONS if experiment.workload.has_sessions else FIRST_BELOW_PREDICTION
    start = Start(roofline_qps=guess_qps(experiment), first_below=below)
    simulated = isinstance(experiment.engine, SimulatedEngine)
    if verb != "sweep" or experiment.search.start != "prediction":
        return start, None
    if expected := experiment.search.expected_qps:
        emit("prediction", text=f"{expected:g} QPS per node is expected (search.expected_qps): {PLACES}")
        return replace(start, prediction_qps=expected), None
    if not simulated:
        return start, None
    try:
        found = predict(replace(experiment, search=replace(experiment.search, budget_s=HOUR_S)), draws=0)
    except ValueError as error:  # what the model does not predict can be measured all the same
        emit("prediction", text=f"no prediction, the search begins with a ramp: {error}")
        return start, None
    if found.exit_code != summary.EXIT_OK or found.capacity is None:
        emit("prediction", text=f"no prediction, the search begins with a ramp: {found.reason}")
        return start, None
    figures = found.capacity.qps_per_node
    how = f"a virtual hour of the same engine: {PLACES}"
    emit("prediction", text=f"the engine model predicts {figures.estimate:.2f} QPS per node ({how})")
    return replace(start, prediction_qps=figures.estimate), PlacingPrediction(figures, how)


def predict(
    experiment: Experiment,
    spread: Spread = map,
    draws: int = DRAWS,
    sensitivity: bool = False,
    say: Callable[[str], None] = quiet,
) -> PredictionVerdict:
    model = replace(MODEL, say=say)
    if experiment.is_replay:
        return replay.predict(experiment, replayed, spread, draws)
    if experiment.rate_qps:
        return answer.at_rate(experiment, model, spread, draws)
    return answer.predict(experiment, model, spread, draws, sensitivity)


def replayed(experiment: Experiment, arrivals: ArrivalSchedule, seed: int = 0) -> replay.Replayed:
    """What becomes of all requests on the experiment's whole service, which begins empty.

    They come at their due times, or as a closed loop behind one balancer where `arrivals` are one; `seed` is
    that of the engine's noise. `replay.planned` makes the arrivals of an experiment. Raises ConfigError for a
    closed loop on an engine that has to be simulated block by block.
    """
    asked = arrivals.input_tokens, arrivals.output_tokens, arrivals.shared_tokens
    sent_s, held = arrivals.due_ns / NS, arrivals.concurrency
    try:
        times, gap_s = served(
            *parts(experiment), sent_s, asked, held, seed, experiment.replicas, balance(experiment)
        )
    except fast_engine.Unfit as why:
        raise ConfigError(
            f"concurrency={held}: predict plays no closed loop of this engine ({why}); use rate_qps=..."
        ) from why
    return replay.Replayed(times.sent_s, times.first_token_s, times.last_token_s, gap_s, times.replica)


def requests(cells: Matrix, found: Sequence[Experiment | str]) -> pa.Table:
    """A row per request of every replay of a grid, under the constants' values, with the cell's own words."""
    parts_of = []
    for at, one in zip(cells.cells(), found, strict=True):
        if isinstance(one, Experiment):
            schedule = replay.planned(one)
            table = replay.rows(schedule, replayed(one, schedule, one.seed))
            for place, (key, value) in enumerate(at.items()):
                table = table.add_column(place, f"asked.{key}", pa.array([str(value)] * len(table)))
            parts_of.append(table)
    return pa.concat_tables(parts_of)


def closed_s(experiment: Experiment) -> float | None:
    """Seconds of a closed loop behind one balancer, by the engine model; None of another engine."""
    if not isinstance(experiment.engine, SimulatedEngine):
        return None
    return float(replayed(experiment, replay.planned(experiment)).last_s.max())


def progressive(experiment: Experiment, say: Callable[[str], None] = quiet) -> PredictionVerdict:
    """The MI325X paper's benchmark on the virtual clock, each run with a seed of its own.

    Raises ConfigError for an engine that the fast model does not play.
    """
    runs = []
    for number in range(experiment.progressive.runs):
        say(f"{experiment.model.name}: run {number + 1} of {experiment.progressive.runs}")
        one = replace(experiment, seed=ladder.drawn_seed(experiment.seed, number))
        try:
            runs.append(_climbed(one, quiet if number else say))
        except fast_engine.Unfit as why:
            raise ConfigError(
                f"progressive on the virtual clock does not play this engine ({why}); use "
                "progressive.clock=wall"
            ) from why
    return ladder.predicted(experiment, runs)


def level_seconds(experiment: Experiment) -> list[float] | None:
    """What the engine model expects each level to last; None of another engine, or of several replicas.

    Also of one that the fast model does not play.
    """
    if experiment.engine.kind != "simulated" or experiment.replicas != 1:
        return None
    try:
        return [level.seconds for level in _climbed(experiment)]
    except fast_engine.Unfit:
        return None


def _climbed(experiment: Experiment, say: Callable[[str], None] = quiet) -> list[LevelFigures]:
    return ladder.climb(ladder.levels(experiment), partial(played, experiment), say)


def played(experiment: Experiment, number: int, level: ladder.Level) -> pa.Table:
    """A level of a closed loop on one engine that has seen nothing yet: the rows of all its requests."""
    schedule = level.schedule(number, 0, 0)
    asked = schedule.input_tokens, schedule.output_tokens, schedule.shared_tokens
    seed = ladder.drawn_seed(experiment.seed, number)
    seen = fast_engine.serve_closed(
        fast_engine.Machine.of(*parts(experiment)), schedule.concurrency, asked, seed
    )
    times = seen.sent_s, seen.first_token_s, seen.last_token_s
    return virtual_target.ended(schedule, *times, seen.cached_tokens)


def simulate(experiment: Experiment, arrivals: ArrivalSchedule, nodes: int, seed: int) -> Simulated:
    """All requests through so many nodes of the engine model.

    Fewer nodes than the cluster has stand for all of them: see `sharing.scattered`.
    """
    engines = nodes * experiment.layout.replicas_per_node
    asked = arrivals.input_tokens, arrivals.output_tokens, arrivals.shared_tokens
    sent_s, by, part = arrivals.due_ns / NS, balance(experiment), None
    prefixes, served_s = (
        alike(arrivals, experiment.workload),
        sent_s[arrivals.phase != PHASES.index("warmup")],
    )
    if prefixes is not None and not by.by_session and nodes < experiment.cluster.nodes:
        prefixes, part = scattered(prefixes, experiment.cluster.nodes / nodes, seed)
    shared = None if prefixes is None else Prefixes(*prefixes)
    from_s = float(served_s.min()) if len(served_s) else 0.0
    seen = whole_service.serve(*parts(experiment), sent_s, asked, seed, engines, by, shared, from_s)
    replica = seen.replica if part is None else seen.replica + part * engines
    work = seen.work._asdict()
    return Simulated(seen.first_token_s, seen.last_token_s, seen.cached_tokens, work, replica)


def balance(experiment: Experiment) -> Balance:
    """The policy of the routing; of a node alone, as `per_node` has it, the fewest open requests."""
    routing = experiment.routing
    policy = routing.policy if routing.policy in POLICIES else "leastconn"
    return Balance(policy, routing.vnodes, routing.load_factor, chosen)


def parts(experiment: Experiment) -> tuple[SimulatedEngine, Model, Hardware, Layout]:
    """What an engine of the experiment is made of."""
    assert isinstance(experiment.engine, SimulatedEngine)
    return experiment.engine, _seeing(experiment), experiment.hardware, experiment.layout


def _seeing(experiment: Experiment) -> Model:
    """The model with the mean time of a request's images in its front end; images sent again are in a cache.

    Of a fixed number of images that is exact; of a range, every request takes the mean.
    """
    model, images = experiment.model, experiment.workload.images
    if not (images.most and images.unique):
        return model
    times = model.step_time
    image_ms = images.mean_tokens * times.image_token_us.value * 1e-3
    front_end = replace(times.front_end_ms, value=times.front_end_ms.value + image_ms, low=None, high=None)
    return replace(model, step_time=replace(times, front_end_ms=front_end))


def _machine(experiment: Experiment) -> answer.Machine:
    known = parts(experiment)
    replicas = experiment.layout.replicas_per_node
    return answer.Machine(replicas, *whole_service.peaks(*known), partial(whole_service.shares, *known))


def guess_qps(experiment: Experiment) -> float | None:
    if experiment.engine.kind == "vllm_cpu":
        return CPU_GUESS_QPS  # the roofline is that of an accelerator
    return roofline_qps(experiment.workload, experiment.model, experiment.hardware, experiment.layout)


MODEL = answer.EngineModel(simulate, _machine, guess_qps)
"""The engine model as `prediction` asks it."""
