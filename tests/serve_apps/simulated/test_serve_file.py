"""`serve_apps.simulated.app.application`: by Ray Serve's own config file a deployment follows its load."""

import json
import threading
import urllib.request

import pytest
import yaml
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from analysis.planning.serve_scaling import ServeScaling, serve_file
from cluster.ray_session.session import Session
from conf import ConfigError, load
from conf.compose import dump
from serve_apps.simulated.app import BUILDER, ENGINES, application
from tests.support.machine.patience import until

WORDS = ["layout=dp2_tp4_ep4", "engine.time_scale=.1"]
"""Slow engines: what is in flight moves their number, and a token costs this machine work."""
APP = "maxqps"
SCALING = ServeScaling(
    {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_ongoing_requests": 2.0,
        "upscale_delay_s": 1.0,
        "downscale_delay_s": 1.0,
        "downscaling_factor": 0.25,
        "look_back_period_s": 30.0,
    },
    ["a test"],
)


def running() -> int:
    app = serve.status().applications.get(APP)
    return app.deployments[ENGINES].replica_states.get("RUNNING", 0) if app and app.deployments else 0


@pytest.mark.ray
@pytest.mark.slow
def test_a_deployment_follows_its_load_by_the_file(standing: Session) -> None:
    experiment = load(WORDS)
    tree = {
        "name": APP,
        "route_prefix": "/",
        "import_path": BUILDER,
        "args": {"experiment": dump(experiment)},
        "deployments": [{"name": ENGINES, "autoscaling_config": {}}],
    }
    file = ServeDeploySchema.model_validate(yaml.safe_load(serve_file(SCALING, tree, "a test")))
    body = json.dumps({"model": experiment.model.served_name, "prompt": [1] * 50, "max_tokens": 20}).encode()
    over = threading.Event()

    def keep_asking(url: str) -> None:
        while not over.is_set():
            urllib.request.urlopen(f"{url}/v1/completions", body, timeout=300).read()

    _get_global_client().deploy_apps(file)
    until(lambda: running() == 1)
    askers = [threading.Thread(target=keep_asking, args=(standing.url,)) for _ in range(4)]
    for asker in askers:
        asker.start()
    try:
        until(lambda: running() == 2)  # four requests, two on each engine
    finally:
        over.set()
    for asker in askers:
        asker.join()
    until(lambda: running() == 1)
    serve.delete(APP)


def test_a_file_of_another_engine_is_refused() -> None:
    saved = {"experiment": dump(load(["engine=vllm"]))}
    with pytest.raises(ConfigError, match="one kind of simulated engine"):
        application(saved)
