"""Values of words: `slo.ttft_p90_ms=1500` becomes a tree of plain values that a configuration takes."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf

from conf import constants
from conf.io.bounded_yaml import refuse_large
from conf.io.check import ConfigError, Refusals
from conf.keys import Fields, bare, fields_of, type_of
from conf.specs.engine import ENGINES
from conf.specs.lengths import Lengths
from conf.trees import value_at
from conf.typed import fits, unknown
from conf.words import key_and_value

FIXED = asdict(Lengths(1))
"""Every field of a fixed length; a word changes its mean."""


class Word(NamedTuple):
    """The dotted key that a word sets, and the word as a tree."""

    key: str
    tree: dict[str, Any]


def parsed(root: Fields, words: Sequence[str], refusals: Refusals) -> list[Word]:
    """The words whose keys can be set; `root` has the types of all keys."""
    settings: list[Word] = []
    for word in words:
        with refusals.collected():
            key, _ = key_and_value(word)
            tree = _tree(root, key, word)
            _check_key(root, key, value_at(tree, key))
            constants.check_key(key)
            settings.append(Word(key, tree))
    return settings


def of_keys(words: Iterable[Word], keys: Iterable[str]) -> list[Word]:
    """The words that set one of these keys."""
    wanted = set(keys)
    return [word for word in words if word.key in wanted]


def _tree(root: Fields, key: str, word: str) -> dict[str, Any]:
    """The word as a tree; a text stays as it was typed, so that a run named 007 is no number."""
    kind = bare(type_of(root, key)).kind
    tree = _parse(word)
    value = value_at(tree, key)
    if kind is str and not isinstance(value, str | list | dict | None):
        return _nested(key, word.partition("=")[2])
    if kind in (int, float) and isinstance(value, str):
        with suppress(ValueError):  # YAML takes -.5, 08 and nan for texts
            return _nested(key, kind(value))
    if kind is Lengths and isinstance(value, int) and not isinstance(value, bool):
        return _nested(key, {**FIXED, "mean": value})  # whatever the distribution was before
    return tree


@lru_cache(maxsize=4096)
def _parse(word: str) -> dict[str, Any]:
    """The word as OmegaConf reads it. The tree is shared: nobody changes it."""
    key, _, text = word.partition("=")
    try:
        refuse_large(text)
        tree = OmegaConf.to_container(OmegaConf.from_dotlist([word]))
    except (yaml.YAMLError, ValueError) as error:
        # The error as a whole would show the value, which may hold a secret.
        reason = getattr(error, "problem", None) or "not a text YAML allows"
        raise ConfigError(
            f"{key}: the value is not YAML ({reason}); put text with brackets or colons in quotes"
        ) from error
    assert isinstance(tree, dict)
    return tree  # type: ignore[return-value]


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def _check_key(root: Fields, key: str, value: Any) -> None:
    """Raise ConfigError for a dotted key that does not exist, with the nearest that does."""
    if not (why := unknown(root, key, fits, value)):
        return
    name = key.partition(".")[2].partition(".")[0]
    homes = [kind for kind, spec in ENGINES.items() if name in (fields_of(spec) or {})]
    if key.startswith("engine.") and homes:
        raise ConfigError(f"engine.{name} belongs to engine={' or '.join(homes)}; leave it out")
    raise ConfigError(why)
