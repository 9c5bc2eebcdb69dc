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

    `step_noise_cv` multiplies each step by a seeded lognormal factor of that coefficient of
    variation; 0 is deterministic.
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

    def __post_init__(self) -> None:
        limits = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size")
        require_positive("engine.", self, *limits)
        require(0 < self.gpu_memory_utilization <= 1, "engine.gpu_memory_utilization must be in (0, 1]")
        require(self.step_noise_cv >= 0, "engine.step_noise_cv must not be negative")


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
    """How a request finds its replica, and through which proxy its tokens flow back."""

    name: str
    data_path: Literal["haproxy", "python_proxy"] = "haproxy"
    policy: Literal["leastconn", "roundrobin", "pow2"] = "leastconn"

    def __post_init__(self) -> None:
        fits = (self.policy == "pow2") == (self.data_path == "python_proxy")
        require(fits, "routing: pow2 needs data_path=python_proxy; leastconn and roundrobin need haproxy")


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts; `cv` is the coefficient of variation of `lognormal`."""

    mean: int
    kind: Literal["fixed", "lognormal"] = "fixed"
    cv: float = 0.0

    def __post_init__(self) -> None:
        require(self.mean >= 1, f"workload: mean={self.mean} tokens must be at least 1")
        require(self.cv >= 0, "workload: cv must not be negative")
        require(self.kind != "lognormal" or self.cv > 0, "workload: kind=lognormal needs cv > 0")
        require(self.kind != "fixed" or self.cv == 0, "workload: kind=fixed has no cv")


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked: lengths of prompt and answer, and how the prompt is sent."""

    name: str
    input_tokens: Lengths
    output_tokens: Lengths
    prompt: Literal["token_ids", "text"] = "token_ids"


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

    `start=prediction` replaces the ramp by the engine model's own answer and is honoured for the
    simulated engine only; every other engine ramps. Rates are per node.
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

    def __post_init__(self) -> None:
        require_positive("search.", self, "budget_s", "ramp_step_s", "transition_s", "first_transition_s")
        require_positive("search.", self, "window_s", "settle_s", "lowest_qps", "highest_qps")
        require(self.ramp_factor > 1, f"search.ramp_factor={self.ramp_factor} must be above 1")
        require(self.lowest_qps < self.highest_qps, "search.lowest_qps must be below search.highest_qps")
        require(self.min_dwells >= 1, "search.min_dwells must be at least 1")


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


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that was asked. Only composition roots see it whole.

    `rate_qps` (per node) and `duration_s` belong to `probe`, which holds one rate; `out` is the
    folder of the run folders and `run` the name of this one (by default UTC time and four digits).
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
    duration_s: float = 60.0
    seed: int = 1
    out: str = "runs"
    run: str | None = None

    def __post_init__(self) -> None:
        require_positive("", self, "duration_s", *(["rate_qps"] if self.rate_qps is not None else []))
        require(self.seed >= 0, f"seed={self.seed} must not be negative")
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

    @property
    def replicas(self) -> int:
        """Independent engines behind the whole service."""
        return self.cluster.nodes * self.layout.replicas_per_node
