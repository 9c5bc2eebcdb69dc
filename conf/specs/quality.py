"""The spec of the quality gate, which says if two configurations of one model answer alike."""

import math
from dataclasses import dataclass

from conf.io.check import require, require_positive
from conf.specs.search import MOST_QPS

MOST_PROMPTS, MOST_TOKENS = 10_000, 256
"""Bounds of the evidence, which is held in memory (our choice)."""
MOST_PROMPT_TOKENS = 8192
"""Answers are compared, not long prompts: a node's windows have those (our choice)."""
MOST_NATS = math.log(2)
"""Jensen-Shannon divergence of answers that share nothing."""
MOST_ALPHA = 0.2
"""A verdict that is wrong more often than once in five tells nothing (our choice)."""
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
    prompts: int = 768
    prompt_tokens: int = 256
    answer_tokens: int = 32
    margin_nats: float = 0.01
    margin_broken: float = 0.01
    broken_divergence: float = 0.2
    alpha: float = 0.025

    def __post_init__(self) -> None:
        self._check_within("prompts", MOST_PROMPTS)
        self._check_within("prompt_tokens", MOST_PROMPT_TOKENS)
        self._check_within("answer_tokens", MOST_TOKENS)
        require_positive("quality.", self, "margin_nats", "margin_broken", "broken_divergence", "alpha")
        self._check_below(MOST_NATS, "margin_nats", "broken_divergence")
        self._check_below(1.0, "margin_broken")
        require(self.alpha <= MOST_ALPHA, f"quality.alpha={self.alpha:g} must be at most {MOST_ALPHA:g}")
        rate = self.rate_qps
        require(
            self.load == IDLE or (rate is not None and 0 < rate <= MOST_QPS),
            f"quality.load={self.load} must be {IDLE} or a rate up to {MOST_QPS:g} QPS per node",
        )

    def _check_within(self, name: str, most: int) -> None:
        value = getattr(self, name)
        require(1 <= value <= most, f"quality.{name}={value} must be 1 to {most}")

    def _check_below(self, most: float, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            require(value < most, f"quality.{name}={value:g} must be below {most:.3g}, the most there can be")

    @property
    def rate_qps(self) -> float | None:
        """The rate that `load` is, per node; None if it is a word."""
        try:
            return float(self.load)
        except ValueError:
            return None
