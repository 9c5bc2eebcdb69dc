"""A plan taken into service: Ray Serve's file with its autoscaling, by the rules in `analysis/planning`."""

# A composition root: it asks for the application that serves.

from pathlib import Path
from typing import Any

from analysis.planning.serve_scaling import (
    ServeFront,
    ServeSettings,
    mean_life,
    serve_file,
    serve_scaling,
    working_qps_per_node,
)
from analysis.planning.verdict import Plan
from analysis.results.runs import RunError, load_run
from conf import ConfigError, Experiment
from conf.compose import dump
from conf.specs.experiment import SimulatedEngine, VllmEngine

FLAG = "--serve-config"
Tree = dict[str, Any]


def into_service(plan: Plan, source: Path | str, file: Path) -> ServeSettings:
    """Write the file of a plan on the run in `source`. Raises RunError or ConfigError for what it lacks."""
    run = load_run(source)
    experiment = run.config
    certified, working = working_qps_per_node(plan)
    scaling = serve_scaling(plan, mean_life(run, working, certified), experiment.layout.replicas_per_node)
    application, front = _application(experiment)
    file.write_text(serve_file(scaling, application, run.name, front))
    return ServeSettings(str(file), scaling.config, scaling, front.notes)


def _application(asked: Experiment) -> tuple[Tree, ServeFront]:
    """The application of a run's engines in Serve's config format, and what stands around it.

    Raises ConfigError where it has none.
    """
    if asked.layout.prefill is not None or asked.layout.data_parallel > 1:
        raise ConfigError(f"{FLAG} scales engines that are alike and alone, not layout={asked.layout.name}")
    if isinstance(asked.engine, SimulatedEngine):
        return _engine_model(asked)
    if isinstance(asked.engine, VllmEngine) and asked.engine.kind == "vllm":
        return _vllm(asked, asked.engine)
    raise ConfigError(f"{FLAG} knows engine=simulated and engine=vllm, not {asked.engine.kind}")


def _engine_model(asked: Experiment) -> tuple[Tree, ServeFront]:
    from cluster.ray_session.serve_settings import serve_environment
    from serve_apps.simulated import configured
    from serve_apps.simulated.app import ENGINES
    from serve_apps.vllm_engine.rendering import BY_CLIENT, KEEP_ALIVE_S, LOOPBACK

    application = {
        "name": "maxqps",
        "route_prefix": "/",
        "import_path": configured.BUILDER,
        "args": {"bundles": [asked.layout.replica_resources], "experiment": dump(asked)},
        "deployments": [{"name": ENGINES, "autoscaling_config": {}}],
    }
    # One front on the head node, as in a sweep, so that one balancer sees all requests.
    http = {"host": LOOPBACK, "keep_alive_timeout_s": KEEP_ALIVE_S}
    options = {"proxy_location": "HeadOnly", "http_options": http}
    routing = asked.routing
    notes = (BY_CLIENT.format(routing.policy),) if routing.data_path == "direct" else ()
    return application, ServeFront(options, serve_environment(routing), notes)


def _vllm(asked: Experiment, engine: VllmEngine) -> tuple[Tree, ServeFront]:
    from cluster.ray_session.serve_settings import serve_environment
    from serve_apps.vllm_engine.config_file import environment
    from serve_apps.vllm_engine.rendering import RenderingInput, render
    from serve_apps.vllm_recipes import vllm_flags

    version = engine.vllm_version or vllm_flags.text(vllm_flags.NEWEST)
    parts = engine, asked.model, asked.layout, asked.cluster, asked.hardware, asked.routing
    rendering = render(RenderingInput(*parts, version))
    if rendering.application is None:
        raise RunError(f"{FLAG}: {rendering.notes[0]}")
    options = dict(rendering.application)
    [application] = options.pop("applications")
    variables = serve_environment(asked.routing) | environment(engine, asked.routing)
    return _scaled_vllm(application), ServeFront(options, variables, rendering.notes)


def _scaled_vllm(application: Tree) -> Tree:
    """The same, with room for autoscaling instead of a fixed number of engines."""
    for config in application["args"]["llm_configs"]:
        config["deployment_config"].pop("num_replicas", None)
        config["deployment_config"]["autoscaling_config"] = {}
    return application
