"""Types of numbers with their ranges; `conf.typed` checks them where a file or a word gives the number."""

from typing import Annotated

from annotated_types import Ge, Gt, Lt

Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
BelowOne = Annotated[float, Ge(0), Lt(1)]
Share = Annotated[float, Gt(0), Lt(1)]
AtLeastOne = Annotated[int, Ge(1)]
Whole = Annotated[int, Ge(0)]
