"""Latency and CPU that each way to a replica adds to the simulated engine: uvicorn, HAProxy, Serve's proxy.

The same arrivals (5600/140, 95 % of every prompt cached, one TP8/EP8 replica) go to the engine in process, to
its application behind uvicorn alone, and over each data path of Ray Serve. What a path adds is its figure
less that of the engine in process. Requests come from the client of a load actor, in a process of its own.

python -m tests.benchmarks.data_path [--quick] [QPS ...]
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from conf import load
from tests.benchmarks._clients import Child
from tests.benchmarks._paths import (
    EXPERIMENT,
    Offer,
    Processes,
    Seen,
    behind_uvicorn,
    in_process,
    on_virtual_clock,
    over_http,
)

RATES_QPS, QUICK_RATES_QPS = (5.0, 20.0), (10.0,)
SECONDS, QUICK_SECONDS = 5.0, 4.0
SALTS = {"replica's port": 100, "HAProxy": 200}
"""These two end at one replica, which must not know the prompts of the one from the other."""
SETTLE_S = 3.0
TITLES = {"ray::ServeReplica": "replica", "ray::ServeController": "controller"}
"""What the names of Ray's processes begin with."""
FRONTS = ("HAProxy", "ProxyActor", "IngressRouter")
"""Ray's processes between a client and a replica; where HAProxy is, it alone carries the tokens."""
HEAD = (
    f"{'path':>16} {'QPS':>4} {'n':>4} {'p50 TTFT (added)':>17} {'p90 TTFT (added)':>17} {'p90 TPOT':>15} "
    f"{'CPU ms/request: replica':>23} {'HAProxy':>7} {'proxy':>6} {'% of a core: controller':>23} {'Ray':>4} "
    f"{'reads of 140':>12} {'lag p99':>7} {'load':>4}"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One offer over one path, and the same offer in process."""

    path: str
    offer: Offer
    seen: Seen
    base: Seen

    def __str__(self) -> str:
        seen, count = self.seen, len(self.seen.ttft_ms)
        tpot_ms, base_ms = (quantile(each.tpot_ms, 0.9) for each in (seen, self.base))
        replica, haproxy, proxy = (self._cpu(part, 1e3 / count) for part in ("replica", "HAProxy", "proxy"))
        controller, ray = (self._cpu(part, 100 / seen.wall_s) for part in ("controller", "Ray"))
        failed = int(np.isinf(seen.ttft_ms).sum())
        return (
            f"{self.path:>16} {self.offer.rate_qps:4.0f} {count:4d} "
            f"{self._ttft(0.5):>17} {self._ttft(0.9):>17} "
            f"{tpot_ms:6.1f} {f'({tpot_ms / base_ms:.3f} x)':>8} {replica:>23} {haproxy:>7} {proxy:>6} "
            f"{controller:>23} {ray:>4} {np.mean(seen.reads):12.1f} {quantile(seen.lag_ms, 0.99):7.1f} "
            f"{seen.load:4.1f}" + (f"  {failed} FAILED" if failed else "")
        )

    def _ttft(self, q: float) -> str:
        mine, base = (quantile(seen.ttft_ms, q) for seen in (self.seen, self.base))
        return f"{mine:.1f} ({mine - base:+.1f})"

    def _cpu(self, part: str, scale: float) -> str:
        return f"{self.seen.cpu_s[part] * scale:.1f}" if part in self.seen.cpu_s else "-"


def quantile(values: np.ndarray, q: float) -> float:
    """A failed request is infinitely late; one unknown TPOT, of a burst, leaves the figure unknown (nan)."""
    return float(np.quantile(values, q))


@contextmanager
def behind_serve(routing: str) -> Iterator[tuple[str, str, Processes]]:
    """(front's URL, replica's own URL or "", processes) of the replica behind Serve."""
    # Ray comes with these; the clients' processes import this file too and shall not have it.
    from cluster.deployment.deploy import ServicePlan, deploy
    from cluster.ray_session.session import open_session
    from serve_apps.simulated.app import ENGINES, application_name, build_app
    from tests.support.servers.plans import one_token

    experiment = replace(EXPERIMENT, routing=load([f"routing={routing}"]).routing)
    with open_session(experiment.cluster, experiment.routing) as session:
        name, warmup = application_name(experiment), one_token(experiment.model.served_name)
        build = partial(build_app, experiment)
        running = deploy(ServicePlan(name, build, experiment.replicas, warmup, ENGINES), session.url)
        time.sleep(SETTLE_S)
        own = next(iter(running.metrics_urls.values()), "").removesuffix("/metrics")
        yield session.url, own, session_processes()
        running.teardown()


def session_processes() -> Processes:
    """All that descends from this process, by its part in the service."""
    from cluster.ray_session.own_machine import with_descendants

    parts: dict[str, list[int]] = {part: [] for part in ("replica", "HAProxy", "proxy", "controller", "Ray")}
    for pid in {pid for pid, _ in with_descendants({os.getpid()})} - {os.getpid()}:
        parts[_part(pid)].append(pid)
    return {part: tuple(pids) for part, pids in parts.items() if pids}


def _part(pid: int) -> str:
    title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    if title.startswith("ray::") and any(front in title for front in FRONTS):
        return "proxy"
    for beginning, part in TITLES.items():
        if title.startswith(beginning):
            return part
    return "HAProxy" if "haproxy.cfg" in title else "Ray"


def measure(offers: Sequence[Offer]) -> None:
    """Print a row for each offer over each path."""
    bases = Child(partial(in_process, offers), None).result()

    def show(path: str, seens: Sequence[Seen]) -> None:
        for offer, one, base in zip(offers, seens, bases, strict=True):
            print(Row(path, offer, one, base), flush=True)

    def ask(path: str, url: str, processes: Processes) -> None:
        fresh = [replace(offer, salt=SALTS.get(path, 0)) for offer in offers]
        client: Callable[[], list[Seen]] = partial(over_http, url, processes, fresh)
        show(path, Child(client, None).result())

    show("virtual clock", on_virtual_clock(offers))
    show("in process", bases)
    with behind_uvicorn() as (url, processes):
        ask("uvicorn alone", url, processes)
    with behind_serve("leastconn") as (url, own, processes):
        ask("replica's port", own, processes)
        ask("HAProxy", url, processes)
    with behind_serve("pow2") as (url, _, processes):
        ask("Python proxy", url, processes)
    with behind_serve("round_robin") as (url, _, processes):
        ask("HAProxy, router", url, processes)


def offers(words: Sequence[str]) -> list[Offer]:
    """What the command line asks for."""
    quick = "--quick" in words
    rates_qps = [float(word) for word in words if word != "--quick"] or (
        QUICK_RATES_QPS if quick else RATES_QPS
    )
    seconds = QUICK_SECONDS if quick else SECONDS
    return [Offer(rate_qps, seconds, seed) for seed, rate_qps in enumerate(rates_qps, start=1)]


if __name__ == "__main__":
    print(
        f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores; ms; added to the engine in process"
    )
    print(HEAD)
    measure(offers(sys.argv[1:]))
    print(f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
