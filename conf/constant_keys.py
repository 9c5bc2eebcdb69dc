"""Keys of the step-time constants in the configuration tree: their units, and the rules for setting them."""

from collections.abc import Iterable
from typing import Any

from conf.constants import KERNELS, TRANSFER
from conf.io.check import ConfigError
from conf.trees import Tree, value_at

GROUPS = ("model.step_time", "hardware.efficiency", KERNELS, TRANSFER)


def units(tree: Tree) -> dict[str, str]:
    """The unit of each constant in a configuration's tree, by config key."""
    return {
        f"{group}.{name}": entry["unit"]
        for group in GROUPS
        if isinstance(entries := value_at(tree, group), dict)
        for name, entry in entries.items()
        if isinstance(entry, dict) and "unit" in entry
    }


def exact(tree: Tree, key: str) -> dict[str, Any]:
    """Changes that make a constant exact whose value a word sets: the old evidence is not about it."""
    path, _, field = key.rpartition(".")
    if field != "value" or path not in units(tree):
        return {}
    outer, inner, name = path.split(".")
    return {outer: {inner: {name: {"low": None, "high": None, "source": f"given as {key}"}}}}


def check_key(key: str) -> None:
    """Raise ConfigError for a key that would replace a constant, change its unit or set a covariance."""
    parts = key.split(".")
    if ".".join(parts[:2]) in GROUPS and (len(parts) < 4 or parts[3] == "unit"):
        raise ConfigError(
            f"{key} cannot be set: of a constant only value, low, high and source can, each in its unit, as "
            "in model.step_time.layer_us.value=100"
        )
    if key.partition(".")[2].startswith("constants_covariance"):
        raise ConfigError(f"{key} belongs to a calibration; name its file: engine.constants=FILE")


def check_kernels(tree: Tree, keys: Iterable[str]) -> None:
    """Raise ConfigError for a key of other kernels on an engine that has the kernels of the fit."""
    own = next((key for key in keys if key.startswith(KERNELS)), "")
    if own and not value_at(tree, KERNELS):
        raise ConfigError(
            f"{own}: this engine has the kernels of the fit; choose others with engine=simulated_triton or "
            "engine.attention_backend=NAME"
        )
