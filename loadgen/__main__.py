"""Maximum QPS per node of an LLM service within its latency bounds, with an interval.

examples:
  python -m loadgen sweep                               one simulated MI325X node on this machine (5 min)
  python -m loadgen sweep --dry-run search=standard     what would be done, and for how long
  python -m loadgen probe rate_qps=4 duration_s=60      hold one rate; exit 3 if a bound is missed
  python -m loadgen predict layout=dp2_tp4_ep4          the same question on a virtual clock, in seconds
  python -m loadgen probe profile_qps=[[0,2],[60,6]]    ramp from 2 to 6 QPS per node within a minute
  python -m loadgen probe workload=trace workload.trace=FILE     replay a trace at its own times
  python -m loadgen probe concurrency=32                a closed loop, to compare with tools that use one
  python -m loadgen resume runs/20261121-091200-a1b2    go on with a sweep that was cut short
  python -m loadgen sweep engine=external target.urls=[http://127.0.0.1:8000] search=standard
"""

# The composition root: the only file of this room that may join the others.

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import summary
from analysis.runs import Run as RunOnDisk
from analysis.runs import RunError, load_run
from analysis.summary import Tree
from conf import ConfigError, Experiment, load
from conf.schema import SimulatedEngine
from loadgen import conclusion, dry_run, hold, progress, trace
from loadgen.arrivals import Traffic
from loadgen.command_line import parser
from loadgen.driver import Driver, Past, Plan
from loadgen.endpoint import TargetError, api_key, models_of
from loadgen.resume import past
from loadgen.run_folder import RunFolder, finite, sha256_of
from loadgen.search import Start
from loadgen.sweep import sweep as search
from loadgen.virtual_target import VirtualTarget
from serve_apps.engine_model import Engine, VirtualService
from serve_apps.engine_model.step_time import Batch, roofline
from serve_apps.engine_model.virtual import POLICIES

if TYPE_CHECKING:
    from loadgen.run import Service

PROBE_KEYS = ("rate_qps", "profile_qps", "concurrency", "requests", "duration_s")
GUESS_BATCH = 64
"""Decoding sequences in the guess that starts a ramp (the concurrency of the Character.ai post)."""

Emit = Callable[..., None]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    arguments = parser(list(VERBS), __doc__).parse_intermixed_args(argv)
    _end_on_signals()
    try:
        return VERBS[arguments.verb](arguments)
    except ConfigError as error:
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
    """Measure the capacity of a deployed or external service."""
    experiment = _experiment(arguments)
    return _measure(experiment, arguments, _search, experiment.search.budget_s)


def probe(arguments: argparse.Namespace) -> int:
    """Offer one load without a search, and judge it."""
    experiment = _experiment(arguments)
    loads = (experiment.rate_qps, experiment.profile_qps, experiment.concurrency)
    if not any(loads) and experiment.workload.arrivals.kind != "trace":
        raise ConfigError(
            "probe needs rate_qps=... (QPS per node), profile_qps=[[second,QPS],...], concurrency=... or "
            "workload=trace"
        )
    return _measure(experiment, arguments, _hold, hold.seconds(experiment))


def predict(arguments: argparse.Namespace) -> int:
    """Answer from the engine model alone, through the same search, on a virtual clock."""
    experiment = _experiment(arguments)
    if arguments.dry_run:
        print(dry_run.text(experiment, 0, None))
        return summary.EXIT_OK
    show = progress.JsonLines() if arguments.json else _silent
    tree = _predict(experiment, show)
    _print(tree, arguments.json)
    return int(tree["exit_code"])


def resume(arguments: argparse.Namespace) -> int:
    """Recover what a killed run left, and go on with its search."""
    if len(arguments.words) != 1 or arguments.config:
        raise ConfigError("resume takes one run folder and nothing else: python -m loadgen resume runs/NAME")
    run = _open(arguments.words[0])
    if run.sweep is not None and run.sweep["exit_code"] not in summary.RESUMABLE:
        print(f"{run.path} has ended: nothing to resume", file=sys.stderr)
        _print(run.sweep, arguments.json)
        return int(run.sweep["exit_code"])
    if arguments.dry_run:
        experiment = load(base=run.path / "config.yaml")
        left_s = max(0.0, experiment.search.budget_s - past(run).elapsed_s)
        print(f"# {len(past(run).segments)} finished segments, {left_s:.0f} s of load left")
        return summary.EXIT_OK
    try:
        folder = RunFolder(run.path)
        rows = folder.collect()
    except OSError as error:
        raise ConfigError(f"cannot resume: {error}") from error
    print(f"{run.path}: {rows.num_rows} requests on record", file=sys.stderr)
    if run.manifest["verb"] != "sweep":
        raise ConfigError(
            f"a {run.manifest['verb']} is not continued; run it again: "
            f"python -m loadgen {run.manifest['verb']} --config {run.path}/config.yaml run=NAME"
        )
    arguments.words, arguments.config, arguments.verb = [], run.path / "config.yaml", "sweep"
    experiment = _experiment(arguments)
    _refuse_other_trace(experiment, run)
    return _fill(experiment, arguments, folder, _search, past(run))


def _refuse_other_trace(experiment: Experiment, run: RunOnDisk) -> None:
    path = Path(experiment.workload.trace)
    if experiment.workload.trace and sha256_of(path) != run.manifest.get("trace_sha256"):
        raise ConfigError(f"{path} is not what it was when {run.path} began; put the old file back")


def _open(path: str) -> RunOnDisk:
    try:
        return load_run(path)
    except RunError as error:
        raise ConfigError(str(error)) from error


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "sweep": sweep,
    "probe": probe,
    "predict": predict,
    "resume": resume,
}


def _experiment(arguments: argparse.Namespace) -> Experiment:
    """The experiment of the words. A prediction searches for a virtual hour unless told otherwise."""
    words = list(arguments.words)
    predicting = arguments.verb == "predict"
    if predicting and not any(word.startswith("search=") for word in words):
        words.append("search=virtual")
    experiment = load(words, arguments.config)
    experiment = replace(experiment, workload=trace.resolve(experiment.workload))
    _refuse_idle_words(experiment, arguments.verb)
    if isinstance(experiment.engine, SimulatedEngine):
        _refuse_misfit(experiment, experiment.engine)
    elif predicting:
        raise ConfigError(f"predict needs engine=simulated, not {experiment.engine.kind}")
    elif experiment.engine.kind == "external":
        api_key(experiment.target.api_key_env)
    else:
        kind = experiment.engine.kind
        raise ConfigError(f"engine={kind} is not available in this version; use engine=simulated or external")
    return experiment


def _refuse_idle_words(experiment: Experiment, verb: str) -> None:
    """Refuse what only a probe honours; a search finds the rate itself."""
    for key in PROBE_KEYS:
        if verb != "probe" and getattr(experiment, key):
            raise ConfigError(f"{key} belongs to probe; {verb} finds the rate itself")


def _refuse_misfit(experiment: Experiment, spec: SimulatedEngine) -> None:
    """Refuse what the engine would: weights that do not fit, unknown hardware figures, long prompts."""
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


def _measure(
    experiment: Experiment,
    arguments: argparse.Namespace,
    act: Callable[[Experiment, Driver], Tree],
    load_s: float | None,
) -> int:
    """Measure in a new run folder."""
    if arguments.dry_run:
        print(dry_run.text(experiment, load_s, _guess_qps(experiment)))
        return summary.EXIT_OK
    try:
        folder = RunFolder.create(Path(experiment.out), experiment.run)
    except FileExistsError as error:
        raise ConfigError(
            f"run folder {error.filename} exists; choose another run=NAME or remove it"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot create the run folder: {error}") from error
    return _fill(experiment, arguments, folder, act)


def _fill(
    experiment: Experiment,
    arguments: argparse.Namespace,
    folder: RunFolder,
    act: Callable[[Experiment, Driver], Tree],
    before: Past | None = None,
) -> int:
    """Deploy, load, conclude, print. Ray is imported here: it costs seconds that `predict` must not pay."""
    from loadgen.run import Run

    with progress.choose(arguments.json) as show:
        run = Run(experiment, folder, arguments.verb, show, before)
        for line in trace.cautions(experiment.workload):
            run.emit("trace", text=line)

        def prepare() -> Start:
            start, run.prediction = _start(experiment, arguments.verb, run.emit)
            return start

        service = _service(experiment, run.emit)
        tree = run.measure(prepare, service, lambda driver: act(experiment, driver))
    _print(tree, arguments.json)
    return int(tree["exit_code"])


def _search(experiment: Experiment, driver: Driver) -> Tree:
    return conclusion.of_sweep(experiment, driver, search(driver), "wall")


def _hold(experiment: Experiment, driver: Driver) -> Tree:
    hold.asked(driver, experiment)
    return conclusion.of_probe(experiment, driver)


def _start(experiment: Experiment, verb: str, emit: Emit) -> tuple[Start, Tree | None]:
    """What is known before the first request: a guess, and the model's own answer where that may be used."""
    start = Start(roofline_qps=_guess_qps(experiment))
    simulated = isinstance(experiment.engine, SimulatedEngine)
    if verb != "sweep" or experiment.search.start != "prediction" or not simulated:
        return start, None
    hour = load(["search=virtual"]).search
    tree = _predict(replace(experiment, search=hour), _silent)
    if tree["exit_code"] != summary.EXIT_OK:
        return start, None
    figures = tree["capacity"]["qps_per_node"]
    how = "a virtual hour of the same engine: it places the first dwell and centres a wide prior, sd 25 %"
    emit("prediction", text=f"the engine model predicts {figures['estimate']:.2f} QPS per node ({how})")
    return Start(start.roofline_qps, figures["estimate"]), {"qps_per_node": figures, "how": how}


def _predict(experiment: Experiment, emit: Emit) -> Tree:
    spec = experiment.engine
    assert isinstance(spec, SimulatedEngine)
    parts = experiment.model, experiment.hardware, experiment.layout
    engines = [Engine(spec, *parts, seed=experiment.seed + i) for i in range(experiment.replicas)]
    # The virtual service has no power of two choices; fewest connections is its limit of full knowledge.
    policy = experiment.routing.policy if experiment.routing.policy in POLICIES else "leastconn"
    plan = Plan(
        search=experiment.search,
        slo=experiment.slo,
        workload=experiment.workload,
        nodes=experiment.cluster.nodes,
        seed=experiment.seed,
        start=Start(roofline_qps=_guess_qps(experiment)),
    )
    driver = Driver(VirtualTarget(VirtualService(engines, policy)), plan, emit)
    return conclusion.of_sweep(experiment, driver, search(driver), "virtual")


def _silent(_kind: str, /, **_facts: Any) -> None:
    """Progress of what is over in seconds."""


def _guess_qps(experiment: Experiment) -> float | None:
    """Requests per second and node if time went to prefill and full decode batches only."""
    mean_in, mean_out = experiment.workload.input_tokens.mean, experiment.workload.output_tokens.mean
    try:
        step = roofline(experiment.model, experiment.hardware, experiment.layout)
    except ValueError:
        return None
    prefill = Batch()
    prefill.add_chunk(mean_in, 0)
    decode = Batch(decode_tokens=GUESS_BATCH, context_tokens=GUESS_BATCH * mean_in, sequences=GUESS_BATCH)
    per_request_s = step.duration_s(prefill) + mean_out * step.duration_s(decode) / GUESS_BATCH
    return experiment.layout.replicas_per_node / per_request_s


@contextmanager
def _service(experiment: Experiment, emit: Emit) -> "Iterator[Service]":
    """The service under test, up and warm; what was started for it ends with the block."""
    from cluster.deploy import DeployError
    from cluster.placement import PlacementError
    from cluster.session import SessionError

    up = _external if experiment.engine.kind == "external" else _deployed
    try:
        with up(experiment, emit) as service:
            yield service
    except (DeployError, PlacementError, SessionError) as error:
        raise TargetError(str(error)) from error


@contextmanager
def _deployed(experiment: Experiment, emit: Emit) -> "Iterator[Service]":
    from cluster.deploy import deploy
    from cluster.placement import place
    from cluster.session import open_session
    from loadgen.run import Service
    from serve_apps.app import application_name, build_app

    load_cpus = experiment.fleet.actors * experiment.fleet.cpus_per_actor
    parts = experiment.engine, experiment.model, experiment.hardware, experiment.layout
    emit("deploying", text=f"starting Ray ({experiment.cluster.name}) and {experiment.replicas} replica(s)")
    with open_session(experiment.cluster, experiment.routing, load_cpus) as session:
        placement = place(experiment.cluster, experiment.layout, session.roles)
        if experiment.cluster.session == "address" and not placement.load_selector:
            emit("placement", text="no node carries the label role=load: load actors may run beside replicas")
        app = build_app(*parts, placement.replicas, placement.bundles, experiment.seed)
        deployment = deploy(
            app,
            application_name(*parts, experiment.routing),
            session.url,
            experiment.model.served_name,
            placement.replicas,
            progress=lambda line: emit("deploy", text=line),
        )
        try:
            yield Service(
                list(deployment.urls),
                replicas=deployment.replica_ids,
                fault=deployment.healthy,
                reported={
                    "models": [models_of(session.url, None)],
                    "replica_nodes": deployment.replica_nodes,
                },
                metrics_urls=deployment.metrics_urls or {url: f"{url}/metrics" for url in deployment.urls},
                actor_options={"label_selector": placement.load_selector} if placement.load_selector else {},
            )
        finally:
            deployment.teardown()


@contextmanager
def _external(experiment: Experiment, emit: Emit) -> "Iterator[Service]":
    from cluster.session import open_session
    from loadgen.run import Service

    urls = [url.rstrip("/") for url in experiment.target.urls]
    key = api_key(experiment.target.api_key_env)
    reported = {"models": [models_of(url, key) for url in urls]}
    # cluster.nodes stands for the nodes behind the endpoints; the load actors need one of ours.
    here = (
        experiment.cluster
        if experiment.cluster.session == "address"
        else replace(experiment.cluster, nodes=1)
    )
    load_cpus = experiment.fleet.actors * experiment.fleet.cpus_per_actor
    emit("connecting", text=f"{len(urls)} endpoint(s) answer; starting Ray for the load actors")
    with open_session(here, None, load_cpus):
        yield Service(
            urls, reported=reported, metrics_urls={url: f"{url}/metrics" for url in urls}, api_key=key
        )


def _print(tree: Tree, as_json: bool) -> None:
    if as_json:
        print(json.dumps(finite({"event": "result", **tree}), default=str))
    else:
        print(summary.text(tree))


if __name__ == "__main__":
    sys.exit(main())
