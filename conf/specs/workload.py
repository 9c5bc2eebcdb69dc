"""Specs of what is asked of a service: requests, how they arrive, and the bounds on their latencies."""

import math
from dataclasses import dataclass, field
from typing import Literal

from conf.io.check import require, require_positive
from conf.specs.bounds import LIMITS, Bound, column
from conf.specs.conversation import Conversations
from conf.specs.images import Images
from conf.specs.lengths import Lengths

MOST_SESSIONS = 10_000_000
"""Their numbers fit into the 32 bits of a record, and the set of them into a driver's memory."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How the gaps between requests vary around the asked rate.

    `burstiness` is the shape of gamma gaps, as in vLLM's benchmark: their coefficient of variation
    is 1/sqrt(burstiness), so below 1 is burstier than Poisson. `vllm_bench` are the due times that
    `vllm bench serve` draws from the seed for a number of requests, with its `--burstiness`. `trace` takes
    the arrivals of `workload.trace`.
    """

    kind: Literal["poisson", "gamma", "constant", "vllm_bench", "trace"] = "poisson"
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        # Of a smaller shape most gaps are zero in floating point, in the end all of them.
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
    """What is asked: lengths of prompt and answer, how the prompt is sent, and how requests arrive.

    `trace` is the path of recorded requests: JSON lines in the Mooncake form or CSV in the Azure
    LLM trace form. `prompt` sends token ids or text to the completions API, or a chat message.
    Every prompt begins with the same share `prefix_hit` of its tokens, in [0, 1), which a prefix cache
    serves once it has seen them; the rest is unique. `sessions` above 0 are so many chat users, from whom
    each request is drawn, all equally likely. Its prompt then begins with the share `session_hit` of its
    tokens (those of `prefix_hit` are part of it) that every prompt of its session begins with: they stand for
    the history, which the replica that served the session before may still have in its cache.
    `conversations` are chats with memory instead, which give the requests their lengths and what they share.
    `tokenizer` is a model's folder with its tokenizer.json: prompts are then real text, with as many of that
    tokenizer's tokens; without one they are synthetic.
    """

    name: str
    input_tokens: Lengths
    output_tokens: Lengths
    prompt: Literal["token_ids", "text", "chat"] = "token_ids"
    arrivals: Arrivals = field(default_factory=Arrivals)
    trace: str = ""
    prefix_hit: float = 0.0
    sessions: int = 0
    session_hit: float = 0.0
    images: Images = field(default_factory=Images)
    conversations: Conversations | None = None
    tokenizer: str = ""

    def __post_init__(self) -> None:
        require(0 <= self.prefix_hit < 1, f"workload.prefix_hit={self.prefix_hit} must be in [0, 1)")
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

    def _check_sessions(self) -> None:
        count, hit = self.sessions, self.session_hit
        require(0 <= count <= MOST_SESSIONS, f"workload.sessions={count} must be 0 to {MOST_SESSIONS}")
        require(0 <= hit < 1, f"workload.session_hit={hit} must be in [0, 1)")
        require(count > 0 or not hit, f"workload.session_hit={hit} needs workload.sessions=N")
        require(
            not hit or hit > self.prefix_hit,
            f"workload.session_hit={hit} includes what all prompts share: it must be above "
            f"workload.prefix_hit={self.prefix_hit}, or 0",
        )

    @property
    def has_sessions(self) -> bool:
        """Whether requests belong to sessions, by which a router can go."""
        return self.sessions > 0 or self.conversations is not None

    @property
    def wants_hits(self) -> bool:
        """Whether prompts share beginnings, so that a prefix cache has to be filled first."""
        return bool(self.prefix_hit or self.session_hit or self.conversations)

    def _check_conversations(self) -> None:
        """Refuse what chats with memory have of themselves."""
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
        given = [name for name in ("prefix_hit", "sessions", "session_hit") if getattr(self, name)]
        require(
            not given,
            f"workload.{(given or [''])[0]}: conversations have sessions and shared beginnings of their own; "
            "leave it out",
        )

    @property
    def prompt_tokens(self) -> float:
        """Prompt tokens of a request in the mean, those of its images included."""
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


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds on the 90th percentile over requests: TTFT from the due time, TPOT per request."""

    name: str
    ttft_p90_ms: float
    tpot_p90_ms: float

    def __post_init__(self) -> None:
        require_positive("slo.", self, *map(column, LIMITS))

    @property
    def bounds(self) -> tuple[Bound, ...]:
        return tuple(Bound(limit, getattr(self, column(limit))) for limit in LIMITS)

    def answer_s(self, tokens: float) -> float:
        """Seconds that an answer of so many tokens lasts where both bounds are just kept."""
        return (self.ttft_p90_ms + tokens * self.tpot_p90_ms) / 1e3
