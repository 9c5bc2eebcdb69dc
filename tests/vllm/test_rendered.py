"""`serve_apps.vllm_engine.rendering` taken by Ray: built for each routing, deployed by `serve run` for three.

Of each word the file's application is built by the builder that the file names and beside it that of a sweep,
in a process with the variables that the file asks for; the deployments of both must have the same router,
engine arguments, placement and options. Three words then serve tokens with two emulated engines.
"""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from cluster.deployment.serve_state import details, metrics_urls, state
from cluster.ray_session.own_machine import HeldPorts, front_streams
from conf import load
from conf.words import groups
from serve_apps.__main__ import main
from serve_apps.routing.policies import router_options
from serve_apps.vllm_engine.config_file import RAY_BUILDER
from serve_apps.vllm_recipes.model_folder import write_folder
from tests.support.machine.patience import START_S, until
from tests.support.words.recipe_words import routed
from tests.vllm.running import counters, post

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

Tree = dict[str, Any]
GPUS = ["engine=vllm", "cluster=mi325x_4n", "layout.connector=nixl"]
LAYOUTS = "dp2_tp4_ep4", "dp8_attention_ep8", "1p1d_tp4_ep4"
LONGEST, BLOCKS = 8192, 4096
"""Longest request; and KV blocks, of which vLLM makes an object each: a GPU would hold 30 million of this
model's, which takes each engine a minute and 4 GB."""
ANSWERED = "request_success_total"
SESSIONS = "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"
"""All eight fall to one of two replicas once in 128 times; the ids of replicas are drawn anew each time."""


def rendered(words: list[str], capsys: pytest.CaptureFixture[str]) -> Tree:
    assert main(["render", *words, "--json"]) == 0
    tree: Tree = json.loads(capsys.readouterr().out)
    return tree


BUILD = """
import json, sys
from tests.vllm.test_rendered import described
print("BUILT" + json.dumps([described(*each) for each in json.load(sys.stdin)]))
"""


def described(file: Tree, words: list[str]) -> list[Tree]:
    """The deployments of a file's application and those of the sweep of its words, as Ray would make them."""
    from importlib import import_module

    from loadgen.cli.deployment import service_plan

    (served,) = file["applications"]
    module, _, name = served["import_path"].partition(":")
    experiment = load(words)
    if experiment.routing.policy == "kv_aware":  # as if it were here: nothing of it runs
        sys.modules.setdefault("dynamo", ModuleType("dynamo")).__spec__ = ModuleSpec("dynamo", None)
    sweep = service_plan(experiment).build
    return [_deployments(app) for app in (getattr(import_module(module), name)(served["args"]), sweep())]


def _deployments(app: Any) -> Tree:
    """Each deployment of the graph by its name without its class, and the one that HAProxy asks."""
    result: Tree = {}
    waiting = [app, *filter(None, [app._ingress_request_router])]
    while waiting:
        one = waiting.pop()._bound_deployment
        given = [*one.init_args, *one.init_kwargs.values()]
        flat = [each for it in given for each in (it.values() if isinstance(it, dict) else [it])]
        waiting += [each for each in flat if type(each) is type(app) and _name(each) not in result]
        result[_name(app) if one is app._bound_deployment else one.name.rpartition(":")[2]] = _described(one)
    return result


def _name(app: Any) -> str:
    return str(app._bound_deployment.name).rpartition(":")[2]


def _described(deployment: Any) -> Tree:
    config, made = deployment._deployment_config, deployment._replica_config
    engines = [each for each in deployment.init_kwargs.values() if hasattr(each, "engine_kwargs")]
    router = config.request_router_config
    return {
        "router": [str(router.get_request_router_class()), router.request_router_kwargs],
        "replicas": [config.num_replicas, config.max_ongoing_requests, config.max_queued_requests],
        "health": [config.health_check_period_s, config.graceful_shutdown_timeout_s],
        "tries": config.max_constructor_retry_count,
        "actor": made.ray_actor_options,
        "placement": [made.placement_group_bundles, made.placement_group_strategy],
        "gang": str(config.gang_scheduling_config),
        "engine": [
            [engine.model_id, engine.engine_kwargs, engine.experimental_configs, engine.log_engine_metrics]
            for engine in engines
        ],
    }


@pytest.mark.parametrize("python_proxy", [False, True])
def test_rays_builder_makes_of_the_file_what_a_sweep_deploys(
    python_proxy: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    cases, environment = [], {}
    for routing in groups()["routing"]:
        for layout in LAYOUTS:
            if routing == "per_node" and layout == LAYOUTS[0]:
                continue  # a node's stream goes to one replica
            if routing == "kv_aware" and layout == LAYOUTS[2]:
                continue  # refused
            words = [*GPUS, f"layout={layout}", *routed(routing)]
            if python_proxy and routing in ("round_robin", "consistent_hash", "prefix_affinity"):
                words.append("routing.data_path=python_proxy")
            tree = rendered(words, capsys)
            if (tree["ray_serve_environment"]["RAY_SERVE_ENABLE_HA_PROXY"] == "0") == python_proxy:
                environment |= tree["ray_serve_environment"]
                cases.append((tree["ray_serve"], words))
    done = subprocess.run(
        [sys.executable, "-c", BUILD],
        input=json.dumps(cases),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("BUILT")]
    for (file, words), (theirs, ours) in zip(cases, json.loads(line.removeprefix("BUILT")), strict=True):
        by_ray = file["applications"][0]["import_path"] == RAY_BUILDER
        for side in theirs, ours:
            assert any("data_parallel" in str(each) or each["engine"] for each in side.values()), words
        if by_ray:  # its ingress and its router have classes of their own, and the same options
            assert sorted(map(str, theirs.values())) == sorted(map(str, ours.values())), words
        else:
            assert theirs == ours, words


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Words of two engines of real vLLM on emulated GPUs, with a model folder of their own."""
    words = ["engine=vllm_emulated", "model=tiny_qwen3_moe", "layout=dp1_tp1", "layout.replicas_per_node=2"]
    folder = write_folder(load(words).model, tmp_path_factory.mktemp("model"))
    args = f"max_model_len={LONGEST}", f"num_gpu_blocks_override={BLOCKS}"
    return [*words, f"engine.model_path={folder}", *(f"engine.args.{each}" for each in args)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a Ray session with pretended GPUs and without Serve."""
    import ray

    from cluster.ray_session.session import open_session

    with open_session(load(["cluster.session=fake"]).cluster, None):
        yield str(ray.get_runtime_context().gcs_address)


@pytest.fixture
def port() -> Iterator[int]:
    """A port that no other process gets."""
    with HeldPorts() as held:
        yield held.another()


class Served:
    """The application that `serve run` has deployed from a file."""

    def __init__(self, tree: Tree, address: str, port: int, folder: Path) -> None:
        file = tree["ray_serve"]
        file["http_options"]["port"] = port
        self.url = f"http://127.0.0.1:{port}"
        (self.application,) = file["applications"]
        (self.config,) = self.application["args"]["llm_configs"]
        written = folder / "file.yaml"
        written.write_text(yaml.safe_dump(file))
        # What a node allows HAProxy is less here than on a real one.
        variables = {**tree["ray_serve_environment"], "RAY_SERVE_HAPROXY_MAXCONN": str(front_streams())}
        command = [str(Path(sys.executable).parent / "serve"), "run", str(written), "--non-blocking"]
        subprocess.run(
            [*command, "--address", address, "--runtime-env-json", json.dumps({"env_vars": variables})],
            env={**os.environ, **variables},
            check=True,
        )
        until(self.runs, "the file's application never ran", START_S)
        until(lambda: self.ask("hello") is None, "the front never answered", START_S)

    def state(self) -> Any:
        return state(self.application["name"], "LLMServer")

    def runs(self) -> bool:
        now = self.state()
        assert now.status not in ("DEPLOY_FAILED", "UNHEALTHY"), now.message
        return bool(
            now.trouble is None and len(now.engines) == self.config["deployment_config"]["num_replicas"]
        )

    def options(self) -> Tree:
        """What Serve's controller says of the deployment of the engines."""
        deployments = details()["applications"][self.application["name"]]["deployments"]
        (result,) = [
            deployment["deployment_config"]
            for name, deployment in deployments.items()
            if name.startswith("LLMServer")
        ]
        tree: Tree = result
        return tree

    def ask(self, prompt: str, session: str = "none") -> str | None:
        """Send a request of one token; the error, if any."""
        body = {"model": self.config["model_loading_config"]["model_id"], "prompt": prompt, "max_tokens": 1}
        try:
            post(self.url, json.dumps(body).encode(), {"x-session-id": session})
        except OSError as error:
            return str(error)
        return None

    def pages(self) -> dict[str, str]:
        """vLLM's own metrics of each replica."""
        urls = metrics_urls(self.application["name"], self.state().replica_ids)
        return {name: urllib.request.urlopen(url, timeout=30).read().decode() for name, url in urls.items()}

    def answered(self) -> dict[str, float]:
        """Requests that each replica has answered."""
        return {name: counters([page], [ANSWERED])[ANSWERED] for name, page in self.pages().items()}

    def met(self, prompts: Sequence[str], session: str) -> set[str]:
        """The replicas that the requests of a session with these prompts met; none if a request failed."""
        before = self.answered()
        errors = [self.ask(prompt, session) for prompt in prompts]
        if any(errors):
            return set()
        return {name for name, count in self.answered().items() if count > before[name]}


def turns(text: str) -> list[str]:
    """Prompts of one user: all begin alike."""
    return [f"{text} " * 30 + f"turn {number}" for number in range(4)]


@pytest.mark.parametrize("routing", ["consistent_hash", "prefix_affinity", "leastconn"])
def test_serve_run_deploys_the_router_engine_and_placement_of_the_file(
    routing: str,
    emulated: list[str],
    address: str,
    port: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from ray import serve
    from ray.util import placement_group_table

    words = [*emulated, *routed(routing)]
    served = Served(rendered(words, capsys), address, port, tmp_path)
    try:
        options, config = served.options(), served.config
        router = router_options(load([*words, "cluster.session=fake"]).routing)
        seen = options["request_router_config"]
        if router:
            assert {name: seen[name] for name in router} == router
        groups_made = [one for one in placement_group_table().values() if one["state"] == "CREATED"]
        assert len(groups_made) == config["deployment_config"]["num_replicas"]
        for made in groups_made:
            assert list(made["bundles"].values()) == config["placement_group_config"]["bundles"]
            assert made["strategy"] == config["placement_group_config"]["strategy"]
        assert options["max_ongoing_requests"] == config["deployment_config"]["max_ongoing_requests"]
        models = json.loads(urllib.request.urlopen(f"{served.url}/v1/models", timeout=30).read())
        assert models["data"][0]["max_model_len"] == LONGEST
        for page in served.pages().values():
            block = re.search(r'^vllm:cache_config_info{.*\bblock_size="(\d+)"', page, re.MULTILINE)
            assert block and int(block[1]) == config["engine_kwargs"]["block_size"]
        if routing == "leastconn":  # requests one after another may all meet one replica
            assert served.met(turns("alpha"), "alpha")
            return
        # HAProxy chooses by itself until it has heard of the router.
        # Each look has a text of its own: one that both replicas have seen says nothing for ever.
        looks = (f"first{number}" for number in count())
        until(lambda: len(served.met(turns(text := next(looks)), text)) == 1, "a session had two replicas")
        met = [served.met(turns(name), name) for name in SESSIONS]
        assert all(len(replicas) == 1 for replicas in met)
        assert len(set.union(*met)) == 2  # alone, Ray's prefix router names one replica for all
    finally:
        serve.shutdown()
