"""The experiment, made of the typed specs of its groups; knows no file and no other package.

Specs are frozen: what was asked never changes during a run. Every field that has a unit carries
it in its name. A value that depends on two groups is checked in `Experiment.__post_init__`. What is
served has its specs in `served`, the time of its steps in `step_time`, what is asked in `traffic`, the way
between in `routed`, where it is in `hosted`, how it is loaded in `loaded`; all have their names here too.
"""

from dataclasses import dataclass, field

from conf.io.check import require, require_positive, require_within
from conf.specs.cluster import Cluster, Endpoints
from conf.specs.engine import (
    MAX_TIME_SCALE,
    EmulatedEngine,
    Engine,
    ExternalEngine,
    Hardware,
    Layout,
    Model,
    SimulatedEngine,
    VllmEngine,
)
from conf.specs.images import tokens_of
from conf.specs.lengths import Lengths
from conf.specs.published_ladder import Progressive
from conf.specs.routing import SESSION_POLICIES, Routing
from conf.specs.search_and_fleet import MOST_QPS, MOST_REQUESTS, MOST_S, Fleet, Search, check_profile
from conf.specs.step_time import Constant, Efficiency, KernelRatio, StepTime
from conf.specs.workload import Arrivals, Slo, Workload

__all__ = [
    "Arrivals",
    "Cluster",
    "Constant",
    "Efficiency",
    "EmulatedEngine",
    "Endpoints",
    "Engine",
    "Experiment",
    "ExternalEngine",
    "Fleet",
    "Hardware",
    "KernelRatio",
    "Layout",
    "Lengths",
    "MAX_TIME_SCALE",
    "Model",
    "Routing",
    "Search",
    "SimulatedEngine",
    "Slo",
    "StepTime",
    "VllmEngine",
    "Workload",
    "require",
    "require_positive",
]


MOST_SEED = 2**53
"""Every reader of JSON keeps whole numbers up to this."""
MOST_BLOCK_TOKENS = 128
"""A block of the prefix cache of an engine that does not tell: vLLM's is 16, elsewhere up to this."""
LEAST_TIMEOUT_S, TIMEOUT_ANSWERS = 120.0, 4.0
"""Seconds until a request fails at least, and in answers of mean length within the bounds: few are four times
as long as the mean (our choices)."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that was asked. Only composition roots see it whole.

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
    engine: Engine
    layout: Layout
    routing: Routing
    workload: Workload
    slo: Slo
    search: Search
    fleet: Fleet
    target: Endpoints = field(default_factory=Endpoints)
    progressive: Progressive = field(default_factory=Progressive)
    rate_qps: float | None = None
    profile_qps: list[list[float]] = field(default_factory=list)
    concurrency: int | None = None
    requests: int | None = None
    duration_s: float | None = None
    seed: int = 1
    out: str = "runs"
    run: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("rate_qps", "duration_s") if getattr(self, name) is not None]
        require_positive("", self, *given)
        require(0 <= self.seed < MOST_SEED, f"seed={self.seed} must be 0 to {MOST_SEED - 1}")
        require_within("", self, rate_qps=MOST_QPS, duration_s=MOST_S, requests=MOST_REQUESTS)
        require(self.requests is None or self.requests >= 1, f"requests={self.requests} must be at least 1")
        self._check_load()
        require(
            self.cluster.session != "local" or self.cluster.nodes == 1 or self.engine.kind == "external",
            f"cluster.session=local is one node but cluster.nodes={self.cluster.nodes}; "
            "use cluster=laptop_4n or cluster.session=fake",
        )
        asked = self.layout.tensor_parallel * self.layout.replicas_per_node
        require(
            asked <= self.cluster.gpus_per_node,
            f"layout {self.layout.name} needs {asked} GPUs per node "
            f"({self.layout.replicas_per_node} x TP{self.layout.tensor_parallel}) but cluster "
            f"{self.cluster.name} has {self.cluster.gpus_per_node}; choose a smaller layout",
        )
        require(
            self.model.heads % self.layout.tensor_parallel == 0,
            f"layout {self.layout.name}: TP{self.layout.tensor_parallel} does not divide the "
            f"{self.model.heads} attention heads of {self.model.name}",
        )
        require(
            self.layout.quick_reduce == "none" or self.engine.kind in ("simulated", "vllm_emulated"),
            f"layout.quick_reduce={self.layout.quick_reduce} is of the simulated engine; for a real one set "
            "engine.env.VLLM_ROCM_QUICK_REDUCE_QUANTIZATION=INT8",
        )
        require(
            self.engine.kind != "external" or bool(self.target.urls),
            "engine=external needs target.urls=[http://host:port,...]",
        )
        cold = isinstance(self.engine, SimulatedEngine) and not self.engine.enable_prefix_caching
        for name in ("prefix_hit", "session_hit"):
            hit = getattr(self.workload, name)
            require(
                not (cold and hit),
                f"workload.{name}={hit} is never hit while engine.enable_prefix_caching=false; set one of "
                "them otherwise",
            )
        self._check_images()
        self._check_tokenizer()
        self._check_routing()
        if self.streams:
            self._check_streams()

    def _check_images(self) -> None:
        """Refuse images that the model cannot see, or that it counts otherwise."""
        images, model = self.workload.images, self.model
        if not images.most:
            return
        require(
            model.image_token_px > 0,
            f"workload.images: model {model.name} sees no images; use "
            "model=qwen3_vl_235b_bf16 or leave them out",
        )
        require(
            self.engine.kind != "vllm_emulated",
            "workload.images: an emulated vLLM has no vision encoder; use engine=simulated",
        )
        counted = tokens_of(images.width_px, images.height_px, model.image_token_px)
        require(
            images.tokens in (0, counted),
            f"workload.images.tokens={images.tokens} but {model.name} makes {counted} of {images.width_px} x "
            f"{images.height_px} pixels; leave it out",
        )

    def _check_tokenizer(self) -> None:
        """Refuse text whose tokens the engine would not count."""
        kind, workload = self.engine.kind, self.workload
        require(
            not workload.tokenizer or kind != "simulated" or workload.prompt == "token_ids",
            f"workload.prompt={workload.prompt}: the simulated engine counts words, not tokens of "
            "workload.tokenizer; set workload.prompt=token_ids",
        )

    def _check_routing(self) -> None:
        """Refuse a policy that has nothing to go by."""
        policy, sessions = self.routing.policy, self.workload.has_sessions
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
            policy != "prefix_affinity" or getattr(self.engine, "server", "") == "ray_llm",
            "routing=prefix_affinity reads requests that ray.serve.llm has parsed, and a plain application "
            "passes them on unread; use engine=vllm with engine.server=ray_llm, or routing=consistent_hash",
        )
        require(
            policy != "prefix_affinity" or self.workload.prompt != "token_ids",
            "routing=prefix_affinity compares texts and fails on token ids; set workload.prompt=text or chat",
        )

    def _check_streams(self) -> None:
        """Refuse streams per node where a stream would not be a node's."""
        nodes, urls, per_node = self.cluster.nodes, len(set(self.target.urls)), self.layout.replicas_per_node
        require(
            self.engine.kind != "external" or urls == nodes,
            f"routing=per_node needs one of target.urls for each node but there are {urls} and "
            f"cluster.nodes={nodes}; set cluster.nodes={urls} or use routing=leastconn",
        )
        require(
            self.engine.kind == "external" or per_node == 1,
            f"routing=per_node sends a node's stream to one replica but layout {self.layout.name} has "
            f"{per_node} per node; use a layout with replicas_per_node=1 or routing=leastconn",
        )
        require(
            self.concurrency is None,
            "concurrency=... is one closed loop over all nodes; use another routing, or rate_qps=...",
        )

    def _check_load(self) -> None:
        """Refuse two kinds of load at once, and what one kind does not know."""
        given = {"rate_qps": self.rate_qps, "profile_qps": self.profile_qps, "concurrency": self.concurrency}
        asked = [name for name, value in given.items() if value not in (None, [])]
        require(len(asked) <= 1, f"{' and '.join(asked)} exclude each other; give one of them")
        require(
            self.workload.conversations is None or not asked or asked == ["rate_qps"],
            f"{' and '.join(asked)}: conversations are an open loop of one rate at a time; give rate_qps=...",
        )
        if self.profile_qps:
            check_profile(self.profile_qps, self.duration_s)
            require(
                self.workload.arrivals.kind != "trace",
                "profile_qps: a trace has its own rate over time; use rate_qps=... or other arrivals",
            )
        if self.concurrency is not None:
            self._check_closed_loop(self.concurrency)
        held_s, highest = (
            self.duration_s or 60.0,
            max([self.rate_qps or 0.0, *(at for _, at in self.profile_qps)]),
        )
        planned = max(highest * self.cluster.nodes * held_s, self.closed_requests)
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
            f"concurrency=... is a closed loop, which knows no arrivals, but workload.arrivals.kind={kind}; "
            "set workload.arrivals.kind=poisson (the default) or give rate_qps=...",
        )
        require(
            self.time_scale == 1,
            f"concurrency=... is a closed loop: engine.time_scale={self.time_scale:g} would multiply the way "
            "to the engine too; leave engine.time_scale out or give rate_qps=...",
        )

    @property
    def closed_requests(self) -> int:
        """Requests of the closed loop: as asked, or ten for each in flight."""
        return 10 * (self.concurrency or 0) if self.requests is None else self.requests

    @property
    def is_replay(self) -> bool:
        """Whether a prediction of it is of so many requests, on a service that begins empty."""
        return self.requests is not None or self.concurrency is not None

    @property
    def replicas(self) -> int:
        """Independent engines behind the whole service."""
        return self.cluster.nodes * self.layout.replicas_per_node

    @property
    def time_scale(self) -> float:
        """Seconds of the run's clock in a real one; 1 of whatever is not simulated."""
        return self.engine.time_scale if isinstance(self.engine, SimulatedEngine) else 1.0

    @property
    def block_tokens(self) -> int:
        """Tokens of a block, of which a prefix cache serves whole ones; the most where nobody tells."""
        return self.engine.block_size if isinstance(self.engine, SimulatedEngine) else MOST_BLOCK_TOKENS

    @property
    def answer_s(self) -> float:
        """Seconds that an answer of mean length lasts where both bounds are just kept."""
        return self.slo.answer_s(self.workload.output_tokens.mean)

    @property
    def request_timeout_s(self) -> float:
        """Seconds until a request fails: as asked, else so many that none within the bounds is cut off."""
        return self.fleet.request_timeout_s or max(LEAST_TIMEOUT_S, TIMEOUT_ANSWERS * self.answer_s)

    @property
    def streams(self) -> int:
        """Independent streams of arrivals, one for each node; 0 where all nodes share one."""
        return self.cluster.nodes if self.routing.policy == "per_node" else 0
