"""vLLM's own scheduler and core loop on a virtual clock and an imaginary GPU."""

import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import torch
import vllm.v1.engine.core as core_module
from vllm.config import CacheConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from conf import load
from conf.specs.experiment import SimulatedEngine
from serve_apps.vllm_recipes.model_folder import write_folder

TINY, LONGEST = load(["model=tiny_qwen3_moe", "layout=dp1_tp1"]).model, 8192
Work = tuple[str, int, int]
"""A request's part of a step: its id, the tokens that have their KV already, the tokens to compute."""


@dataclass
class Log:
    """What happened: per step its start and its work; per request its times and first cached tokens."""

    steps: list[tuple[float, list[tuple[str, int]]]] = field(default_factory=list)
    first_s: dict[str, float] = field(default_factory=dict)
    last_s: dict[str, float] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Gpu:
    """vLLM's executor seam: steps run one after the other and last what `duration_s` says."""

    is_sleeping = False

    def __init__(self, clock: Clock, duration_s: Callable[[Sequence[Work], int], float], log: Log) -> None:
        self.clock, self.duration_s, self.log = clock, duration_s, log
        self.requests: dict[str, Any] = {}
        self.free_s = 0.0
        self.tokens = count(1 << 41)  # all different, or equal prompts would share what they answer
        self._pending: Any = None

    def execute_model(self, output: Any, non_block: bool = False) -> Any:
        start_s = max(self.clock.now_s, self.free_s)
        work = scheduled_work(output)
        for name, computed, _ in work:
            self.log.cached.setdefault(name, computed)
        emitting = [name for name, _, _ in work if not self.requests[name].is_prefill_chunk]
        if work:
            self.free_s = start_s + self.duration_s(work, len(emitting))
            self.log.steps.append((start_s, sorted((name, new) for name, _, new in work)))
        self._pending = self._future(
            self.free_s if work else start_s, [name for name, _, _ in work], emitting
        )
        return self._pending if not work else SimpleNamespace(result=lambda: None)

    def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
        return self._pending if non_block else self._pending.result()

    def _future(self, end_s: float, names: list[str], emitting: list[str]) -> Any:
        def result() -> ModelRunnerOutput:
            self.clock.now_s = max(self.clock.now_s, end_s)
            tokens = [[next(self.tokens)] if name in emitting else [] for name in names]
            index = {name: number for number, name in enumerate(names)}
            return ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=tokens)

        return SimpleNamespace(result=result)


class Outputs:
    """Where the core loop puts its tokens; notes when."""

    def __init__(self, clock: Clock, log: Log) -> None:
        self.clock, self.log = clock, log

    def put_nowait(self, outputs: Any) -> None:
        for output in outputs[1].outputs:
            if output.new_token_ids:
                self.log.first_s.setdefault(output.request_id, self.clock.now_s)
                self.log.last_s[output.request_id] = self.clock.now_s


class Core(core_module.EngineCoreProc):
    """EngineCoreProc without processes and sockets: its step functions are vLLM's, untouched."""

    def __init__(self, scheduler: Scheduler, gpu: Gpu, asynchronous: bool) -> None:
        self.scheduler = scheduler
        self.model_executor = gpu
        self.async_scheduling = asynchronous
        self.batch_queue_size = 2
        self.batch_queue = deque(maxlen=2) if asynchronous else None
        self.step_fn = self.step_with_batch_queue if asynchronous else self.step
        self.is_ec_consumer = True
        self.is_mm_encoder_only = self.is_pooling_model = self.check_for_draft_tokens = False
        self.engines_running = False
        self.aborts_queue: queue.Queue[Any] = queue.Queue()
        self.vllm_config = scheduler.vllm_config
        self.log_stats = False
        self._weight_version = 0


def scheduled_work(output: Any) -> list[Work]:
    """The work of a SchedulerOutput, in its order."""
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return [(name, computed[name], new) for name, new in output.num_scheduled_tokens.items()]


def real_scheduler(
    limits: SimulatedEngine, folder: Path, transfer: KVTransferConfig | None = None
) -> Scheduler:
    """vLLM's scheduler as EngineCore builds it, for a model of which only a config exists."""
    write_folder(TINY, folder)
    model = ModelConfig(model=str(folder), skip_tokenizer_init=True, max_model_len=LONGEST)
    scheduling = SchedulerConfig(
        max_model_len=LONGEST,
        is_encoder_decoder=False,
        max_num_batched_tokens=max(
            limits.max_num_batched_tokens, limits.max_num_seqs
        ),  # vLLM refuses less; its scheduler copes
        max_num_seqs=limits.max_num_seqs,
        long_prefill_token_threshold=limits.long_prefill_token_threshold,
        prefill_schedule_interval=limits.prefill_schedule_interval,
        enable_chunked_prefill=True,
    )
    cache = CacheConfig(block_size=limits.block_size, enable_prefix_caching=limits.enable_prefix_caching)
    config = VllmConfig(
        model_config=model, scheduler_config=scheduling, cache_config=cache, kv_transfer_config=transfer
    )
    config.scheduler_config.max_num_batched_tokens = limits.max_num_batched_tokens
    config.scheduler_config.max_num_seqs = limits.max_num_seqs
    config.scheduler_config.async_scheduling = limits.async_scheduling
    attention = FullAttentionSpec(
        block_size=limits.block_size, num_kv_heads=2, head_size=32, dtype=torch.bfloat16
    )
    blocks = limits.num_gpu_blocks + 1  # vLLM's null block comes on top
    config.cache_config.num_gpu_blocks = blocks
    kv = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)]
    )
    structured = Mock()
    structured.should_advance.return_value = False
    structured.accept_tokens.return_value = True
    kind = AsyncScheduler if limits.async_scheduling else Scheduler
    return kind(config, kv, structured, limits.block_size, log_stats=False)


@contextmanager
def core_sleeps(sleep: Callable[[float], None]) -> Iterator[None]:
    """vLLM's core sleeps by `sleep` meanwhile."""
    true_time, core_module.time = (
        core_module.time,
        SimpleNamespace(**vars(core_module.time) | {"sleep": sleep}),
    )
    try:
        yield
    finally:
        core_module.time = true_time


class Side:
    """One engine: its core, and what comes to it: arrival, id, tokens, output and parameters of its KV."""

    def __init__(
        self, limits: SimulatedEngine, folder: Path, gpu: Gpu, transfer: KVTransferConfig | None = None
    ) -> None:
        self.log, self.clock = gpu.log, gpu.clock
        self.scheduler = real_scheduler(limits, folder, transfer)
        gpu.requests = self.scheduler.requests
        self.core = Core(self.scheduler, gpu, limits.async_scheduling)
        self.core.output_queue = Outputs(self.clock, self.log)
        init_none_hash(sha256)
        self._hasher = (
            get_request_block_hasher(limits.block_size, sha256) if limits.enable_prefix_caching else None
        )
        self.inbox: deque[tuple[float, str, list[int], int, dict[str, Any]]] = deque()

    def due(self) -> float:
        if self.core.has_work():
            return self.clock.now_s
        return max(self.clock.now_s, self.inbox[0][0]) if self.inbox else float("inf")

    def turn(self, now_s: float) -> None:
        """One turn of the core's loop."""
        self.clock.now_s = now_s
        while self.inbox and self.inbox[0][0] <= now_s:
            _, name, tokens, output, params = self.inbox.popleft()
            extra = {"kv_transfer_params": params}
            sampling = SamplingParams(max_tokens=output, ignore_eos=True, extra_args=extra)
            self.scheduler.add_request(Request(name, tokens, sampling, None, block_hasher=self._hasher))
        self.core._process_engine_step()


def run(*sides: Side) -> None:
    """Serve all that comes; the side that is behind moves: nothing it does reaches into another's past."""
    while (side := min(sides, key=Side.due)).due() < float("inf"):
        with core_sleeps(side.clock.sleep):
            side.turn(side.due())


def run_real(
    prompts: Sequence[tuple[float, list[int], int]],
    limits: SimulatedEngine,
    duration_s: Callable[[Sequence[Work], int], float],
    folder: Path,
) -> Log:
    """Serve `prompts` (arrival, token ids, output tokens), in order of arrival, with vLLM's own code."""
    side = Side(limits, folder, Gpu(Clock(), duration_s, Log()))
    for number, (at_s, tokens, output) in enumerate(prompts):
        side.inbox.append((at_s, str(number), tokens, output, {}))
    run(side)
    return side.log
