"""A prefill and a decode engine of vLLM's own schedulers, and a connector that moves nothing.

All on one virtual clock. The engine model's `KvLink` says when a transfer ends.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from conf.specs.experiment import SimulatedEngine
from serve_apps.engine_model.cost.links import KvLink
from tests.vllm.real_core import Clock, Gpu, Log, Outputs, Side, Work, run, scheduled_work

Duration = Callable[[Sequence[Work], int], float]


class StillConnector(KVConnectorBase_V1, SupportsHMA):
    """The scheduler's half of a connector that pulls whole prompts, as NixlConnector does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.started: list[tuple[str, int]] = []

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        missing = request.num_prompt_tokens - num_computed_tokens
        return (missing, True) if _asks(request, "do_remote_prefill") and missing > 0 else (0, False)

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        if _asks(request, "do_remote_prefill") and num_external_tokens:
            request.kv_transfer_params["do_remote_prefill"] = False  # one transfer per request
            self.started.append((request.request_id, num_external_tokens))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Request, block_ids: Any) -> tuple[bool, Any]:
        ended = request.status == RequestStatus.FINISHED_LENGTH_CAPPED
        return ended and _asks(request, "do_remote_decode") and any(block_ids), None

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, Any]:
        return self.request_finished_all_groups(request, (block_ids,))

    def _computes(self, *args: Any, **options: Any) -> None:
        raise NotImplementedError

    start_load_kv = wait_for_layer_load = save_kv_layer = wait_for_save = _computes


def _asks(request: Request, what: str) -> bool:
    return bool(request.kv_transfer_params and request.kv_transfer_params.get(what))


class MovingGpu(Gpu):
    """Looks for ended transfers when it is handed a step, and reports them with that step's output."""

    side: "MovingSide"

    def execute_model(self, output: Any, non_block: bool = False) -> Any:
        start_s = max(self.clock.now_s, self.free_s)
        for name, computed, new in scheduled_work(output):
            if computed < self.side.reached.get(name, 1 << 60):
                self.side.begun_s[name] = start_s  # new, or from the start again
            self.side.reached[name] = computed + new
        done = super().execute_model(output, non_block)
        started, self.side.connector.started = self.side.connector.started, []
        for name, tokens in started:
            self.side.takes(name, tokens, self.clock.now_s)
        return done

    def _future(self, end_s: float, names: list[str], emitting: list[str]) -> Any:
        computed, moved = super()._future(end_s, names, emitting), self.side.look(self.clock.now_s)

        def result() -> Any:
            output = computed.result()
            output.kv_connector_output = moved
            return output

        return SimpleNamespace(result=result)


class FinishedOutputs(Outputs):
    """Tells when a request is finished."""

    side: "MovingSide"

    def put_nowait(self, outputs: Any) -> None:
        super().put_nowait(outputs)
        for output in outputs[1].outputs:
            if output.finish_reason is not None:
                self.side.finishes(output.request_id, self.clock.now_s)


class MovingSide(Side):
    """One engine, and the transfers that end at it."""

    def __init__(self, role: str, limits: SimulatedEngine, duration_s: Duration, folder: Path) -> None:
        transfer = KVTransferConfig(
            kv_connector="StillConnector", kv_connector_module_path=__name__, kv_role=role
        )
        gpu = MovingGpu(Clock(), duration_s, Log())
        super().__init__(limits, folder, gpu, transfer)
        outputs = FinishedOutputs(self.clock, self.log)
        gpu.side = outputs.side = self
        self.core.output_queue = outputs
        self.connector: Any = self.scheduler.connector
        self.sent: dict[str, float] = {}
        self.received: dict[str, float] = {}
        self.begun_s: dict[str, float] = {}
        self.reached: dict[str, int] = {}
        self.takes: Callable[[str, int, float], None] = lambda *_: None
        self.finishes: Callable[[str, float], None] = lambda *_: None

    def look(self, now_s: float) -> KVConnectorOutput:
        ended = []
        for transfers in (self.sent, self.received):
            # In order: that of a set of names differs from process to process, and blocks are freed in it.
            ended.append(sorted((n for n in transfers if transfers[n] <= now_s), key=transfers.__getitem__))
            for name in ended[-1]:
                del transfers[name]
        return KVConnectorOutput(finished_sending=ended[0], finished_recving=ended[1])


def run_pair(
    prompts: Sequence[tuple[float, list[int], int]],
    limits: tuple[SimulatedEngine, SimulatedEngine],
    durations: tuple[Duration, Duration],
    link: KvLink,
    writes: bool,
    folder: Path,
) -> tuple[Log, Log]:
    """Serve `prompts` (arrival, token ids, output tokens) on a prefill and a decode engine; their logs."""
    prefill, decode = (
        MovingSide(role, each, duration_s, folder)
        for role, each, duration_s in zip(("kv_producer", "kv_consumer"), limits, durations, strict=True)
    )
    computed_s: dict[str, float] = {}
    taken: dict[str, tuple[float, int]] = {}

    def expect(name: str, at_s: float) -> None:
        _, tokens, output = prompts[int(name)]
        decode.inbox.append((at_s, name, tokens, output, {"do_remote_prefill": True}))

    def move(name: str) -> None:
        if name not in computed_s or name not in taken:
            return
        taken_s, tokens = taken[name]
        end_s = link.end_s(prefill.begun_s[name], computed_s[name], taken_s, tokens)
        prefill.sent[name] = decode.received[name] = end_s

    def computed(name: str, at_s: float) -> None:
        computed_s[name] = at_s
        move(name) if writes else expect(name, at_s)

    def takes(name: str, tokens: int, at_s: float) -> None:
        taken[name] = at_s, tokens
        move(name)

    prefill.finishes, decode.takes = computed, takes
    for number, (at_s, tokens, _) in enumerate(prompts):
        prefill.inbox.append((at_s, str(number), tokens, 1, {"do_remote_decode": True}))
        if writes:
            expect(str(number), at_s)
    run(prefill, decode)
    return prefill.log, decode.log
