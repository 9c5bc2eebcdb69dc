"""serve_apps/vllm_engine/app.py: a server ends with its starter; its port is its own."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from serve_apps.routing.serve_routers import LOOPBACK, reserved_port
from serve_apps.vllm_engine import app
from serve_apps.vllm_engine.app import ENGINES, VllmProcessReplica, guarded, vllm_app
from serve_apps.vllm_engine.config_file import near, own_caches
from tests.support.machine.patience import until
from tests.support.words.recipe_words import PROCESS, QWEN, TP4, experiment, resolve

LEADER = """
import os, time
if child := os.fork():
    print(os.getpid(), child, flush=True)
time.sleep(600)
"""
STARTER = """
import subprocess, sys
subprocess.run(sys.argv[1:], start_new_session=True)
input()
"""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_for_end(*pids: int) -> None:
    until(lambda: not any(map(lives, pids)), f"{pids} live on")


@pytest.fixture
def starter() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that started a guarded one, which forked: the numbers of the last two."""
    argv = guarded([sys.executable, "-c", LEADER])
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, *argv], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    leader, child = map(int, process.stdout.readline().split())
    yield process, [leader, child]
    process.kill()
    process.wait()
    for pid in (leader, child):
        if lives(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_replica_that_is_killed_takes_its_server_along(
    starter: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, pids = starter
    assert all(map(lives, pids))
    process.kill()
    wait_for_end(*pids)


@pytest.mark.slow
def test_an_engine_does_not_outlive_its_server(starter: tuple[subprocess.Popen[str], list[int]]) -> None:
    _, (leader, child) = starter
    os.kill(leader, signal.SIGKILL)
    wait_for_end(leader, child)


def test_a_reserved_port_is_for_the_server_only() -> None:
    holder = reserved_port()
    address = holder.getsockname()
    assert address[0] == LOOPBACK
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as vLLM's does
    server.bind(address)
    server.listen()
    with socket.create_connection(address, timeout=60), pytest.raises(OSError):
        socket.socket().bind(address)
    server.close()
    holder.close()


def test_replicas_of_a_node_have_caches_of_their_own() -> None:
    first, second = own_caches([0, 1], "/h"), own_caches([2, 3], "/h")
    assert first.keys() == second.keys() and not set(first.values()) & set(second.values())
    assert own_caches([], "/h") == {}
    assert near([4, 5, 6, 7], 8)[1] == "--cpunodebind=1" and near(range(8), 8) == []


@pytest.mark.parametrize("routing", ["roundrobin", "round_robin"])
def test_each_replica_has_gpus_of_its_own_on_one_node(routing: str) -> None:
    words = [QWEN, TP4, PROCESS, "engine.node_resource=mi325x_node", f"routing={routing}"]
    words.append("engine.accelerator_type=MI325X")
    asked, recipe = experiment(words), resolve(words)
    deployment = vllm_app(asked, recipe)()._bound_deployment
    assert deployment.name.startswith(ENGINES) and deployment.num_replicas == 2
    options = deployment.ray_actor_options
    # Ray tells devices to an actor that asks for them, not to one that only has a bundle.
    assert (options["num_gpus"], options["num_cpus"]) == (4.0, 0.1)
    assert options["runtime_env"]["env_vars"] == recipe.env
    placed = deployment._replica_config
    assert placed.placement_group_bundles == [
        {"GPU": 4.0, "CPU": 0.1, "mi325x_node": 0.5, "accelerator_type:MI325X": 0.001}
    ]
    assert placed.placement_group_strategy == "STRICT_PACK"
    words_of_vllm, _ = deployment.init_args
    assert words_of_vllm[:2] == ["--model", asked.model.served_name]
    assert words_of_vllm[words_of_vllm.index("--distributed-executor-backend") + 1] == "mp"


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the module `fake_server` in vLLM's place, and for logs; Serve and Ray are stand-ins."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(app, "SERVER", "fake_server")
    monkeypatch.setattr(app, "stay_on_loopback", lambda: None)
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="r1"))
    monkeypatch.setattr("ray.serve.get_replica_context", lambda: context)
    monkeypatch.setattr("ray.get_gpu_ids", lambda: [])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


async def started(timeout_s: float = 240.0) -> VllmProcessReplica:
    replica = VllmProcessReplica.__new__(VllmProcessReplica)
    try:
        await replica.__init__([], timeout_s)  # type: ignore[misc]
    except (RuntimeError, TimeoutError):
        wait_for_end(replica._process.pid)
        raise
    return replica


READY = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[-1])), Healthy).serve_forever()
"""


def test_the_server_ends_with_the_application_and_not_by_the_garbage_collector(alone: Path) -> None:
    (alone / "fake_server.py").write_text(READY)
    assert not hasattr(VllmProcessReplica, "__del__")

    async def run() -> int:
        replica = await started()
        app = await replica.__serve_build_asgi_app__()
        messages = iter(["lifespan.startup", "lifespan.shutdown"])
        answers: list[str] = []

        async def receive() -> dict[str, str]:
            return {"type": next(messages)}

        async def send(message: dict[str, str]) -> None:
            answers.append(message["type"])
            await replica.check_health() if len(answers) == 1 else None

        await app({"type": "lifespan"}, receive, send)
        assert answers == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert not replica._log.exists(), "it did not fail"
        with pytest.raises(RuntimeError, match="vLLM ended"):
            replica._log.write_text("")
            await replica.check_health()
        return replica._process.pid

    wait_for_end(asyncio.run(run()))


@pytest.mark.parametrize(
    ("source", "timeout_s", "message"),
    [
        ("raise SystemExit('no such flag')", 240.0, r"vLLM ended with 1: no such flag \(log: .*r1\.log\)"),
        ("print('AnError: why'); raise SystemExit('leaked')", 240.0, r"with 1: AnError: why \(log"),
        ("import time; time.sleep(600)", 0.1, r"not ready in time: it wrote nothing \(log: .*r1\.log\)"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_only_its_log(
    source: str, timeout_s: float, message: str, alone: Path
) -> None:
    (alone / "fake_server.py").write_text(source)
    with pytest.raises((RuntimeError, TimeoutError), match=message):
        asyncio.run(started(timeout_s))
    assert [path.name for path in alone.glob("*.log")] == ["vllm-r1.log"]
