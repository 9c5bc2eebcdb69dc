"""The act of each verb of `python -m analysis`; what ends it is an exit code, and one line if it failed."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis import exchange, planning
from analysis import report as pages
from analysis.calibration.fit import RecordedLoad, Served
from analysis.calibration.fit import calibrate as calibrate_probes
from analysis.calibration.forward import ForwardWork, calibrate_forward
from analysis.planning import serve_scaling as scaling
from analysis.planning.plan import Plan
from analysis.planning.serve_scaling import ServeFront, ServeSettings
from analysis.recommendation import ranking
from analysis.results import locations, recount, studies
from analysis.results.json_border import json_line
from analysis.results.predictions import GridVerdict, PredictionVerdict
from analysis.results.recount import rejudge
from analysis.results.runs import RunError, load_run, refuse_out
from analysis.results.summary import EXIT_INTERNAL, EXIT_OK, EXIT_USAGE
from analysis.results.verdicts import Verdict
from analysis.views import answers, recommend, side_by_side
from analysis.views import plan as plan_view
from conf import ConfigError, Experiment
from conf.compose import dump
from conf.io import terminal
from conf.io.one_line import reason
from conf.specs.experiment import SimulatedEngine, VllmEngine

# A composition root: `calibrate` and `plan` ask the engine model, `--serve-config` for an application of it.

PAGES = (".html", ".htm")
FLAG = "--serve-config"
PLAN_GROUPS = ("demand", "plan")
Tree = dict[str, Any]


def done(verb: str, arguments: argparse.Namespace) -> int:
    """Do a verb and return its exit code."""

    def act() -> int:
        try:
            return _done(verb, arguments)
        except pa.ArrowException as error:
            raise RunError(f"a table holds what no run wrote: {reason(error)}") from error

    damaged = (locations.NewerError, EXIT_INTERNAL), (locations.AlteredError, EXIT_INTERNAL)
    return terminal.exit_code(act, *damaged, (RunError, EXIT_USAGE), (ConfigError, EXIT_USAGE))


def _done(verb: str, arguments: argparse.Namespace) -> int:
    """Do what a verb does, under a banner where what it reads was altered; then the exit code is 1.

    Raises what the verb raises, and AlteredError for a folder that holds what no run wrote.
    """
    words = [getattr(arguments, "run", None), *getattr(arguments, "runs", ())]
    if not any(words):
        words = [word for word in arguments.words if "=" not in word]
    places = [place for word in words if word and (place := locations.local(word)).is_dir()]
    altered = [line for place in places for line in locations.altered(place)]
    data_only = verb == "export" or getattr(arguments, "json", False)
    for line in altered:
        terminal.tell(f"ALTERED  {line}", sys.stderr if data_only else sys.stdout)
    try:
        code = ACTS[verb](arguments)
    except (RunError, ConfigError, pa.ArrowException) as error:
        if not altered:
            raise
        raise locations.AlteredError(str(error)) from error
    except locations.WRONG_KIND as error:
        if not altered and all(map(locations.is_sealed, places)):
            raise  # the files are as they were written: the mistake is ours
        named = ", ".join(map(str, places))
        what = f"{type(error).__name__}: {reason(error)}"
        raise locations.AlteredError(f"{named} holds what no run wrote ({what})") from error
    return EXIT_INTERNAL if altered else code


def show(arguments: argparse.Namespace) -> int:
    """Print the verdict of a run, a study or another tool's result."""
    path, words = arguments.run, arguments.words
    if ranking.is_recommendation(path):
        _refuse(path, "holds a recommendation, shown as it is", words=words, recompute=arguments.recompute)
        recommendation = ranking.read(path)
        if arguments.json:
            terminal.data(json_line(recommendation))
        else:
            terminal.tell(recommend.text(recommendation))
    elif exchange.is_foreign(path):
        what = "is another tool's result, which holds no verdict"
        _refuse(path, what, recompute=arguments.recompute, json=arguments.json)
        bounds_ms = side_by_side.foreign_bounds(words)
        for load in exchange.load_foreign(path):
            terminal.tell(str(side_by_side.foreign_answer(load, bounds_ms)))
    elif arguments.recompute:
        _refuse(path, "is recomputed by its own bounds, as text", words=words, json=arguments.json)
        text, agrees = recount.recomputed(load_run(path))
        terminal.tell(text)
        return EXIT_OK if agrees else EXIT_INTERNAL
    elif arguments.json:
        terminal.data(json_line(_verdict(path, words)))
    elif words:
        verdict = rejudge(load_run(path), *words)
        terminal.tell(str(answers.answer(verdict) if arguments.all else answers.brief(verdict)))
    else:
        terminal.tell(str(answers.of_folder(path, is_brief=not arguments.all)))
    return EXIT_OK


def _refuse(path: Path, what: str, **unused: object) -> None:
    """Raise RunError for words or flags that do not go with what the path holds."""
    if out := [name if name == "words" else f"--{name}" for name, value in unused.items() if value]:
        raise RunError(f"{path} {what}: leave {' and '.join(out)} out")


def _verdict(path: Path, words: Sequence[str]) -> Verdict:
    """The verdict that `show --json` writes. Raises RunError for a run that did not end."""
    if words:
        return rejudge(load_run(path), *words)
    verdict = studies.load_verdict(path) if studies.is_study(path) else load_run(path).verdict
    if verdict is None:
        raise RunError(f"{path} did not end: it has no verdict; leave --json out to see how far it came")
    return verdict


def report(arguments: argparse.Namespace) -> int:
    """Write one HTML file about runs: verdict, figures, provenance."""
    if arguments.out and arguments.out.suffix not in PAGES:
        raise RunError(f"--out {arguments.out}: a report is one HTML file; give it a name in .html")
    terminal.tell(pages.command(arguments.runs, arguments.out))
    return EXIT_OK


def compare(arguments: argparse.Namespace) -> int:
    """Set runs side by side: what differs, their capacities and the ratio."""
    terminal.tell(str(side_by_side.answer(arguments.runs)))
    return EXIT_OK


def export(arguments: argparse.Namespace) -> int:
    """Write the requests of a run as CSV or JSON lines."""
    refuse_out(arguments.out, *exchange.FORMATS[arguments.format])
    exchange.export(arguments.run, arguments.format, arguments.out)
    return EXIT_OK


def plan(arguments: argparse.Namespace) -> int:
    """Compute how many nodes a demand needs, by which rule, and what they cost."""
    refuse_out(arguments.out, ".json", *PAGES)
    refuse_out(arguments.serve_config, ".yaml", ".yml", flag=FLAG)
    runs, file = [word for word in arguments.words if "=" not in word], arguments.serve_config
    if file and not runs:
        raise ConfigError(f"{FLAG} rests on the requests of a run; name its folder")
    words = [word for word in arguments.words if word.partition("=")[0].partition(".")[0] in PLAN_GROUPS]
    machine = [word for word in arguments.words if word not in (*runs, *words)]
    if runs and machine:
        raise ConfigError(
            f"'{machine[0]}' is no word demand.* or plan.*, the only ones of a plan on a run; leave it out, "
            f"or leave {runs[0]} out to plan on a prediction"
        )
    plan = planning.command(runs, words, partial(_predicted, machine))
    if file and isinstance(plan, Plan):
        plan = replace(plan, into_service=into_service(plan, runs[0], file))
    if arguments.out and arguments.out.suffix in PAGES:
        pages.write_plan(plan, arguments.out)
    elif arguments.out:
        arguments.out.write_text(json_line(plan) + "\n")
    terminal.data(json_line(plan)) if arguments.json else terminal.tell(str(plan_view.answer(plan)))
    return plan.exit_code


def calibrate(arguments: argparse.Namespace) -> int:
    """Fit the engine model's constants to probes of a machine."""
    words, file, out = arguments.words, arguments.forward, arguments.out
    terminal.tell(
        calibrate_forward(words, file, out, _forward_s) if file else calibrate_probes(words, out, _serve)
    )
    return EXIT_OK


def live(arguments: argparse.Namespace) -> int:
    """Serve a page that follows a run or a study, until Ctrl-C."""
    # An HTTP server, which no other verb needs.
    from analysis.live import followed

    followed.live(arguments.run, arguments.port)
    return EXIT_OK


def _predicted(words: Sequence[str]) -> PredictionVerdict | GridVerdict:
    from conf.matrix import matrix
    from loadgen.cli import prediction
    from loadgen.predict import grid

    return prediction.answered(grid.cells_of(matrix(words), partial(prediction.checked, config=None)))


def _forward_s(experiment: Experiment, work: ForwardWork) -> float:
    # The engine model brings numba, for which the other verbs do not wait.
    from serve_apps.engine_model.cost.step_time import Batch, forward_s

    batch = Batch(len(work.decode_contexts), context_tokens=sum(work.decode_contexts))
    for new, context in work.chunks:
        batch.add_chunk(new, context)
    return forward_s(experiment.model, experiment.hardware, experiment.layout, batch)


def _serve(experiment: Experiment, load: RecordedLoad) -> Served:
    """The engine model behind one balancer."""
    from serve_apps.engine_model.engine.kinds import EngineKind
    from serve_apps.engine_model.service.service import Replicas, Requests, serve

    spec = experiment.engine
    assert isinstance(spec, SimulatedEngine)
    machine = EngineKind.of(spec, experiment.model, experiment.hardware, experiment.layout)
    requests = Requests(load.due_s, [load.input_tokens, load.output_tokens, load.shared_tokens])
    times = serve(machine, requests, Replicas(experiment.replicas, seed=experiment.seed), load.concurrency)
    return Served(times.sent_s, times.first_token_s, times.last_token_s)


def into_service(plan: Plan, source: Path | str, file: Path) -> ServeSettings:
    """Write the file of a plan on the run in `source`. Raises RunError or ConfigError for what it lacks."""
    run = load_run(source)
    experiment = run.config
    settings = scaling.serve_scaling(plan, run, experiment.layout.replicas_per_node)
    application, front = _application(experiment)
    file.write_text(scaling.serve_file(settings, application, run.name, front))
    return ServeSettings(str(file), settings.config, front.notes)


def _application(experiment: Experiment) -> tuple[Tree, ServeFront]:
    """The application of a run's engines in Serve's config format, and what stands around it.

    Raises ConfigError where it has none.
    """
    if experiment.layout.prefill is not None or experiment.layout.data_parallel > 1:
        raise ConfigError(
            f"{FLAG} scales engines that are alike and alone, not layout={experiment.layout.name}"
        )
    if isinstance(experiment.engine, SimulatedEngine):
        return _engine_model(experiment)
    if isinstance(experiment.engine, VllmEngine) and experiment.engine.kind == "vllm":
        return _vllm(experiment, experiment.engine)
    raise ConfigError(f"{FLAG} knows engine=simulated and engine=vllm, not {experiment.engine.kind}")


def _engine_model(experiment: Experiment) -> tuple[Tree, ServeFront]:
    from cluster.ray_session.own_machine import serve_environment
    from serve_apps.simulated.app import BUILDER, ENGINES
    from serve_apps.vllm_engine.rendering import BY_CLIENT, KEEP_ALIVE_S, LOOPBACK

    application = {
        "name": "maxqps",
        "route_prefix": "/",
        "import_path": BUILDER,
        "args": {"experiment": dump(experiment)},
        "deployments": [{"name": ENGINES, "autoscaling_config": {}}],
    }
    # One front on the head node, as in a sweep, so that one balancer sees all requests.
    http = {"host": LOOPBACK, "keep_alive_timeout_s": KEEP_ALIVE_S}
    options = {"proxy_location": "HeadOnly", "http_options": http}
    routing = experiment.routing
    notes = (BY_CLIENT.format(routing.policy),) if routing.data_path == "direct" else ()
    return application, ServeFront(options, serve_environment(routing), notes)


def _vllm(experiment: Experiment, engine: VllmEngine) -> tuple[Tree, ServeFront]:
    from cluster.ray_session.own_machine import serve_environment
    from serve_apps.vllm_engine.config_file import VllmService, environment
    from serve_apps.vllm_engine.rendering import render

    rendering = render(VllmService(experiment, engine.vllm_version))
    if rendering.application is None:
        raise RunError(f"{FLAG}: {rendering.notes[0]}")
    options = dict(rendering.application)
    [application] = options.pop("applications")
    for config in application["args"]["llm_configs"]:  # room for autoscaling instead of a fixed number
        config["deployment_config"].pop("num_replicas", None)
        config["deployment_config"]["autoscaling_config"] = {}
    variables = serve_environment(experiment.routing) | environment(engine, experiment.routing)
    return application, ServeFront(options, variables, rendering.notes)


ACTS: dict[str, Callable[[argparse.Namespace], int]] = {
    act.__name__: act for act in (show, report, compare, plan, export, calibrate, live)
}
