"""The experiment, made of the typed specs of its groups.

Specs are frozen: an experiment never changes during a run. Every field that has a unit carries it in its
name. Most specs can be imported from here too. Rules about several keys stand in `rules.yaml`.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated

from conf.io.check import AtLeastOne, Range, require
from conf.specs.bounds import Slo
from conf.specs.engine import ByKind, EmulatedEngine, Engine, ExternalEngine, SimulatedEngine, VllmEngine
from conf.specs.layout import Cluster, Fleet, Hardware, Layout, PrefillEngines, TransferTime
from conf.specs.model import Constant, Efficiency, KernelRatio, Model, StepTime
from conf.specs.request_sizes import Images, Lengths, tokens_of
from conf.specs.routing import SESSION_POLICIES, TEXT_POLICIES, Endpoints, Routing
from conf.specs.rules import check_rules
from conf.specs.search import MOST_QPS, MOST_REQUESTS, MOST_S, Progressive, Quality, Search
from conf.specs.workload import Arrivals, Workload

MOST_SEED = 2**53 - 1
"""Every reader of JSON keeps whole numbers up to this."""
MOST_BLOCK_TOKENS = 128
"""Prefix-cache block size in tokens if the engine does not report it: vLLM's is 16, others' up to this."""
LEAST_TIMEOUT_S, TIMEOUT_ANSWERS = 120.0, 4.0
"""Least time-out of a request: in seconds, and in multiples of a mean answer within the bounds, since few
answers are four times as long as the mean (our choices)."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A whole experiment. Only composition roots see all of it; other code takes the specs that it needs.

    `out` is the folder of the run folders and `run` the name of this one (by default UTC time and four
    digits). A `probe` offers one of these: a constant `rate_qps` (per node); `profile_qps`, linear
    between its points [seconds, QPS per node] and then held; a closed loop that keeps `concurrency`
    requests in flight until `requests` are done; or a trace in its own time. `duration_s` is by default a
    minute, or that of the profile or trace. A prediction of so many `requests`, at a rate or in a closed
    loop, replays them on a service that begins empty.
    """

    cluster: Cluster
    hardware: Hardware
    model: Model
    engine: Annotated[Engine, ByKind()]
    layout: Layout
    routing: Routing
    workload: Workload
    slo: Slo
    search: Search
    fleet: Fleet
    target: Endpoints = field(default_factory=Endpoints)
    progressive: Progressive = field(default_factory=Progressive)
    quality: Quality = field(default_factory=Quality)
    rate_qps: Annotated[float, Range(gt=0, le=MOST_QPS)] | None = None
    profile_qps: list[list[float]] = field(default_factory=list)
    concurrency: AtLeastOne | None = None
    requests: Annotated[int, Range(ge=1, le=MOST_REQUESTS)] | None = None
    duration_s: Annotated[float, Range(gt=0, le=MOST_S)] | None = None
    seed: Annotated[int, Range(ge=0, le=MOST_SEED)] = 1
    out: str = "runs"
    run: str | None = None

    def __post_init__(self) -> None:
        if self.profile_qps:
            _check_profile(self.profile_qps, self.duration_s)
        check_rules(self)

    @property
    def planned_requests(self) -> float:
        """Requests of the load that is given, at the highest of its rates; 0 for a trace in its own time."""
        highest_qps = max([self.rate_qps or 0.0, *(qps for _, qps in self.profile_qps)])
        return max(highest_qps * self.cluster.nodes * (self.duration_s or 60.0), self.closed_requests)

    @property
    def closed_requests(self) -> int:
        """Requests of the closed loop: `requests`, or ten for each in flight."""
        return 10 * (self.concurrency or 0) if self.requests is None else self.requests

    @property
    def is_replay(self) -> bool:
        """True if a prediction replays a fixed number of requests on a service that begins empty."""
        return self.requests is not None or self.concurrency is not None

    @property
    def replicas(self) -> int:
        """Independent replicas that answer, over all nodes."""
        return self.cluster.nodes * self.layout.replicas_per_node

    @property
    def prefill_replicas(self) -> int:
        """Engines that only compute prompts, over all nodes; 0 unless the layout is split."""
        return self.cluster.nodes * self.layout.prefill.per_node if self.layout.prefill else 0

    @property
    def time_scale(self) -> float:
        """Seconds of the run's clock per real second; 1 without a simulated engine."""
        return self.engine.time_scale if isinstance(self.engine, SimulatedEngine) else 1.0

    @property
    def block_tokens(self) -> int:
        """Prefix-cache block size in tokens; 128 if the engine does not report it."""
        return self.engine.block_size if isinstance(self.engine, SimulatedEngine) else MOST_BLOCK_TOKENS

    @property
    def image_tokens(self) -> int:
        """Prompt tokens of one image by the model, which sees images."""
        images = self.workload.images
        return tokens_of(images.width_px, images.height_px, self.model.image_token_px)

    @property
    def answer_s(self) -> float:
        """Seconds of an answer of mean length that just meets both bounds."""
        return self.slo.answer_s(self.workload.output_tokens.mean)

    @property
    def request_timeout_s(self) -> float:
        """Time-out of a request in seconds: as given, else long enough for every answer within the bounds."""
        return self.fleet.request_timeout_s or max(LEAST_TIMEOUT_S, TIMEOUT_ANSWERS * self.answer_s)

    @property
    def streams(self) -> int:
        """Independent streams of arrivals, one per node; 0 if all nodes share one stream."""
        return self.cluster.nodes if self.routing.policy == "per_node" else 0


def _check_profile(points: list[list[float]], duration_s: float | None) -> None:
    """Raise ValueError unless points [seconds, QPS] ascend from 0 s within `duration_s` and offer load."""
    pairs = all(len(point) == 2 for point in points)
    require(pairs, "profile_qps must be a list of pairs [seconds, QPS per node], such as [[0,2],[60,8]]")
    within = all(0 <= second <= MOST_S and 0 <= qps <= MOST_QPS for second, qps in points)
    require(
        within, f"profile_qps={points}: at most {MOST_S:g} s and {MOST_QPS:g} QPS per node, none negative"
    )
    seconds = [second for second, _ in points]
    ascends = seconds[0] == 0 and seconds == sorted(seconds)
    require(ascends, f"profile_qps={points}: the seconds must begin at 0 and not go back")
    require(
        duration_s is None or seconds[-1] <= duration_s,
        f"profile_qps ends at {seconds[-1]:g} s but duration_s={duration_s}; raise it or leave it out",
    )
    held = [*points, [duration_s or seconds[-1] or 1.0, points[-1][1]]]
    offered = any(b[0] > a[0] and a[1] + b[1] > 0 for a, b in zip(held, held[1:], strict=False))
    require(offered, "profile_qps is zero all the time; give one of its points a rate")
