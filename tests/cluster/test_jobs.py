"""Commands in a cluster that `ray start --head` began: preflight, and probes submitted as jobs."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import ray

from analysis.results import summary
from analysis.results.runs import load_run
from cluster.ray_session.own_machine import LOOPBACK, HeldPorts, running, with_descendants
from tests.support.machine import tries
from tests.support.runs.golden import sweep_json

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("no_session")]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
WORDS = ("cluster=laptop", "cluster.session=address")
START_S, STOP_S = 120.0, 60.0
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with a short path, for Ray's sockets."""
    with TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def run(folder: Path) -> Iterator[Run]:
    """Runs a command in the environment of a cluster of one node with eight pretended GPUs."""
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    with HeldPorts() as ports:
        gcs, dashboard = ports.another(), ports.another()
        environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_worker_niceness": "0",
            "RAY_ADDRESS": f"{ray.util.get_node_ip_address()}:{gcs}",
            "RAY_API_SERVER_ADDRESS": f"http://{LOOPBACK}:{dashboard}",
        }

        def command(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
            )

        start = ["--head", "--block", f"--port={gcs}", f"--dashboard-port={dashboard}", "--num-cpus=4"]
        start += ["--num-gpus=8", "--labels=role=gpu", f"--temp-dir={folder}"]
        head = subprocess.Popen(["ray", "start", *start], env=environment, stdout=subprocess.DEVNULL)
        ours = set()
        try:
            deadline_s = time.monotonic() + START_S
            while command("ray", "job", "list").returncode and time.monotonic() < deadline_s:
                assert head.poll() is None
            ours = with_descendants({head.pid})
            yield command
        finally:
            head.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                head.wait(STOP_S)
            for pid, _ in running(ours):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            head.wait()


def test_preflight_looks_at_every_node(run: Run) -> None:
    done = run("python", "-m", "cluster", "preflight", *WORDS, "--json")
    assert done.returncode in (0, 5), done.stderr  # something may listen on Serve's port
    assert len(json.loads(done.stdout)["nodes"]) == 1


def submit(run: Run, *words: str) -> subprocess.CompletedProcess[str]:
    """Submit a command as in the runbook: a copy of the working directory travels with the job."""
    options = ("--working-dir", ".", "--entrypoint-num-cpus", "1")
    chosen = ("--entrypoint-label-selector", '{"role":"gpu"}')
    return run("ray", "job", "submit", *options, *chosen, "--", "python", "-m", "loadgen", *words)


def test_a_probe_as_a_job_leaves_its_run_folder(run: Run, tmp_path: Path) -> None:
    load = ("workload=smoke", "workload.output_tokens.mean=4", "concurrency=8", "requests=110")

    def probed(number: int) -> dict[str, Any]:
        done = submit(run, "probe", *WORDS, *load, f"out={tmp_path}", f"run=job-{number}")
        output = done.stdout + done.stderr
        assert (tmp_path / f"job-{number}" / "sweep.json").exists(), output
        job = load_run(tmp_path / f"job-{number}")
        assert job.verdict is not None and job.config.cluster.session == "address"
        code = job.verdict.exit_code
        assert (done.returncode == 0) == (code == 0)
        assert "succeeded" in output if code == 0 else f"exit code {code}" in output
        return sweep_json(tmp_path / f"job-{number}")

    tree = tries.valid(probed)
    assert tree["exit_code"] == summary.EXIT_OK, tree["reason"]


def test_a_job_that_is_refused_fails(run: Run) -> None:
    done = submit(run, "probe", *WORDS, "rate_qps=-1")
    assert done.returncode == 1
    output = done.stdout + done.stderr
    assert "rate_qps" in output and "exit code 2" in output
