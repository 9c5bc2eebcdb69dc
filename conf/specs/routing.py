"""The spec of routing: the policy that chooses a replica, and the proxy in between."""

from dataclasses import dataclass
from typing import Annotated, Literal

from conf.io.check import require
from conf.specs.ranges import AtLeastOne, Range

DATA_PATHS = {
    "leastconn": ("haproxy",),
    "roundrobin": ("haproxy",),
    "round_robin": ("haproxy", "python_proxy"),
    "pow2": ("python_proxy",),
    "consistent_hash": ("haproxy", "python_proxy"),
    "bounded_hash": ("python_proxy",),
    "prefix_affinity": ("haproxy", "python_proxy"),
    "kv_aware": ("haproxy",),
    "client_side": ("direct",),
    "per_node": ("direct",),
}
"""Data paths of each policy. Behind HAProxy, Serve's routers do not learn when a request has ended."""
SESSION_POLICIES = ("consistent_hash", "bounded_hash", "client_side")
"""Policies that choose a replica by the request's session."""
TEXT_POLICIES = ("prefix_affinity", "kv_aware")
"""Policies that choose a replica by the text of the prompt."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The policy that chooses a request's replica, and the proxy that its tokens pass.

    Policy `per_node` balances nothing: every node has a stream of arrivals of its own, independent of the
    others' and sent straight to it. Other policies make one pooled service of all nodes:
    `leastconn` and `roundrobin` are HAProxy's, `pow2` and `round_robin` Ray Serve's. `consistent_hash`,
    `bounded_hash` and `client_side` keep a session on its replica: by a ring on which each replica has
    `vnodes` places; by that ring, passing over replicas with more than `load_factor` times the mean of the
    requests in flight; and by the load generator itself, which sends a session straight to its replica.
    `prefix_affinity` is Ray's router by prompt text, and `kv_aware` Ray's by the blocks of KV that engines
    report, weighed against their load.
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

    def __post_init__(self) -> None:
        possible = DATA_PATHS[self.policy]
        require(
            self.data_path in possible,
            f"routing.policy={self.policy} needs data_path={' or '.join(possible)}, not {self.data_path}",
        )
