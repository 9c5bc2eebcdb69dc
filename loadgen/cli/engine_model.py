"""The engine model bound to experiments: a simulated service and its figures. A composition root.

`prediction` asks it.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from analysis.results import summary
from analysis.results.predictions import PredictionVerdict
from analysis.results.verdicts import PlacingPrediction
from analysis.stats.estimate import Estimate, middle
from conf import ConfigError, Experiment
from conf.io.one_line import reason
from conf.specs.bounds import GAPS, metric_of
from conf.specs.engine import Engine
from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine, Workload
from loadgen.fleet.http_client import chosen
from loadgen.predict import answer, replay
from loadgen.predict.operating_point import Simulated
from loadgen.predict.uncertainty import DRAWS, ParallelMap
from loadgen.run.progress import Emit
from loadgen.search.window_plan import FIRST_BELOW_PREDICTION, FIRST_BELOW_SESSIONS, Start
from loadgen.traffic.prefix_sharing import scattered, shared_prefixes
from loadgen.traffic.schedule import NS, PHASES, ArrivalSchedule, Ints
from serve_apps.engine_model.cost import node
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service.balancer import POLICIES, Balance
from serve_apps.engine_model.service.prefixes import Pieces, session_pieces, trace_pieces
from serve_apps.engine_model.service.service import Replicas, Requests, late_gaps_s, serve

HOUR_S = 3600.0
"""Virtual time of the prediction that places the first window."""
PLACES = "it places the first window and centres a wide prior, sd 25 %"
CPU_GUESS_QPS = 60.0
"""Short requests to the tiny model on two cores: 55 per second were well within the default bounds, 200 were
not (measured, 2026-11-22). It only says where a ramp begins."""


def predict(
    experiment: Experiment,
    parallel_map: ParallelMap = map,
    draws: int = DRAWS,
    sensitivity: bool = False,
) -> PredictionVerdict:
    """The engine model's answer: a replay of requests, one rate, or the capacity."""
    if experiment.is_replay:
        return replay.predict(experiment, simulate, parallel_map, draws)
    if experiment.rate_qps:
        return answer.at_rate(experiment, MODEL, parallel_map, draws)
    return answer.predict(experiment, MODEL, parallel_map, draws, sensitivity)


def simulate(experiment: Experiment, arrivals: ArrivalSchedule, nodes: int, seed: int) -> Simulated:
    """All requests through `nodes` nodes of the engine model, at their times or in a closed loop.

    Fewer nodes than the cluster has stand for all of them (`prefix_sharing.scattered`).
    """
    engines = nodes * experiment.layout.replicas_per_node
    tokens = arrivals.input_tokens, arrivals.output_tokens, arrivals.shared_tokens
    sent_s, by = arrivals.due_ns / NS, balance(experiment)
    served_s = sent_s[arrivals.phase != PHASES.index("warmup")]
    copies = 1.0 if experiment.routing.by_session else max(1.0, experiment.cluster.nodes / nodes)
    shared, part = _shared(experiment.workload, arrivals, copies, seed)
    from_s = float(served_s.min()) if len(served_s) else 0.0
    replicas = Replicas(engines, by, seed)
    metrics = set(map(metric_of, experiment.slo.limits))  # the latencies that have bounds
    requests, gaps = Requests(sent_s, tokens, shared, from_s), bool(metrics & set(GAPS))
    served = serve(EngineKind.of(*parts(experiment)), requests, replicas, arrivals.concurrency, tokens=gaps)
    replica = served.replica if part is None else served.replica + part * engines
    outputs, itl_s, pooled = np.asarray(arrivals.output_tokens), None, None
    if "itl" in metrics:
        itl_s = late_gaps_s(served.token_s, outputs, experiment.slo.itl_within)
    if "itl_pooled" in metrics:
        within = np.delete(np.diff(served.token_s), np.cumsum(outputs)[:-1] - 1)
        pooled = (within, outputs - 1)
    times = served.sent_s, served.first_token_s, served.last_token_s, served.cached_tokens
    return Simulated(*times, served.work, replica, itl_s, pooled, served.queue_s)


def _shared(
    workload: Workload, arrivals: ArrivalSchedule, copies: float, seed: int
) -> tuple[Pieces | None, Ints | None]:
    """The shared beginnings of prompts, and the part of the fleet of each if one in `copies` is simulated."""
    if arrivals.begins is not None:
        part = np.random.default_rng([seed, 11]).integers(int(np.ceil(copies)), size=len(arrivals))
        first = int(arrivals.seq[0]) if len(arrivals) else 0
        runs = [[(owner - first, end) for owner, end in row] for row in arrivals.begins]
        return trace_pieces(runs, part), part if copies > 1 else None
    prefixes = shared_prefixes(arrivals, workload)
    if prefixes is None:
        return None, None
    if copies <= 1:
        return session_pieces(*prefixes), None
    prefixes, part = scattered(prefixes, copies, seed)
    return session_pieces(*prefixes), part


def balance(experiment: Experiment) -> Balance:
    """The routing's policy; within a node (`per_node`) the replica with the fewest open requests."""
    routing = experiment.routing
    policy = routing.policy if routing.policy in POLICIES else "leastconn"
    return Balance(policy, routing.vnodes, routing.load_factor, chosen)


def parts(experiment: Experiment) -> tuple[SimulatedEngine, Model, Hardware, Layout]:
    """Engine, model, hardware and layout of a simulated engine.

    The model's front end has the mean time of a request's images.
    """
    assert isinstance(experiment.engine, SimulatedEngine)
    model, images = experiment.model, experiment.workload.images
    if images.most and images.unique:  # repeated ones are in a cache
        times = model.step_time
        image_ms = images.mean_tokens * times.image_token_us.value * 1e-3
        longer_ms = times.front_end_ms.value + image_ms
        front_end = replace(times.front_end_ms, value=longer_ms, low=None, high=None)
        model = replace(model, step_time=replace(times, front_end_ms=front_end))
    return experiment.engine, model, experiment.hardware, experiment.layout


def _machine(experiment: Experiment) -> answer.NodePeaks:
    specs = parts(experiment)
    return answer.NodePeaks(*node.peaks(*specs), partial(node.shares, *specs))


def guess_qps(experiment: Experiment) -> float | None:
    """QPS per node by the roofline; None if the hardware is unknown."""
    if experiment.engine.kind == "vllm_cpu":
        return CPU_GUESS_QPS  # the roofline is that of an accelerator
    machine = experiment.model, experiment.hardware, experiment.layout
    return node.guess_qps(experiment.workload, *machine, getattr(experiment.engine, "kernel_ratio", None))


def start(experiment: Experiment, verb: str, emit: Emit) -> tuple[Start, PlacingPrediction | None]:
    """The start of a search: a guess, and the engine model's answer if the search may use it."""
    below = FIRST_BELOW_SESSIONS if experiment.workload.has_sessions else FIRST_BELOW_PREDICTION
    start = Start(roofline_qps=guess_qps(experiment), first_below=below)
    if verb != "sweep" or experiment.search.start != "prediction":
        return start, None
    if expected := experiment.search.expected_qps:
        emit("prediction", text=f"{expected:g} QPS per node is expected (search.expected_qps): {PLACES}")
        return replace(start, prediction_qps=expected), None
    if not isinstance(experiment.engine, SimulatedEngine):
        return start, None
    figures = _virtual_hour(experiment, draws=0)
    if isinstance(figures, str):  # what the model does not predict can be measured all the same
        emit("prediction", text=f"no prediction, the search begins with a ramp: {figures}")
        return start, None
    how = f"a virtual hour of the same engine: {PLACES}"
    emit("prediction", text=f"the engine model predicts {middle(figures)} QPS per node ({how})")
    return replace(start, prediction_qps=figures.value), PlacingPrediction(figures, how)


def _virtual_hour(experiment: Experiment, draws: int) -> Estimate | str:
    """The capacity that a virtual hour shows, or the reason why it shows none."""
    hour = replace(experiment, search=replace(experiment.search, budget_s=HOUR_S))
    try:
        prediction = predict(hour, draws=draws)
    except ValueError as error:
        return reason(error)
    shown = prediction.exit_code == summary.EXIT_OK and prediction.capacity
    return shown.qps_per_node if shown else prediction.reason


def constants_ratio(experiment: Experiment, emit: Emit) -> Estimate | str:
    """The uncertainty of the engine model's constants by a virtual hour, or why it has no answer."""
    if not isinstance(experiment.engine, SimulatedEngine):
        return f"the engine model answers for engine=simulated, not {experiment.engine.kind}"
    emit(
        "constants", text="the engine model draws its constants, for the joint interval of this simulated run"
    )
    try:
        refuse_queue_limits(experiment.engine)
    except ConfigError as error:
        return str(error)
    q = _virtual_hour(experiment, DRAWS)
    return f"the engine model finds no interval: {q}" if isinstance(q, str) else q.per(q.value)


def refuse_queue_limits(engine: Engine) -> None:
    """Raise ConfigError for an engine that refuses requests, which the engine model does not."""
    assert isinstance(engine, SimulatedEngine)
    if engine.max_num_queued_reqs is not None or engine.max_num_queued_tokens is not None:
        raise ConfigError(
            "predict does not model refused requests: leave engine.max_num_queued_reqs and "
            "engine.max_num_queued_tokens out, or measure with sweep or probe"
        )


MODEL = answer.EngineModel(simulate, _machine, guess_qps)
"""The engine model as `loadgen.predict` takes it."""


def closed_s(experiment: Experiment) -> float | None:
    """Seconds that a closed loop takes by the engine model; None for an engine that is not simulated."""
    if not isinstance(experiment.engine, SimulatedEngine):
        return None
    return float(replay.played(experiment, simulate).last_s.max())
