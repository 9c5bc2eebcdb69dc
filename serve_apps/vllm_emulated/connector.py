"""vLLM's connectors between a prefill and a decode engine, the scheduler's side: who waits, who holds blocks.

They have the names of the real connectors, because Ray's orchestration and vLLM's own checks depend on the
names. `kv_connector_module_path` names this module. The workers' side is in the executor, in the same
process; the metadata of each step connects both.
"""

from dataclasses import dataclass, field
from typing import Any

from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.utils.network_utils import get_ip
from vllm.v1.request import RequestStatus

from serve_apps.vllm_emulated.kv_transfer import Order, Peer, addressed

NOTIFY_PORT = 61005
"""MoRI-IO's default (vLLM, moriio_common.py)."""


@dataclass
class Ordered(KVConnectorMetadata):  # type: ignore[misc]  # vLLM has no types here
    """The orders of one step."""

    orders: list[Order] = field(default_factory=list)


class _Connector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """A connector as NIXL's and MoRI-IO's are, whose prompts arrive asynchronously and whole."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._writes = writes(vllm_config.kv_transfer_config)
        self._at = address(vllm_config.kv_transfer_config)
        self._engine_id = vllm_config.kv_transfer_config.engine_id
        self._tensor_parallel = vllm_config.parallel_config.tensor_parallel_size
        self._orders: list[Order] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """All tokens of a remote prompt that are not here yet; vLLM computes the last one again itself."""
        if _source(request) is None:
            return 0, False
        missing = max(0, request.num_prompt_tokens - num_computed_tokens)
        return missing, missing > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks are taken: load a remote prompt, or note one that is computed for another engine."""
        if source := _source(request):
            self._load(request, source, num_external_tokens)
        elif self._writes and _requests(request, "do_remote_decode"):
            peer = addressed(request.request_id, to_prefill=False)
            if peer is not None:
                self._orders.append(Order("push", request.request_id, self._key(request), peer))

    def build_connector_meta(self, scheduler_output: Any) -> Ordered:
        ordered, self._orders = Ordered(self._orders), []
        return ordered

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A computed prompt keeps its blocks, and its answer says where they are; others keep nothing."""
        if source := _source(request):  # ended before it had blocks: the prompt will not be read
            self._load(request, source, 0)
            return False, None
        if not _requests(request, "do_remote_decode") or request.status not in (
            RequestStatus.FINISHED_LENGTH_CAPPED,
            RequestStatus.FINISHED_STOPPED,
        ):
            return False, None
        key = self._key(request)
        self._orders.append(Order("hold", request.request_id, key))
        return True, {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [block_ids],
            "remote_engine_id": self._engine_id,
            "remote_request_id": request.request_id,
            "remote_host": self._at.host,
            "remote_port": self._at.port,
            "tp_size": self._tensor_parallel,
            "transfer_id": key,
        }

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids[0])

    def _no_worker(self, *args: Any, **kwargs: Any) -> None:
        """There is no worker."""

    start_load_kv = wait_for_layer_load = save_kv_layer = wait_for_save = _no_worker

    def _load(self, request: Any, source: Peer, tokens: int) -> None:
        self._orders.append(Order("load", request.request_id, self._key(request), source, tokens))
        # Once: a request that is preempted computes its prompt itself.
        request.kv_transfer_params["do_remote_prefill"] = False

    @staticmethod
    def _key(request: Any) -> str:
        """The name of the transfer on both engines: the orchestrator's, or the prefill request's id."""
        params = request.kv_transfer_params
        return str(params.get("transfer_id") or params.get("remote_request_id") or request.request_id)


class MoRIIOConnector(_Connector):
    """The connector in the place of MoRI-IO's; notices go to its notify port."""


class NixlConnector(_Connector):
    """The connector in the place of NIXL's; notices go to its side channel."""


def writes(transfer: Any) -> bool:
    """True in MoRI-IO's write mode, which is its default; NIXL's connector of this name reads."""
    read_mode = str(transfer.kv_connector_extra_config.get("read_mode", "false")).strip().lower()
    return transfer.kv_connector == MoRIIOConnector.__name__ and read_mode not in ("true", "1")


def address(transfer: Any) -> Peer:
    """The address at which this engine hears notices: the real connector's."""
    if transfer.kv_connector == NixlConnector.__name__:
        return Peer(envs.VLLM_NIXL_SIDE_CHANNEL_HOST, envs.VLLM_NIXL_SIDE_CHANNEL_PORT)
    given = transfer.kv_connector_extra_config
    return Peer(given.get("host_ip") or get_ip(), int(given.get("notify_port") or NOTIFY_PORT))


def _source(request: Any) -> Peer | None:
    """The engine that has the prompt; None if no engine has it, or the request does not name it."""
    if not _requests(request, "do_remote_prefill"):
        return None
    host, port = (request.kv_transfer_params.get(name) for name in ("remote_host", "remote_port"))
    if isinstance(host, str) and isinstance(port, int):
        return Peer(host, port)
    return addressed(request.request_id, to_prefill=True)


def _requests(request: Any, what: str) -> bool:
    return bool((request.kv_transfer_params or {}).get(what))
