"""Exchanges of our client with a mock server, in process."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from loadgen.fleet.exchange import Exchange
from loadgen.fleet.http_client import Client
from loadgen.traffic.schedule import Planned
from tests.support.machine.patience import PATIENCE_S
from tests.support.servers.mock_server import MockServer
from tests.support.servers.plans import client_plan

BODY = json.dumps({"prompt": [1, 2, 3], "max_tokens": 3}).encode()


def run(script: Callable[[dict[str, Any]], list[Any]], count: int = 1, **options: Any) -> list[Exchange]:
    """Send `count` requests one after another to a server with this script."""

    async def main() -> list[Exchange]:
        async with MockServer(script) as server:
            return await exchanges(server.url, count, **options)

    return asyncio.run(main())


def fresh(seq: int) -> Exchange:
    """A request of three tokens that is not sent yet."""
    return Exchange(Planned(seq, 0, "window", 0, 1, 3))


async def exchanges(url: str, count: int, **options: Any) -> list[Exchange]:
    results: list[Exchange] = []
    ended = asyncio.Event()

    def done(exchange: Exchange) -> None:
        results.append(exchange)
        ended.set()

    client = Client(client_plan([url], **{"timeout_s": PATIENCE_S, **options}), done)
    for seq in range(count):
        ended.clear()
        client.start(fresh(seq), BODY)
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
    client.cut_all("interrupted")
    return results
