"""Load actors on the nodes of a Ray cluster, and the shards that they leave there."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from conf.io import durable
from conf.io.one_line import last_line
from conf.ray_patches import alive_nodes
from loadgen.fleet.load_actor import (
    ActorError,
    ActorFailedError,
    ActorUnreachableError,
    LoadActor,
    Place,
    Reply,
    name,
)


class RayLoadActor(LoadActor):
    """A load actor that knows its node."""

    def node(self) -> tuple[str, str]:
        return str(ray.get_runtime_context().get_node_id()), ray.util.get_node_ip_address()


def _answer(ref: Any, timeout_s: float) -> Any:
    """The answer to a call. Raises TimeoutError or ActorError."""
    try:
        return ray.get(ref, timeout=timeout_s)
    except GetTimeoutError as error:
        raise TimeoutError from error
    except ActorUnavailableError as error:
        raise ActorUnreachableError(last_line(error)) from error
    except RayTaskError as error:
        raise ActorFailedError(last_line(error)) from error
    except RayError as error:
        raise ActorError(last_line(error)) from error


@dataclass(frozen=True, slots=True)
class RayActor:
    """A load actor behind Ray's handle."""

    handle: Any

    def call(self, method: str, *words: Any) -> Reply:
        """Begin a method of the actor's."""
        return partial(_answer, getattr(self.handle, method).remote(*words))

    def kill(self) -> None:
        """End its process at once."""
        ray.kill(self.handle)


@dataclass(frozen=True, slots=True)
class RayActors:
    """The nodes of the Ray session that this process has joined; `options` are Ray's, such as labels."""

    cpus_per_actor: float
    options: Mapping[str, Any] = field(default_factory=dict)

    def start(self) -> RayActor:
        """Begin the process of another one, which Ray neither restarts nor retries."""
        remote = ray.remote(max_restarts=0, max_task_retries=0)(RayLoadActor)
        # Spread over the load hosts: one that is lost then takes only its share.
        spread = remote.options(num_cpus=self.cpus_per_actor, scheduling_strategy="SPREAD", **self.options)
        return RayActor(spread.remote())

    def fetch_left(self, places: Sequence[Place], folder: Path, timeout_s: float) -> list[str]:
        """Bring the shards of these load actors into `folder`; returns where those are that cannot be had.

        A host that is back may be a new node of Ray's, so that its address counts.
        """
        if not places:
            return []
        nodes: dict[str, str] = {}
        with suppress(RayError):  # then nothing can be fetched
            nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in alive_nodes()}
        calls = {
            place.client_id: _shards_on(nodes[place.address], folder / name(place.client_id))
            for place in places
            if place.address in nodes
        }
        deadline_s, fetched = time.monotonic() + timeout_s, set()
        folder.mkdir(parents=True, exist_ok=True)
        for client_id, call in calls.items():
            with suppress(RayError):
                files = ray.get(call, timeout=max(0.0, deadline_s - time.monotonic()))
                for file, content in files.items():
                    with durable.replacing(folder / file) as opened:
                        opened.write(content)
                fetched.add(client_id)
        return [
            f"{place.host} ({place.address}): {folder / name(place.client_id)}.arrow"
            for place in places
            if place.client_id not in fetched
        ]


def _shards_on(node: str, stem: Path) -> Any:
    """A reference to the shards of a load actor on a node, by file name."""

    def read() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in stem.parent.glob(f"{stem.name}.*arrow")}

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(read).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote()
