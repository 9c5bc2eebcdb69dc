"""`serve_apps.vllm_emulated`: vLLM's own server on emulated GPUs, over HTTP, with the flags of production."""

import asyncio
import json
import urllib.error
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import aiohttp
import pytest

from conf import load
from conf.specs.experiment import EmulatedEngine
from serve_apps.engine_model.cost.step_time import Batch
from serve_apps.vllm_emulated.gpu import EmulatedGpu
from serve_apps.vllm_emulated.platform_plugin import ENVIRONMENT
from serve_apps.vllm_recipes.model_folder import write_folder
from tests.vllm.running import Answer, Server, post, said, serving, stream

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SPECS = load(["engine=vllm_emulated", "layout=dp1_tp8_ep8"])
PARTS = SPECS.model, SPECS.hardware, SPECS.layout
GPU = EmulatedGpu.from_specs(EmulatedEngine(), *PARTS)
BLOCKS = 700
"""A pool of 11,200 tokens: two prompts of 5,600 and no more."""
PROMPT, OUTPUT = 5600, 140
TRIES = 6
CACHE_COUNTERS = "prefix_cache_queries_total", "prefix_cache_hits_total"


def ask(server: Server, *asked: dict[str, Any]) -> list[Answer]:
    """Send completions at once and wait for all answers."""

    async def ask_all() -> list[Answer]:
        async with aiohttp.ClientSession(read_bufsize=2**20) as client:
            return await asyncio.gather(
                *(stream(client, server.url, json.dumps(each).encode()) for each in asked)
            )

    return asyncio.run(ask_all())


def gap_s(answer: Answer) -> float:
    """Median time between two events, which a few late events do not move."""
    return median(later - earlier for earlier, later in pairwise(answer.at_s))


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
    words = [
        *("--tensor-parallel-size", "8", "--enable-expert-parallel", "--kv-cache-dtype", "fp8"),
        *("--max-num-batched-tokens", "8192", "--max-num-seqs", "1024", "--max-model-len", "8192"),
        *("--gpu-memory-utilization", "0.90", "--num-gpu-blocks-override", str(BLOCKS + 1)),
        *("--enable-prompt-tokens-details", "--additional-config", json.dumps(GPU.written())),
    ]
    environment = {**ENVIRONMENT, "VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    with serving(folder, SPECS.model.served_name, folder / "server.log", environment, *words) as starting:
        yield starting.ready()


def test_a_request_streams_at_the_models_pace(server: Server) -> None:
    """Of a few requests, one after the other, the nearest counts: a busy machine reads tokens late."""
    answers = [ask(server, completion(1000 + number))[0] for number in range(TRIES)]
    for answer in answers:
        assert (answer.usage["prompt_tokens"], answer.usage["completion_tokens"]) == (PROMPT, OUTPUT)
        assert len(answer.at_s) <= OUTPUT
    contexts = range(PROMPT, PROMPT + OUTPUT - 1)
    step_s = mean(GPU.costs.duration_s(Batch(1, 0, context, 0.0, 1)) for context in contexts)
    nearest = min(answers, key=lambda answer: abs(gap_s(answer) - step_s))
    assert gap_s(nearest) == pytest.approx(step_s, rel=0.02)
    # One event a token; vLLM's server joins two where it is late itself.
    assert max(len(answer.at_s) for answer in answers) > 0.95 * OUTPUT


def test_a_prompt_seen_before_is_found_in_vllms_prefix_cache(server: Server) -> None:
    ask(server, completion(2000))
    queries, hits = server.counters(*CACHE_COUNTERS)
    ask(server, completion(2000, output=2))
    queries_then, hits_then = server.counters(*CACHE_COUNTERS)
    # All whole blocks but the last, which is computed again.
    assert (queries_then - queries, hits_then - hits) == (PROMPT, PROMPT - 16)


def test_a_pool_that_runs_out_preempts_and_all_requests_end(server: Server) -> None:
    before = server.counters("num_preemptions_total")
    output = 300
    answers = ask(server, *(completion(3000 + number, 1760, output) for number in range(6)))
    assert [answer.usage["completion_tokens"] for answer in answers] == 6 * [output]
    assert server.counters("num_preemptions_total") > before


def test_what_needs_a_models_answer_is_refused(server: Server) -> None:
    body = completion(4000, prompt=16, output=2) | {"logprobs": 1, "stream": False}
    del body["stream_options"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(server.url, json.dumps(body).encode())
    assert refused.value.code == 400
    assert "emulated GPUs compute no logprobs" in refused.value.read().decode()


def test_it_is_vllms_engine_with_our_executor_and_nothing_unknown_was_asked(server: Server) -> None:
    """The last assertion pins the calls to workers: a new version's new ones would be logged."""
    log = server.log.read_text()
    assert f"Emulated GPUs: TP8, constants {GPU.constants}, asynchronous scheduling True" in log
    assert "Emulated GPUs have no answer" not in log


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


def test_flags_that_are_not_emulated_are_refused(folder: Path) -> None:
    answers = said(["-c", CHECK, str(folder), json.dumps(REFUSED)], ENVIRONMENT, folder)
    assert answers.pop("platform") == "emulated"
    for name, answer in answers.items():
        assert f"engine=vllm_emulated does not emulate {name}" in answer.replace(
            "a speculative", "speculative"
        )
