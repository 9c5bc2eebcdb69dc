"""The grammar of the command line: words `key=value` that choose a file of a group or set a value."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from conf.io.check import ConfigError, Refusals
from conf.io.one_line import hint, nearest

ROOT = Path(__file__).parent


@cache
def groups() -> Mapping[str, list[str]]:
    """Names of the choices of each group, sorted: the YAML files in its folder."""
    choices: dict[str, list[str]] = {}
    for file in sorted(ROOT.glob("[a-z]*/*.yaml")):
        choices.setdefault(file.parent.name, []).append(file.stem)
    return choices


def split_words(words: Sequence[str], refusals: Refusals) -> tuple[dict[str, str], dict[str, str]]:
    """The files of groups that words choose, and the texts of the keys that they set.

    Keys that are set twice, of which one word would be lost, are refused.
    """
    keys = [word.partition("=")[0] for word in words]
    twice = [
        f"{key} is given twice; leave one of them out" for key in dict.fromkeys(keys) if keys.count(key) > 1
    ]
    for key in sorted(set(keys) - set(groups())):
        inner = next((other for other in sorted(set(keys)) if other.startswith(f"{key}.")), "")
        twice += [f"{key} and {inner} set the same; leave one of them out"] * bool(inner)
    refusals.reasons += twice
    texts: dict[str, str] = {}
    for word in words:
        with refusals.collected():
            key, text = key_and_value(word)
            texts[key] = text
    choices = {key: text for key, text in texts.items() if key in groups()}
    return choices, {key: text for key, text in texts.items() if key not in choices}


def key_and_value(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        choices = [f"{group}={word}" for group, names in groups().items() if word in names]
        raise ConfigError(f"'{word}' is not of the form key=value{hint(choices)}")
    if not value.strip():
        files = groups().get(key)
        such = f"choose from {', '.join(files)}" if files else f"{key}=null unsets what may be unset"
        raise ConfigError(f"{key} has no value; write {key}=VALUE; {such}")
    if "[" in key:
        raise ConfigError(f"{key}: set the whole list, {key.partition('[')[0]}=[...]")
    if "${" in value:
        raise ConfigError(f"{key}: interpolation (${{...}}) is not supported; write the value")
    return key, value


def group_file(group: str, choice: str) -> Path:
    choices = groups()[group]
    if choice not in choices:
        near = hint(nearest(choice, choices))
        raise ConfigError(f"unknown choice '{group}={choice}'{near}; available: {', '.join(choices)}")
    return ROOT / group / f"{choice}.yaml"
