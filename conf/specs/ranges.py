"""Types of numbers with their ranges; `conf.typed` checks them where a file or a word gives the number."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any


@dataclass(frozen=True, slots=True)
class Range:
    """Annotation of a number: above, at least, below and at most, as pydantic names them."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), **{name: end for name, end in asdict(self).items() if end is not None}}


Positive = Annotated[float, Range(gt=0)]
NotNegative = Annotated[float, Range(ge=0)]
BelowOne = Annotated[float, Range(ge=0, lt=1)]
Share = Annotated[float, Range(gt=0, lt=1)]
AtLeastOne = Annotated[int, Range(ge=1)]
Whole = Annotated[int, Range(ge=0)]
