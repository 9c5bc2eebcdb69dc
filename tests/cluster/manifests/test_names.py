"""Words with a meaning for a shell, systemd or Kubernetes reach no file."""

import re
from pathlib import Path

import pytest
import yaml

from cluster import __main__ as command
from cluster.manifests import files
from cluster.manifests.files import KubernetesSite, kuberay
from cluster.manifests.nodes import checked_name, host_address
from conf import load
from serve_apps import __main__ as serve_command
from serve_apps.vllm_engine.rendering import Process
from tests.support.words.words import HOSTS, IMAGE, KUBERAY, SERVICE

PAYLOADS = (
    ";rm -rf /",
    "$(id)",
    "`id`",
    "\nExecStartPre=/bin/id",
    "' id '",
    '" id "',
    " id",
    "%n",
    "\x1b[2J",
    "{{x}}",
)
HOST = "10.0.0.1"
RAY_UP, SYSTEMD = ["ray-up", "cluster=mi325x_1n"], ["systemd", "cluster=mi325x_1n"]
ASKED = {
    "head of systemd": lambda word: [*SYSTEMD, "--hosts", f"10.0.0.1{word},10.0.0.2,10.0.0.3"],
    "load host of systemd": lambda word: [*SYSTEMD, "--hosts", f"10.0.0.1,10.0.0.2,10.0.0.3{word}"],
    "head of ray-up": lambda word: [*RAY_UP, "--hosts", f"10.0.0.1{word},10.0.0.2,10.0.0.3"],
    "load host of ray-up": lambda word: [*RAY_UP, "--hosts", f"10.0.0.1,10.0.0.2,fe80::1%{word}"],
    "venv of systemd": lambda word: [*SYSTEMD, "--hosts", HOSTS, "--venv", f"/opt/x{word}"],
    "venv of ray-up": lambda word: [*RAY_UP, "--hosts", HOSTS, "--venv", f"/opt/x{word}"],
    "user": lambda word: [*RAY_UP, "--hosts", HOSTS, "--ssh-user", f"ray{word}"],
    "name of ray-up": lambda word: [*RAY_UP, "--hosts", HOSTS, "--name", f"maxqps{word}"],
    "name of kuberay": lambda word: [*KUBERAY, "--name", f"maxqps{word}"],
    "image": lambda word: ["kuberay", "--image", f"{IMAGE}{word}"],
    "namespace": lambda word: [*KUBERAY, "--namespace", f"default{word}"],
    "secret": lambda word: [*KUBERAY, "--token-secret", f"token{word}"],
    "claim": lambda word: [*KUBERAY, "--weights", f"pvc:weights{word}"],
    "weights": lambda word: [*KUBERAY, "--weights", f"/weights{word}"],
    "memory": lambda word: [*KUBERAY, "--memory", f"512Gi{word}"],
    "groups": lambda word: [*KUBERAY, "--groups", f"44{word}"],
}


GOOD = {
    "path": "/opt/x",
    "user": "ray",
    "cluster": "maxqps",
    "resource": "node",
    "variable": "A",
    "label": "a",
    "object": "a.b",
    "image": IMAGE,
}


@pytest.mark.slow
@pytest.mark.battery("wrong input")
@pytest.mark.parametrize("payload", ["$(id)", "\nExecStartPre=/bin/id\x1b[2J"])
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_what_is_more_than_a_name_is_refused(asked, payload, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["render", *asked(payload)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1
    assert said.err.rstrip("\n").isprintable()


@pytest.mark.battery("wrong input")
@pytest.mark.parametrize("payload", PAYLOADS)
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


def test_a_name_that_yaml_would_read_as_something_else_stays_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
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


def test_a_settings_file_holds_values_as_they_are() -> None:
    hosts, env = files.Hosts("a", ("b",), ()), {"A": 'x"; $HOME `id` \\'}
    text = files.systemd(hosts, (), env, "", "/opt/x", True)["ray.env"]
    assert text.splitlines()[-2] == r'A="x\"; \$HOME \`id\` \\"'


@pytest.mark.parametrize(
    "name", ["engine.node_resource=a'b", "engine.node_resource=a b", "engine.node_resource=$x"]
)
def test_a_resource_is_a_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["render", *SYSTEMD, "engine=vllm", name, "--hosts", HOSTS]) == 2
    assert "engine.node_resource" in capsys.readouterr().err


def test_a_typed_word_stays_within_its_comment(tmp_path: Path) -> None:
    words = [*KUBERAY, *SERVICE, "--out", str(tmp_path)]
    heading = "render a\nkind: Evil\x1b[2J\x85b"
    hosts = files.Hosts("a", ("b",), ())
    text = "".join(files.systemd(hosts, (), {}, heading, "/opt/x", True).values())
    assert [line for line in text.splitlines() if "Evil" in line and not line.startswith("# ")] == []
    assert "\x1b" not in text
    assert command.main(["render", *words]) == 0
    list(yaml.safe_load_all((tmp_path / "rayservice.yaml").read_text()))


def test_what_a_shell_reads_is_quoted() -> None:
    shell = Process((), 1, {"A": '$HOME/"; id; "', "B": "$(id)"}, ("vllm", "serve")).shell()
    assert re.findall(r"^\s*A=(.*) \\$", shell, re.MULTILINE) == ["""\"$HOME"/'"; id; "'"""]
    assert "B='$(id)'" in shell


@pytest.mark.parametrize("name", ["A;id", "A B", "1A", "Ä", ""])
def test_an_environment_variable_has_a_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve_command.main(["render", f'engine.env={{"{name}": "x"}}']) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("form", "text"), [("path", "/srv/../etc"), ("path", "/.."), ("image", "a..b"), ("path", "/a b")]
)
def test_a_name_that_leads_elsewhere_is_refused_with_its_flag(form: str, text: str) -> None:
    with pytest.raises(ValueError, match="--folder="):
        checked_name(form, text, "--folder")
    assert checked_name("path", "/srv/x..".rstrip("."), "--folder") == "/srv/x"


def test_kubernetes_expands_no_variable_in_a_value() -> None:
    site = KubernetesSite(image=f"ray:2@sha256:{'0' * 64}")
    (text,) = kuberay(site, [], load([]).hardware, {"A": "$(SECRET) and $HOME"}, "", None).values()
    _, made = yaml.safe_load_all(text)
    container = made["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert {"name": "A", "value": "$$(SECRET) and $HOME"} in container["env"]
