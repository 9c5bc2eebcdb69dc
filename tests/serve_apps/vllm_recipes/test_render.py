"""serve_apps/__main__.py, vllm_engine/rendering.py: a recipe as LLMConfig, as flags and on the screen."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from conf.words import groups
from serve_apps.__main__ import main
from serve_apps.vllm_engine import config_file
from serve_apps.vllm_engine.config_file import OUR_BUILDER, RAY_BUILDER
from serve_apps.vllm_recipes import recipes
from serve_apps.vllm_recipes.recipes import Recipe
from tests.support.words.recipe_words import (
    MODERN_ENV,
    NIXL,
    PROCESS,
    QWEN,
    SPLIT,
    TP4,
    TP8,
    experiment,
    resolve,
    routed,
)


def config(words: Sequence[str]) -> dict[str, Any]:
    asked = experiment([*words, "cluster=mi325x_4n"])
    return config_file.llm_config(asked, asked.layout, resolve(words))


def rendered(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["render", *words, "vllm_version=0.33.0", "--json"]) == 0
    tree: dict[str, Any] = json.loads(capsys.readouterr().out)
    return tree


def sides_of(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """What Ray Serve is told of the prefill and of the decode engines."""
    (application,) = tree["ray_serve"]["applications"]
    assert application["import_path"] == OUR_BUILDER  # the prefill servers of Ray's refuse min_tokens
    return [application["args"][name] for name in ("prefill_config", "decode_config")]


def test_rays_configuration_of_gpus() -> None:
    words = [QWEN, TP4, "engine.node_resource=mi325x_node", "engine.model_path=/models/qwen"]
    result = config(words)
    assert result["placement_group_config"] == {
        "bundles": [{"GPU": 1.0, "CPU": 0.1, "mi325x_node": 0.5}, {"GPU": 1.0}, {"GPU": 1.0}, {"GPU": 1.0}],
        "strategy": "STRICT_PACK",
    }
    assert result["deployment_config"]["num_replicas"] == 8
    assert result["deployment_config"]["max_ongoing_requests"] >= 1_000_000
    assert result["experimental_configs"] == {"stream_batching_interval_ms": 0}
    assert result["model_loading_config"] == {
        "model_id": "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
        "model_source": "/models/qwen",
    }
    assert result["runtime_env"]["env_vars"] == MODERN_ENV
    assert result["engine_kwargs"]["attention_backend"] == "ROCM_AITER_FA"
    assert "autoscaling_config" not in result["deployment_config"] and "accelerator_type" not in result
    named = config([QWEN, TP4, "engine.accelerator_type=AMD-Instinct-MI325X-OAM"])
    assert named["accelerator_type"] == "AMD-Instinct-MI325X-OAM"


def test_flags_of_all_kinds_of_values() -> None:
    recipe = Recipe({"a_b": True, "c": False, "d": {"e": 1}, "f": [1, 2], "g": 0.9}, {})
    assert recipes.flags(recipe) == ["--a-b", "--no-c", "--d", '{"e": 1}', "--f", "1", "2", "--g", "0.9"]


def test_render_prints_both_replicas_of_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    tree = rendered([TP4], capsys)
    first, second = tree["replicas_of_a_node"]
    assert [each["env"]["HIP_VISIBLE_DEVICES"] for each in (first, second)] == ["0,1,2,3", "4,5,6,7"]
    assert first["command"][:5] == ["numactl", "--cpunodebind=0", "--membind=0", "vllm", "serve"]
    assert second["command"][:3] == ["numactl", "--cpunodebind=1", "--membind=1"]
    for name in ("TRITON_CACHE_DIR", "VLLM_CACHE_ROOT"):
        assert first["env"][name] != second["env"][name]
    assert "XDG_CACHE_HOME" not in first["env"]  # the weights that were downloaded lie below it
    assert (first["port"], second["port"]) == (8000, 8001)
    (application,) = tree["ray_serve"]["applications"]
    assert application["args"]["llm_configs"][0]["deployment_config"]["num_replicas"] == 2
    assert tree["ray_serve"]["http_options"]["host"] == "127.0.0.1"


def test_render_prints_a_shell_command_and_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", TP8, "vllm_version=0.33.0"]) == 0
    text = capsys.readouterr().out
    command, _, tail = text.partition("# the same engines")
    assert yaml.safe_load(tail.partition("\n")[2])["applications"][0]["name"] == "vllm-leastconn"
    assert "numactl" not in command and "HIP_VISIBLE_DEVICES=0,1,2,3,4,5,6,7" in command
    shown = subprocess.run(
        ["bash", "-c", "vllm() { printf '%s\\n' \"$@\"; }\n" + command],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    asked, recipe = experiment([QWEN, TP8]), resolve([QWEN, TP8, PROCESS])
    address = "--host", "127.0.0.1", "--port", "8000"
    assert shown[:-1] == ["serve", *recipes.command(recipe, asked.model), *address]


def test_render_calibrate_prints_the_bench_of_one_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "--calibrate", TP4, "hardware=mi300x", "vllm_version=0.33.0"]) == 0
    text = capsys.readouterr().out
    assert "torchrun --nproc-per-node=4 -m vllm.entrypoints.cli.main bench forward" in text
    assert "HIP_VISIBLE_DEVICES=0,1,2,3" in text and "--kv-len-jitter 0" in text
    assert "--enable-prompt-tokens-details" not in text and "--port" not in text
    cases = [line.split("=")[1].rstrip("' \\") for line in text.splitlines() if "--case " in line]
    assert 25 <= len(cases) <= 35 and "8192" in cases and "64*1@16384" in cases
    last = text.splitlines()[-1]
    assert last.startswith("python -m analysis calibrate --forward forward.json") and TP4 in last


def test_render_of_a_published_recipe_takes_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "engine.recipe=published", TP8, "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["vllm_version"] == "0.11.0" and tree["ray_serve"] is None
    assert any("no Ray Serve config" in note for note in tree["notes"])
    assert "--disable-log-requests" in tree["replicas_of_a_node"][0]["command"]


@pytest.mark.slow
def test_a_reader_who_leaves_is_no_error_of_ours_and_the_command_needs_neither_ray_nor_vllm() -> None:
    code = (
        "import sys; from serve_apps.__main__ import main; left = main(['render']); "
        "assert not {'ray', 'vllm', 'torch'} & set(sys.modules); sys.exit(left)"
    )
    shown = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert shown.stdout and shown.stderr
    shown.stdout.close()
    assert (shown.wait(), shown.stderr.read()) == (1, b"")


def transfer_of(process: dict[str, Any]) -> dict[str, Any]:
    """The connector's configuration among the words of a process."""
    words = process["command"]
    told: dict[str, Any] = json.loads(words[words.index("--kv-transfer-config") + 1])
    return told


@pytest.mark.parametrize("mode", ["read", "write"])
def test_render_prints_both_sides_of_a_split_node(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    tree = rendered([SPLIT, f"layout.transfer_mode={mode}"], capsys)
    prefill, decode = tree["replicas_of_a_node"]
    assert [(one["side"], one["env"]["HIP_VISIBLE_DEVICES"], one["port"]) for one in (prefill, decode)] == [
        ("prefill", "0,1,2,3", 8000),
        ("decode", "4,5,6,7", 8001),
    ]
    common = {"read_mode": mode == "read", "proxy_ip": "127.0.0.1", "proxy_ping_port": "36367"}
    ports = "http_port", "handshake_port", "notify_port"
    for one, role, *own in (
        (prefill, "kv_producer", "8000", "6301", "61005"),
        (decode, "kv_consumer", "8001", "7301", "62005"),
    ):
        extra = common | dict(zip(ports, own, strict=True))
        told = {"kv_connector": "MoRIIOConnector", "kv_role": role, "kv_connector_extra_config": extra}
        assert transfer_of(one) == told
        words = one["command"]
        assert "--no-enable-prefix-caching" in words and "--enable-expert-parallel" in words
        assert words[words.index("--max-num-batched-tokens") + 1] == "4096"
    assert prefill["command"][prefill["command"].index("--max-num-seqs") + 1] == "64"
    assert tree["proxy_by_hand"] == [
        "python",
        "examples/disaggregated/disaggregated_serving/moriio_toy_proxy_server.py",
    ]
    sides = sides_of(tree)
    extra = {"read_mode": mode == "read"}
    assert [side["engine_kwargs"]["kv_transfer_config"] for side in sides] == [
        {"kv_connector": "MoRIIOConnector", "kv_role": role, "kv_connector_extra_config": extra}
        for role in ("kv_producer", "kv_consumer")
    ]
    assert [side["experimental_configs"]["MORI_NOTIFY_PORT_BASE"] for side in sides] == [61005, 62005]
    assert [len(side["placement_group_config"]["bundles"]) for side in sides] == [4, 4]


def test_no_two_engines_of_a_node_listen_on_the_same_port_and_they_share_it_by_their_gpus(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree = rendered(["layout=2p1d", NIXL, "cluster.nodes=2", "engine.node_resource=mi325x_node"], capsys)
    engines = tree["replicas_of_a_node"]
    assert [(engine["side"], engine["env"]["HIP_VISIBLE_DEVICES"]) for engine in engines] == [
        ("prefill", "0,1"),
        ("prefill", "2,3"),
        ("decode", "4,5,6,7"),
    ]
    assert [engine["env"]["VLLM_NIXL_SIDE_CHANNEL_PORT"] for engine in engines] == ["20000", "20002", "22000"]
    assert [engine["port"] for engine in engines] == [8000, 8001, 8002]
    assert transfer_of(engines[0]) == {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
    assert not any("prefix-caching" in word for word in engines[0]["command"])
    assert tree["proxy_by_hand"][1:] == [
        "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py",
        *("--host", "127.0.0.1", "--port", "8192"),
        *("--prefiller-hosts", "127.0.0.1", "127.0.0.1", "--prefiller-ports", "8000", "8001"),
        *("--decoder-hosts", "127.0.0.1", "--decoder-ports", "8002"),
    ]
    sides = sides_of(tree)
    assert [side["deployment_config"]["num_replicas"] for side in sides] == [4, 2]
    assert [side["experimental_configs"]["NIXL_SIDE_CHANNEL_PORT_BASE"] for side in sides] == [20000, 22000]
    assert [side["placement_group_config"]["bundles"] for side in sides] == [
        [{"GPU": 1.0, "CPU": 0.1, "mi325x_node": 0.25}, {"GPU": 1.0}],
        [{"GPU": 1.0, "CPU": 0.1, "mi325x_node": 0.5}, {"GPU": 1.0}, {"GPU": 1.0}, {"GPU": 1.0}],
    ]
    assert any("on several nodes" in note for note in tree["notes"])


def test_ranks_are_groups_of_serves_replicas_with_gpus_of_their_own() -> None:
    words = [QWEN, "layout=dp8_attention_ep8", "engine.node_resource=mi325x_node"]
    result = config(words)
    assert result["engine_kwargs"]["data_parallel_size"] == 8
    assert result["engine_kwargs"]["tensor_parallel_size"] == 1
    assert result["engine_kwargs"]["enable_expert_parallel"] is True
    assert result["placement_group_config"]["bundles"] == [{"GPU": 1.0, "CPU": 0.1, "mi325x_node": 0.125}]
    assert result["deployment_config"]["num_replicas"] == 4  # groups, as Ray counts them
    wide = config([QWEN, "layout=dp8_attention_ep8", "layout.data_parallel=4", "layout.tensor_parallel=2"])
    assert wide["engine_kwargs"]["data_parallel_size"] == 4
    assert len(wide["placement_group_config"]["bundles"]) == 2
    assert "data_parallel_size" not in resolve([QWEN, TP8]).args


def test_a_group_is_rendered_as_one_process_on_all_its_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    main(["render", "engine=vllm", QWEN, "layout=dp8_attention_ep8"])
    text = capsys.readouterr().out
    assert "HIP_VISIBLE_DEVICES=0,1,2,3,4,5,6,7" in text and "--data-parallel-size 8" in text
    assert f"import_path: {OUR_BUILDER}" in text
    main(["render", "engine=vllm", QWEN, "layout=dp8_attention_ep8", "routing=round_robin"])
    assert "server_cls: ray.serve.llm.deployment:DPServer" in capsys.readouterr().out


ROUTED = {
    "round_robin": "ray.serve.experimental.round_robin_router.RoundRobinRouter",
    "consistent_hash": "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter",
    "bounded_hash": "serve_apps.routing.serve_routers.BoundedHashRouter",
    "kv_aware": "ray.serve.llm.request_router.KVAwareRouter",
    "prefix_affinity": "serve_apps.routing.prefix_router.PrefixRouter",
}


@pytest.mark.parametrize("routing", groups()["routing"])
def test_the_file_has_the_router_of_the_sweep(routing: str, capsys: pytest.CaptureFixture[str]) -> None:
    tree = rendered(routed(routing), capsys)
    (application,) = tree["ray_serve"]["applications"]
    (config,) = application["args"]["llm_configs"]
    router = config["deployment_config"].get("request_router_config", {})
    assert router.get("request_router_class") == ROUTED.get(routing)
    environment = tree["ray_serve_environment"]
    python_proxy = routing in ("pow2", "bounded_hash")
    assert environment["RAY_SERVE_ENABLE_HA_PROXY"] == ("0" if python_proxy else "1")
    assert environment["RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING"] == ("0" if python_proxy else "1")
    # Ray's own builder attaches a router of its own behind HAProxy, whatever the file says.
    by_ray = python_proxy or routing in ROUTED
    assert application["import_path"] == (RAY_BUILDER if by_ray else OUR_BUILDER)
    names = [note for note in tree["notes"] if "install this package on all nodes" in note]
    assert len(names) == ("serve_apps." in str(application))
    chosen = [note for note in tree["notes"] if "the load generator chooses" in note]
    assert len(chosen) == (routing in ("client_side", "per_node"))
