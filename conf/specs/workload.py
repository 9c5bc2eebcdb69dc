"""Specs of the requests that are sent, how they arrive, and of chats with memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from conf.io.check import AtLeastOne, BelowOne, NotNegative, Positive, Range, Whole, require
from conf.specs.request_sizes import Images, Lengths
from conf.specs.rules import Ruled, check_rules

NAMING_TOKENS = 8
"""Unique tokens at the beginning of a character, a persona and a truncated history."""
CHARACTER_SHARE, PERSONA_SHARE, MESSAGE_SHARE = 1 / 2, 1 / 8, 1 / 16
"""Largest shares of the prompt's limit for system prompt and character, for a persona and for a message.

Longer draws are cut off, so that every session has room for a history (our choice).
"""
PART_NAMES = ("system", "character", "persona", "history", "message")


@dataclass(frozen=True, slots=True)
class PromptPart:
    """One part of a prompt template: Jinja2 text, filled once, or for `each` item of a list of the data.

    If a prompt is too long, parts of priority 1 are truncated, the oldest first, then those of priority 2,
    and so on; parts of priority 0 never are.
    """

    name: str
    content: str
    role: Literal["system", "user", "assistant"] = "user"
    truncation_priority: Whole = 0
    each: str = ""

    def __post_init__(self) -> None:
        require(bool(self.name), "every part needs a name")


@dataclass(frozen=True, slots=True)
class Conversations:
    """Sessions of chat users, each with one of `characters`; token counts are lengths of a prompt's parts.

    Characters are drawn by a Zipf law: the k-th most liked in proportion to k ** -`zipf`. A session has a
    geometric number of turns of mean `turns`. A turn is due `answer_ttft_s` + `answer_tpot_s` x (tokens
    of the answer before) and a think time (lognormal, of mean and coefficient of variation) after the
    turn before, whatever the service does. A prompt is system, character, persona, history and message,
    at most `max_prompt_tokens` long: of a longer history the oldest tokens are dropped, a multiple of
    `truncation_step_tokens` (`cache_aware`) or exactly the excess (`naive`).
    """

    system_tokens: Whole
    characters: Annotated[int, Range(ge=1, le=10**7)]
    zipf: NotNegative
    character_tokens: Lengths
    persona_tokens: Lengths
    turns: Annotated[float, Range(ge=2, lt=1e5)]
    message_tokens: Lengths
    answer_tokens: Lengths
    think_mean_s: Positive
    think_cv: NotNegative
    answer_ttft_s: Positive
    answer_tpot_s: Positive
    max_prompt_tokens: Annotated[int, Range(ge=256)]
    truncation: Literal["cache_aware", "naive"] = "cache_aware"
    truncation_step_tokens: AtLeastOne = 4096
    template: list[PromptPart] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_rules(self)
        _check_template(self.template)

    @property
    def room_tokens(self) -> int:
        """Tokens that the longest character may have beside the system prompt."""
        return int(CHARACTER_SHARE * self.max_prompt_tokens) - self.system_tokens

    @property
    def step_tokens(self) -> int:
        """Step of the truncation in tokens; naive truncation has steps of one token."""
        return self.truncation_step_tokens if self.truncation == "cache_aware" else 1


def _check_template(parts: Sequence[PromptPart]) -> None:
    """Raise ValueError unless the parts are those of a conversation and only the history is truncated."""
    names = [part.name for part in parts]
    require(
        not parts or names == list(PART_NAMES),
        f"workload.conversations.template: the parts must be {', '.join(PART_NAMES)}, not {', '.join(names)}",
    )
    cut = [part.name for part in parts if part.truncation_priority]
    require(
        cut in ([], ["history"]) and bool(cut) == bool(parts),
        "workload.conversations.template: history must have truncation_priority=1 and the others 0",
    )


LEAST_BURSTINESS = 0.001
"""With a smaller shape most gaps are zero in floating point; this has gaps with cv 32."""
MOST_SESSIONS = 10_000_000
"""Most sessions: their numbers fit into the 32 bits of a row, and their set into a driver's memory."""


@dataclass(frozen=True, slots=True)
class Arrivals(Ruled):
    """The distribution of the gaps between requests at a given rate.

    `burstiness` is the shape of gamma gaps, as in vLLM's benchmark: their coefficient of variation
    is 1/sqrt(burstiness), so below 1 is burstier than Poisson. `vllm_bench` are the due times that
    `vllm bench serve` draws from the seed for a number of requests, with its `--burstiness`. `trace` takes
    the arrivals of `workload.trace`.
    """

    kind: Literal["poisson", "gamma", "constant", "vllm_bench", "trace"] = "poisson"
    burstiness: Annotated[float, Range(ge=LEAST_BURSTINESS)] = 1.0


@dataclass(frozen=True, slots=True)
class Workload(Ruled):
    """The requests: lengths of prompt and answer, the form of the prompt, and the arrivals.

    `trace` is the path of recorded requests (docs/traces.md): JSON lines in the Mooncake form, CSV in the
    Azure LLM trace form, or a folder of client records in the form of ServeGen. Its requests from
    `trace_from_s` on are used, for `trace_span_s` or to its end; `trace_seed` draws those of client
    records; a block hash stands for `trace_block_tokens` tokens. `prompt` sends token ids or text to the
    completions API, or a chat message. The share `prefix_hit` of a prompt's tokens is the same beginning
    in all prompts, which a prefix cache serves once it has seen it; the rest is unique. `sessions` above
    0 is the number of chat users, to whom requests belong with equal chance. The share `session_hit` of
    their tokens, which includes `prefix_hit`, is then the same beginning in all prompts of a session: the
    history, which its last replica may still have in its cache. `conversations` are chats with memory
    instead, with lengths and shared beginnings of their own. `tokenizer` is a model's folder with its
    tokenizer.json: prompts are then real text of as many of its tokens, else synthetic.
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

    @property
    def replays_prefixes(self) -> bool:
        """True if requests are a trace's lines in their order, which share what its block hashes say."""
        in_order = self.arrivals.kind == "trace" and self.input_tokens.kind == "empirical"
        return in_order and not (self.prefix_hit or self.sessions)

    @property
    def has_sessions(self) -> bool:
        """True if requests belong to sessions, by which a router can choose replicas."""
        return self.sessions > 0 or self.conversations is not None

    @property
    def wants_hits(self) -> bool:
        """True if prompts share beginnings, so that prefix caches need a warm-up."""
        return bool(self.prefix_hit or self.session_hit or self.conversations)

    @property
    def prompt_tokens(self) -> float:
        """Mean prompt tokens of a request, with those of its images."""
        return self.input_tokens.mean + self.images.mean_tokens
