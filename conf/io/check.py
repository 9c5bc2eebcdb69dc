"""Refusals of values: ranges of numbers, rules, and all errors of a file or a command line at once."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any


class ConfigError(ValueError):
    """The words or files do not make an experiment; each of `reasons` is a line with the remedy."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class Refusals:
    """Collects the reasons of many checks, so that a user sees all of them at once."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep the reasons of a ConfigError, or of another ValueError, instead of raising it."""
        try:
            yield
        except ConfigError as error:
            self.reasons += error.reasons
        except ValueError as error:
            self.reasons.append(str(error))

    def raise_if_any(self) -> None:
        """Raise a ConfigError of all reasons, each once."""
        if self.reasons:
            raise ConfigError(*dict.fromkeys(self.reasons))


def require(condition: bool, message: str) -> None:
    """Raise ValueError with a one-line message the user can act on."""
    if not condition:
        raise ValueError(message)


def require_mapping(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The mapping that `key` holds, empty for none or `null`. Raises ValueError for another value."""
    value = tree.get(key)
    require(value is None or isinstance(value, dict), f"{key}={value} is not a mapping of keys to values")
    return value or {}


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
