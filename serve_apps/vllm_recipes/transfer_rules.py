"""Rules about split layouts: what the connector between a prefill and a decode engine needs."""

from collections.abc import Mapping
from typing import Any

from serve_apps.vllm_recipes.kv_transfer import EXTRA, NIXL_PORT
from serve_apps.vllm_recipes.rules import RecipeRule, VllmDeployment
from serve_apps.vllm_recipes.vllm_flags import Version

MORIIO: Version = (0, 15, 0)
"""The first version whose documentation lists the connector; older ones were not read for it."""
OURS = ("kv_connector", "kv_role")
PORTS = ("handshake_port", "notify_port", "http_port")


def _moriio(d: VllmDeployment) -> bool:
    return d.split is not None and d.split.connector == "moriio"


def _nixl(d: VllmDeployment) -> bool:
    return d.split is not None and d.split.connector == "nixl"


def _extra(d: VllmDeployment) -> Mapping[str, Any]:
    return d.own_transfer.get(EXTRA) or {}


def _shared_ports(d: VllmDeployment) -> bool:
    return d.split is not None and (NIXL_PORT in d.env or any(name in _extra(d) for name in PORTS))


REFUSED_TRANSFERS = {
    "split-process": RecipeRule(
        lambda d: d.split is not None and d.deployed and d.engine.server == "process",
        "engine.server=process with layout {d.split.name}: vLLM's own server sends no request from one "
        "engine to another; leave it out: Ray's decode server does that; for engines started by hand, "
        "python -m serve_apps render names the proxy",
        "api_server.py of 0.32.0; pd_server.py of ray 2.60",
    ),
    "split-published": RecipeRule(
        lambda d: d.split is not None and d.engine.recipe == "published",
        "engine.recipe=published with layout {d.split.name}: no split layout was published with its flags "
        "for the MI325X; use modern",
        "published_recipes.yaml",
    ),
    "moriio-amd": RecipeRule(
        lambda d: _moriio(d) and (not d.amd or d.engine.kind == "vllm_cpu"),
        "layout.connector=moriio without AMD GPUs: its library is ROCm's; use layout.connector=nixl",
        "vLLM's MoRIIOConnector usage guide",
    ),
    "moriio-version": RecipeRule(
        lambda d: _moriio(d) and d.version < MORIIO,
        "layout.connector=moriio on {d.vllm}: 0.15.0 is the first version that is known to have "
        "MoRIIOConnector; use layout.connector=nixl or a newer vLLM",
        "vLLM's documentation of 0.15.0",
    ),
    "moriio-prefix-cache": RecipeRule(
        lambda d: _moriio(d) and d.args.get("enable_prefix_caching") is not False,
        "enable_prefix_caching with layout.connector=moriio: where a prefix is cached on the decode engine, "
        "the lists of blocks differ and it raises ValueError; leave it out, or use layout.connector=nixl",
        "vLLM PR #48471; moriio_layout.py of 0.32.0",
    ),
    "tp-multiple": RecipeRule(
        lambda d: d.split is not None and max(d.tps) % min(d.tps) != 0,
        "TP{d.tps[0]} of the prefill engines and TP{d.tps[1]} of the decode engines: a connector sends the "
        "KV of whole GPUs, so one has to be a multiple of the other; set layout.prefill.tensor_parallel or "
        "layout.tensor_parallel",
        "kv_connector/utils.py and moriio_connector.py of 0.32.0",
    ),
    "moriio-tp": RecipeRule(
        lambda d: _moriio(d) and len(set(d.tps)) > 1 and not d.mla and min(d.tps) < d.model.kv_heads,
        "layout.connector=moriio from TP{d.tps[0]} to TP{d.tps[1]}: with different TP it moves only KV that "
        "every GPU holds whole, and {d.model.name} has {d.model.kv_heads} KV heads: NotImplementedError; "
        "use layout.connector=nixl, or the same TP on both sides",
        "validate_moriio_heterogeneous_tp_kv_heads of 0.29.0 and 0.32.0",
    ),
    "nixl-tp": RecipeRule(
        lambda d: _nixl(d) and d.tps[0] > d.tps[1] and not d.mla and d.tps[0] > d.model.kv_heads,
        "layout.connector=nixl from TP{d.tps[0]} to TP{d.tps[1]}: prefill engines with more GPUs than "
        "{d.model.name} has KV heads ({d.model.kv_heads}) cannot feed a smaller TP: AssertionError; set "
        "layout.prefill.tensor_parallel to {d.tps[1]} or less",
        "nixl/base_worker.py of 0.29.0 and 0.32.0",
    ),
    "split-offload": RecipeRule(
        lambda d: d.split is not None and d.offloads,
        "KV offload with layout {d.split.name}: vLLM then puts the offload's connector in place of "
        "layout.connector={d.split.connector}; set engine.args.kv_offloading_backend=null and "
        "engine.args.kv_offloading_size=null",
        "config/vllm.py, _post_init_kv_transfer_config, of 0.32.0",
    ),
    "own-connector": RecipeRule(
        lambda d: (
            d.split is not None and (any(name in d.own_transfer for name in OURS) or "read_mode" in _extra(d))
        ),
        "kv_connector, kv_role or read_mode in engine.args.kv_transfer_config, or a null for it, with "
        "layout {d.split.name}: the layout says how KV goes from side to side; leave it out; see "
        "layout.connector and layout.transfer_mode",
        "ours",
    ),
    "shared-ports": RecipeRule(
        _shared_ports,
        "ports of the transfer for all engines (VLLM_NIXL_SIDE_CHANNEL_PORT, handshake_port, notify_port or "
        "http_port) in layout {d.split.name}: the engines of a node would listen on the same ones; leave "
        "them out: each is given its own",
        "kv_transfer/nixl.py and moriio.py of ray 2.60",
    ),
}

NOTED_TRANSFERS = {
    "moriio-rdma": RecipeRule(
        lambda d: _moriio(d) and "backend" not in _extra(d) and d.engine.kind == "vllm",
        "layout.connector=moriio moves KV by RDMA: also within a node, so its adapters must reach the GPUs; "
        "where all engines are on one node, "
        "engine.args.kv_transfer_config.kv_connector_extra_config.backend=xgmi needs none",
        "vLLM's MoRIIOConnector usage guide",
    ),
    "nixl-rocm": RecipeRule(
        lambda d: _nixl(d) and d.amd and d.engine.kind == "vllm",
        "layout.connector=nixl on AMD GPUs: its library there is RIXL (package nixl_rocm from 0.29 on), "
        "which vLLM's ROCm image has and a plain pip install nixl has not",
        "vLLM's NixlConnector usage guide; nixl_utils.py of 0.29.0 and 0.32.0",
    ),
}
