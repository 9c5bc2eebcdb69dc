"""A plan taken into service: Ray Serve's file with its autoscaling.

The rules stand in `analysis/planning/`.
"""

# A composition root: it asks for the application that serves.

from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.autoscaling.request_life import mean_life
from analysis.autoscaling.serve_file import ServeFront, serve_file
from analysis.autoscaling.serve_scaling import ServeScaling, serve_scaling, working_qps_per_node
from analysis.planning.plan import Plan
from analysis.results.runs import RunError, load_run, refuse_out
from conf import ConfigError, Experiment
from conf.compose import dump
from conf.specs.experiment import SimulatedEngine, VllmEngine

FLAG = "--serve-config"
Tree = dict[str, Any]


class IntoService:
    """Writes the file of a plan; `lines` say what is in it."""

    def __init__(self, file: Path) -> None:
        refuse_out(file, ".yaml", ".yml", flag=FLAG)
        self._file = file
        self.lines: list[str] = []

    def __call__(self, found: Plan, source: Path | str) -> Tree:
        """Write the file; the tree of what is in it. Raises RunError or ConfigError for what it lacks."""
        run = load_run(source)
        asked = run.config
        per_node = asked.layout.replicas_per_node
        certified, working = working_qps_per_node(found)
        scaling = serve_scaling(found, mean_life(run, working, certified), per_node)
        application, front = _application(asked)
        self._file.write_text(serve_file(scaling, application, run.name, front))
        self.lines += _written(self._file, scaling) + list(front.notes)
        return {
            "file": str(self._file),
            "autoscaling_config": scaling.config,
            "rests_on": asdict(scaling),
        }


def _written(file: Path, scaling: ServeScaling) -> list[str]:
    target = scaling.target_ongoing_requests
    return [
        f"Ray Serve's autoscaling in {file}: {scaling.min_replicas} to {scaling.max_replicas} engines, "
        f"{target.value:.4g} requests on each by Little's law; its comments give each number's reason",
        "use it on a cluster whose nodes had the variables in its comments before ray start: "
        f"serve deploy {file}",
    ]


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
