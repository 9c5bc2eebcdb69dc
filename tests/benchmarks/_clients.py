"""The two clients that the benchmarks compare, each run in a process of its own and on one core.

`worker` is what a load actor runs: a whole `Worker` with its shards on disk. `aiohttp_json` is the usual
client: no limit on connections, and the JSON of every event parsed. Both follow one list of due times,
and neither is interrupted by the garbage collector.
"""

import asyncio
import gc
import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import aiohttp
import numpy as np
import pyarrow as pa
import uvloop

from analysis.rows import records
from conf import load
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.process import raise_files
from loadgen.fleet.worker import Worker
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import NS, PHASES, ArrivalSchedule
from tests.support.servers.plans import client_plan

LEAD_NS = NS // 5
LAST_SENDS_S = 0.5
"""For those that a busy client is late with: what is not sent when it is told to finish never is."""
DRAIN_S = 60.0
INPUT_TOKENS = 4200
"""Of six bytes each: a body of 25 kB."""
TIMES = ("send_offset_ns", "first_token_offset_ns", "last_token_offset_ns")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen:
    """What one client saw and what it cost; arrays have one element per request that was answered.

    `late_ms` is the send after the due time, and `ttft_ms` counts from the due time too. `run_share` is
    run / (run + wait for the core) of all its threads: below 1, somebody else had the core.
    """

    statuses: Counter[str]
    late_ms: np.ndarray
    ttft_ms: np.ndarray
    tpot_ms: np.ndarray
    cpu_s: float
    run_share: float


class Child:
    """A client in a fresh process on `core` (None: anywhere); `result()` waits for what it saw."""

    def __init__(self, client: Callable[[], T], core: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe(duplex=False)
        self._process = context.Process(target=_child, args=(there, client, core))
        self._process.start()
        there.close()

    def result(self) -> T:
        try:
            return self._here.recv()
        except EOFError:
            raise SystemExit("the client died: see above") from None
        finally:
            self._process.join()


def _child(there: Connection, client: Callable[[], T], core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})
    raise_files()
    there.send(client())


def poisson_ns(rate_qps: float, seconds: float, seed: int) -> np.ndarray:
    """Due times of a Poisson process in ns, from 0."""
    rng = np.random.default_rng(seed)
    due_ns = np.cumsum(rng.exponential(NS / rate_qps, size=int(2 * rate_qps * seconds) + 50))
    return due_ns[due_ns < seconds * NS].astype(np.int64)


def cores() -> tuple[int | None, int | None]:
    """One core for the server and one for the client; (None, None), with a note, where there is but one."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) > 1:
        return mine[0], mine[1]
    print("one core for server and client: the figures say little")
    return None, None


def schedstat_ns(pid: int | str = "self") -> tuple[int, int]:
    """(on a core, waiting for one) of all threads of a process so far."""
    ran_ns = waited_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        ran, waited, _ = (task / "schedstat").read_text().split()
        ran_ns, waited_ns = ran_ns + int(ran), waited_ns + int(waited)
    return ran_ns, waited_ns


class Meter:
    """What this process has used since the meter was made, without a garbage collector."""

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        self._cpu_s = time.process_time()
        self._ran_ns, self._waited_ns = schedstat_ns()

    def cpu_s(self) -> float:
        return time.process_time() - self._cpu_s

    def run_share(self) -> float:
        ran_ns, waited_ns = schedstat_ns()
        ran_ns, waited_ns = ran_ns - self._ran_ns, waited_ns - self._waited_ns
        return ran_ns / max(1, ran_ns + waited_ns)


def prompts() -> Prompts:
    return Prompts(load().workload, "mock", 151936, salt=1)


def worker(url: str, due_ns: np.ndarray, tokens: int) -> Seen:
    """Our client as a load actor runs it."""
    return uvloop.run(_worker(url, due_ns, tokens))


async def _worker(url: str, due_ns: np.ndarray, tokens: int) -> Seen:
    ready = prompts()
    with tempfile.TemporaryDirectory() as folder:
        shard = ArrowStream(Path(folder) / "rows.arrow")
        health = ArrowStream(Path(folder) / "health.arrow", records.CLIENTS)
        client = Worker(0, client_plan([url], timeout_s=DRAIN_S), ready, shard, health)
        await client.offer(_schedule(due_ns, tokens))
        meter = Meter()
        client.start(time.monotonic_ns() + LEAD_NS, time.time_ns() + LEAD_NS)
        await asyncio.sleep((LEAD_NS + int(due_ns[-1])) / NS + LAST_SENDS_S)
        await client.finish(DRAIN_S)
        cpu_s, run_share = meter.cpu_s(), meter.run_share()
        rows = pa.ipc.open_stream(shard.path.read_bytes()).read_all()
    rows = rows.select(["status", "error_kind", *TIMES]).to_pylist()
    answered = [row for row in rows if row["last_token_offset_ns"] is not None]
    late_ns, first_ns, last_ns = (np.array([row[name] for row in answered]) for name in TIMES)
    return Seen(
        statuses=Counter(row["error_kind"] or row["status"] for row in rows),
        late_ms=late_ns / 1e6,
        ttft_ms=first_ns / 1e6,
        tpot_ms=(last_ns - first_ns) / (tokens - 1) / 1e6,
        cpu_s=cpu_s,
        run_share=run_share,
    )


def _schedule(due_ns: np.ndarray, tokens: int) -> ArrivalSchedule:
    count = len(due_ns)
    return ArrivalSchedule(
        window_index=0,
        seq=np.arange(count),
        due_ns=due_ns,
        phase=np.full(count, PHASES.index("window")),
        input_tokens=np.full(count, INPUT_TOKENS),
        output_tokens=np.full(count, tokens),
        shared_tokens=np.zeros(count, dtype=np.int64),
    )


async def until(at_ns: int) -> None:
    """Return at or after a monotonic instant; uvloop's timers may fire a millisecond early."""
    while (wait_ns := at_ns - time.monotonic_ns()) > 0:  # noqa: ASYNC110
        await asyncio.sleep(wait_ns / NS)


def aiohttp_json(url: str, due_ns: np.ndarray, tokens: int) -> Seen:
    """aiohttp on uvloop, as most tools use it."""
    return uvloop.run(_aiohttp_json(url, due_ns, tokens))


async def _aiohttp_json(url: str, due_ns: np.ndarray, tokens: int) -> Seen:
    ready, statuses = prompts(), Counter[str]()
    times_ns: list[tuple[int, int, int]] = []
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def send(seq: int, due: int) -> None:
            sent, seen, usage = time.monotonic_ns(), [], None
            body = ready.body(seq, INPUT_TOKENS, tokens)
            async with session.post(f"{url}/v1/completions", data=body) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        message = json.loads(line[6:])
                        usage = message["usage"]
                        if message["choices"]:
                            seen.append(time.monotonic_ns())
            whole = usage is not None and usage["completion_tokens"] == len(seen) == tokens
            statuses["ok" if whole else "truncated"] += 1
            times_ns.append((sent - due, seen[0] - due, seen[-1] - due))

        meter, tasks, start = Meter(), [], time.monotonic_ns() + LEAD_NS
        for seq, due in enumerate((start + due_ns).tolist()):
            await until(due)
            tasks.append(asyncio.ensure_future(send(seq, due)))
        await asyncio.gather(*tasks)
        cpu_s, run_share = meter.cpu_s(), meter.run_share()
    late_ms, first_ms, last_ms = np.array(times_ns).T / 1e6
    tpot_ms = (last_ms - first_ms) / (tokens - 1)
    return Seen(statuses, late_ms, first_ms, tpot_ms, cpu_s, run_share)


CLIENTS: dict[str, Callable[[str, np.ndarray, int], Seen]] = {"ours": worker, "aiohttp": aiohttp_json}


def begin(client: str, core: int | None, url: str, due_ns: np.ndarray, tokens: int) -> "Child":
    """Start one of `CLIENTS`; requests begin once it has imported what it needs."""
    return Child(partial(CLIENTS[client], url, due_ns, tokens), core)
