"""CPU per streamed request of our client against aiohttp that parses every event, in one run.

Both drive the same mock server, in a process of its own, with the same 25 kB bodies and 140 tokens.

python tests/benchmarks/client_cost.py
"""

import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

import aiohttp
import uvloop

from conf import load
from loadgen.client import Client
from loadgen.exchange import Exchange
from loadgen.prompts import Prompts
from tests.mock_server import MockServer, answer

REQUESTS, RATE_QPS, TOKENS, ITL_S = 300, 40.0, 140, 0.005


def serve(ready: Connection) -> None:
    async def main() -> None:
        async with MockServer(lambda body: answer(body, ITL_S)) as server:
            ready.send(server.url)
            await asyncio.sleep(3600)

    uvloop.run(main())


def bodies() -> list[bytes]:
    prompts = Prompts(load().workload, "m", 151936, salt=1)
    return [prompts.body(seq, 4200, TOKENS) for seq in range(REQUESTS)]


async def paced(send: Callable[[int], Awaitable[None]]) -> float:
    """CPU ms per request of `send`, called at `RATE_QPS`."""
    tasks, start, cpu = [], time.monotonic(), time.process_time()
    for seq in range(REQUESTS):
        await asyncio.sleep(max(0.0, start + seq / RATE_QPS - time.monotonic()))
        tasks.append(asyncio.ensure_future(send(seq)))
    await asyncio.gather(*tasks)
    return (time.process_time() - cpu) / REQUESTS * 1e3


async def ours(url: str, ready: list[bytes]) -> float:
    waiting: dict[int, asyncio.Future[Exchange]] = {}
    client = Client([url], lambda exchange: waiting.pop(exchange.seq).set_result(exchange))

    async def send(seq: int) -> None:
        done = waiting[seq] = asyncio.get_running_loop().create_future()
        client.start(Exchange(seq, TOKENS), ready[seq])
        assert (await done).status == "ok"

    return await paced(send)


async def theirs(url: str, ready: list[bytes]) -> float:
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def send(seq: int) -> None:
            events = 0
            async with session.post(f"{url}/v1/completions", data=ready[seq]) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        events += bool(json.loads(line[6:])["choices"])
            assert events == TOKENS

        return await paced(send)


if __name__ == "__main__":
    receive, send_end = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.Process(target=serve, args=(send_end,), daemon=True)
    server.start()
    url, ready = receive.recv(), bodies()
    print(f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    base = uvloop.run(theirs(url, ready))
    cost = uvloop.run(ours(url, ready))
    print(f"aiohttp + uvloop, JSON of every event: {base:.2f} ms CPU per request")
    print(f"ours: {cost:.2f} ms CPU per request, {base / cost:.2f} x cheaper")
    server.terminate()
