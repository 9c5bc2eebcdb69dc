"""Reads the configuration files that a user may name: bounded, without interpolation, a mapping each.

The two that a key names, a checkpoint's config.json and a calibration, change a configuration's tree.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from conf import checkpoint, constants
from conf.io.bounded_yaml import bounded_text
from conf.io.bounded_yaml import read as read_yaml
from conf.io.check import ConfigError
from conf.io.one_line import reason
from conf.keys import overlaid, value_at
from conf.word_values import nested
from conf.words import groups

Tree = dict[str, Any]


def read(path: Path) -> Tree:
    tree = _mapping(path, read_yaml)
    if "${" in str(tree):
        raise ConfigError(f"{path}: interpolation (${{...}}) is not supported")
    return tree


def read_json(path: Path) -> Tree:
    return _mapping(path, json.loads)


def _mapping(path: Path, parse: Callable[[str], Any]) -> Tree:
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


def read_saved(path: Path, without_bounds: bool = False) -> Tree:
    """The tree of a saved experiment, whose groups are mappings. Raises ConfigError.

    `without_bounds` leaves out the bounds that a list of bounds is to replace.
    """
    tree = read(path)
    wrong = [group for group in [*groups(), "target"] if not isinstance(tree.get(group, {}), dict)]
    if wrong:
        raise ConfigError(*(f"{path}: {group} is not a mapping of keys to values" for group in wrong))
    if "slo" not in tree:
        return tree
    return tree | {"slo": nested(tree["slo"]) | ({"at_most_ms": {}} if without_bounds else {})}


def applied(tree: Tree, key: str) -> Tree:
    """The tree with the values of the file that `key` (one of NAMED_FILES) names. Raises ConfigError."""
    path = value_at(tree, key)
    named = NAMED_FILES[key]
    values = named.read(Path(str(path)))
    try:
        return named.apply(tree, values)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise ConfigError(f"{key}={path}: {reason(error)}") from error


def _with_checkpoint(tree: Tree, config: Tree) -> Tree:
    """The facts of a config.json; the constants of the chosen model stay, as those of a relative."""
    model, facts = tree["model"], checkpoint.facts(config)
    if bool(facts["experts"]) != bool(model["experts"]):
        kind = "a mixture of experts" if facts["experts"] else "dense"
        raise ValueError(
            f"is {kind}, unlike {model['name']}, whose constants it would have; choose another with "
            "model=NAME"
        )
    path = Path(model["config_json"])
    name = path.absolute().parent.name if path.name == "config.json" else path.stem.removesuffix("_config")
    peak = "FP8" if facts["weights"] == "fp8" else "BF16"
    step_time = {
        field: {"source": f"of {model['name']}: {constant['source']}"}
        for field, constant in model["step_time"].items()
    }
    for field in ("gemm_decode", "gemm_prefill"):
        step_time[field]["unit"] = f"share of {peak} peak"
    source = f"config.json of {name}"
    return overlaid(
        tree,
        {"model": {**facts, "name": name, "served_name": name, "source": source, "step_time": step_time}},
    )


def _with_calibration(tree: Tree, calibration: Tree) -> Tree:
    """The values of a calibration; the model's own fit no longer correlates its constants."""
    names = {group: tree[group]["name"] for group in ("model", "hardware")}
    units = {
        path: unit for path, unit in constants.units(tree).items() if not path.startswith(constants.KERNELS)
    }
    changed = overlaid(tree, constants.overlay(calibration, names, units))
    joint = constants.outside(value_at(tree, "model.posterior.correlations"), calibration["constants"])
    posterior = changed["model"]["posterior"] | {"correlations": joint}
    covariance = {"constants_covariance": calibration.get("covariance") or {}}
    return changed | {
        "model": changed["model"] | {"posterior": posterior},
        "engine": changed["engine"] | covariance,
    }


class NamedFile(NamedTuple):
    """How the file that a key names is read and applied; the choice of one of `groups` reads it anew."""

    groups: set[str]
    read: Callable[[Path], Tree]
    apply: Callable[[Tree, Tree], Tree]


NAMED_FILES = {
    "model.config_json": NamedFile({"model"}, read_json, _with_checkpoint),
    "engine.constants": NamedFile({"engine", "hardware", "model"}, read, _with_calibration),
}
"""Keys that name a file of further values."""
