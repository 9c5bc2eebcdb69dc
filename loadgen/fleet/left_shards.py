"""Fetches the shards that lost load actors left on the disks of their hosts."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from conf.io import durable
from conf.ray_patches import alive_nodes
from loadgen.fleet.load_actor import Place, name


def fetch_left(places: Sequence[Place], folder: Path, timeout_s: float) -> list[str]:
    """Bring the shards of these load actors into `folder`; returns where those are that cannot be fetched.

    A host that is back may be a new node of Ray's, so that its address counts.
    """
    if not places:
        return []
    nodes: dict[str, str] = {}
    with suppress(RayError):  # then nothing can be fetched
        nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in alive_nodes()}
    calls = {
        place.client_id: _on(nodes[place.address], _read, folder, name(place.client_id))
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


def _on(node: str, task: object, *words: object) -> object:
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(task).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote(*words)


def _read(folder: Path, stem: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob(f"{stem}.*arrow")}
