"""Specs of what a request holds: token counts and images."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from conf.io.check import AtLeastOne, NotNegative, Range, Whole, require
from conf.specs.rules import Ruled, check_rules

ROUNDED_SHARES = 1e-3
"""Largest distance of a mixture's sum of shares from 1, such as of thirds with three digits (our choice)."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts.

    `cv` is the coefficient of variation of `lognormal`; `uniform` lies within mean * (1 -+ spread),
    as vLLM's random range ratio; `mixture` are `values` with the shares `weights`, which give it its mean;
    `empirical` are the lengths of `workload.trace`, `conversation` those of `workload.conversations`: their
    mean is 0 until it is read or computed.
    """

    mean: Whole = 0
    kind: Literal["fixed", "lognormal", "uniform", "mixture", "empirical", "conversation"] = "fixed"
    cv: NotNegative = 0.0
    spread: Annotated[float, Range(ge=0, le=1)] = 0.0
    values: list[AtLeastOne] = field(default_factory=list)
    weights: list[Annotated[float, Range(gt=0, le=1)]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.kind == "mixture":
            self._check_mixture()
            mean = sum(value * share for value, share in zip(self.values, self.weights, strict=True))
            object.__setattr__(self, "mean", round(mean))
        check_rules(self)

    def _check_mixture(self) -> None:
        require(
            0 < len(self.values) == len(self.weights),
            f"kind=mixture has {len(self.values)} values and {len(self.weights)} weights; give "
            "each value one, as in values=[2,200] weights=[.75,.25]",
        )
        require(
            abs(sum(self.weights) - 1) <= ROUNDED_SHARES,
            f"weights are shares of the requests and sum to {sum(self.weights):g}; make that 1",
        )


MOST_IMAGES = 5
"""Most images of a request, as in the MI325X paper's vision workloads; no figure was published for more."""
MOST_PX = 8192
_Count = Annotated[int, Range(ge=0, le=MOST_IMAGES)]
_Side = Annotated[int, Range(ge=1, le=MOST_PX)]


@dataclass(frozen=True, slots=True)
class Images(Ruled):
    """Synthetic images in the user message of every request; none by default.

    Each request has `least` to `most`, all counts equally likely, of `width_px` x `height_px`. With
    `unique` no two requests of a run share an image; otherwise all send the same, which a server caches.
    `tokens` are the prompt tokens of one image, 0 until known from the model, beside
    `workload.input_tokens`, which are text.
    """

    least: _Count = 0
    most: _Count = 0
    width_px: _Side = 1024
    height_px: _Side = 1024
    unique: bool = True
    tokens: Whole = 0

    @property
    def mean_tokens(self) -> float:
        """Mean image tokens of a request."""
        return (self.least + self.most) / 2 * self.tokens


def tokens_of(width_px: int, height_px: int, token_px: int) -> int:
    """Prompt tokens of one image: squares of `token_px` pixels a side that cover it.

    Patches of 16 (Qwen3-VL) or 14 pixels (Kimi), merged two by two, make 1024 and 1369 tokens of 1024 x 1024
    pixels: with some 115 tokens of text and template, the 1141 and 1483 of the MI325X paper. That processors
    round sizes to whole squares and shrink large images is not modelled.
    """
    return -(-width_px // token_px) * -(-height_px // token_px)
