"""Specs of the requests that are sent and how they arrive."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from conf.io.check import require
from conf.specs.conversation import Conversations
from conf.specs.ranges import BelowOne, NotNegative, Positive, Range, Whole
from conf.specs.request_sizes import Images, Lengths

MOST_SESSIONS = 10_000_000
"""Most sessions: their numbers fit into the 32 bits of a row, and their set into a driver's memory."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The distribution of the gaps between requests at a given rate.

    `burstiness` is the shape of gamma gaps, as in vLLM's benchmark: their coefficient of variation
    is 1/sqrt(burstiness), so below 1 is burstier than Poisson. `vllm_bench` are the due times that
    `vllm bench serve` draws from the seed for a number of requests, with its `--burstiness`. `trace` takes
    the arrivals of `workload.trace`.
    """

    kind: Literal["poisson", "gamma", "constant", "vllm_bench", "trace"] = "poisson"
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        # With a smaller shape most gaps are zero in floating point.
        require(
            0.001 <= self.burstiness < math.inf,
            f"workload.arrivals.burstiness={self.burstiness} must be at least 0.001 (gaps with cv 32) and "
            "finite; use workload.arrivals.kind=constant for equal gaps",
        )
        require(
            self.kind in ("gamma", "vllm_bench") or self.burstiness == 1,
            f"workload.arrivals.burstiness={self.burstiness} belongs to workload.arrivals.kind=gamma or "
            f"vllm_bench, not {self.kind}",
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests: lengths of prompt and answer, the form of the prompt, and the arrivals.

    `trace` is the path of recorded requests: JSON lines in the Mooncake form, CSV in the Azure LLM trace
    form, or a folder of client records in the form of ServeGen (docs/traces.md). Its requests from
    `trace_from_s` on are used, for `trace_span_s` or to its end; `trace_seed` draws those of client records.
    A block hash of a trace stands for `trace_block_tokens` tokens. `prompt` sends token ids or text to the
    completions API, or a chat message. The share `prefix_hit` of a prompt's tokens, in [0, 1), is the same
    beginning in all prompts, which a prefix cache serves once it has seen it; the rest is unique. `sessions`
    above 0 is the number of chat users; each request belongs to one of them, all equally likely. The share
    `session_hit` of its tokens, which includes `prefix_hit`, is then the same beginning in all prompts of its
    session: it stands for the history, which the replica that served the session before may still have in its
    cache. `conversations` are chats with memory instead, which give the requests their lengths and shared
    beginnings. `tokenizer` is a model's folder with its tokenizer.json: prompts are then real text of as many
    of its tokens; without one they are synthetic.
    """

    name: str
    input_tokens: Lengths
    output_tokens: Lengths
    prompt: Literal["token_ids", "text", "chat"] = "token_ids"
    arrivals: Arrivals = field(default_factory=Arrivals)
    trace: str = ""
    trace_from_s: NotNegative = 0.0
    trace_span_s: Positive | None = None
    trace_block_tokens: Annotated[int, Range(ge=1, le=2**20)] = 512
    trace_seed: Whole = 0
    prefix_hit: BelowOne = 0.0
    sessions: Annotated[int, Range(ge=0, le=MOST_SESSIONS)] = 0
    session_hit: BelowOne = 0.0
    images: Images = field(default_factory=Images)
    conversations: Conversations | None = None
    tokenizer: str = ""

    def __post_init__(self) -> None:
        self._check_sessions()
        self._check_conversations()
        self._check_images()
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
        self._check_trace()

    @property
    def replays_prefixes(self) -> bool:
        """True if requests are a trace's lines in their order, which share what its block hashes say."""
        in_order = self.arrivals.kind == "trace" and self.input_tokens.kind == "empirical"
        return in_order and not (self.prefix_hit or self.sessions)

    def _check_trace(self) -> None:
        usual = {"trace_from_s": 0, "trace_span_s": None, "trace_block_tokens": 512, "trace_seed": 0}
        idle = [name for name, value in usual.items() if getattr(self, name) != value and not self.trace]
        require(not idle, f"workload.{(idle or [''])[0]} needs workload.trace=FILE")

    def _check_sessions(self) -> None:
        hit = self.session_hit
        require(self.sessions > 0 or not hit, f"workload.session_hit={hit} needs workload.sessions=N")
        require(
            not hit or hit > self.prefix_hit,
            f"workload.session_hit={hit} includes what all prompts share: it must be above "
            f"workload.prefix_hit={self.prefix_hit}, or 0",
        )

    @property
    def has_sessions(self) -> bool:
        """True if requests belong to sessions, by which a router can choose replicas."""
        return self.sessions > 0 or self.conversations is not None

    @property
    def wants_hits(self) -> bool:
        """True if prompts share beginnings, so that prefix caches need a warm-up."""
        return bool(self.prefix_hit or self.session_hit or self.conversations)

    def _check_conversations(self) -> None:
        """Refuse lengths, arrivals and sessions beside conversations, which have their own."""
        lengths = {self.input_tokens.kind, self.output_tokens.kind}
        if self.conversations is None:
            require(
                "conversation" not in lengths,
                f"workload {self.name}: kind=conversation needs conversations; use workload=character",
            )
            return
        require(
            lengths == {"conversation"},
            "workload.conversations give the requests their lengths; leave input_tokens and output_tokens at "
            "kind=conversation and set workload.conversations.KEY",
        )
        require(
            self.arrivals.kind == "poisson",
            f"workload.arrivals.kind={self.arrivals.kind}: conversations begin as a Poisson process; leave "
            "it out",
        )
        own = next((name for name in ("prefix_hit", "sessions", "session_hit") if getattr(self, name)), "")
        require(
            not own,
            f"workload.{own}: conversations have sessions and shared beginnings of their own; leave it out",
        )

    @property
    def prompt_tokens(self) -> float:
        """Mean prompt tokens of a request, with those of its images."""
        return self.input_tokens.mean + self.images.mean_tokens

    def _check_images(self) -> None:
        if not self.images.most:
            return
        require(
            self.prompt == "chat",
            f"workload.images are parts of a chat message but workload.prompt={self.prompt}; set it to chat",
        )
        require(
            not (self.prefix_hit or self.has_sessions),
            "workload.images: how prompts with images share beginnings is not modelled; leave "
            "workload.prefix_hit, workload.sessions and workload.conversations out",
        )
