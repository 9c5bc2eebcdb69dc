"""What `python -m cluster render` writes is what KubeRay, `ray up` and systemd read; nothing is started."""

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cluster import __main__ as command
from cluster.manifests.files import checked_name, files, host_address
from conf import load
from serve_apps.vllm_engine.rendering import Process
from tests.support.words.words import HOSTS, IMAGE, KUBERAY, SERVICE

DATA = Path(__file__).parents[2] / "data"
OURS = yaml.safe_load((DATA / "crd" / "kuberay.schema.yaml").read_text())

Tree = dict[str, Any]


@cache
def render(*words: str) -> str:
    """What is printed; most words are rendered by several tests."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert command.main(["render", *words]) == 0
    return out.getvalue()


def objects(text: str) -> dict[str, Tree]:
    return {tree["kind"]: tree for tree in yaml.safe_load_all(text)}


def groups(cluster: Tree) -> dict[str, Tree]:
    return {group["groupName"]: group for group in cluster["workerGroupSpecs"]}


def container(group: Tree) -> Tree:
    (only,) = group["template"]["spec"]["containers"]
    return only


def settings(group: Tree) -> dict[str, str]:
    """Environment variables whose values stand in the file."""
    return {pair["name"]: pair["value"] for pair in container(group)["env"] if "value" in pair}


VARIANTS = {
    "sweeps": KUBERAY,
    "service": [*KUBERAY, *SERVICE],
    "nvidia": [*KUBERAY, "hardware=h200", "--weights", "/mnt/weights", "--token-secret", "token"],
    "no load nodes": [*KUBERAY, "--load-nodes", "0", "--groups", "44,993", "--memory", "1Ti"],
}


@pytest.mark.parametrize("words", VARIANTS.values(), ids=VARIANTS)
def test_manifests_fit_the_schema(words: list[str]) -> None:
    for tree in objects(render(*words)).values():
        jsonschema.validate(tree, OURS)


def test_a_pod_with_gpus_is_a_whole_node() -> None:
    cluster = objects(render(*KUBERAY))["RayCluster"]["spec"]
    gpu, load = groups(cluster)["gpu"], groups(cluster)["load"]
    assert cluster["headGroupSpec"]["resources"] == {"CPU": "0"}
    assert (gpu["replicas"], gpu["minReplicas"], gpu["maxReplicas"]) == (4, 4, 4)
    assert gpu["resources"]["GPU"] == "8" and gpu["resources"]["mi325x_node"] == "1"
    assert (gpu["labels"], load["labels"]) == ({"role": "gpu"}, {"role": "load"})
    assert container(gpu)["resources"]["limits"]["amd.com/gpu"] == "8"
    assert "amd.com/gpu" not in str(load)
    pod = gpu["template"]["spec"]
    assert {"/dev/shm", "/dev/kfd", "/dev/dri", "/weights"} == {
        mount["mountPath"] for mount in container(gpu)["volumeMounts"]
    }
    assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "128Gi"}
    assert pod["volumes"][1]["persistentVolumeClaim"]["readOnly"] is True
    # Of 16 GiB Ray takes 30 % for its object store, on disk where /dev/shm is smaller.
    assert [mount["emptyDir"]["sizeLimit"] for mount in load["template"]["spec"]["volumes"]] == ["6Gi"]
    assert pod["securityContext"] == {"supplementalGroups": [44, 109]}
    assert container(gpu)["securityContext"]["seccompProfile"] == {"type": "Unconfined"}
    for each in (container(gpu), container(load), container(cluster["headGroupSpec"])):
        probe = each["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= 1800
        mounts, volumes = each["volumeMounts"], gpu["template"]["spec"]["volumes"]
        assert {mount["name"] for mount in mounts} <= {volume["name"] for volume in volumes}


def test_all_pods_have_the_environment_that_serve_has_in_a_session_of_ours() -> None:
    from cluster.ray_session.own_machine import serve_environment

    cluster = objects(render(*KUBERAY, "routing=pow2"))["RayCluster"]["spec"]
    pods = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    result = [settings(pod) for pod in pods]
    assert result[0] == result[1] == result[2]
    assert serve_environment(load(["routing=pow2"]).routing).items() <= result[0].items()
    assert result[0]["RAY_AUTH_MODE"] == "token" and result[0]["HF_HUB_OFFLINE"] == "1"


def test_every_pod_registers_under_its_own_address() -> None:
    cluster = objects(render(*KUBERAY))["RayCluster"]["spec"]
    for pod in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (reference,) = (pair for pair in container(pod)["env"] if "valueFrom" in pair)
        assert reference["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        assert pod["rayStartParams"]["node-ip-address"] == f"${reference['name']}"


def test_nvidia_nodes_ask_for_their_own_devices() -> None:
    cluster = objects(render(*VARIANTS["nvidia"]))["RayCluster"]["spec"]
    gpu = groups(cluster)["gpu"]
    assert container(gpu)["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert "kfd" not in str(gpu) and gpu["resources"]["h200_node"] == "1"
    assert gpu["template"]["spec"]["volumes"][1]["hostPath"]["path"] == "/mnt/weights"
    assert cluster["authOptions"] == {"mode": "token", "secretName": "token"}


@pytest.mark.slow
def test_a_service_serves_the_recipe_of_its_model() -> None:
    words = [*KUBERAY, *SERVICE, "layout=dp2_tp4_ep4", "engine.node_resource=mine"]
    service = objects(render(*words))["RayService"]["spec"]
    (application,) = yaml.safe_load(service["serveConfigV2"])["applications"]
    (config,) = application["args"]["llm_configs"]
    assert config["model_loading_config"]["model_source"] == "/weights/qwen"
    assert config["deployment_config"]["num_replicas"] == 8
    assert config["engine_kwargs"]["tensor_parallel_size"] == 4
    gpu = groups(service["rayClusterConfig"])["gpu"]
    assert gpu["resources"]["mine"] == "1"
    assert settings(gpu)["RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING"] == "1"


def test_a_service_has_the_router_of_its_routing() -> None:
    words = [*KUBERAY, *SERVICE, "workload=chat_sessions", "routing=consistent_hash", "routing.vnodes=9"]
    service = objects(render(*words))["RayService"]["spec"]
    config = yaml.safe_load(service["serveConfigV2"])
    (llm,) = config["applications"][0]["args"]["llm_configs"]
    router = llm["deployment_config"]["request_router_config"]
    assert router["request_router_class"].endswith("ConsistentHashRouter")
    assert router["request_router_kwargs"]["num_virtual_nodes"] == 9
    assert config["proxy_location"] == "EveryNode" and config["http_options"]["host"] == "0.0.0.0"


def test_only_pods_of_the_cluster_and_the_operator_get_in() -> None:
    result = objects(render(*KUBERAY, "--name", "night"))
    policy, cluster = result["NetworkPolicy"]["spec"], result["RayCluster"]["spec"]
    own = policy["podSelector"]["matchLabels"]
    assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": own}}]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert own.items() <= group["template"]["metadata"]["labels"].items()


def test_ray_up_fits_rays_own_schema() -> None:
    import ray.autoscaler
    from ray.autoscaler._private.local.config import prepare_local

    tree = yaml.safe_load(render("ray-up", "cluster=mi325x_1n", "--hosts", HOSTS))
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(tree, schema)
    prepared, _ = prepare_local(tree)
    (node,) = prepared["available_node_types"].values()
    assert (node["min_workers"], node["max_workers"]) == (2, 2)
    assert tree["provider"] == {
        "type": "local",
        "head_ip": "10.0.0.1",
        "worker_ips": ["10.0.0.2", "10.0.0.3"],
    }
    assert tree["file_mounts"] == {}


def ray_words(command_line: str, address: str, tmp_path: Path) -> list[str]:
    """What `ray` would be called with on the host of that address, by a real shell."""
    done = shell(command_line, address, tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def shell(
    command_line: str, address: str, tmp_path: Path, has_token: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command of the file on the host of that address, with a `ray` that prints its words."""
    bin_folder = tmp_path / "venv" / "bin"
    bin_folder.mkdir(parents=True, exist_ok=True)
    (bin_folder / "ray").write_text('#!/bin/sh\nprintf "%s\\n" "$RAY_AUTH_MODE" "$@"\n')
    (bin_folder / "hostname").write_text(f"#!/bin/sh\necho 127.0.0.1 {address}\n")
    for path in bin_folder.iterdir():
        path.chmod(0o755)
    home = tmp_path / ("with a token" if has_token else "without")
    (home / ".ray").mkdir(parents=True, exist_ok=True)
    if has_token:
        (home / ".ray" / "auth_token").write_text("a token")
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "RAY_HEAD_IP": "10.0.0.1"}
    return subprocess.run(["bash", "-c", command_line], env=environment, capture_output=True, text=True)


def test_every_host_starts_in_its_role(tmp_path: Path) -> None:
    venv = str(tmp_path / "venv")
    tree = yaml.safe_load(render("ray-up", "cluster=mi325x_1n", "--hosts", HOSTS, "--venv", venv))
    on_gpu, on_load = (
        ray_words(tree["worker_start_ray_commands"][1], address, tmp_path) for address in HOSTS.split(",")[1:]
    )
    head = ray_words(tree["head_start_ray_commands"][1], "10.0.0.1", tmp_path)
    assert on_gpu[0] == on_load[0] == head[0] == "token"
    assert {"--num-gpus=8", "--labels=role=gpu", '--resources={"mi325x_node": 1}'} <= set(on_gpu)
    assert {"--num-gpus=0", "--num-cpus=3", "--labels=role=load"} <= set(on_load)
    assert {"--head", "--num-cpus=0", "--dashboard-host=127.0.0.1"} <= set(head)
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in head  # as in Ray's own default
    assert "--address=10.0.0.1:6379" in on_gpu
    for words, address in zip((head, on_gpu, on_load), HOSTS.split(","), strict=True):
        assert f"--node-ip-address={address}" in words
    foreign = shell(tree["worker_start_ray_commands"][1], "10.0.0.9", tmp_path)
    assert foreign.returncode != 0 and "none of 10.0.0.2 10.0.0.3 is an address" in foreign.stderr
    refused = shell(tree["worker_start_ray_commands"][1], "10.0.0.2", tmp_path, has_token=False)
    assert refused.returncode != 0 and "no token" in refused.stderr


def test_systemd_reads_the_units(tmp_path: Path) -> None:
    words = ["systemd", "cluster=mi325x_1n", "--hosts", HOSTS, "--venv", sys.prefix, "--out", str(tmp_path)]
    assert command.main(["render", *words]) == 0
    result = sorted(path.name for path in tmp_path.iterdir())
    assert result == ["maxqps-gpu@.service", "maxqps-head@.service", "maxqps-load@.service", "ray.env"]
    for name in result[:-1]:
        unit = (tmp_path / name).read_text()
        settings = dict(line.split("=", 1) for line in unit.splitlines() if line[:1].isalpha())
        assert int(settings["LimitNOFILE"]) >= 65536 and settings["LimitMEMLOCK"] == "infinity"
        (start,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
        assert shlex.split(start)[-1] == "--block"
        # systemd replaces %i by the instance's name, with which the file says to start it.
        assert "--node-ip-address=%i" in shlex.split(start)
    assert f"systemctl enable --now maxqps-load@{HOSTS.split(',')[-1]}\n" in unit
    if shutil.which("systemd-analyze"):
        units = [str(tmp_path / name) for name in result[:-1]]
        # In a folder of its own, so that it looks at no unit of this machine.
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True
        )
        own = [line for line in done.stderr.splitlines() if "maxqps" in line]
        assert own == [], done.stderr


@pytest.mark.parametrize(
    "words",
    [*VARIANTS.values(), ["ray-up", "--hosts", HOSTS], ["systemd", "--hosts", HOSTS]],
    ids=[*VARIANTS, "ray-up", "systemd"],
)
def test_no_file_holds_a_secret(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "the-token-itself")
    monkeypatch.setenv("HF_TOKEN", "hf-the-token-itself")
    assert "the-token-itself" not in render.__wrapped__(*words)


NAMES = yaml.safe_load((DATA / "manifest_names.yaml").read_text())
GOOD: dict[str, str] = NAMES["good"]
RAY_UP, SYSTEMD = ["ray-up", "cluster=mi325x_1n"], ["systemd", "cluster=mi325x_1n"]
TARGETS = {"kuberay": KUBERAY, "ray-up": [*RAY_UP, "--hosts", HOSTS], "systemd": [*SYSTEMD, "--hosts", HOSTS]}
FORMED = [(target, flag) for flag in command.FLAGS if flag.form for target in flag.targets.split()]


@pytest.mark.slow
@pytest.mark.battery("wrong input")
@pytest.mark.parametrize("payload", ["$(id)", "\nExecStartPre=/bin/id\x1b[2J"])
@pytest.mark.parametrize(("target", "flag"), FORMED)
def test_what_is_more_than_a_name_is_refused(target, flag, payload, capsys) -> None:
    value = flag.default or GOOD[flag.form]
    assert command.main(["render", *TARGETS[target], flag.long, value]) == 0
    capsys.readouterr()
    for words in ([flag.long, f"{value}{payload}"], ["--hosts", f"{HOSTS}{payload}"]):
        if words[0] == "--hosts" and target == "kuberay":
            continue
        assert command.main(["render", *TARGETS[target], *words]) == 2
        output = capsys.readouterr()
        assert output.out == "" and output.err.startswith("error: ") and output.err.count("\n") == 1
        assert output.err.rstrip("\n").isprintable()


@pytest.mark.battery("wrong input")
@pytest.mark.parametrize("payload", NAMES["payloads"])
@pytest.mark.parametrize("form", GOOD)
def test_no_form_of_a_name_holds_more(form: str, payload: str) -> None:
    assert checked_name(form, GOOD[form], "--flag") == GOOD[form]
    with pytest.raises(ValueError, match="^--flag=.* is not allowed there"):
        checked_name(form, f"{GOOD[form]}{payload}", "--flag")
    with pytest.raises(ValueError, match="is no IP address"):
        host_address(f"10.0.0.1{payload}", "--hosts")


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "fe80::1"])
def test_hosts_are_addresses(host: str) -> None:
    assert host_address(host, "--hosts") == host


@pytest.mark.parametrize("host", ["", "10.0.0.300", "node-1", "1node", "fe80::1%eth0", "[::1]", "10.0.0.1:1"])
def test_what_is_no_address_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="is no IP address"):
        host_address(host, "--hosts")


def test_a_name_that_yaml_would_read_as_something_else_stays_text(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--name", "on", "--namespace", "1e3", "--token-secret", "null", "--weights", "pvc:5"]
    assert command.main(["render", *KUBERAY, *words]) == 0
    policy, cluster = yaml.safe_load_all(capsys.readouterr().out)
    assert cluster["metadata"] == {"name": "on", "namespace": "1e3"}
    assert policy["spec"]["podSelector"]["matchLabels"] == {"app.kubernetes.io/instance": "on"}
    assert cluster["spec"]["authOptions"]["secretName"] == "null"
    claim = cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["volumes"][1]
    assert claim["persistentVolumeClaim"]["claimName"] == "5"


def test_an_address_of_ipv6_stands_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["render", *SYSTEMD, "--hosts", "fd00::1,fd00::2,fd00::3"]) == 0
    assert "--address=[fd00::1]:6379" in capsys.readouterr().out


BARE: Tree = {"hosts": {"head": ["a"]}, "site": {"venv": "/opt/x"}, "amd": True}


def test_a_settings_file_holds_values_as_they_are() -> None:
    text = files("systemd", (), **BARE, env={"A": 'x"; $HOME `id` \\'}, heading="")["ray.env"]
    assert text.splitlines()[-2] == r'A="x\"; \$HOME \`id\` \\"'


def test_a_typed_word_stays_within_its_comment(tmp_path: Path) -> None:
    words = [*KUBERAY, *SERVICE, "--out", str(tmp_path)]
    heading = "render a\nkind: Evil\x1b[2J\x85b"
    text = "".join(files("systemd", (), **BARE, env={}, heading=heading).values())
    assert [line for line in text.splitlines() if "Evil" in line and not line.startswith("# ")] == []
    assert "\x1b" not in text
    assert command.main(["render", *words]) == 0
    list(yaml.safe_load_all((tmp_path / "rayservice.yaml").read_text()))


def test_what_a_shell_reads_is_quoted() -> None:
    shell = Process((), 1, {"A": '$HOME/"; id; "', "B": "$(id)"}, ("vllm", "serve")).shell()
    assert re.findall(r"^\s*A=(.*) \\$", shell, re.MULTILINE) == ["""\"$HOME"/'"; id; "'"""]
    assert "B='$(id)'" in shell


@pytest.mark.parametrize(
    ("form", "text"), [("path", "/srv/../etc"), ("path", "/.."), ("image", "a..b"), ("path", "/a b")]
)
def test_a_name_that_leads_elsewhere_is_refused_with_its_flag(form: str, text: str) -> None:
    with pytest.raises(ValueError, match="--folder="):
        checked_name(form, text, "--folder")
    assert checked_name("path", "/srv/x..".rstrip("."), "--folder") == "/srv/x"


def test_kubernetes_expands_no_variable_in_a_value() -> None:
    site = {"image": IMAGE, "name": "n", "namespace": "d", "token_secret": "", "memory": "1Gi"}
    values: Tree = {"site": site | {"weights": "pvc:weights", "groups": "44"}, "amd": True, "heading": ""}
    env = {"A": "$(SECRET) and $HOME"}
    (text,) = files("kuberay", (), **values, env=env, serve_config=None).values()
    _, made = yaml.safe_load_all(text)
    container = made["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert {"name": "A", "value": "$$(SECRET) and $HOME"} in container["env"]
