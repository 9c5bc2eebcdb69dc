"""Reads the configuration files that a user may name: bounded, without interpolation, a mapping each.

The two that a key names, a checkpoint's config.json and a calibration, become changes of the tree.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf, read_write

from conf import checkpoint, constant_keys, constants
from conf.io.bounded_yaml import bounded_text
from conf.io.bounded_yaml import read as read_yaml
from conf.io.one_line import reason
from conf.words import ConfigError, groups

_Read = Callable[[Path], dict[str, Any]]
_Changes = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""A function from the tree so far and that of a named file to the changes of the file."""


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


def changes(node: Any, key: str) -> dict[str, Any]:
    """Changes of `node` by the file that `key` (one of NAMED_FILES) names. Raises ConfigError."""
    path = OmegaConf.select(node, key)
    _, read, changed = NAMED_FILES[key]
    tree = read(Path(path))
    try:
        return changed(node, tree)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise ConfigError(f"{key}={path}: {reason(error)}") from error


def _checkpoint(node: Any, tree: dict[str, Any]) -> dict[str, Any]:
    """The facts of a config.json; the constants of the chosen model stay, as those of a relative."""
    model, facts = node.model, checkpoint.facts(tree)
    if bool(facts["experts"]) != bool(model.experts):
        kind = "a mixture of experts" if facts["experts"] else "dense"
        raise ValueError(
            f"is {kind}, unlike {model.name}, whose constants it would have; choose another with model=NAME"
        )
    path = Path(model.config_json)
    name = path.absolute().parent.name if path.name == "config.json" else path.stem.removesuffix("_config")
    peak = "FP8" if facts["weights"] == "fp8" else "BF16"
    step_time = {field: {"source": f"of {model.name}: {of.source}"} for field, of in model.step_time.items()}
    for field in ("gemm_decode", "gemm_prefill"):
        step_time[field]["unit"] = f"share of {peak} peak"
    source = f"config.json of {name}"
    return {"model": {**facts, "name": name, "served_name": name, "source": source, "step_time": step_time}}


def _calibration(node: Any, tree: dict[str, Any]) -> dict[str, Any]:
    """The values of a calibration; the model's own fit no longer correlates its constants."""
    names = {group: node[group].name for group in ("model", "hardware")}
    units = {
        path: unit
        for path, unit in constant_keys.units(node).items()
        if not path.startswith(constants.KERNELS)
    }
    changed = constants.overlay(tree, names, units)
    fit = node.model.posterior
    joint = cast(dict[str, list[float]], OmegaConf.to_container(fit.correlations))
    with read_write(fit):  # a merge would leave the rows that are to go
        fit.correlations = constants.outside(joint, tree["constants"])
    return changed


NAMED_FILES: dict[str, tuple[set[str], _Read, _Changes]] = {
    "model.config_json": ({"model"}, read_json, _checkpoint),
    "engine.constants": ({"engine", "hardware", "model"}, read, _calibration),
}
"""Keys that name a file of further values, with the groups whose choice makes it read anew."""
