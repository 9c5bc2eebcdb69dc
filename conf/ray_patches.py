"""Ray's internals that this project uses, each with the reason why Ray's public interface is not enough.

They were read in Ray 2.60.0. Read each of them again before `RAY_VERSION` changes: another version may have
moved what is imported here, or may work without the patch. The imports stand in the functions, so that
another version of Ray is one line of an error instead of an ImportError.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

RAY_VERSION = "2.60.0"
LOOPBACK = "127.0.0.1"


def require_ray_version() -> None:
    """Raise RuntimeError with the remedy unless the installed Ray is the version that was read."""
    import ray

    if ray.__version__ != RAY_VERSION:
        raise RuntimeError(
            f"Ray {ray.__version__} is installed, but maxqps uses internals of Ray {RAY_VERSION}; "
            f"pip install 'ray[serve]=={RAY_VERSION}'"
        )


def alive_nodes(limit_s: float = 10.0) -> list[dict[str, Any]]:
    """The alive nodes, with the keys of `ray.nodes()`. Raises RayError if the head does not answer in time.

    `ray.nodes()` has no deadline: once the network of the driver's host was cut for 20 s, it never returned.
    """
    import ray
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    client = GcsClient(address=ray.get_runtime_context().gcs_address)
    return [
        {
            "NodeID": node.node_id.hex(),
            "NodeManagerAddress": node.node_manager_address,
            "NodeManagerHostname": node.node_manager_hostname,
            "NodeManagerPort": node.node_manager_port,
            "Alive": True,
        }
        for node in client.get_all_node_info(timeout=limit_s).values()
        if node.state == node.ALIVE
    ]


@contextmanager
def patched(module: ModuleType, name: str, value: bool | int) -> Iterator[None]:
    """Give a global of one of Ray's modules another value for a while."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextmanager
def haproxy_mode(is_on: bool) -> Iterator[None]:
    """Build Serve applications for HAProxy or for the Python proxy.

    Serve reads RAY_SERVE_ENABLE_HA_PROXY once, when it is imported. It checks request routers against that
    value, but a study deploys services with and without HAProxy from one process.
    """
    from ray.serve._private import build_app

    with patched(build_app, "RAY_SERVE_ENABLE_HA_PROXY", is_on):
        yield


@contextmanager
def front_start_timeout(seconds: int) -> Iterator[None]:
    """Let `serve.start` wait longer for its HTTP front. The 60 s are a constant of Serve."""
    from ray.serve._private import api

    with patched(api, "HTTP_PROXY_TIMEOUT", seconds):
        yield


@contextmanager
def loopback_cluster() -> Iterator[None]:
    """Keep Ray on 127.0.0.1 in this process and in those that it starts.

    Where Ray allows clusters of several machines it replaces 127.0.0.1 by an outside address of this machine.
    It reads the environment variable when it is imported, which is too early for us.
    """
    from ray._private import ray_constants

    name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        with patched(ray_constants, "ENABLE_RAY_CLUSTER", False):
            yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def replica_ports_on_loopback() -> None:
    """Bind the gRPC port of the Serve replica in this process to 127.0.0.1.

    Serve binds the port to all interfaces after the constructor, and has no setting for the address.
    """
    from ray.serve._private import replica

    replica.add_port_to_grpc_server = partial(_bind_to_loopback, replica.add_port_to_grpc_server)


def _bind_to_loopback(bind: Any, server: object, address: str) -> int:
    return int(bind(server, f"{LOOPBACK}:{address.rpartition(':')[2]}"))


def forget_session_settings() -> None:
    """Make Ray read its settings and its token again: it keeps those of the first session of a process."""
    from ray._private.authentication.authentication_token_setup import AuthenticationTokenLoader, Config

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def head_address(address: str) -> str | None:
    """Host and port of the head behind `address`, which may be "auto"; only Ray knows where "auto" leads."""
    from ray._private import services

    canonical: str | None = services.canonicalize_bootstrap_address(address)
    return canonical


def try_token(address: str) -> None:
    """Raise what Ray raises if the head at `address` refuses our token.

    `ray.init` tries for a minute or more before it says so.
    """
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    GcsClient(address=address)


def logs_folder() -> Path:
    """The folder of the logs of the Ray node that this process runs on; no public function names it."""
    from ray._private import worker

    return Path(worker._global_node.get_logs_dir_path())


def with_ingress_router(app: Any, router: Any) -> Any:
    """The Serve application `app` whose proxies ask the application `router` for the replica of a request.

    Only builders of ray.serve.llm attach routers publicly; ours serves the simulated engine too.
    """
    return app._with_ingress_request_router(router)


def init_handle(handle: Any) -> None:
    """Connect a deployment's handle to its router now, rather than within the first request."""
    handle._init()


def begin_deletion(app_name: str) -> None:
    """Delete a Serve application without waiting: the public wait ends before its processes do."""
    from ray import serve

    serve.delete(app_name, _blocking=False)


async def chosen_replica(engines: Any) -> str:
    """Full id of the replica that the router of a deployment's handle chooses.

    Without `_reserve=False` the replica would wait for a request from the handle, but the proxy sends the
    request. The public selection does not name the replica.
    """
    async with engines.choose_replica(_reserve=False) as selection:
        return str(selection._replica.replica_id.to_full_id_str())


def llm_router() -> type:
    """Ray's deployment that HAProxy asks for a replica, which public builders bind without our base class."""
    from ray.llm._internal.serve.core.ingress.router import LLMRouter

    router: type = LLMRouter
    return router


def model_card(model_id: str, config: Any) -> Any:
    """The entry of a model in /v1/models; Ray's documentation of its public ingress imports it from here."""
    from ray.llm._internal.serve.core.configs.openai_api_models import to_model_metadata

    return to_model_metadata(model_id, config)


def vllm_config(server: Any) -> Any:
    """vLLM's resolved configuration in a server of ray.serve.llm, which exposes none of it."""
    return server.engine._engine_client.vllm_config
