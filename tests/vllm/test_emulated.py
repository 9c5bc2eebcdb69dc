"""vLLM's own server on emulated GPUs: one server, over HTTP, with the flags of production."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import aiohttp
import pytest

from conf import load
from conf.specs.experiment import EmulatedEngine
from serve_apps.engine_model.cost.step_time import Batch
from serve_apps.vllm_emulated.gpu import EmulatedGpu
from serve_apps.vllm_emulated.platform_plugin import ENVIRONMENT
from serve_apps.vllm_recipes.model_folder import write_folder
from tests.vllm import prefix_hits
from tests.vllm.running import Up

pytestmark = pytest.mark.vllm

SPECS = load(["engine=vllm_emulated", "layout=dp1_tp8_ep8"])
PARTS = SPECS.model, SPECS.hardware, SPECS.layout
GPU = EmulatedGpu.of(EmulatedEngine(), *PARTS)
BLOCKS = 700
"""A pool of 11,200 tokens: two prompts of 5,600 and no more."""
PROMPT, OUTPUT = 5600, 140
START_LIMIT_S = 120
TRIES = 6


class Answer(NamedTuple):
    """`at_s` are the times of the events that carried text."""

    at_s: list[float]
    usage: dict[str, Any]

    @property
    def tpot_s(self) -> float:
        return (self.at_s[-1] - self.at_s[0]) / (self.usage["completion_tokens"] - 1)


class Server(NamedTuple):
    url: str
    log: Path

    def metric(self, name: str) -> float:
        """A counter of vLLM's /metrics."""
        found = re.search(rf"^vllm:{name}{{[^}}]*}} (\S+)$", asyncio.run(_get(f"{self.url}/metrics")), re.M)
        assert found, name
        return float(found[1])

    def ask(self, *asked: dict[str, Any]) -> list[Answer]:
        """Send completions at once and wait for all answers."""
        return asyncio.run(_ask(self.url, asked))


async def _get(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


async def _ask(url: str, asked: tuple[dict[str, Any], ...]) -> list[Answer]:
    timeout = aiohttp.ClientTimeout(total=90)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=2**20) as session:
        return await asyncio.gather(*(_stream(session, url, body) for body in asked))


async def _stream(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Answer:
    at_s, usage = [], {}
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if any(choice["text"] for choice in event["choices"]):
                at_s.append(time.monotonic())
            usage = event.get("usage") or usage
    return Answer(at_s, usage)


def completion(first_token: int, prompt: int = PROMPT, output: int = OUTPUT) -> dict[str, Any]:
    """A request for a prompt that no other `first_token` shares."""
    return {
        "model": SPECS.model.served_name,
        "prompt": [first_token, *range(1, prompt)],
        "max_tokens": output,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(SPECS.model, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(folder), "--served-model-name", SPECS.model.served_name),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--tensor-parallel-size", "8", "--enable-expert-parallel", "--kv-cache-dtype", "fp8"),
        *("--max-num-batched-tokens", "8192", "--max-num-seqs", "1024", "--max-model-len", "8192"),
        *("--gpu-memory-utilization", "0.90", "--num-gpu-blocks-override", str(BLOCKS + 1)),
        *("--enable-prompt-tokens-details", "--additional-config", json.dumps(GPU.written())),
    ]
    log = folder / "server.log"
    env = {**os.environ, **ENVIRONMENT, "VLLM_WORKER_MULTIPROC_METHOD": "fork", "HOME": str(folder)}
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        url, until_s = f"http://127.0.0.1:{port}", time.monotonic() + START_LIMIT_S
        while not _healthy(url):
            assert process.poll() is None and time.monotonic() < until_s, log.read_text()[-3000:]
            time.sleep(0.3)
        yield Server(url, log)
    finally:
        process.terminate()
        process.wait(30)


def _healthy(url: str) -> bool:
    async def ask() -> bool:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as answer:
            return answer.status == 200

    try:
        return asyncio.run(ask())
    except aiohttp.ClientError:
        return False


def test_a_request_streams_at_the_models_pace(server: Server) -> None:
    """Of a few one after the other the nearest counts: a busy machine reads a first or a last token late."""
    answers = [server.ask(completion(1000 + number))[0] for number in range(TRIES)]
    for answer in answers:
        assert (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]) == (PROMPT, OUTPUT)
    contexts = range(PROMPT, PROMPT + OUTPUT - 1)
    step_s = mean(GPU.costs.duration_s(Batch(1, 0, context, 0.0, 1)) for context in contexts)
    nearest = min(answers, key=lambda answer: abs(answer.tpot_s - step_s))
    assert nearest.tpot_s == pytest.approx(step_s, rel=0.02)
    # One event a token; vLLM's server joins two where it is late itself.
    assert 0.95 * OUTPUT < len(nearest.at_s) <= OUTPUT
    gaps_s = [b - a for a, b in pairwise(nearest.at_s)]
    assert sum(gap_s > step_s / 2 for gap_s in gaps_s) > 0.9 * len(gaps_s)


def test_a_prompt_seen_before_is_found_in_vllms_prefix_cache(server: Server) -> None:
    server.ask(completion(2000))
    queries, hits = server.metric("prefix_cache_queries_total"), server.metric("prefix_cache_hits_total")
    server.ask(completion(2000, output=2))
    assert server.metric("prefix_cache_queries_total") - queries == PROMPT
    # All whole blocks but the last, which is computed again.
    assert server.metric("prefix_cache_hits_total") - hits == PROMPT - 16


def test_a_pool_that_runs_out_preempts_and_all_requests_end(server: Server) -> None:
    before = server.metric("num_preemptions_total")
    output = 300
    answers = server.ask(*(completion(3000 + number, 1760, output) for number in range(6)))
    assert [answer.usage["completion_tokens"] for answer in answers] == 6 * [output]
    assert server.metric("num_preemptions_total") > before


def test_what_needs_a_models_answer_is_refused(server: Server) -> None:
    async def ask() -> tuple[int, str]:
        body = completion(4000, prompt=16, output=2) | {"logprobs": 1, "stream": False}
        del body["stream_options"]
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{server.url}/v1/completions", json=body) as answer,
        ):
            return answer.status, await answer.text()

    status, text = asyncio.run(ask())
    assert status == 400 and "emulated GPUs compute no logprobs" in text


def test_it_is_vllms_engine_with_our_executor_and_nothing_unknown_was_asked(server: Server) -> None:
    """The last assertion pins the calls to workers: a new version's new ones would be logged."""
    log = server.log.read_text()
    assert f"Emulated GPUs: TP8, constants {GPU.constants}, asynchronous scheduling True" in log
    assert "Emulated GPUs have no answer" not in log


@pytest.fixture(scope="module")
def up(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The same server as a user loads it, who is told an address."""
    from loadgen.cli.deployment import service

    words = ["engine=external", f"target.urls=[{server.url}]", "cluster.nodes=1", "workload=smoke"]
    words += ["fleet.warmup_requests=8", "fleet.drain_s=10"]
    with service(load(words), lambda *_, **__: None) as served:
        yield Up(served, words, tmp_path_factory.mktemp("runs"))


def test_the_intended_hit_rate_is_met(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    """One share of those that the deployed vLLM is held to: the cache is vLLM's here too."""
    prefix_hits.hold_to(0.5, up, monkeypatch)


REFUSED = {
    "pipeline_parallel_size": {"pipeline_parallel_size": 2},
    "data_parallel_size": {"data_parallel_size": 2},
    "LoRA": {"enable_lora": True},
    "KV transfer": {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
    "speculative": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
}
CHECK = """
import json, sys
from vllm import EngineArgs
folder, cases = sys.argv[1], json.loads(sys.argv[2])
said = {}
for name, more in cases.items():
    try:
        EngineArgs(model=folder, tensor_parallel_size=2, max_model_len=4096, **more).create_engine_config()
        said[name] = "accepted"
    except Exception as error:
        said[name] = str(error)
from vllm.platforms import current_platform
said["platform"] = current_platform.device_name
print("SAID" + json.dumps(said))
"""


def said(folder: Path, cases: dict[str, Any], environment: dict[str, str]) -> dict[str, str]:
    """What vLLM answers to engine arguments, and on which platform."""
    env = {**os.environ, **environment, "HOME": str(folder)}
    command = [sys.executable, "-c", CHECK, str(folder), json.dumps(cases)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("SAID")]
    assert lines, ran.stderr[-3000:]
    answers: dict[str, str] = json.loads(lines[0][4:])
    return answers


def test_flags_that_are_not_emulated_are_refused(folder: Path) -> None:
    answers = said(folder, REFUSED, ENVIRONMENT)
    assert answers.pop("platform") == "emulated"
    for name, answer in answers.items():
        assert f"engine=vllm_emulated does not emulate {name}" in answer.replace(
            "a speculative", "speculative"
        )


def test_without_the_variable_vllm_is_as_it_was(folder: Path) -> None:
    assert said(folder, {}, {"HF_HUB_OFFLINE": "1"})["platform"] == "cpu"
