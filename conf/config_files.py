"""Reads the configuration files that a user may name: bounded, without interpolation, a mapping each."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from conf.io.bounded_yaml import bounded_text
from conf.io.bounded_yaml import read as read_yaml
from conf.io.one_line import reason
from conf.words import ConfigError, groups


def read(path: Path) -> dict[str, Any]:
    tree = _mapping(path, read_yaml)
    if "${" in str(tree):
        raise ConfigError(f"{path}: interpolation (${{...}}) is not supported")
    return tree


def read_json(path: Path) -> dict[str, Any]:
    return _mapping(path, json.loads)


def _mapping(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        tree = parse(bounded_text(path))
    except IsADirectoryError as error:
        inside = path / ("config.json" if parse is json.loads else "config.yaml")
        raise ConfigError(f"{path} is a folder; name a file, such as {inside}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} is not a mapping of keys to values")
    return tree


def read_saved(path: Path) -> dict[str, Any]:
    """The tree of a saved experiment, whose groups are mappings. Raises ConfigError."""
    tree = read(path)
    for key in ("run", "out"):
        if not isinstance(tree.get(key), str | None):
            raise ConfigError(f"{path}: {key} is no text; put it in quotes")
    for group in [*groups(), "target"]:
        if not isinstance(tree.get(group, {}), dict):
            raise ConfigError(f"{path}: {group} is not a mapping of keys to values")
    return tree
