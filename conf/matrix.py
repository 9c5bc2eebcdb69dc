"""Grids of experiments: words `matrix.KEY=[a,b]` become the lists of words of every combination."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from conf.io.bounded_yaml import read
from conf.io.check import ConfigError

PREFIX = "matrix."


@dataclass(frozen=True, slots=True)
class Matrix:
    """The words that all cells share, and the values of each axis in the given order."""

    shared: tuple[str, ...]
    axes: Mapping[str, tuple[Any, ...]]

    def cells(self) -> list[Mapping[str, object]]:
        """Every combination as `{key: value}`, the last axis innermost; one empty cell without axes."""
        return [
            dict(zip(self.axes, values, strict=True)) for values in itertools.product(*self.axes.values())
        ]

    def words(self, cell: Mapping[str, object]) -> list[str]:
        """The words of one cell's experiment."""
        return [*self.shared, *(f"{key}={_text(value)}" for key, value in cell.items())]


def matrix(words: Sequence[str]) -> Matrix:
    """The grid of `words`, in any order.

    Raises ConfigError for an axis that is no list of distinct values, or a key that is also set by a word.
    """
    axis_words = [word for word in words if word.startswith(PREFIX)]
    shared = tuple(word for word in words if not word.startswith(PREFIX))
    axes: dict[str, tuple[Any, ...]] = {}
    for word in axis_words:
        key, _, text = word.removeprefix(PREFIX).partition("=")
        if not key or key in axes:
            raise ConfigError(
                f"'{word}': name each key once, such as {PREFIX}layout=[dp1_tp8_ep8,dp2_tp4_ep4]"
            )
        axes[key] = _values(key, text)
    keys = {word.partition("=")[0] for word in shared}
    if both := [key for key in axes if key in keys]:
        raise ConfigError(f"{both[0]} is set by {PREFIX}{both[0]}; leave {both[0]}=... out")
    return Matrix(shared, axes)


def _values(key: str, text: str) -> tuple[Any, ...]:
    try:
        values = read(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{PREFIX}{key}: {text} is not a YAML list; write {PREFIX}{key}=[a,b]") from error
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{PREFIX}{key} needs a list of values: {PREFIX}{key}=[a,b]")
    if len({_text(value) for value in values}) < len(values):
        raise ConfigError(f"{PREFIX}{key}={text} has a value twice")
    return tuple(values)


def _text(value: Any) -> str:
    """The value as YAML; a plain text stays plain, because it may name a file of a group."""
    if isinstance(value, str) and read(value) == value:
        return value
    return json.dumps(value)
