"""Completions of a service that tests deployed, and the metrics of its replicas."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import aiohttp

from cluster.deployment.deploy import Deployment
from cluster.deployment.warmup import REPLICA_ID
from conf import load
from conf.io import http_get
from tests.support.machine.patience import PATIENCE_S

MODEL = load(["engine=simulated"]).model.served_name
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True)
class Answer:
    status: int
    replica_id: str | None
    body: bytes

    def events(self) -> list[Any]:
        words = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line]
        return [word if word == "[DONE]" else json.loads(word) for word in words]


def ask(deployment: Deployment, *bodies: dict[str, Any]) -> list[Answer]:
    """Ask for all completions at once; answers in their order."""

    async def one(client: aiohttp.ClientSession, body: dict[str, Any]) -> Answer:
        url = f"{deployment.urls[0]}/v1/completions"
        async with client.post(url, json={"model": MODEL} | body) as response:
            return Answer(response.status, response.headers.get(REPLICA_ID), await response.read())

    async def all_of_them() -> list[Answer]:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE_S)) as client:
            return await asyncio.gather(*(one(client, body) for body in bodies))

    return asyncio.run(all_of_them())


def metric(deployment: Deployment, name: str) -> dict[str, float]:
    """A metric of each replica of both sides, by the replica's own word and summed over its labels."""
    values = {}
    for replica, url in (deployment.metrics_urls | deployment.prefill_urls).items():
        page = http_get.ask(url, PATIENCE_S)
        lines = [line for line in page.body.decode().splitlines() if line.startswith(name)]
        assert lines, f"{replica} has no {name}"
        assert replica in deployment.prefill_urls or page.names[REPLICA_ID] == replica
        values[replica] = sum(float(line.split()[-1]) for line in lines)
    return values
