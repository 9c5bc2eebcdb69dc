"""The experiment, made of the typed specs of its groups.

Specs are frozen: an experiment never changes during a run. Every field that has a unit carries it in its
name. Most specs can be imported from here too. Rules about two or more groups stand here, each with its
remedy.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated

from conf.io.check import Range, require
from conf.specs.bounds import Slo
from conf.specs.engine import ByKind, EmulatedEngine, Engine, ExternalEngine, SimulatedEngine, VllmEngine
from conf.specs.layout import Cluster, Fleet, Hardware, Layout, PrefillEngines, TransferTime
from conf.specs.model import Constant, Efficiency, KernelRatio, Model, StepTime
from conf.specs.request_sizes import Images, Lengths, tokens_of
from conf.specs.routing import SESSION_POLICIES, TEXT_POLICIES, Endpoints, Routing
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

    `out` is the folder of the run folders and `run` the name of this one (by default UTC time and
    four digits). A `probe` offers one of these: a constant `rate_qps` (per node); `profile_qps`, linear
    between its points [seconds, QPS per node] and then held; a closed loop that keeps `concurrency`
    requests in flight until `requests` are done; or, with none of them, a trace in its own time.
    `duration_s` is by default a minute, or as long as the profile or the trace. A prediction of so many
    `requests`, at a rate or in a closed loop, replays that experiment on a service that begins empty.
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
    concurrency: int | None = None
    requests: Annotated[int, Range(ge=1, le=MOST_REQUESTS)] | None = None
    duration_s: Annotated[float, Range(gt=0, le=MOST_S)] | None = None
    seed: Annotated[int, Range(ge=0, le=MOST_SEED)] = 1
    out: str = "runs"
    run: str | None = None

    def __post_init__(self) -> None:
        self._check_load()
        _check_nodes(self.cluster, self.engine, self.target)
        _check_prompts(self.workload, self.engine, self.target)
        _check_layout(self.layout, self.cluster, self.model, self.engine)
        _check_prefix_cache(self.workload, self.engine, self.layout)
        _check_images(self.workload.images, self.model, self.engine)
        _check_routing(self.routing, self.workload, self.engine, self.layout)
        if self.streams:
            _check_streams(self.cluster, self.layout, self.engine, self.target)
            require(
                self.concurrency is None,
                "concurrency=... is one closed loop over all nodes; use another routing, or rate_qps=...",
            )

    def _check_load(self) -> None:
        """Refuse two kinds of load at once, and keys that a kind of load does not have."""
        loads = {"rate_qps": self.rate_qps, "profile_qps": self.profile_qps, "concurrency": self.concurrency}
        names = [name for name, value in loads.items() if value not in (None, [])]
        require(len(names) <= 1, f"{' and '.join(names)} exclude each other; give one of them")
        require(
            self.workload.conversations is None or not names or names == ["rate_qps"],
            f"{' and '.join(names)}: conversations are an open loop of one rate at a time; give rate_qps=...",
        )
        if self.profile_qps:
            _check_profile(self.profile_qps, self.duration_s)
            require(
                self.workload.arrivals.kind != "trace",
                "profile_qps: a trace has its own rate over time; use rate_qps=... or other arrivals",
            )
        if self.concurrency is not None:
            self._check_closed_loop(self.concurrency)
        highest_qps = max([self.rate_qps or 0.0, *(qps for _, qps in self.profile_qps)])
        planned = max(highest_qps * self.cluster.nodes * (self.duration_s or 60.0), self.closed_requests)
        require(
            planned <= MOST_REQUESTS,
            f"some {planned:.3g} requests are more than the {MOST_REQUESTS:g} that a run holds; lower the "
            "rate, the time or the number of requests",
        )
        require(
            self.requests is None or self.rate_qps is not None or self.concurrency is not None,
            "requests=... needs rate_qps=... or concurrency=...",
        )

    def _check_closed_loop(self, concurrency: int) -> None:
        require(
            concurrency >= self.fleet.actors,
            f"concurrency={concurrency} must be at least fleet.actors={self.fleet.actors}",
        )
        require(
            self.closed_requests >= concurrency,
            f"requests={self.requests} cannot keep concurrency={concurrency} in flight; raise it to at least "
            f"{concurrency}",
        )
        require(self.duration_s is None, "concurrency=... ends by requests=..., not by duration_s=...")
        kind = self.workload.arrivals.kind
        require(
            kind == "poisson",
            f"concurrency=... is a closed loop, which has no arrivals, but workload.arrivals.kind={kind}; "
            "set workload.arrivals.kind=poisson (the default) or give rate_qps=...",
        )
        require(
            self.time_scale == 1,
            f"concurrency=... is a closed loop: engine.time_scale={self.time_scale:g} would multiply the way "
            "to the engine too; leave engine.time_scale out or give rate_qps=...",
        )

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
    finite = all(0 <= number < math.inf for point in points for number in point)
    require(finite, f"profile_qps={points}: seconds and rates must be finite and not negative")
    most_s, most_qps = (max(column) for column in zip(*points, strict=True))
    require(most_s <= MOST_S, f"profile_qps: {most_s:g} s is beyond reason; at most {MOST_S:g}")
    require(
        most_qps <= MOST_QPS, f"profile_qps: {most_qps:g} QPS per node is beyond reason; at most {MOST_QPS:g}"
    )
    seconds = [second for second, _ in points]
    require(seconds[0] == 0, f"profile_qps begins at {seconds[0]:g} s; its first point must be at 0 s")
    require(seconds == sorted(seconds), f"profile_qps={points}: the seconds must not go back")
    require(
        duration_s is None or seconds[-1] <= duration_s,
        f"profile_qps ends at {seconds[-1]:g} s but duration_s={duration_s}; raise it or leave it out",
    )
    held = [*points, [duration_s or seconds[-1] or 1.0, points[-1][1]]]
    offered = any(b[0] > a[0] and a[1] + b[1] > 0 for a, b in zip(held, held[1:], strict=False))
    require(offered, "profile_qps is zero all the time; give one of its points a rate")


def _check_nodes(cluster: Cluster, engine: Engine, target: Endpoints) -> None:
    """Refuse several nodes in a session of one, and external endpoints without a URL."""
    require(
        cluster.session != "local" or cluster.nodes == 1 or engine.kind == "external",
        f"cluster.session=local is one node but cluster.nodes={cluster.nodes}; "
        "use cluster=laptop_4n or cluster.session=fake",
    )
    require(
        engine.kind != "external" or bool(target.urls),
        "engine=external needs target.urls=[http://host:port,...]",
    )


def _check_prompts(workload: Workload, engine: Engine, target: Endpoints) -> None:
    """Refuse fields and texts that requests or engines do not have for this kind of prompt."""
    require(
        target.max_tokens_field == "max_tokens" or workload.prompt == "chat",
        f"target.max_tokens_field={target.max_tokens_field} is a field of chats; add workload.prompt=chat or "
        "leave it out",
    )
    require(
        not workload.tokenizer or engine.kind != "simulated" or workload.prompt == "token_ids",
        f"workload.prompt={workload.prompt}: the simulated engine counts words, not tokens of "
        "workload.tokenizer; set workload.prompt=token_ids",
    )


def _check_layout(layout: Layout, cluster: Cluster, model: Model, engine: Engine) -> None:
    """Refuse a layout that does not fit its node, its model or its engine."""
    require(
        layout.gpus_per_node <= cluster.gpus_per_node,
        f"layout {layout.name} needs {layout.gpus_per_node} GPUs per node ({layout.shape}) but cluster "
        f"{cluster.name} has {cluster.gpus_per_node}; choose a smaller layout",
    )
    for side in filter(None, (layout.prefill_side, layout.decode_side)):
        require(
            model.heads % side.tensor_parallel == 0,
            f"layout {side.name}: TP{side.tensor_parallel} does not divide the {model.heads} attention heads "
            f"of {model.name}",
        )
    require(
        layout.quick_reduce == "none" or engine.kind in ("simulated", "vllm_emulated"),
        f"layout.quick_reduce={layout.quick_reduce} is of the simulated engine; for a real one set "
        "engine.env.VLLM_ROCM_QUICK_REDUCE_QUANTIZATION=INT8",
    )


def _check_prefix_cache(workload: Workload, engine: Engine, layout: Layout) -> None:
    """Refuse shared beginnings of prompts for an engine without a prefix cache."""
    cold = isinstance(engine, SimulatedEngine) and not engine.enable_prefix_caching
    deployed = engine.kind != "external"
    for name in ("prefix_hit", "session_hit"):
        hit = getattr(workload, name)
        require(
            not (deployed and hit and layout.prefill and layout.connector == "moriio"),
            f"workload.{name}={hit} is never hit on layout {layout.name}: MoRI-IO needs the cache off; "
            "use layout.connector=nixl or set it to 0",
        )
        require(
            not (cold and hit),
            f"workload.{name}={hit} is never hit while engine.enable_prefix_caching=false; set one of "
            "them otherwise",
        )


def _check_images(images: Images, model: Model, engine: Engine) -> None:
    """Refuse images that the model cannot see, or whose tokens it counts differently."""
    if not images.most:
        return
    require(
        model.image_token_px > 0,
        f"workload.images: model {model.name} sees no images; use model=qwen3_vl_235b_bf16 or leave them out",
    )
    require(
        engine.kind != "vllm_emulated",
        "workload.images: an emulated vLLM has no vision encoder; use engine=simulated",
    )
    counted = tokens_of(images.width_px, images.height_px, model.image_token_px)
    require(
        images.tokens in (0, counted),
        f"workload.images.tokens={images.tokens} but {model.name} makes {counted} of {images.width_px} x "
        f"{images.height_px} pixels; leave it out",
    )


def _check_routing(routing: Routing, workload: Workload, engine: Engine, layout: Layout) -> None:
    """Refuse a policy for requests that lack what it routes by."""
    policy, sessions = routing.policy, workload.has_sessions
    require(
        policy not in SESSION_POLICIES or sessions,
        f"routing.policy={policy} goes by sessions but workload.sessions=0; use workload=chat_sessions, "
        "workload=character or routing=leastconn",
    )
    require(
        policy != "per_node" or not sessions,
        "routing=per_node gives every node requests of its own, so that a session would have several "
        "replicas; use routing=client_side",
    )
    require(
        policy not in TEXT_POLICIES or getattr(engine, "server", "") == "ray_llm",
        f"routing={policy} reads requests that ray.serve.llm has parsed, and a plain application "
        "passes them on unread; use engine=vllm with engine.server=ray_llm, or routing=consistent_hash",
    )
    require(
        policy not in TEXT_POLICIES or workload.prompt != "token_ids",
        f"routing={policy} goes by texts and not by token ids; set workload.prompt=text or chat",
    )
    require(
        policy != "kv_aware" or layout.prefill is None,
        f"routing=kv_aware was never tried with prefill engines, which layout {layout.name} has; use "
        "routing=prefix_affinity",
    )


def _check_streams(cluster: Cluster, layout: Layout, engine: Engine, target: Endpoints) -> None:
    """Refuse one stream of arrivals per node where a node has no single address or replica."""
    urls, per_node = len(set(target.bases)), layout.replicas_per_node
    require(
        engine.kind != "external" or urls == cluster.nodes,
        f"routing=per_node needs one of target.urls for each node but there are {urls} and "
        f"cluster.nodes={cluster.nodes}; set cluster.nodes={urls} or use routing=leastconn",
    )
    require(
        engine.kind == "external" or per_node == 1,
        f"routing=per_node sends a node's stream to one replica but layout {layout.name} has "
        f"{per_node} per node; use a layout with replicas_per_node=1 or routing=leastconn",
    )
