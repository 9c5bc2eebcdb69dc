"""Settings of vLLM and Ray for the KV that goes from a prefill engine to a decode engine.

Connectors by their names, the role and the ports of each side, and the proxy that engines started by hand
need. Refusals are in rules.yaml. Sources: vLLM's usage guides of MoRI-IO and NIXL, its connectors of
0.29.0 and 0.32.0, and `serving_patterns/prefill_decode` and `engines/vllm/kv_transfer` of ray 2.60.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from conf.specs.experiment import Layout
from serve_apps.vllm_recipes import vllm_flags
from serve_apps.vllm_recipes.rules import EXTRA, REFINED
from serve_apps.vllm_recipes.vllm_flags import Version

Side = Literal["prefill", "decode"]
TRANSFER = "kv_transfer_config"
CONNECTORS = {"moriio": "MoRIIOConnector", "nixl": "NixlConnector"}
ROLES: dict[Side, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}

NIXL_PORTS: dict[Side, int] = {"prefill": 20000, "decode": 22000}
HANDSHAKE_PORTS: dict[Side, int] = {"prefill": 6301, "decode": 7301}
NOTIFY_PORTS: dict[Side, int] = {"prefill": 61005, "decode": 62005}
"""First ports of each side, ray 2.60's; an engine adds its number times its GPUs, a GPU its own number."""
NIXL_PORT = "VLLM_NIXL_SIDE_CHANNEL_PORT"
READ_MODE_OF_OLD = "VLLM_MORIIO_CONNECTOR_READ_MODE"
"""The switch before `read_mode` was a key; 0.29.0 and 0.32.0 ignore it with a warning."""

LOOPBACK = "127.0.0.1"
PROXY_PORT, PING_PORT = 8192, 36367
"""Ports of the proxies in vLLM's guides: NIXL's for clients, MoRI-IO's for the registration of engines."""
NIXL_PROXY = "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py"
MORIIO_PROXY = "examples/disaggregated/disaggregated_serving/moriio_toy_proxy_server.py"


def arguments(layout: Layout, side: Side, version: Version) -> dict[str, Any]:
    """vLLM's arguments for one side of the split `layout`, without ports."""
    # NIXL takes kv_both by its guides before 0.29; from 0.29 on it is deprecated. MoRI-IO needs a role.
    both = layout.connector == "nixl" and version < REFINED
    config: dict[str, Any] = {
        "kv_connector": CONNECTORS[layout.connector],
        "kv_role": "kv_both" if both else ROLES[side],
    }
    if layout.connector == "nixl":
        return {TRANSFER: config}
    config[EXTRA] = {"read_mode": layout.transfer_mode == "read"}
    # The KV of a hit is on the decode engine already, and the lists of blocks then differ (vLLM PR #48471).
    return {"enable_prefix_caching": False, TRANSFER: config}


def environment(layout: Layout, version: Version) -> dict[str, str]:
    """Variables of the engines of both sides."""
    old = layout.connector == "moriio" and layout.transfer_mode == "read" and version < REFINED
    return {READ_MODE_OF_OLD: "1"} if old else {}


def own(args: Mapping[str, Any]) -> dict[str, Any]:
    """The user's words on the transfer. A null for the whole argument counts as a null for the connector."""
    if TRANSFER in args and args[TRANSFER] is None:
        return {"kv_connector": None}
    return vllm_flags.mapping(TRANSFER, args.get(TRANSFER))


def over(ours: Mapping[str, Any], own: Any) -> dict[str, Any]:
    """Our kv_transfer_config with the user's words over it, key by key; a null removes one."""
    given = vllm_flags.mapping(TRANSFER, own)
    extra = {**ours.get(EXTRA, {}), **(given.get(EXTRA) or {})}
    merged = {**ours, **given, **({EXTRA: extra} if extra else {})}
    return {key: value for key, value in merged.items() if value is not None}


def ray_ports(layout: Layout, side: Side) -> dict[str, int]:
    """The `experimental_configs` of Ray's LLMConfig that give a side its first ports."""
    if layout.connector == "nixl":
        return {"NIXL_SIDE_CHANNEL_PORT_BASE": NIXL_PORTS[side]}
    return {"MORI_HANDSHAKE_PORT_BASE": HANDSHAKE_PORTS[side], "MORI_NOTIFY_PORT_BASE": NOTIFY_PORTS[side]}


def by_hand(
    layout: Layout, side: Side, index: int, gpus: int, http_port: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Environment and keys of the extra config of engine `index` of a side of a node, each of `gpus` GPUs."""
    first = index * gpus
    if layout.connector == "nixl":
        return {NIXL_PORT: str(NIXL_PORTS[side] + first)}, {}
    return {}, {
        "proxy_ip": LOOPBACK,
        "proxy_ping_port": str(PING_PORT),
        "http_port": str(http_port),
        "handshake_port": str(HANDSHAKE_PORTS[side] + first),
        "notify_port": str(NOTIFY_PORTS[side] + first),
    }


def proxy(layout: Layout, prefill_ports: Sequence[int], decode_ports: Sequence[int]) -> list[str]:
    """The words of the proxy that joins engines started by hand; its path is in vLLM's source tree."""
    if layout.connector == "moriio":  # engines register their ports there
        return ["python", MORIIO_PROXY]
    words = ["python", NIXL_PROXY, "--host", LOOPBACK, "--port", str(PROXY_PORT)]
    for name, ports in (("prefiller", prefill_ports), ("decoder", decode_ports)):
        words += [f"--{name}-hosts", *[LOOPBACK] * len(ports), f"--{name}-ports", *map(str, ports)]
    return words
