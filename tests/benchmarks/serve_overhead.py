"""One idle request through Ray Serve and HAProxy against the same request on the virtual clock.

python tests/benchmarks/serve_overhead.py
"""

import asyncio
import os
import time
from functools import partial

import numpy as np

from cluster.deployment.deploy import ServicePlan, deploy
from cluster.deployment.warmup import one_token
from cluster.ray_session.session import open_session
from conf import Experiment, load
from conf.specs.experiment import SimulatedEngine
from loadgen.fleet.http_client import Client
from loadgen.fleet.sse import Exchange
from loadgen.prompts.bodies import Prompts
from serve_apps.engine_model import VirtualService, kind_of
from serve_apps.simulated.app import EngineSpecs, application_name, build_app
from tests.support.servers.plans import client_plan

REPEATS = 12
SETTLE_S = 5.0


def virtual(experiment: Experiment) -> tuple[float, float]:
    """(TTFT, TPOT) in ms of one idle request."""
    spec = experiment.engine
    assert isinstance(spec, SimulatedEngine)
    parts = experiment.model, experiment.hardware, experiment.layout
    service = VirtualService(kind_of(spec, *parts))
    service.submit(0, 0.0, 5600, 140)
    service.advance(60.0)
    (seen,) = service.observe()
    assert seen.first_token_s is not None and seen.last_token_s is not None
    return seen.first_token_s * 1e3, (seen.last_token_s - seen.first_token_s) / 139 * 1e3


async def real(url: str, experiment: Experiment) -> np.ndarray:
    """(TTFT, TPOT) in ms of each of `REPEATS` requests, one at a time."""
    prompts = Prompts(experiment.workload, experiment.model.served_name, experiment.model.vocab, salt=1)
    ended: asyncio.Queue[Exchange] = asyncio.Queue()
    client, rows = Client(client_plan([url]), ended.put_nowait), []
    for seq in range(REPEATS):
        due_ns = time.monotonic_ns()
        client.start(Exchange(seq, 140), prompts.body(seq, 5600, 140))
        seen = await ended.get()
        assert seen.status == "ok" and seen.first_token_ns and seen.last_token_ns
        rows.append(
            ((seen.first_token_ns - due_ns) / 1e6, (seen.last_token_ns - seen.first_token_ns) / 139e6)
        )
    client.cut_all("done")
    return np.array(rows)


if __name__ == "__main__":
    experiment = load()
    parts = experiment.engine, experiment.model, experiment.hardware, experiment.layout
    ttft_ms, tpot_ms = virtual(experiment)
    with open_session(experiment.cluster, experiment.routing) as session:
        bundles, warmup = [experiment.layout.replica_resources], one_token(experiment.model.served_name)
        build = partial(build_app, EngineSpecs(*parts), experiment.replicas, bundles)
        plan = ServicePlan(application_name(*parts), build, experiment.replicas, warmup)
        running = deploy(plan, session.url)
        time.sleep(SETTLE_S)
        seen = np.median(asyncio.run(real(session.url, experiment)), axis=0)
        running.teardown()
    print(
        f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores; medians of {REPEATS} idle requests"
    )
    print(f"TTFT {seen[0]:7.2f} ms through Serve, {ttft_ms:7.2f} ms virtual: {seen[0] - ttft_ms:+.2f} ms")
    print(f"TPOT {seen[1]:7.2f} ms through Serve, {tpot_ms:7.2f} ms virtual: {seen[1] / tpot_ms - 1:+.2%}")
