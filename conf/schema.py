"""The typed specs of an experiment, one per config group; knows no file and no other package.

Specs are frozen: what was asked never changes during a run. Every field that has a unit carries
it in its name. A value that depends on two groups is checked in `Experiment.__post_init__`.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit


def require(condition: bool, message: str) -> None:
    """Raise ValueError with a one-line message the user can act on."""
    if not condition:
        raise ValueError(message)


def require_positive(group: str, spec: object, *names: str) -> None:
    """Raise ValueError unless each named field is a finite number above zero."""
    for name in names:
        value = getattr(spec, name)
        require(0 < value < math.inf, f"{group}{name}={value} must be positive and finite")


@dataclass(frozen=True, slots=True)
class Constant:
    """A number with its evidence; `low` and `high` bound it where an interval is known."""

    value: float
    unit: str
    source: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the experiment runs.

    `session` is `local` (one Ray node on this machine), `fake` (one Ray process group per node,
    all on this machine) or `address` (join the cluster at `address`). With `engine=external`,
    `nodes` counts the nodes behind the endpoints.
    """

    name: str
    session: Literal["local", "fake", "address"] = "local"
    address: str = "auto"
    nodes: int = 1
    gpus_per_node: int = 8

    def __post_init__(self) -> None:
        require(self.nodes >= 1, f"cluster.nodes={self.nodes} must be at least 1")
        require(self.gpus_per_node >= 1, "cluster.gpus_per_node must be at least 1")


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Reached share of a peak (0 to 1), per resource of the accelerator."""

    hbm: Constant
    kv_read: Constant
    attention: Constant
    link: Constant


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator. Unknown figures are null and refuse to be used, never zero.

    `link_bytes_per_s` is one direction of one link; a `mesh` has `links` of them, one per peer;
    behind a `switch` one fat link per GPU is shared by all peers (`links` = 1).
    """

    name: str
    arch: str
    hbm_bytes: float
    hbm_bytes_per_s: float
    efficiency: Efficiency
    source: str
    bf16_flop_per_s: float | None = None
    fp8_flop_per_s: float | None = None
    fp4_flop_per_s: float | None = None
    topology: Literal["mesh", "switch"] = "mesh"
    links: int = 7
    link_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class StepTime:
    """Constants of the step-time model that belong to a model (engine-model equation terms)."""

    step_ms: Constant
    layer_us: Constant
    gemm_decode: Constant
    gemm_prefill: Constant
    expert_read: Constant
    expert_imbalance: Constant
    host_per_sequence_us: Constant
    front_end_ms: Constant


@dataclass(frozen=True, slots=True)
class Model:
    """Architecture facts of a checkpoint, named as in its config.json, and its fitted constants.

    `kv_lora_rank > 0` means multi-head latent attention (MLA), whose KV is one latent of
    `kv_lora_rank + rope_dim` per token and layer. `experts == 0` means a dense model; in a mixture
    the first `first_dense` layers are dense with `intermediate` width.
    """

    name: str
    served_name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_context_tokens: int
    weights: Literal["fp8", "bf16", "int4_experts"]
    kv_cache: Literal["fp8", "bf16"]
    step_time: StepTime
    source: str
    intermediate: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_intermediate: int = 0
    first_dense: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    rope_dim: int = 0


@dataclass(frozen=True, slots=True)
class Engine:
    """What serves the model. The subclass is chosen by `kind`."""

    kind: str


@dataclass(frozen=True, slots=True)
class SimulatedEngine(Engine):
    """vLLM's V1 scheduler over a step-time model; no GPU, no weights.

    `step_noise_cv` multiplies each step by a seeded lognormal factor of that coefficient of variation;
    `drift_sd` is the sd of ln slowness that wanders with a memory of `drift_memory_s`; every
    `stall_every_steps` steps, on average, one lasts longer by an exponential time of mean `stall_mean_s`.
    All 0 is deterministic.
    """

    kind: str = "simulated"
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    max_model_len: int = 32768
    block_size: int = 16
    gpu_memory_utilization: float = 0.90
    activation_bytes: float = 8e9
    num_gpu_blocks: int | None = None
    step_noise_cv: float = 0.0
    drift_sd: float = 0.0
    drift_memory_s: float = 120.0
    stall_every_steps: int = 0
    stall_mean_s: float = 1.0

    def __post_init__(self) -> None:
        limits = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size")
        require_positive("engine.", self, *limits)
        require(0 < self.gpu_memory_utilization <= 1, "engine.gpu_memory_utilization must be in (0, 1]")
        require(self.step_noise_cv >= 0, "engine.step_noise_cv must not be negative")
        require(0 <= self.drift_sd < 1, f"engine.drift_sd={self.drift_sd} must be in [0, 1)")
        require(self.stall_every_steps >= 0, "engine.stall_every_steps must not be negative")
        require_positive("engine.", self, "drift_memory_s", "stall_mean_s")


@dataclass(frozen=True, slots=True)
class VllmEngine(Engine):
    """Real vLLM; `args` and `env` are handed through untouched (`vllm` on GPUs, `vllm_cpu`)."""

    kind: str = "vllm"
    args: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExternalEngine(Engine):
    """Nothing is deployed: `target.urls` name the endpoints."""

    kind: str = "external"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the GPUs of a node are cut into independent replicas (never vLLM's data parallelism)."""

    name: str
    tensor_parallel: int
    replicas_per_node: int
    expert_parallel: bool

    def __post_init__(self) -> None:
        require(self.tensor_parallel >= 1, "layout.tensor_parallel must be at least 1")
        require(self.replicas_per_node >= 1, "layout.replicas_per_node must be at least 1")


@dataclass(frozen=True, slots=True)
class Routing:
    """How a request finds its replica, and through which proxy its tokens flow back.

    With policy `per_node` nothing is balanced: every node has a stream of arrivals of its own, independent
    of the others' and sent straight to it. Other policies make one pooled service of all nodes.
    """

    name: str
    data_path: Literal["haproxy", "python_proxy", "direct"] = "haproxy"
    policy: Literal["leastconn", "roundrobin", "pow2", "per_node"] = "leastconn"

    def __post_init__(self) -> None:
        needed = {"pow2": "python_proxy", "per_node": "direct"}.get(self.policy, "haproxy")
        require(
            self.data_path == needed,
            "routing: pow2 needs data_path=python_proxy and per_node direct; leastconn and roundrobin need "
            "haproxy",
        )


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How the gaps between requests vary around the asked rate.

    `burstiness` is the shape of gamma gaps, as in vLLM's benchmark: their coefficient of variation
    is 1/sqrt(burstiness), so below 1 is burstier than Poisson. `trace` takes the arrivals of
    `workload.trace`.
    """

    kind: Literal["poisson", "gamma", "constant", "trace"] = "poisson"
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        # Of a smaller shape most gaps are zero in floating point, in the end all of them.
        require(
            0.001 <= self.burstiness < math.inf,
            f"workload.arrivals.burstiness={self.burstiness} must be at least 0.001 (gaps with cv 32) and "
            "finite; use workload.arrivals.kind=constant for equal gaps",
        )
        require(
            self.kind == "gamma" or self.burstiness == 1,
            f"workload.arrivals.burstiness={self.burstiness} belongs to workload.arrivals.kind=gamma, "
            f"not {self.kind}",
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts.

    `cv` is the coefficient of variation of `lognormal`; `uniform` lies within mean * (1 -+ spread),
    as vLLM's random range ratio; `empirical` are the lengths of `workload.trace`, whose mean is 0
    until that file has been read.
    """

    mean: int = 0
    kind: Literal["fixed", "lognormal", "uniform", "empirical"] = "fixed"
    cv: float = 0.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        least = 0 if self.kind == "empirical" else 1
        require(self.mean >= least, f"workload: mean={self.mean} tokens must be at least {least}")
        require(0 <= self.cv < math.inf, f"workload: cv={self.cv} must be finite and not negative")
        require(self.kind != "lognormal" or self.cv > 0, "workload: kind=lognormal needs cv > 0")
        require(self.kind == "lognormal" or self.cv == 0, f"workload: kind={self.kind} has no cv")
        require(0 <= self.spread <= 1, f"workload: spread={self.spread} must be between 0 and 1")
        require(self.kind != "uniform" or self.spread > 0, "workload: kind=uniform needs spread > 0")
        require(self.kind == "uniform" or self.spread == 0, f"workload: kind={self.kind} has no spread")


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked: lengths of prompt and answer, how the prompt is sent, and how requests arrive.

    `trace` is the path of recorded requests: JSON lines in the Mooncake form or CSV in the Azure
    LLM trace form. `prompt` sends token ids or text to the completions API, or a chat message.
    """

    name: str
    input_tokens: Lengths
    output_tokens: Lengths
    prompt: Literal["token_ids", "text", "chat"] = "token_ids"
    arrivals: Arrivals = field(default_factory=Arrivals)
    trace: str = ""

    def __post_init__(self) -> None:
        kinds = {self.input_tokens.kind, self.output_tokens.kind, self.arrivals.kind}
        used = bool(kinds & {"empirical", "trace"})
        require(
            bool(self.trace) or not used,
            f"workload {self.name} needs workload.trace=FILE, for arrivals.kind=trace or kind=empirical",
        )
        require(
            used or not self.trace,
            "nothing uses workload.trace; set workload.arrivals.kind=trace or lengths to kind=empirical",
        )


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds on the 90th percentile over requests: TTFT from the due time, TPOT per request."""

    name: str
    ttft_p90_ms: float
    tpot_p90_ms: float

    def __post_init__(self) -> None:
        require_positive("slo.", self, "ttft_p90_ms", "tpot_p90_ms")


@dataclass(frozen=True, slots=True)
class Search:
    """The budget and the clockwork of "ramp, then focus" (method.md section 4).

    `start=prediction` replaces the ramp by `expected_qps`, or without one by the engine model's own answer,
    which only the simulated engine has; every other engine then ramps. Rates are per node.
    `deployments` spreads the budget over so many sweeps, each of a service deployed anew and with a seed of
    its own, and pools them; `repeats` repeats the whole, budget included, for a mean and its spread.
    After the budget the certified rate is held for `confirm_s`, which may veto the answer and never raise it.
    """

    name: str
    budget_s: float
    start: Literal["ramp", "prediction"] = "ramp"
    min_dwells: int = 6
    ramp_step_s: float = 15.0
    ramp_factor: float = 1.25
    first_transition_s: float = 30.0
    transition_s: float = 15.0
    window_s: float = 45.0
    settle_s: float = 120.0
    lowest_qps: float = 0.05
    highest_qps: float = 200.0
    confirm_s: float = 0.0
    expected_qps: float | None = None
    deployments: int = 1
    repeats: int = 1

    def __post_init__(self) -> None:
        require_positive("search.", self, "budget_s", "ramp_step_s", "transition_s", "first_transition_s")
        require_positive("search.", self, "window_s", "settle_s", "lowest_qps", "highest_qps")
        require(
            1 < self.ramp_factor < math.inf,
            f"search.ramp_factor={self.ramp_factor} must be above 1 and finite",
        )
        require(self.lowest_qps < self.highest_qps, "search.lowest_qps must be below search.highest_qps")
        require(self.min_dwells >= 1, "search.min_dwells must be at least 1")
        require(
            0 <= self.confirm_s < math.inf,
            f"search.confirm_s={self.confirm_s} must be finite and not negative",
        )
        require(self.deployments >= 1, "search.deployments must be at least 1")
        require(self.repeats >= 1, "search.repeats must be at least 1")
        if self.expected_qps is not None:
            require_positive("search.", self, "expected_qps")
            require(self.start == "prediction", "search.expected_qps needs search.start=prediction")
        share_s, least_s = self.budget_s / self.deployments, self.least_s
        require(
            self.deployments == 1 or share_s >= least_s,
            f"search.deployments={self.deployments} leaves each {share_s:g} s, too short for "
            f"search.min_dwells={self.min_dwells}; raise search.budget_s to {self.deployments * least_s:g} "
            "or lower search.deployments",
        )

    @property
    def least_s(self) -> float:
        """Seconds of the least number of dwells, which are granted also beyond the budget."""
        return self.min_dwells * (self.transition_s + self.window_s)

    @property
    def parts(self) -> int:
        """Sweeps that answer the question together."""
        return self.deployments * self.repeats


@dataclass(frozen=True, slots=True)
class Fleet:
    """The load generators: `actors` Ray actors with `cpus_per_actor` CPUs each."""

    name: str
    actors: int = 1
    cpus_per_actor: float = 1.0
    request_timeout_s: float = 120.0
    drain_s: float = 30.0
    warmup_requests: int = 64
    record_itl: bool = True

    def __post_init__(self) -> None:
        require(self.actors >= 1, f"fleet.actors={self.actors} must be at least 1")
        require(self.cpus_per_actor >= 0, "fleet.cpus_per_actor must not be negative")
        require_positive("fleet.", self, "request_timeout_s", "drain_s")
        require(self.warmup_requests >= 1, "fleet.warmup_requests must be at least 1")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Endpoints of `engine=external`.

    `api_key_env` names the environment variable that holds the key sent to every URL, in clear text
    where the URL is http://; empty, as by default, no key is sent. Set, the variable must exist:
    whoever reads it refuses an unset one. URLs hold no secrets, since they are saved with the run.
    """

    urls: list[str] = field(default_factory=list)
    api_key_env: str = ""

    def __post_init__(self) -> None:
        for url in self.urls:
            _check_url(url)


def _check_url(url: str) -> None:
    """Raise ValueError unless `url` is a plain http(s) address; no message shows it: it may hold a secret."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
        secret = "@" in parts.netloc or parts.query or parts.fragment
    except ValueError:
        fits, secret = False, ""
    require(not secret, "target.urls: no user, password, query or fragment; give a key by target.api_key_env")
    require(fits and url.isprintable() and " " not in url, "target.urls: must be http(s)://host:port")
    require(_has_valid_port(url), "target.urls: the port of a URL must be a number up to 65535")


def _has_valid_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def _check_profile(points: list[list[float]], duration_s: float | None) -> None:
    """Raise ValueError unless points [seconds, QPS] ascend from 0 s within `duration_s` and offer load."""
    pairs = all(len(point) == 2 for point in points)
    require(pairs, "profile_qps must be a list of pairs [seconds, QPS per node], such as [[0,2],[60,8]]")
    finite = all(0 <= number < math.inf for point in points for number in point)
    require(finite, f"profile_qps={points}: seconds and rates must be finite and not negative")
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


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that was asked. Only composition roots see it whole.

    `out` is the folder of the run folders and `run` the name of this one (by default UTC time and
    four digits). A `probe` offers one of these: a constant `rate_qps` (per node); `profile_qps`, linear
    between its points [seconds, QPS per node] and then held; a closed loop that keeps `concurrency`
    requests in flight until `requests` are done; or, with none of them, a trace in its own time.
    `duration_s` is by default a minute, or as long as the profile or the trace.
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
        require(self.seed >= 0, f"seed={self.seed} must not be negative")
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
            self.engine.kind != "external" or bool(self.target.urls),
            "engine=external needs target.urls=[http://host:port,...]",
        )
        if self.streams:
            self._check_streams()

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
        if self.profile_qps:
            _check_profile(self.profile_qps, self.duration_s)
            require(
                self.workload.arrivals.kind != "trace",
                "profile_qps: a trace has its own rate over time; use rate_qps=... or other arrivals",
            )
        if self.concurrency is not None:
            self._check_closed_loop(self.concurrency)
        require(self.requests is None or self.concurrency is not None, "requests=... needs concurrency=...")

    def _check_closed_loop(self, concurrency: int) -> None:
        require(
            concurrency >= self.fleet.actors,
            f"concurrency={concurrency} must be at least fleet.actors={self.fleet.actors}",
        )
        require(
            self.closed_requests > concurrency,
            f"requests={self.requests} must be above concurrency={concurrency}: the first ones only fill it",
        )
        require(self.duration_s is None, "concurrency=... ends by requests=..., not by duration_s=...")
        kind = self.workload.arrivals.kind
        require(
            kind == "poisson",
            f"concurrency=... is a closed loop, which knows no arrivals, but workload.arrivals.kind={kind}; "
            "set workload.arrivals.kind=poisson (the default) or give rate_qps=...",
        )

    @property
    def closed_requests(self) -> int:
        """Requests of the closed loop: as asked, or ten for each in flight."""
        return 10 * (self.concurrency or 0) if self.requests is None else self.requests

    @property
    def replicas(self) -> int:
        """Independent engines behind the whole service."""
        return self.cluster.nodes * self.layout.replicas_per_node

    @property
    def streams(self) -> int:
        """Independent streams of arrivals, one for each node; 0 where all nodes share one."""
        return self.cluster.nodes if self.routing.policy == "per_node" else 0
