"""cluster/deployment/serve_state.py: changes of a service, last words of a failure, its removal."""

import functools
import operator
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ray.serve._private.common import RequestProtocol
from ray.serve.schema import Target, TargetGroup

from cluster.deployment import serve_state
from cluster.deployment import serve_state as words
from cluster.deployment.serve_state import ServeReplica, ServeState, in_order, read
from cluster.ray_session.own_machine import process_of, running, with_descendants
from tests.support.machine.patience import until

DETAILS = (Path(__file__).parents[2] / "data" / "serve_details.yaml").read_text()


def details() -> Any:
    """An application of ray.serve.llm with direct streaming: two engines, a router and an ingress."""
    return yaml.safe_load(DETAILS)


def seen(tree: dict[str, Any]) -> ServeState:
    return read(tree, "llm", "LLMServer")


def test_only_the_replicas_that_serve_the_model_are_engines() -> None:
    now = seen(details())
    assert now.replica_ids == {"LLMServer:qwen-0", "LLMServer:qwen-1"}
    assert now.counts == {"RUNNING": 2} and len(now.of_side("other")) == 2
    assert (now.trouble, now.changed(seen(details()))) == (None, None)
    assert len(read(details(), "llm").engines) == 4


def test_an_application_without_its_router_is_not_ready() -> None:
    tree = details()
    tree["applications"]["llm"]["deployments"]["LLMRouter:qwen"]["replicas"] = []
    assert seen(tree).trouble == "0 of 1 LLMRouter:qwen running"


def test_an_application_that_is_not_there_is_absent() -> None:
    assert read(details(), "other").trouble == "the application is ABSENT"


APP, ENGINE = ("applications", "llm"), ("applications", "llm", "deployments", "LLMServer:qwen", "replicas", 0)
ROUTER = (*APP, "deployments", "LLMRouter:qwen", "replicas", 0)
OPTIONS = (*APP, "deployments", "OpenAiIngress", "deployment_config", "num_replicas")


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (("proxies", "head", "status"), "UNHEALTHY", "the proxy is UNHEALTHY"),
        (("proxies", "head", "actor_id"), "p1", "the proxy was replaced"),
        (("controller_info", "worker_id"), "c1", "Serve's controller was restarted"),
        ((*ENGINE, "pid"), 999, "LLMServer:qwen LLMServer:qwen-0 is another process now"),
        ((*ENGINE, "replica_id"), "LLMServer:qwen-7", "1 of 2 replicas gone, 1 new"),
        ((*ENGINE, "state"), "STARTING", "1 of 2 replicas gone, 0 new"),
        ((*ROUTER, "pid"), 999, "LLMRouter:qwen LLMRouter:qwen-0 is another process now"),
        (OPTIONS, 3, "the deployment's options were changed"),
        ((*APP, "status"), "UNHEALTHY", "the application is UNHEALTHY a replica died"),
    ],
)
def test_a_service_that_is_not_what_was_deployed_is_told(
    place: tuple[Any, ...], value: object, why: str
) -> None:
    tree = details()
    changed = functools.reduce(operator.getitem, place[:-1], tree)
    changed[place[-1]] = value
    assert seen(details()).changed(seen(tree)) == why


def at(name: str, node: str) -> ServeReplica:
    return ServeReplica(name, "LLMServer", node, "10.0.0.1", 1, name, 0.0)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([], [at("b", "1"), at("a", "2")], "ab"),
        ([at("b", "1"), at("c", "2")], [at("c", "2"), at("a", "1")], "ac"),  # replaced where it was
        ([at("c", "1"), at("d", "2"), at("e", "3")], [at("a", "2"), at("b", "1"), at("e", "3")], "bae"),
        ([at("c", "1"), at("d", "2")], [at("a", "9"), at("d", "2")], "ad"),  # its node was replaced
        ([at("c", "1")], [at("a", "2"), at("c", "1")], "ca"),
    ],
)
def test_who_stays_keeps_its_place(
    before: list[ServeReplica], now: list[ServeReplica], expected: str
) -> None:
    assert "".join(replica.replica_id for replica in in_order(now, before)) == expected


@pytest.mark.parametrize(
    ("targets", "urls"),
    [
        ({"SERVE_PROXY_ACTOR-1": 8000}, {}),
        ({"SERVE_REPLICA::app#It#r0": 30000}, {"r0": "http://10.0.0.1:30000/metrics"}),
        ({"SERVE_REPLICA::app#It#gone": 30000}, {}),
    ],
)
def test_metrics_come_from_the_replicas_own_ports_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, targets: dict[str, int], urls: dict[str, str]
) -> None:
    def group(protocol: str, shift: int) -> TargetGroup:
        result = [Target(ip="10.0.0.1", port=p + shift, instance_id="", name=n) for n, p in targets.items()]
        return TargetGroup(targets=result, route_prefix="/", protocol=RequestProtocol(protocol))

    groups = [group("HTTP", 0), group("gRPC", 10_000)]
    monkeypatch.setattr(serve_state, "_ask_controller", lambda *_: groups)
    assert serve_state.metrics_urls("app", ["r0", "r1"]) == urls


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


def test_an_engine_that_outlives_its_replica_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    state: Any = SimpleNamespace(status="ABSENT")
    monkeypatch.setattr(serve_state, "state", lambda _: state)
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as replica:
        assert replica.stdout is not None
        engine = int(replica.stdout.readline())
        processes = with_descendants({replica.pid})
        assert {pid for pid, _ in processes} == {replica.pid, engine}
        replica.kill()
        replica.wait()
        assert serve_state._left("app", [], processes) == f"1 processes still run (pids {engine})"
        subprocess.run(["kill", "-KILL", str(engine)], check=True)
        until(lambda: serve_state._left("app", [], processes) is None, "a dead process counts as running")


def test_a_number_that_was_given_to_another_process_is_not_ours() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        ours = process_of(process.pid)
        assert running([ours, (process.pid, ours[1] + 1)]) == {ours}
        assert with_descendants({2**22 + 1}) == set()
        process.kill()
    assert running([ours]) == set()


CAUSES = {
    "*** SIGILL received at time=1795408567 on cpu 0 ***": "illegal instruction",
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.": "out of memory",
    "OSError: [Errno 98] Address already in use": "port in use",
    "OSError: /models/x does not appear to have a file named config.json": "model folder",
    "(Worker pid=263) ERROR RuntimeError: Insufficient space in /dev/shm for": "shared memory full",
}
GUESS = "Some common causes include: (1) the process was killed by the OOM killer due to out of memory"


@pytest.mark.parametrize("line", CAUSES)
def test_a_usual_cause_is_named_with_the_line_that_shows_it(line: str) -> None:
    result = words.why(["begins", line, "  File x.py, line 3 in f"])
    assert result.startswith(CAUSES[line]) and line in result


def test_of_other_ends_the_last_error_is_told_and_of_none_nothing() -> None:
    wrapped = "RuntimeError: Traceback (most recent call last):"
    assert words.why(["ValueError: first", "KeyError: 'last'", wrapped, "  in f"]) == "KeyError: 'last'"
    assert words.why(["loading", GUESS]) == ""


def test_a_failure_is_told_from_serves_message_and_the_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_logs", lambda *_: {"worker-a.err": ["begins", "OSError: [Errno 98] port"]})
    tree = details()
    tree["applications"]["llm"]["deployments"]["OpenAiIngress"]["message"] = "KeyError: 'x'"
    why, lines = words.last_words(tree, "llm", {})
    assert why.startswith("port in use") and lines[-2:] == ("begins", "OSError: [Errno 98] port")
    assert lines[:2] == ("--- Ray Serve on OpenAiIngress", "KeyError: 'x'")


def test_the_newest_processes_of_the_application_are_read(tmp_path: Path) -> None:
    def write(name: str, app: str, text: str, at_s: int) -> None:
        (tmp_path / name).write_text(f":job_id:01\n:actor_name:ServeReplica:{app}:It\n{text}\n")
        os.utime(tmp_path / name, (at_s, at_s))

    write("worker-a-01-1.err", "ours", "older", 10)
    write("worker-b-01-2.err", "ours", "\n".join(f"line {number}" for number in range(1000)), 20)
    write("worker-c-01-3.err", "other", "newest", 30)
    write("worker-c-01-3.out", "ours", "", 30)
    write("worker-b-01-2.out", "ours", "on stdout", 20)
    (tmp_path / "raylet.err").write_text(":actor_name:ServeReplica:ours:It\nno worker\n")
    result = words.read_logs(tmp_path, "ours")
    assert result["worker-b-01-2.err"] == [f"line {number}" for number in range(1000 - words.LINES, 1000)]
    assert result["worker-b-01-2.out"] == ["on stdout"]
    assert list(result) == ["worker-b-01-2.err", "worker-a-01-1.err", "worker-b-01-2.out"]


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("\x1b[31mred\x07 \u202eword", " [31mred word"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("login with hf_abcdefghijkl now", "login with *** now"),
        ("HF says very-secret-words twice: very-secret-words", "HF says *** twice: ***"),
        ("GET http://user:word@host/path", "GET http://***@host/path"),
        ("x" * 10_000, "x" * words.LETTERS + " ..."),
    ],
)
def test_a_line_is_printable_bounded_and_without_secrets(
    line: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"HF_TOKEN": "very-secret-words", "SORT_KEY": "now", "PATH": "twice"}
    monkeypatch.setattr(words, "_logs", lambda *_: {"worker-a.err": [line]})
    assert words.last_words({}, "llm", environment)[1] == ("--- worker-a.err", " ".join(kept.split()))
