"""Specs of the way of a request: the policy that chooses a replica, or external endpoints."""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Literal
from urllib.parse import urlsplit

from conf.io.check import AtLeastOne, Range, require
from conf.specs.rules import Ruled

SESSION_POLICIES = ("consistent_hash", "bounded_hash", "client_side")
"""Policies that choose a replica by the request's session."""
TEXT_POLICIES = ("prefix_affinity", "kv_aware")
"""Policies that choose a replica by the text of the prompt."""


@dataclass(frozen=True, slots=True)
class Routing(Ruled):
    """The policy that chooses a request's replica, and the proxy that its tokens pass.

    `per_node` balances nothing: every node has an independent stream of arrivals, sent straight to it.
    Other policies make one pooled service of all nodes. `leastconn` and `roundrobin` are HAProxy's,
    `pow2` and `round_robin` Ray Serve's. These keep a session on its replica: `consistent_hash` by a ring
    on which each replica has `vnodes` places; `bounded_hash` by that ring, passing over replicas with
    more than `load_factor` times the mean of the requests in flight; `client_side` by the load generator,
    which sends a session straight to its replica. `prefix_affinity` is Ray's router by prompt text,
    `kv_aware` Ray's by the blocks of KV that engines report, weighed against their load.
    """

    name: str
    data_path: Literal["haproxy", "python_proxy", "direct"] = "haproxy"
    policy: Literal[
        "leastconn",
        "roundrobin",
        "round_robin",
        "pow2",
        "consistent_hash",
        "bounded_hash",
        "prefix_affinity",
        "kv_aware",
        "client_side",
        "per_node",
    ] = "leastconn"
    vnodes: AtLeastOne = 1000
    load_factor: Annotated[float, Range(ge=1)] = 1.25

    @property
    def by_session(self) -> bool:
        """True if the policy chooses a replica by the request's session."""
        return self.policy in SESSION_POLICIES

    @property
    def by_text(self) -> bool:
        """True if the policy chooses a replica by the text of the prompt."""
        return self.policy in TEXT_POLICIES


_API_PATH = re.compile(r"((?<!/)/v1(/models|/completions|/chat/completions)?)?/*$")
"""The end of a copied URL that we append ourselves. A host may be called v1."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Endpoints of `engine=external`.

    A URL may have a path, such as a team's at a gateway, and may end in /v1; it holds no secret, since it
    is saved. `api_key_env` names the environment variable with the key that every URL gets, in clear text
    over http://; empty sends none. `ca_file` is a PEM file with the only CA certificates that are
    trusted, by default the system's. `list_models=false` is for servers without /v1/models;
    `model.served_name` names the model either way.

    Requests lack the optional fields in `omit`. `max_tokens_field` names the field with the answer's
    length: some servers of chats refuse `max_tokens`. Without `stream_options` the server must send its
    usage unasked, since nothing else counts tokens; without `ignore_eos` and `min_tokens` an early end
    fails.
    """

    urls: list[str] = field(default_factory=list)
    api_key_env: str = ""
    ca_file: str = ""
    list_models: bool = True
    omit: list[Literal["stream_options", "ignore_eos", "min_tokens", "temperature"]] = field(
        default_factory=list
    )
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"

    def __post_init__(self) -> None:
        for url in self.urls:
            _check_url(url)

    @property
    def bases(self) -> list[str]:
        """The URLs to which /v1/... and /metrics are appended."""
        return [_API_PATH.sub("", url) for url in self.urls]

    @property
    def servers(self) -> int:
        """Number of different endpoints."""
        return len(set(self.bases))


def _check_url(url: str) -> None:
    """Raise ValueError unless `url` is a plain http(s) address; messages hide it, as it may hold a secret."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
        secret = "@" in parts.netloc or parts.query or parts.fragment
    except ValueError:
        fits, secret = False, ""
    require(not secret, "target.urls: no user, password, query or fragment; give a key by target.api_key_env")
    require(fits and url.isprintable() and " " not in url, "target.urls: must be http(s)://host:port")
    port: int | None = 0
    with suppress(ValueError):
        port = urlsplit(url).port
    require(port != 0, "target.urls: the port of a URL must be a number up to 65535")
