"""Specs of where a service is: the cluster that it is deployed on, or endpoints that somebody else runs."""

import math
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from conf.io.check import require, require_within

MOST_NODES, MOST_GPUS = 100_000, 1024
"""Beyond any cluster of today (our choice)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the experiment runs.

    `session` is `local` (one Ray node on this machine), `fake` (one Ray process group per node,
    all on this machine) or `address` (join the cluster at `address`). With `engine=external`,
    `nodes` counts the nodes behind the endpoints. A sweep that loses its service waits up to `recovery_s`
    (real seconds, not charged to its budget) until it is whole again; 0 ends the sweep at once.
    """

    name: str
    session: Literal["local", "fake", "address"] = "local"
    address: str = "auto"
    nodes: int = 1
    gpus_per_node: int = 8
    recovery_s: float = 300.0

    def __post_init__(self) -> None:
        limit = f"cluster.recovery_s={self.recovery_s:g} must be finite and not negative"
        require(0 <= self.recovery_s < math.inf, limit)
        require(self.nodes >= 1, f"cluster.nodes={self.nodes} must be at least 1")
        require(self.gpus_per_node >= 1, f"cluster.gpus_per_node={self.gpus_per_node} must be at least 1")
        require_within("cluster.", self, nodes=MOST_NODES, gpus_per_node=MOST_GPUS)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Endpoints of `engine=external`.

    `api_key_env` names the environment variable that holds the key sent to every URL, in clear text
    where the URL is http://; empty, as by default, no key is sent. Set, the variable must exist:
    whoever reads it refuses an unset one. URLs hold no secrets, since they are saved with the run.
    """

    urls: list[str] = field(default_factory=list)
    api_key_env: str = ""

    def __post_init__(self) -> None:
        for url in self.urls:
            _check_url(url)


def _check_url(url: str) -> None:
    """Raise ValueError unless `url` is a plain http(s) address; no message shows it: it may hold a secret."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
        secret = "@" in parts.netloc or parts.query or parts.fragment
    except ValueError:
        fits, secret = False, ""
    require(not secret, "target.urls: no user, password, query or fragment; give a key by target.api_key_env")
    require(fits and url.isprintable() and " " not in url, "target.urls: must be http(s)://host:port")
    require(_has_valid_port(url), "target.urls: the port of a URL must be a number up to 65535")


def _has_valid_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False
