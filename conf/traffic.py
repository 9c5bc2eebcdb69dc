"""Specs of what is asked of a service: requests, how they arrive, and the bounds on their latencies."""

import math
from dataclasses import dataclass, field
from typing import Literal

from conf.check import require, require_positive

MOST_SESSIONS = 10_000_000
"""Their numbers fit into the 32 bits of a record, and the set of them into a driver's memory."""


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
    Every prompt begins with the same share `prefix_hit` of its tokens, in [0, 1), which a prefix cache
    serves once it has seen them; the rest is unique. `sessions` above 0 are so many chat users, from whom
    each request is drawn, all equally likely. Its prompt then begins with the share `session_hit` of its
    tokens (those of `prefix_hit` are part of it) that every prompt of its session begins with: they stand for
    the history, which the replica that served the session before may still have in its cache.
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

    def __post_init__(self) -> None:
        require(0 <= self.prefix_hit < 1, f"workload.prefix_hit={self.prefix_hit} must be in [0, 1)")
        self._check_sessions()
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


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds on the 90th percentile over requests: TTFT from the due time, TPOT per request."""

    name: str
    ttft_p90_ms: float
    tpot_p90_ms: float

    def __post_init__(self) -> None:
        require_positive("slo.", self, "ttft_p90_ms", "tpot_p90_ms")
