"""The request router of each policy as plain data, as Ray Serve's config files name it; needs no Ray."""

from typing import Any

from conf.specs.experiment import Routing

ALL_REPLICAS = 1_000_000

Tree = dict[str, Any]


def router_options(routing: Routing) -> Tree | None:
    """The engines' `request_router_config`; None if no router of Serve's has a rule of its own.

    HAProxy or the load generator chooses then, or Serve's default, the power of two choices (`pow2`).
    """
    ring: Tree = {"num_virtual_nodes": routing.vnodes}
    match routing.policy:
        case "round_robin":
            return _router("ray.serve.experimental.round_robin_router.RoundRobinRouter")
        case "consistent_hash":
            path = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
            return _router(path, ring | {"num_fallback_replicas": 0})
        case "bounded_hash":
            settings = ring | {"num_fallback_replicas": ALL_REPLICAS, "load_factor": routing.load_factor}
            return _router("serve_apps.routing.serve_routers.BoundedHashRouter", settings)
        case "prefix_affinity" if routing.data_path == "haproxy":
            return _router("serve_apps.routing.prefix_router.PrefixRouter")
        case "prefix_affinity":
            return _router("ray.serve.llm.request_router.PrefixCacheAffinityRouter")
        case "kv_aware":
            return _router("ray.serve.llm.request_router.KVAwareRouter")
        case _:
            return None


def _router(path: str, settings: Tree | None = None) -> Tree:
    return {"request_router_class": path, "request_router_kwargs": settings or {}}
