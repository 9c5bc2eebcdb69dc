"""Files that a key names, a checkpoint's config.json or a calibration, as changes of the tree."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf, read_write

from conf import checkpoint, config_files, constant_keys, constants
from conf.io.one_line import reason
from conf.words import ConfigError

_Read = Callable[[Path], dict[str, Any]]
_Changes = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""From the tree so far and that of a named file to the changes of the file."""


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
    "model.config_json": ({"model"}, config_files.read_json, _checkpoint),
    "engine.constants": ({"engine", "hardware", "model"}, config_files.read, _calibration),
}
"""Keys that name a file of further values, with the groups whose choice makes it read anew."""
