"""The constants of the step-time model by their config keys, with their uncertainty; draws nothing itself.

A constant is lognormal around its value with an sd of its own to each side (`Constant.ln_sd`), or exact. A
calibration adds a covariance of the logarithms, and the model and hardware that it was made for. The fit
behind a model's own constants (`Posterior`) adds correlations; outside of what it had, a transfer widens a
constant (`kernels.yaml`).
"""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.io.check import ConfigError, require
from conf.kernels import TABLE, listed, other_release
from conf.keys import Tree, unflattened, value_at
from conf.specs.experiment import (
    Constant,
    Experiment,
    Hardware,
    Model,
    SimulatedEngine,
)
from conf.specs.model import Z95

KERNELS = "engine.kernel_ratio"
"""Constants of an engine's kernels, which no calibration holds: it is of a model on a hardware."""
TRANSFER = "layout.transfer"
"""Constants of a split layout's transfers, which no calibration holds either."""
GROUPS = ("model.step_time", "hardware.efficiency", KERNELS, TRANSFER)
_MADE_FOR = ("model", "hardware")
_NO_INTERVAL = {"low": None, "high": None}
ROUNDING = 1e-12
"""Rounding error by which an eigenvalue of a written covariance may lie below zero."""
ROUNDED = 0.01
"""The same for correlations, which are written in two or three digits (our choice)."""


@dataclass(frozen=True, slots=True)
class Covariance:
    """Covariance of ln values: `rows[i][j]` belongs to `paths[i]` and `paths[j]`."""

    paths: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]


def constants(experiment: Experiment) -> dict[str, Constant]:
    """Every constant of the step time by its config key, such as `model.step_time.layer_us`.

    Constants of an engine's kernels are included if it has other kernels than the fit, and those of a
    transfer if the layout is split.
    """
    engine, by_key = experiment.engine, dict[str, Constant]()
    absent = {KERNELS: not getattr(engine, "kernel_ratio", None), TRANSFER: not experiment.layout.prefill}
    for group in (group for group in GROUPS if not absent.get(group)):
        outer, inner = group.split(".")
        spec = getattr(getattr(experiment, outer), inner)
        by_key |= {f"{group}.{field.name}": getattr(spec, field.name) for field in fields(spec)}
    if not getattr(engine, "constants", ""):
        for transfer in (each for each in transfers(experiment) if each.path):
            by_key[transfer.path] = widened(by_key[transfer.path], transfer)
    return by_key


def fingerprint(model: Model, hardware: Hardware) -> str:
    """Twelve hexadecimal digits that change with any constant: the label of results computed with them."""
    entries = {"model": asdict(model.step_time), "hardware": asdict(hardware.efficiency)}
    values = {
        f"{spec}.{name}": constant["value"]
        for spec, constants in entries.items()
        for name, constant in constants.items()
    }
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def replaced(experiment: Experiment, values: Mapping[str, float]) -> Experiment:
    """`experiment` with other values of its constants, which become exact, as in one draw of many.

    A share above 1, which a wide interval may draw, becomes 1. Raises ValueError for a key that is no
    constant, and for a value that is negative or not finite.
    """
    before = constants(experiment)
    for path in values:
        require(path in before, f"'{path}' is no constant of the step time; there are {', '.join(before)}")
    exact: dict[str, dict[str, Constant]] = {}
    for path, value in values.items():
        group, _, name = path.rpartition(".")
        constant = replace(before[path], value=bounded(before[path], value), low=None, high=None)
        exact.setdefault(group, {})[name] = constant
    specs: dict[str, Any] = {}
    for group, constants_of in exact.items():
        outer, inner = group.split(".")
        spec = getattr(experiment, outer)
        specs[outer] = replace(spec, **{inner: replace(getattr(spec, inner), **constants_of)})
    return replace(experiment, **specs)


def bounded(constant: Constant, value: float) -> float:
    """`value` within the constant's range: at most 1 for a share, at least `constant.least`."""
    return min(value, 1.0) if constant.is_share else max(value, constant.least)


def covariance(experiment: Experiment) -> Covariance | None:
    """Covariance of the uncertain constants in the calibration of `engine.constants`, or None."""
    engine = experiment.engine
    if not isinstance(engine, SimulatedEngine):
        return None
    all_constants = constants(experiment)
    exact = [path for path in engine.constants_covariance if all_constants[path].low is None]
    return _covariance(_without(engine.constants_covariance, exact))


def correlation(experiment: Experiment) -> Covariance | None:
    """Correlations of the normals behind the fitted constants of the model, or None without a fit.

    Constants of the hardware are left out on other hardware than that of the fit. A constant that was made
    exact stays in: the others are drawn as if it were uncertain.
    """
    fit = experiment.model.posterior
    here = experiment.hardware.name in fit.hardware
    elsewhere = [path for path in fit.correlations if path.startswith("hardware.") and not here]
    return _covariance(_without(fit.correlations, elsewhere))


def _covariance(table: Mapping[str, list[float]]) -> Covariance | None:
    return Covariance(tuple(table), tuple(map(tuple, table.values()))) if table else None


def _without(table: Mapping[str, list[float]], paths: Collection[str]) -> dict[str, list[float]]:
    """A square table without the rows and columns of these keys."""
    kept = [(at, path) for at, path in enumerate(table) if path not in paths]
    return {path: [table[path][at] for at, _ in kept] for _, path in kept}


def outside(correlations: Mapping[str, list[float]], covered: Collection[str]) -> dict[str, list[float]]:
    """The rows of a square table without the `covered` keys, of which another fit is better evidence.

    A table that is not square is returned unchanged, and refused later.
    """
    square = all(len(row) == len(correlations) for row in correlations.values())
    return _without(correlations, covered if square else ())


def check_correlations(experiment: Experiment) -> None:
    """Raise ValueError with one line unless the correlations of the model's fit are valid."""
    name, rows = "model.posterior.correlations", experiment.model.posterior.correlations
    unknown = sorted(set(rows) - set(constants(experiment)))
    require(not unknown, f"{name}: '{unknown[0] if unknown else ''}' is no constant of the step time")
    cells = _checked(rows, name, ROUNDED)
    ones = bool(np.allclose(np.diag(cells), 1.0, rtol=0.0, atol=1e-9))
    require(ones, f"{name}: every constant must have 1 with itself")


def calibration(
    experiment: Experiment, fitted: Mapping[str, Constant], known: Covariance | None = None
) -> dict[str, Any]:
    """The tree of a file for `engine.constants=FILE`: `fitted` by config key, for the model and hardware."""
    rows = dict(zip(known.paths, map(list, known.rows), strict=True)) if known else {}
    made_for = {group: getattr(experiment, group).name for group in _MADE_FOR}
    tree = {**made_for, "constants": {path: asdict(constant) for path, constant in fitted.items()}}
    return {**tree, "covariance": rows} if rows else tree


def overlay(tree: Mapping[str, Any], names: Mapping[str, str], units: Mapping[str, str]) -> dict[str, Any]:
    """Changes of an experiment's tree by a calibration's tree.

    `names` are the chosen model and hardware, which must match those of the calibration if it states any;
    `units` are the units of the constants by config key. Raises ValueError with one line.
    """
    unknown = sorted(set(tree) - {*_MADE_FOR, "constants", "covariance"})
    require(not unknown, f"unknown key '{unknown[0] if unknown else ''}'; a calibration has constants")
    for group in _MADE_FOR:
        made_for = tree.get(group, names[group])
        require(made_for == names[group], f"was calibrated for {group} {made_for}, not {names[group]}")
    entries = tree.get("constants")
    require(isinstance(entries, dict) and bool(entries), "has no constants: a mapping of keys to values")
    for path in entries or ():
        require(path in units, f"'{path}' is no constant of the step time; there are {', '.join(units)}")
    changes = {path: _entry(path, entry, units[path]) for path, entry in dict(entries or {}).items()}
    rows = tree.get("covariance") or {}
    ranged = {path for path, entry in changes.items() if entry["low"] is not None}
    fits = isinstance(rows, dict) and set(rows) <= ranged
    require(fits, "covariance must be of its constants that have an interval")
    _checked(rows, "covariance", ROUNDING)
    return unflattened(changes)


def _entry(path: str, entry: Any, unit: str) -> dict[str, Any]:
    """One constant of a file, without the interval of the constant that it replaces."""
    allowed = {field.name for field in fields(Constant)}
    fits = isinstance(entry, dict) and {"value", "source"} <= set(entry) <= allowed
    require(fits, f"{path} needs value and source; unit, low and high are optional")
    stated_unit = entry.get("unit", unit)
    require(stated_unit == unit, f"{path} is in '{stated_unit}', but this model's is in '{unit}'")
    return {**_NO_INTERVAL, **entry}


def _checked(rows: Mapping[str, Any], name: str, rounding: float) -> NDArray[np.float64]:
    """The numbers of `rows`, a symmetric table without an eigenvalue below zero. Raises ValueError."""
    table = list(rows.values())
    square = all(isinstance(row, list) and len(row) == len(table) for row in table)
    require(square, f"{name} needs a row of as many numbers as it has keys for each key")
    finite = all(isinstance(cell, int | float) and math.isfinite(cell) for row in table for cell in row)
    require(finite, f"{name} must be finite numbers")
    cells = np.array(table, dtype=float).reshape(len(table), len(table))
    require(bool(np.allclose(cells, cells.T, rtol=1e-6, atol=1e-12)), f"{name} is not symmetric")
    least = min(np.linalg.eigvalsh(cells), default=0.0)
    require(least >= -rounding, f"{name} cannot be: it has the eigenvalue {least:.3g}")
    return cells


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
    return unflattened({path: {**_NO_INTERVAL, "source": f"given as {key}"}})


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


BEGINS = "assumed outside of the fit: "
"""Begins the source of a constant that a transfer widens."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Something outside of the evidence as text, and the constant that it widens by `ln_sd`.

    No `path` for an engine release, whose `KernelRatio` has its spread.
    """

    text: str
    path: str
    ln_sd: float


def transfers(experiment: Experiment) -> list[Transfer]:
    """What the fit behind the model's constants did not have; empty for a model without a fit."""
    model, fit = experiment.model, experiment.model.posterior
    if not fit.model:
        return []
    engine = experiment.engine
    release = other_release(engine, model) if isinstance(engine, SimulatedEngine) else ""
    kinds = ", ".join(kind for kind in experiment.layout.engine_kinds if kind not in fit.layouts)
    cases = {
        "model": (model.name, [fit.model]),
        "GPU": (experiment.hardware.name, fit.hardware),
        "engine": ("" if listed(release, fit.releases) else release, fit.engines),
        "weights": (model.weights, [fit.weights]),
        "KV cache": (model.kv_cache, [fit.kv_cache]),
        "layout": (kinds, fit.layouts),
    }
    return [
        Transfer(f"{what} {here} (fitted: {', '.join(fitted)})", **TABLE["transfers"][what])
        for what, (here, fitted) in cases.items()
        if here and here not in fitted
    ]


def widened(constant: Constant, beyond: Transfer) -> Constant:
    """The constant with the spread of a transfer beside its own; unchanged if it is exact."""
    if constant.low is None:
        return constant
    below, above = (math.exp(Z95 * math.hypot(sd, beyond.ln_sd)) for sd in constant.ln_sd)
    before = f"{constant.source}; " if constant.source.startswith(BEGINS) else ""
    source = f"{before or BEGINS}{beyond.text}"
    return replace(constant, low=constant.value / below, high=constant.value * above, source=source)
