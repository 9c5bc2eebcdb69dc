"""The grammar of the command line: words `key=value` that choose a file of a group or set a value."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from conf.io.nearest import hint, nearest

ROOT = Path(__file__).parent


class ConfigError(ValueError):
    """The words or files do not make an experiment; the message is one line with the remedy."""


@cache
def groups() -> Mapping[str, list[str]]:
    """Names of the choices of each group, sorted: the YAML files in its folder."""
    choices: dict[str, list[str]] = {}
    with os.scandir(ROOT) as entries:
        folders = sorted(entry.name for entry in entries if "a" <= entry.name[0] <= "z" and entry.is_dir())
    for folder in folders:
        with os.scandir(ROOT / folder) as entries:
            files = sorted(entry.name for entry in entries if entry.name.endswith(".yaml"))
        if files:
            choices[folder] = [name.removesuffix(".yaml") for name in files]
    return choices


def split_words(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Words that choose a file of a group, and words that set a value."""
    known = groups()
    choices: dict[str, str] = {}
    values: list[str] = []
    refuse_twice(words)
    for word in words:
        key, value = key_and_value(word)
        if key in known:
            choices[key] = value
        else:
            values.append(word)
    return choices, values


def refuse_twice(words: Sequence[str]) -> None:
    """Raise ConfigError for a key that is set twice, of which one word would be lost."""
    given: set[str] = set()
    for key in (key_and_value(word)[0] for word in words):
        if key in given:
            raise ConfigError(f"{key} is given twice; leave one of them out")
        given.add(key)
    for key in given - set(groups()):
        if inner := next((other for other in sorted(given) if other.startswith(f"{key}.")), ""):
            raise ConfigError(f"{key} and {inner} set the same; leave one of them out")


def key_and_value(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        choices = [f"{group}={word}" for group, names in groups().items() if word in names]
        raise ConfigError(f"'{word}' is not of the form key=value{hint(choices)}")
    if not value.strip():
        known = groups().get(key)
        such = f"choose from {', '.join(known)}" if known else f"{key}=null unsets what may be unset"
        raise ConfigError(f"{key} has no value; write {key}=VALUE; {such}")
    if "[" in key:
        raise ConfigError(f"{key}: set the whole list, {key.partition('[')[0]}=[...]")
    if "${" in value:
        raise ConfigError(f"{key}: interpolation (${{...}}) is not supported; write the value")
    return key, value


def group_file(group: str, choice: str) -> Path:
    known = groups()[group]
    if choice not in known:
        near = hint(nearest(choice, known))
        raise ConfigError(f"unknown choice '{group}={choice}'{near}; available: {', '.join(known)}")
    return ROOT / group / f"{choice}.yaml"
