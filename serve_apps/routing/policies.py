"""Routing policies without Ray: a hash ring as Ray Serve's `ConsistentHashRouter` has it (`test_balancer`
holds it to Ray's own), the bound of `bounded_hash`, and each policy's router as plain data."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import mmh3
import numpy as np
from numpy.typing import NDArray

from conf.specs.experiment import Routing

SEED = 0xF9B4CA77
"""Ray's `CONSISTENT_HASH_SEED` (ray.serve.experimental.consistent_hash_router, 2.60)."""
LEAST_BOUND = 2
"""No replica is full with fewer requests in flight: with hardly any load a session keeps its replica."""

Places = NDArray[np.uint64]


def hashed(keys: Iterable[str]) -> Places:
    """Places of keys on the ring: the low half of MurmurHash3's 128 bits."""
    return np.array([mmh3.hash64(key, seed=SEED, signed=False)[0] for key in keys], dtype=np.uint64)


def ring(replicas: Sequence[str], vnodes: int) -> tuple[Places, NDArray[np.int64]]:
    """The places of all replicas in order, `vnodes` of each, and the index in `replicas` of their owners."""
    places = hashed(f"{replica}:{i}" for replica in replicas for i in range(vnodes))
    order = np.argsort(places, kind="stable")
    return places[order], order // vnodes


def starts(places: Places, keys: Iterable[str]) -> NDArray[np.int64]:
    """The position on the ring from which each key looks for a replica: its home owns that place."""
    positions: NDArray[np.int64] = np.searchsorted(places, hashed(keys), side="right") % len(places)
    return positions


def session_key(session: int) -> str:
    """The load generator's value of the header `x-session-id`."""
    return f"session-{session}"


def bound(in_flight: int, replicas: int, load_factor: float) -> int:
    """Requests in flight from which a replica is full, when one more than `in_flight` is to be placed.

    Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, SODA 2018): `load_factor` times
    the mean, rounded up, so that one replica always has room.
    """
    return max(LEAST_BOUND, math.ceil(load_factor * (in_flight + 1) / replicas))


ALL_REPLICAS = 1_000_000
NO_QUEUE_LIMIT = 1_000_000
"""Requests wait in the engine, which counts them, and never in Serve (whose default is 5)."""

Tree = dict[str, Any]


def router_options(routing: Routing) -> Tree | None:
    """The engines' `request_router_config`; None if no router of Serve's has a rule of its own.

    HAProxy or the load generator chooses then, or Serve's default, the power of two choices (`pow2`).
    """
    ring: Tree = {"num_virtual_nodes": routing.vnodes}
    bounded = ring | {"num_fallback_replicas": ALL_REPLICAS, "load_factor": routing.load_factor}
    ray_prefix = "ray.serve.llm.request_router.PrefixCacheAffinityRouter"
    own_prefix = "serve_apps.routing.prefix_router.PrefixRouter"
    routers: dict[str, tuple[str, Tree]] = {
        "round_robin": ("ray.serve.experimental.round_robin_router.RoundRobinRouter", {}),
        "consistent_hash": (
            "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter",
            ring | {"num_fallback_replicas": 0},
        ),
        "bounded_hash": ("serve_apps.routing.serve_routers.BoundedHashRouter", bounded),
        "prefix_affinity": (own_prefix if routing.data_path == "haproxy" else ray_prefix, {}),
        "kv_aware": ("ray.serve.llm.request_router.KVAwareRouter", {}),
    }
    if routing.policy not in routers:
        return None
    path, settings = routers[routing.policy]
    return {"request_router_class": path, "request_router_kwargs": settings}
