"""A deployment that follows its load by Ray Serve's file, against the simulation of the same arrivals.

The application of a config file with autoscaling runs on a local Ray session behind HAProxy: simulated
engines, one at first, four at most. Load actors send a short open-loop day. The simulation serves the same
arrivals; its engines start as slowly as those just seen.

python -m tests.benchmarks.autoscaled [DAYS]
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from analysis.autoscaling.request_life import RequestLife
from analysis.autoscaling.serve_file import serve_file
from analysis.autoscaling.serve_scaling import ServeScaling
from analysis.planning.evidence import IntervalEstimate
from analysis.rows import metrics, records
from analysis.rows.metrics import tpot_ms, ttft_ms
from cluster.ray_session.session import open_session
from conf import load
from conf.composed import dump
from conf.specs.experiment import Experiment
from loadgen.cli import engine_model
from loadgen.fleet.fleet import LoadFleet
from loadgen.fleet.load_actor import FleetPlan
from loadgen.traffic.processes import Profile
from loadgen.traffic.schedule import NS, ArrivalSchedule
from loadgen.traffic.traffic import Traffic
from serve_apps.engine_model.compiled.fast_engine import FastSpec
from serve_apps.engine_model.service.elastic import ElasticTimes, Lifecycle, serve_elastic
from serve_apps.engine_model.service.ray_autoscaler import RayAutoscaler, ScalingRule
from serve_apps.engine_model.service.routed import Requests
from serve_apps.simulated import configured
from serve_apps.simulated.app import ENGINES
from tests.support.machine.patience import until

Floats = NDArray[np.float64]

EXPERIMENT: Experiment = load(
    ["cluster=laptop", "cluster.session=fake", "cluster.nodes=2", "layout=dp2_tp4_ep4"]
)
"""5600/140 on engines of four GPUs, two on a node; each bears 1.9 QPS within its bounds."""
BUNDLES = [{"GPU": 4.0, "CPU": 0.05}]
APP = "maxqps"
ENGINE_QPS, LIFE_S = 1.6, 5.5
"""Rate at which an engine is to work, and the mean life of a request there, by the engine model."""
PHASES = {"quiet": (0, 30), "ramp": (30, 120), "steady": (120, 170), "crowd": (170, 230), "after": (230, 330)}
"""The short day in seconds."""
PROFILE = Profile((30, 120, 170, 175, 225, 230, 280, 310), (1.0, 3.5, 3.5, 6.5, 6.5, 3.5, 3.5, 1.0))
LEAD_S, DRAIN_S, LOOK_S, BLOCK_S = 2.0, 90.0, 0.2, 10.0
"""Seconds before the first request, for the last answers, between looks, and of requests that are alike."""
REPETITIONS = 40
LIMITS = {"ttft": 2000.0, "tpot": 100.0}
"""The bounds in ms (`conf/slo/default.yaml`)."""
SCALING = ServeScaling(
    min_replicas=1,
    max_replicas=4,
    target_ongoing_requests=IntervalEstimate(ENGINE_QPS * LIFE_S, None, None),
    upscale_delay_s=10.0,
    downscale_delay_s=30.0,
    per_node=2,
    certified_qps=1.9,
    working_qps=ENGINE_QPS,
    headroom=0.15,
    life=RequestLife(IntervalEstimate(LIFE_S, None, None), "the engine model"),
    scale_up_s=15.0,
    least_of="the quiet begin",
)


@dataclass
class Engines:
    """Engines over time as Serve tells them: those that serve, and those that serve or start."""

    at_s: list[float] = field(default_factory=list)
    serving: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def look(self, at_s: float) -> None:
        states = engines()
        self.at_s.append(at_s)
        self.serving.append(states.get("RUNNING", 0))
        self.asked.append(
            sum(states.get(state, 0) for state in ("RUNNING", "STARTING", "PENDING_ALLOCATION"))
        )

    @property
    def starts_s(self) -> list[float]:
        """Time from the decision for each engine to its service."""
        begun, served = (rises(self.at_s, counts) for counts in (self.asked, self.serving))
        return [end - begin for begin, end in zip(begun, served, strict=False) if end > begin]


@dataclass(frozen=True, slots=True)
class Day:
    """Requests of one day with their latencies, and the engines that served it."""

    due_s: Floats
    latency_ms: dict[str, Floats]
    at_s: Sequence[float]
    serving: Sequence[float]

    def shares(self, limit: str) -> dict[str, float]:
        """The share over a bound in each phase."""
        return {name: float(np.mean(self.over(limit)[self.within(name)])) for name in PHASES}

    def over(self, limit: str) -> NDArray[np.bool_]:
        return np.asarray(self.latency_ms[limit] > LIMITS[limit])

    def within(self, phase: str) -> NDArray[np.bool_]:
        begin, end = PHASES[phase]
        return (self.due_s >= begin) & (self.due_s < end)

    def engines(self, phase: str) -> float:
        """Mean number of engines that serve."""
        begin, end = PHASES[phase]
        grid = np.arange(begin, end, 0.5)
        return float(np.mean(np.asarray(self.serving)[np.searchsorted(self.at_s, grid, side="right") - 1]))


def rises(at_s: Sequence[float], counts: Sequence[int]) -> list[float]:
    """The time of each step up by one."""
    found = []
    for at, before, after in zip(at_s[1:], counts, counts[1:], strict=False):
        found += [at] * max(0, after - before)
    return found


def engines() -> dict[str, int]:
    """Engines by their state in Serve."""
    app = serve.status().applications.get(APP)
    if app is None or ENGINES not in app.deployments:
        return {}
    return {
        str(getattr(state, "value", state)): count
        for state, count in app.deployments[ENGINES].replica_states.items()
    }


def arrivals(seed: int) -> ArrivalSchedule:
    """The requests of a day."""
    length_ns = max(end for _, end in PHASES.values()) * NS
    window = {"window": (0, length_ns)}
    return Traffic(EXPERIMENT.workload).draw(PROFILE, window, dwell=seed, first_seq=0, seed=seed)


def deployed(url: str, schedule: ArrivalSchedule, folder: Path) -> tuple[Day, Engines, float]:
    """A day of the real deployment, the engines that Serve told of, and the p99 send lag in ms."""
    model = EXPERIMENT.model
    plan = FleetPlan([url], EXPERIMENT.workload, model.served_name, model.vocab, 0, DRAIN_S)
    fleet = LoadFleet(1, 0.5, plan, folder, {})
    zero_ns = fleet.now_ns() + int(LEAD_S * NS)
    seen, over = Engines(), threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.look((fleet.now_ns() - zero_ns) / NS)
            time.sleep(LOOK_S)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    later = shifted(schedule, zero_ns)
    try:
        fleet.run(later, int(later.due_ns[-1]) + NS)
        fleet.finish(DRAIN_S)
    finally:  # a look after the session has ended would start another one
        over.set()
        watcher.join()
    shard = next(file for file in folder.glob("*.arrow") if "health" not in file.name)
    rows = records.read_stream(shard, records.SHARD).sort_by("due_ns")
    due_s = (metrics.numbers(rows, "due_ns") - zero_ns) / NS
    latency = {"ttft": metrics.ttft(rows), "tpot": metrics.tpot(rows)}
    lag_ms = float(np.quantile(metrics.send_lag(rows), 0.99))
    return Day(due_s, latency, seen.at_s, seen.serving), seen, lag_ms


def shifted(schedule: ArrivalSchedule, by_ns: int) -> ArrivalSchedule:
    return replace(schedule, due_ns=schedule.due_ns + by_ns)


def simulated(schedule: ArrivalSchedule, starts_s: Sequence[float], seed: int) -> Day:
    """The same day by the engine model: another moment of the reports, and another of the starts seen."""
    rule = ScalingRule(**SCALING.config)
    rng = np.random.default_rng(seed)
    ahead_s = rule.look_back_period_s + rng.uniform(0, rule.look_back_period_s)
    due_s = schedule.due_ns / NS
    asked = [schedule.input_tokens, schedule.output_tokens, schedule.shared_tokens]
    spec = FastSpec.of(*engine_model.parts(EXPERIMENT))
    life = Lifecycle(rule.max_replicas + 2, 2, 1, float(rng.choice(starts_s)), RayAutoscaler(rule).step_s)
    policy = engine_model.balance(EXPERIMENT).policy
    times: ElasticTimes = serve_elastic(
        spec, Requests(due_s + ahead_s, asked), policy, life, lambda: RayAutoscaler(rule).asked, seed
    )
    latency = {
        "ttft": ttft_ms(due_s + ahead_s, times.first_s),
        "tpot": tpot_ms(times.first_s, times.last_s, schedule.output_tokens.astype(np.float64)),
    }
    return Day(due_s, latency, times.at_s - ahead_s, times.serving)


def clustered(day: Day, limit: str, phase: str) -> tuple[float, float]:
    """95 % interval of a share whose requests are alike within ten seconds (normal, never outside 0 to 1)."""
    inside = day.within(phase)
    over, block = day.over(limit)[inside], (day.due_s[inside] // BLOCK_S).astype(np.int64)
    share = over.mean()
    residual = np.bincount(block - block.min(), over - share)
    half = 1.96 * float(np.sqrt(np.sum(residual**2))) / len(over)
    return max(0.0, share - half), min(1.0, share + half)


def compare(day: Day, simulations: Sequence[Day]) -> None:
    """Print a row for each phase and bound."""
    print(
        f"{'phase':>7} {'bound':>5} {'n':>4} {'deployed':>22} {'simulated':>22}  agree   "
        "engines: deployed simulated"
    )
    for phase in PHASES:
        counted = [one.engines(phase) for one in simulations]
        low_e, high_e = np.quantile(counted, (0.025, 0.975))
        serving = f"{day.engines(phase):17.2f} {np.mean(counted):.2f} [{low_e:.2f}, {high_e:.2f}]"
        for limit in LIMITS:
            shares = [one.shares(limit)[phase] for one in simulations]
            low, high = np.quantile(shares, (0.025, 0.975))
            real, (least, most) = day.shares(limit)[phase], clustered(day, limit, phase)
            word = (
                "inside" if low <= real <= high else "overlap" if least <= high and low <= most else "APART"
            )
            print(
                f"{phase:>7} {limit:>5} {day.within(phase).sum():4d} {spoken(real, least, most):>22} "
                f"{spoken(float(np.mean(shares)), low, high):>22}  {word:7} {serving}"
            )
            serving = ""


def spoken(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def measure(days: int) -> None:
    """Print the comparison of each day."""
    application = {
        "name": APP,
        "route_prefix": "/",
        "import_path": configured.BUILDER,
        "args": {"bundles": BUNDLES, "experiment": dump(EXPERIMENT)},
        "deployments": [{"name": ENGINES, "autoscaling_config": {}}],
    }
    file = ServeDeploySchema.model_validate(yaml.safe_load(serve_file(SCALING, application, "a benchmark")))
    with open_session(EXPERIMENT.cluster, EXPERIMENT.routing) as session:
        _get_global_client().deploy_apps(file)
        for seed in range(1, days + 1):
            until(lambda: engines().get("RUNNING", 0) == 1, "the deployment never came to one engine")
            schedule = arrivals(seed)
            with tempfile.TemporaryDirectory() as folder:
                day, seen, lag_ms = deployed(session.url, schedule, Path(folder))
            starts_s = seen.starts_s
            told = ", ".join(f"{one:.1f}" for one in starts_s)
            print(
                f"day {seed}: {len(schedule)} requests, engines start in {told} s, "
                f"send lag p99 {lag_ms:.1f} ms, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
            )
            compare(day, [simulated(schedule, starts_s, one) for one in range(REPETITIONS)])
            with_steps = " ".join(f"{at:.1f}:{a}/{b}" for at, a, b in changes(seen))
            print(f"  Serve's engines (serving/asked): {with_steps}", flush=True)


def changes(seen: Engines) -> list[tuple[float, int, int]]:
    rows = list(zip(seen.at_s, seen.serving, seen.asked, strict=True))
    return [row for before, row in zip([(0.0, -1, -1), *rows], rows, strict=False) if row[1:] != before[1:]]


if __name__ == "__main__":
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
