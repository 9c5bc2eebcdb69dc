"""vLLM's executor without a GPU: steps take the time of the step-time model and compute nothing."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vllm.logger import init_logger
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from serve_apps.vllm_emulated import connector
from serve_apps.vllm_emulated.gpu import EmulatedGpu, StepPart, Steps, batch
from serve_apps.vllm_emulated.kv_transfer import SideChannel, Transfers

TOKEN = 1000
"""Every token that is sampled: a word of any tokeniser, never the end of a text, so answers end by length."""
IGNORED_CALLS = frozenset(
    {
        "initialize_from_config",
        "reset_mm_cache",
        "set_kv_cache_layout",
        "get_kv_connector_handshake_metadata",
    }
)
"""Calls to workers that need no answer, while vLLM starts and serves; others are logged, once each."""

logger = init_logger(f"vllm.{__name__}")


class Due(Future[Any]):
    """A result that exists from `at_s` (monotonic clock) on; an earlier call sleeps, holding no lock."""

    def __init__(self, value: Any, at_s: float) -> None:
        super().__init__()
        self.set_result(value)
        self._at_s = at_s

    def done(self) -> bool:
        return time.monotonic() >= self._at_s

    def result(self, timeout: float | None = None) -> Any:
        left_s = self._at_s - time.monotonic()
        if timeout is not None and left_s > timeout:
            time.sleep(timeout)
            raise TimeoutError
        if left_s > 0:
            time.sleep(left_s)
        return super().result()


class KvWorker:
    """The workers' side of our connector: begins the transfers that a step orders, and reports ended ones.

    It looks for ended transfers when a step begins, as vLLM's workers do, and reports them with that step's
    result.
    """

    def __init__(self, gpu: EmulatedGpu, transfer: Any) -> None:
        """Raises ValueError for a port in use, and without the constants of a transfer."""
        if gpu.transfer is None:
            raise ValueError(
                "kv_transfer_config needs a layout with prefill engines; choose one or leave it out"
            )
        writes = connector.writes(transfer)
        # A decode engine that reads hears nothing.
        hears = writes or transfer.is_kv_producer
        self._channel = SideChannel(connector.address(transfer) if hears else None)
        self._transfers = Transfers(gpu.transfer, writes, self._channel.send)

    def step(self, scheduled: Any, parts: list[StepPart], begin_s: float, end_s: float) -> Any:
        """vLLM's report of ended transfers, None without any; the step lasts from `begin_s` to `end_s`."""
        now_s, transfers = time.monotonic(), self._transfers
        transfers.order(scheduled.kv_connector_metadata.orders, now_s)
        for notice in self._channel.received():
            transfers.hear(notice, now_s)
        transfers.forget(scheduled.finished_req_ids)
        transfers.step({part.request_id: part.samples for part in parts}, begin_s, end_s, now_s)
        sending, recving = transfers.finished(now_s)
        if not sending and not recving:
            return None
        return KVConnectorOutput(finished_sending=sending, finished_recving=recving)

    def close(self) -> None:
        self._channel.close()


class EmulatedExecutor(Executor):  # type: ignore[misc]  # vLLM has no types here
    """Answers vLLM's engine core like the workers of a replica, one pretended worker standing for all.

    A step begins when the core requests it, or later, when the device has ended the step before.
    """

    def _init_executor(self) -> None:
        gpu = EmulatedGpu.read(self.vllm_config.additional_config)
        tensor_parallel = self.parallel_config.tensor_parallel_size
        if tensor_parallel != gpu.tensor_parallel:
            raise ValueError(
                f"tensor_parallel_size={tensor_parallel} but the emulated GPUs are those of "
                f"TP{gpu.tensor_parallel}; choose another layout instead of the argument"
            )
        asynchronous = self.scheduler_config.async_scheduling
        self._gpu = gpu if asynchronous else gpu.synchronous()
        self._steps = Steps()
        self._parts: list[StepPart] = []
        self._free_s = 0.0
        self._token = min(TOKEN, self.model_config.get_vocab_size() - 2)
        self._reported: set[str] = set()
        transfer = self.vllm_config.kv_transfer_config
        self._kv = None if transfer is None else KvWorker(gpu, transfer)
        self._kv_ended: Any = None
        logger.info(
            "Emulated GPUs: TP%d, constants %s, asynchronous scheduling %s",
            tensor_parallel,
            gpu.constants,
            asynchronous,
        )

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        """The answer of the one pretended worker; None to a call that has no meaning without a GPU."""
        name = method if isinstance(method, str) else getattr(method, "__name__", repr(method))
        answers: dict[str, Callable[[], Any]] = {
            "get_kv_cache_spec": self._kv_cache_spec,
            "determine_available_memory": lambda: self._gpu.kv_bytes(
                self.cache_config.gpu_memory_utilization
            ),
            "get_supported_kv_cache_layouts": lambda: [
                layout.name for layout in get_supported_kv_cache_layouts([])
            ],
            "get_supported_tasks": lambda: ("generate",),
            "supports_draft_weight_updates": lambda: False,
        }
        if name not in answers and name not in IGNORED_CALLS and name not in self._reported:
            self._reported.add(name)
            logger.warning("Emulated GPUs have no answer to the call %s: None", name)
        answer = [answers[name]() if name in answers else None]
        return Due(answer, 0.0) if non_block else answer

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Begin a step. `sample_tokens` returns its tokens, unless it has none to compute."""
        self._parts = self._steps.parts(scheduler_output)
        begin_s = end_s = max(time.monotonic(), self._free_s)
        computes = bool(scheduler_output.total_num_scheduled_tokens)
        if computes:
            end_s = self._free_s = begin_s + self._gpu.costs.duration_s(batch(self._parts))
        if self._kv is not None:
            self._kv_ended = self._kv.step(scheduler_output, self._parts, begin_s, end_s)
            self._steps.received(self._kv_ended.finished_recving if self._kv_ended else set())
        return self._answer(None if computes else self._output(), 0.0, non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """The tokens of the step begun last, when the device has ended it."""
        return self._answer(self._output(), self._free_s, non_block)

    def _output(self) -> ModelRunnerOutput:
        names = [part.request_id for part in self._parts]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[self._token] if part.samples else [] for part in self._parts],
            kv_connector_output=self._kv_ended,
        )

    def _answer(self, value: Any, at_s: float, non_block: bool) -> Any:
        due = Due(value, at_s)
        return due if non_block else due.result()

    def _kv_cache_spec(self) -> dict[str, FullAttentionSpec]:
        """Every layer's cache, by vLLM's own reading of the model."""
        model, dtype = self.model_config, self.cache_config.cache_dtype
        stored = model.dtype if dtype == "auto" else STR_DTYPE_TO_TORCH_DTYPE[dtype]
        spec = FullAttentionSpec(
            block_size=self.cache_config.block_size,
            num_kv_heads=model.get_num_kv_heads(self.parallel_config),
            head_size=model.get_head_size(),
            dtype=stored,
        )
        layers = model.get_num_layers(self.parallel_config)
        return {f"model.layers.{index}.self_attn.attn": spec for index in range(layers)}

    def _nothing(self) -> None:
        """A device that does not exist neither fails nor compiles; ranks and draft models are refused."""

    execute_dummy_batch = take_draft_token_ids = compile_or_warm_up_model = check_health = _nothing

    def shutdown(self) -> None:
        """Only the notification socket is open; close it."""
        if self._kv is not None:
            self._kv.close()

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True
