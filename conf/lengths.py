"""The spec of a distribution of token counts."""

import math
from dataclasses import dataclass
from typing import Literal

from conf.check import require


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts.

    `cv` is the coefficient of variation of `lognormal`; `uniform` lies within mean * (1 -+ spread),
    as vLLM's random range ratio; `empirical` are the lengths of `workload.trace`, `conversation` those that
    `workload.conversations` come to: their mean is 0 until that has been read or worked out.
    """

    mean: int = 0
    kind: Literal["fixed", "lognormal", "uniform", "empirical", "conversation"] = "fixed"
    cv: float = 0.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        least = 0 if self.kind in ("empirical", "conversation") else 1
        require(self.mean >= least, f"workload: mean={self.mean} tokens must be at least {least}")
        require(0 <= self.cv < math.inf, f"workload: cv={self.cv} must be finite and not negative")
        require(self.kind != "lognormal" or self.cv > 0, "workload: kind=lognormal needs cv > 0")
        require(self.kind == "lognormal" or self.cv == 0, f"workload: kind={self.kind} has no cv")
        require(0 <= self.spread <= 1, f"workload: spread={self.spread} must be between 0 and 1")
        require(self.kind != "uniform" or self.spread > 0, "workload: kind=uniform needs spread > 0")
        require(self.kind == "uniform" or self.spread == 0, f"workload: kind={self.kind} has no spread")
