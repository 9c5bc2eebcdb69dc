"""What requests over one path to a simulated engine saw, and what the processes on it spent; no Ray here.

Every path gets the same arrivals and bodies. Over HTTP they come from a whole `Worker`, as a load actor has
one. In process the engine's ASGI application is called directly: no socket, no server, no other process.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
import uvloop
from starlette.types import Message, Scope

from analysis.rows import metrics, records
from conf import Experiment, load
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.worker import Worker
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.schedule import NS, ArrivalSchedule
from loadgen.traffic.traffic import Traffic
from serve_apps.routing.asgi import ReplicaApp
from tests.benchmarks._clients import Meter, until
from tests.support.servers.plans import client_plan
from tests.support.virtual.simulated_prefix import application, simulated
from tests.support.virtual.virtual_drivers import engines

EXPERIMENT: Experiment = load(["workload.prefix_hit=.95"])
"""5600/140 on one TP8/EP8 replica; of every prompt 95 % are cached, so that the engine bears 20 QPS."""
LEAD_NS = NS // 5
LAST_SENDS_S = 0.5
DRAIN_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")
Processes = dict[str, tuple[int, ...]]
"""Process ids by the part of the service that they are."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Poisson arrivals at `rate_qps` for `seconds`. Prompts of another `salt` share nothing with these."""

    rate_qps: float
    seconds: float
    seed: int
    salt: int = 0

    @property
    def schedule(self) -> ArrivalSchedule:
        bounds_ns = {"window": (0, int(self.seconds * NS))}
        traffic = Traffic(EXPERIMENT.workload)
        return traffic.draw(self.rate_qps, bounds_ns, window_index=0, first_seq=0, seed=self.seed)

    @property
    def prompts(self) -> Prompts:
        model = EXPERIMENT.model
        return Prompts(EXPERIMENT.workload, model.served_name, model.vocab, self.salt + self.seed)


WARM_UP = Offer(10.0, 1.0, seed=0)


@dataclass(frozen=True, slots=True)
class Seen:
    """One offer over one path. Arrays have an element per request in order of due time; a failed one is inf.

    `reads` is how many pieces the tokens of an answer came in. `cpu_s` is what each part of the service
    used in `wall_s`, and `load` the machine's load average then.
    """

    ttft_ms: np.ndarray
    tpot_ms: np.ndarray
    lag_ms: np.ndarray
    reads: np.ndarray
    cpu_s: dict[str, float]
    wall_s: float
    load: float


class Spent:
    """What processes have used since it was made."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._before, self._since_s = self._now(), time.monotonic()

    def _now(self) -> dict[str, float]:
        return {part: sum(map(_cpu_s, pids)) for part, pids in self._processes.items()}

    def seen(self, ttft_ms: np.ndarray, tpot_ms: np.ndarray, lag_ms: np.ndarray, reads: np.ndarray) -> Seen:
        cpu_s = {part: used - self._before[part] for part, used in self._now().items()}
        wall_s = time.monotonic() - self._since_s
        return Seen(ttft_ms, tpot_ms, lag_ms, reads, cpu_s, wall_s, os.getloadavg()[0])


def _cpu_s(pid: int) -> float:
    """User and system time of a process, ended threads included; 0 once it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS


def over_http(url: str, processes: Processes, offers: Sequence[Offer]) -> list[Seen]:
    """What a load actor's worker sees of `url`, offer by offer, after a warm-up."""
    Meter()  # no garbage collector from now on, as in a load actor
    return uvloop.run(_one_by_one(partial(_from_worker, url, processes), offers))


def in_process(offers: Sequence[Offer]) -> list[Seen]:
    """What a caller in the engine's own event loop sees, offer by offer, after a warm-up."""
    return uvloop.run(_in_process(offers))


async def _one_by_one(act: Callable[[Offer], Awaitable[Seen]], offers: Sequence[Offer]) -> list[Seen]:
    warm_up = replace(WARM_UP, salt=offers[0].salt)
    return [await act(offer) for offer in (warm_up, *offers)][1:]


async def _from_worker(url: str, processes: Processes, offer: Offer) -> Seen:
    prompts = offer.prompts
    with tempfile.TemporaryDirectory() as folder:
        shard = ArrowStream(Path(folder) / "rows.arrow")
        health = ArrowStream(Path(folder) / "health.arrow", records.CLIENTS)
        client = Worker(0, client_plan([url], timeout_s=DRAIN_S, record_itl=False), prompts, shard, health)
        await client.offer(offer.schedule)
        spent = Spent(processes)
        client.start(time.monotonic_ns() + LEAD_NS, time.time_ns() + LEAD_NS)
        await asyncio.sleep(LEAD_NS / NS + offer.seconds + LAST_SENDS_S)
        await client.finish(DRAIN_S)
        rows = pa.ipc.open_stream(shard.path.read_bytes()).read_all().sort_by("due_ns")
        reads = metrics.numbers(rows, "reads")
        return spent.seen(metrics.ttft(rows), metrics.tpot(rows), metrics.send_lag(rows), reads)


async def _in_process(offers: Sequence[Offer]) -> list[Seen]:
    async with application(EXPERIMENT) as app:
        return await _one_by_one(partial(_from_caller, app), offers)


class Call:
    """One request to an ASGI application, and when its events came."""

    def __init__(self, due_ns: int, body: bytes) -> None:
        self.due_ns, self.sent_ns = due_ns, time.monotonic_ns()
        self.tokens_ns: list[int] = []
        self._body = body

    async def receive(self) -> Message:
        return {"type": "http.request", "body": self._body}

    async def send(self, message: Message) -> None:
        """The first message is the head, the last two are the usage with the end, and an empty one."""
        if message.get("body"):
            self.tokens_ns.append(time.monotonic_ns())


async def _from_caller(app: ReplicaApp, offer: Offer) -> Seen:
    schedule, prompts, calls, tasks = offer.schedule, offer.prompts, [], []
    scope: Scope = {"type": "http", "method": "POST", "path": prompts.path, "headers": []}
    spent, start_ns = Spent({"replica": (os.getpid(),)}), time.monotonic_ns() + LEAD_NS
    columns = (
        schedule.due_ns,
        schedule.seq,
        schedule.input_tokens,
        schedule.output_tokens,
        schedule.shared_tokens,
    )
    for due_ns, *wanted in zip(*(column.tolist() for column in columns), strict=True):
        await until(start_ns + due_ns)
        calls.append(call := Call(start_ns + due_ns, prompts.body(*wanted)))
        tasks.append(asyncio.create_task(app(scope, call.receive, call.send)))
    await asyncio.gather(*tasks)
    first, last = (np.array([call.tokens_ns[at] - call.due_ns for call in calls]) / 1e6 for at in (0, -2))
    lag = np.array([call.sent_ns - call.due_ns for call in calls]) / 1e6
    reads = np.array([len(call.tokens_ns) - 1.0 for call in calls])
    return spent.seen(first, (last - first) / (schedule.output_tokens - 1), lag, reads)


def on_virtual_clock(offers: Sequence[Offer]) -> list[Seen]:
    """What the engine alone makes of the same arrivals, on a clock that is never late."""
    return [_on_virtual_clock(offer) for offer in offers]


def _on_virtual_clock(offer: Offer) -> Seen:
    schedule, service, spent = offer.schedule, engines(EXPERIMENT), Spent({})
    columns = schedule.seq, schedule.due_ns / NS, schedule.input_tokens, schedule.output_tokens
    for key, at_s, *lengths, shared in zip(*columns, schedule.shared_tokens, strict=True):
        service.submit(int(key), float(at_s), *map(int, lengths), shared_tokens=int(shared))
    service.advance(offer.seconds + DRAIN_S)
    seen = sorted(service.observe(), key=lambda progress: progress.key)
    first, last = (
        np.array([getattr(one, f"{which}_token_s") for one in seen]) for which in ("first", "last")
    )
    ttft_ms, tpot_ms = (
        (first - schedule.due_ns / NS) * 1e3,
        (last - first) / (schedule.output_tokens - 1) * 1e3,
    )
    return spent.seen(ttft_ms, tpot_ms, np.zeros(len(seen)), schedule.output_tokens.astype(float))


@contextmanager
def behind_uvicorn() -> Iterator[tuple[str, Processes]]:
    """One replica's application behind uvicorn alone, in a process of its own."""
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(there,))
    process.start()
    try:
        yield here.recv(), {"replica": (process.pid or 0,)}
    finally:
        process.terminate()
        process.join()


def _serve(there: Connection) -> None:
    uvloop.run(_serve_for_ever(there))


async def _serve_for_ever(there: Connection) -> None:
    async with simulated(EXPERIMENT) as url:
        there.send(url)
        await asyncio.Event().wait()
