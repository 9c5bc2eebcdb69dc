"""The spec of the quality gate, which says if two configurations of one model answer alike."""

import math
from dataclasses import dataclass
from typing import Annotated

from conf.io.check import require
from conf.specs.ranges import Range, Share
from conf.specs.search import MOST_QPS

MOST_PROMPTS, MOST_TOKENS = 10_000, 256
"""Bounds of the evidence, which is held in memory (our choice)."""
MOST_PROMPT_TOKENS = 8192
"""Answers are compared, not long prompts: a node's windows have those (our choice)."""
MOST_NATS = math.log(2)
"""Jensen-Shannon divergence of answers that share nothing."""
MOST_ALPHA = 0.2
"""A verdict may be wrong at most once in five (our choice)."""
IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Quality:
    """The margins within which answers are the same (our choice), and the prompts that show it.

    `load` is what the service carries meanwhile: nothing else (`idle`), or a rate in QPS per node. At most
    `prompts` of `prompt_tokens` are answered with `answer_tokens` each. `margin_nats` bounds the mean
    Jensen-Shannon divergence from A beyond that of A's own repeat, in nats per token. `margin_broken` bounds
    the share of broken prompts beyond the repeat's, where one position diverges by more than
    `broken_divergence` nats. `alpha` is the most that the chance of each wrong verdict may be.
    """

    name: str = "default"
    load: str = IDLE
    prompts: Annotated[int, Range(ge=1, le=MOST_PROMPTS)] = 768
    prompt_tokens: Annotated[int, Range(ge=1, le=MOST_PROMPT_TOKENS)] = 256
    answer_tokens: Annotated[int, Range(ge=1, le=MOST_TOKENS)] = 32
    margin_nats: Annotated[float, Range(gt=0, lt=MOST_NATS)] = 0.01
    margin_broken: Share = 0.01
    broken_divergence: Annotated[float, Range(gt=0, lt=MOST_NATS)] = 0.2
    alpha: Annotated[float, Range(gt=0, le=MOST_ALPHA)] = 0.025

    def __post_init__(self) -> None:
        rate = self.rate_qps
        require(
            self.load == IDLE or (rate is not None and 0 < rate <= MOST_QPS),
            f"quality.load={self.load} must be {IDLE} or a rate up to {MOST_QPS:g} QPS per node",
        )

    @property
    def rate_qps(self) -> float | None:
        """The rate that `load` is, per node; None if it is a word."""
        try:
            return float(self.load)
        except ValueError:
            return None
