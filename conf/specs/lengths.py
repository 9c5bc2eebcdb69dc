"""The spec of a distribution of token counts."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from conf.io.check import require
from conf.specs.ranges import AtLeastOne, NotNegative, Range

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

    mean: int = 0
    kind: Literal["fixed", "lognormal", "uniform", "mixture", "empirical", "conversation"] = "fixed"
    cv: NotNegative = 0.0
    spread: Annotated[float, Range(ge=0, le=1)] = 0.0
    values: list[AtLeastOne] = field(default_factory=list)
    weights: list[Annotated[float, Range(gt=0, le=1)]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._check_mixture()
        if self.kind == "mixture":
            mean = sum(value * share for value, share in zip(self.values, self.weights, strict=True))
            object.__setattr__(self, "mean", round(mean))
        least = 0 if self.kind in ("empirical", "conversation") else 1
        require(self.mean >= least, f"mean={self.mean} tokens must be at least {least}")
        require(self.kind != "lognormal" or self.cv > 0, "kind=lognormal needs cv > 0")
        require(self.kind == "lognormal" or self.cv == 0, f"kind={self.kind} has no cv")
        require(self.kind != "uniform" or self.spread > 0, "kind=uniform needs spread > 0")
        require(self.kind == "uniform" or self.spread == 0, f"kind={self.kind} has no spread")

    def _check_mixture(self) -> None:
        parts = {"values": self.values, "weights": self.weights}
        if self.kind != "mixture":
            idle = next((name for name, numbers in parts.items() if numbers), "")
            require(not idle, f"kind={self.kind} has no {idle}; kind=mixture has them")
            return
        require(
            0 < len(self.values) == len(self.weights),
            f"kind=mixture has {len(self.values)} values and {len(self.weights)} weights; give "
            "each value one, as in values=[2,200] weights=[.75,.25]",
        )
        require(
            abs(sum(self.weights) - 1) <= ROUNDED_SHARES,
            f"weights are shares of the requests and sum to {sum(self.weights):g}; make that 1",
        )
