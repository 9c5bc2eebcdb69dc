"""A prefill and a decode engine of vLLM on emulated GPUs, in one process: their cores, and what drives them.

Run with the emulated platform switched on: `python -m tests.vllm.emulated_pair FOLDER CASES`, where CASES is
JSON of `Case`s; what happened is written as JSON after SAID. ray.serve.llm's own backends shape the requests.
"""

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from cluster.ray_session.own_machine import HeldPorts
from conf import load
from conf.specs.experiment import EmulatedEngine
from serve_apps.vllm_emulated.gpu import EmulatedGpu, emulated
from serve_apps.vllm_recipes.recipes import Recipe

SPECS = load(["engine=vllm_emulated", "layout=1p1d_tp4_ep4"])
MODEL, HARDWARE, LAYOUT = SPECS.model, SPECS.hardware, SPECS.layout
STEP_LIMIT_S = 60.0


@dataclass(frozen=True)
class Case:
    """Prompts asked for at once of a pair; `transfer_s` is what the KV of one token takes on its way."""

    connector: str = "NixlConnector"
    write: bool = False
    transfer_s: float = 0.0
    latency_s: float = 0.0
    prompts: tuple[int, ...] = (5600,)
    output: int = 8
    blocks: int = 2000
    rounds: int = 1
    abort_decode: bool = False
    caching: bool = False
    alike: bool = False
    """With several rounds: the same prompts again."""


@dataclass
class Seen:
    """Of each prompt: tokens, and seconds from when it was asked for. Blocks are those in use."""

    tokens: list[int] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    held_blocks: int = 0
    """Most blocks of the prefill engine in use after its last prompt was computed."""
    left_blocks: list[int] = field(default_factory=list)
    """Of prefill and decode when all has ended."""
    preempted: int = 0


class Engine:
    """One core, stepped by a thread as vLLM's own process does."""

    def __init__(self, folder: str, side: str, case: Case, port: int) -> None:
        from vllm import EngineArgs
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor.abstract import Executor

        transfer = {
            "kv_connector": case.connector,
            "kv_role": "kv_producer" if side == "prefill" else "kv_consumer",
            "kv_connector_extra_config": {
                "read_mode": str(not case.write).lower(),
                "host_ip": "127.0.0.1",
                "notify_port": str(port),
            },
        }
        bare = Recipe({"kv_transfer_config": transfer}, {})
        both = emulated(replace(bare, prefill=bare), EmulatedEngine(), MODEL, HARDWARE, LAYOUT)
        recipe = both if side == "decode" else both.prefill
        gpu = EmulatedGpu.read(recipe.args["additional_config"])
        seconds = replace(gpu.transfer, per_token_s=case.transfer_s, latency_s=case.latency_s)
        config = EngineArgs(
            model=folder,
            tensor_parallel_size=gpu.tensor_parallel,
            kv_cache_dtype="fp8",
            max_model_len=min(8192, 16 * case.blocks),
            max_num_batched_tokens=8192,
            num_gpu_blocks_override=case.blocks + 1,
            enable_prefix_caching=case.caching,
            skip_tokenizer_init=True,
            kv_transfer_config=recipe.args["kv_transfer_config"],
            additional_config=replace(gpu, transfer=seconds).written(),
        ).create_engine_config()
        self.core = EngineCore(config, Executor.get_class(config), log_stats=False)
        self.outputs: dict[str, list[Any]] = {}
        self._inbox: list[Any] = []
        self._lock = threading.Lock()
        self._ends = False
        self.preempted = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def ask(self, request_id: str, tokens: list[int], output: int, params: dict[str, Any]) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        extra = {"kv_transfer_params": params}
        sampling = SamplingParams(max_tokens=output, ignore_eos=True, extra_args=extra)
        hasher = self.core.request_block_hasher
        request = Request(request_id, tokens, sampling, None, block_hasher=hasher)
        with self._lock:
            self.outputs[request_id] = []
            self._inbox.append(request)

    def abort(self, request_id: str) -> None:
        with self._lock:
            self._inbox.append(request_id)

    def wait(self, request_id: str, count: int = 1) -> list[Any]:
        """The outputs of a request as soon as there are `count`, each with its time."""
        return self.until(lambda: len(self.outputs[request_id]) >= count and self.outputs[request_id])

    def until(self, what: Any) -> Any:
        limit_s = time.monotonic() + STEP_LIMIT_S
        while not (result := what()):
            assert time.monotonic() < limit_s and self._thread.is_alive(), "the engine does not go on"
            time.sleep(0.002)
        return result

    @property
    def used_blocks(self) -> int:
        pool = self.core.scheduler.kv_cache_manager.block_pool
        return pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()

    def close(self) -> None:
        self._ends = True
        self._thread.join()
        self.core.model_executor.shutdown()  # the core's own would also tidy up devices, which no thread has
        self.core.scheduler.shutdown()

    def _serve(self) -> None:
        while not self._ends:
            with self._lock:
                arrived, self._inbox = self._inbox, []
            for one in arrived:
                if isinstance(one, str):
                    self.core.abort_requests([one])
                else:
                    self.core.add_request(one)
            if not (self.core.scheduler.has_requests() or self.core.batch_queue):
                time.sleep(0.001)
                continue
            requests = list(self.core.scheduler.requests.values())
            outputs, executed = self.core.step_fn()
            now_s = time.monotonic()
            self.preempted += sum(one.num_preemptions for one in requests if one.is_finished())
            for one in (outputs or {}).get(0, SimpleNamespace(outputs=())).outputs:
                self.outputs[one.request_id].append((now_s, one))
            self.core.post_step(executed)
            if not executed:
                time.sleep(0.001)


def shaped(case: Case, ports: tuple[int, int], number: int) -> tuple[Any, Any, Any]:
    """ray.serve.llm's backend, its prefill request, and its decode request for an answer of prefill."""
    from ray.llm._internal.serve.core.configs.openai_api_models import CompletionRequest
    from ray.llm._internal.serve.engines.vllm.kv_transfer import moriio
    from ray.llm._internal.serve.engines.vllm.kv_transfer.factory import KVConnectorBackendFactory

    config = {"kv_connector": case.connector, "kv_connector_extra_config": {"read_mode": str(not case.write)}}
    llm = SimpleNamespace(engine_kwargs={"kv_transfer_config": config, "tensor_parallel_size": 4})
    backend = KVConnectorBackendFactory.create_backend(case.connector, llm)
    prefill_at, decode_at = (moriio.build_zmq_address("127.0.0.1", 1, port) for port in ports)
    if backend.requires_peer_binding:
        backend._zmq_address = decode_at
    peer = {"mori_zmq_address": prefill_at} if backend.requires_peer_binding else None
    asked = CompletionRequest(model="m", prompt="x", request_id=f"r{number}")
    prefill = backend.prepare_prefill_request(request=asked, peer=peer)

    def decode(answer: Any) -> Any:
        return backend.prepare_decode_request(request=asked, peer=peer, prefill_response=answer)

    return backend, prefill, decode


def run(folder: str, case: Case, ports: tuple[int, int]) -> Seen:
    """What happens with a case; `ports` are for notices of prefill and decode."""
    prefill, decode = (
        Engine(folder, side, case, port) for side, port in zip(("prefill", "decode"), ports, strict=True)
    )
    seen = Seen()
    try:
        for turn in range(case.rounds):
            pool = [
                threading.Thread(target=one, args=(case, prefill, decode, ports, seen, turn * 100 + number))
                for number in range(len(case.prompts))
            ]
            for thread in pool:
                thread.start()
            for thread in pool:
                thread.join()
        prefill.until(lambda: not prefill.used_blocks)
        decode.until(lambda: not decode.used_blocks)
        seen.left_blocks = [prefill.used_blocks, decode.used_blocks]
        seen.preempted = decode.preempted
    finally:
        prefill.close()
        decode.close()
    return seen


def one(case: Case, prefill: Engine, decode: Engine, ports: tuple[int, int], seen: Seen, number: int) -> None:
    """The way of one request, as ray.serve.llm's decode server has it."""
    size = case.prompts[number % 100]
    tokens = [1000 + (number % 100 if case.alike else number), *range(1, size)]
    backend, first, then = shaped(case, ports, number)
    begin_s = time.monotonic()
    prefill_id = f"cmpl-{first.request_id}-0-p"
    prefill.ask(prefill_id, tokens, 1, first.kv_transfer_params)
    decode_request = then(None) if backend.concurrent_handoff else None
    if decode_request is None:
        ((_, answer),) = prefill.wait(prefill_id)
        decode_request = then(answer)
    decode_id = f"cmpl-{decode_request.request_id}-0-d"
    params = decode_request.kv_transfer_params
    decode.ask(decode_id, tokens, case.output, params)
    if case.abort_decode:
        time.sleep(0.05)
        decode.abort(decode_id)
        return
    if case.transfer_s and not backend.concurrent_handoff:
        seen.held_blocks = max(seen.held_blocks, prefill.used_blocks)
    outputs = decode.wait(decode_id, case.output)
    seen.tokens.append(sum(len(output.new_token_ids) for _, output in outputs))
    seen.ttft_s.append(outputs[0][0] - begin_s)


if __name__ == "__main__":
    folder, cases = sys.argv[1], json.loads(sys.argv[2])
    with HeldPorts() as held:
        ports = held.another(), held.another()
        os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = "127.0.0.1"
        os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(ports[0])
        seen = [asdict(run(folder, Case(**case), ports)) for case in cases]
    sys.stdout.write("SAID" + json.dumps(seen) + "\n")
