"""Draws of the engine model's constants: joint, stratified, and equal wherever a constant is the same.

A draw is one column of standard normals for each constant, whose owner decides what two experiments share.
`deployment_scale` has no owner: every cell of a grid draws it alike. A constant of the step time belongs to
its model, one of the accelerator to that or to all hardware of its fit. Each layout draws its own
`layout_scale`. The constants of transfers are the same for all split layouts."""

import math
import zlib
from dataclasses import fields
from functools import cache
from statistics import NormalDist

import numpy as np

from conf.constants import KERNELS, TRANSFER, Covariance, constants, correlation, covariance
from conf.specs.experiment import Constant, Efficiency, Experiment, Layout, StepTime, TransferTime
from loadgen.traffic.schedule import Floats

SEED = 0
"""Draws of constants are no part of the traffic: experiment.seed does not change them."""
NORMAL = NormalDist()
MODEL, HARDWARE = "model.step_time.", "hardware.efficiency."
DEPLOYMENT_SCALE, LAYOUT_SCALE = f"{MODEL}deployment_scale", f"{MODEL}layout_scale"
LAYOUTS = tuple(f"TP{gpus}{experts}" for gpus in (1, 2, 4, 8) for experts in ("", f"/EP{gpus}"))
"""Layouts whose draws are orthogonal to each other; those of other layouts are merely independent."""
LEAST_ORTHOGONAL, MOST_ORTHOGONAL = 40, 200
"""Numbers of draws that are made orthogonal. Fewer have too few dimensions for the constants of a model and
its hardware; more need no help against chance, which correlates 2000 by .02."""
HARDWARE_PART = 4
"""One dimension in four is for hardware constants: there are four, and another hardware's may differ."""
TURNS = 4
"""Rounds of ranking and orthogonalising; more hardly lower the correlations of 48 draws (tried)."""


def drawn(experiment: Experiment, count: int) -> list[dict[str, float]]:
    """`count` sets of values of the uncertain constants, by config key: a Latin hypercube.

    Constants of the model's fit are correlated as the fit says, those of a calibration as it says, all others
    by less than .1 (for 40 to 200 draws, or thousands).
    """
    unsure = uncertain(experiment)
    paths = {
        **dict.fromkeys(f"{MODEL}{field.name}" for field in fields(StepTime)),
        **dict.fromkeys(f"{HARDWARE}{field.name}" for field in fields(Efficiency)),
        **unsure,
    }
    normal = _together(correlation(experiment), {path: _column(experiment, path, count) for path in paths})
    # A split normal with the constant's two standard deviations.
    ln = {
        path: np.where(normal[path] < 0, *constant.ln_sd) * normal[path] for path, constant in unsure.items()
    }
    fit = covariance(experiment)
    if fit:
        together = _root(np.array(fit.rows)) @ np.array([normal[path] for path in fit.paths])
        ln |= dict(zip(fit.paths, together, strict=True))
    return [
        {path: constant.value * math.exp(ln[path][draw]) for path, constant in unsure.items()}
        for draw in range(count if unsure else 0)
    ]


def uncertain(experiment: Experiment) -> dict[str, Constant]:
    """The constants that have an interval, by config key."""
    return {path: constant for path, constant in constants(experiment).items() if any(constant.ln_sd)}


def layout_name(layout: Layout) -> str:
    """Name of the layouts that share one draw of `layout_scale`, such as TP8/EP8; of a split layout its
    engines'.
    """
    return " + ".join(layout.engine_kinds)


def _together(fit: Covariance | None, normal: dict[str, Floats]) -> dict[str, Floats]:
    """Columns with the correlations of a fit.

    The triangular root mixes into each column those before it, so that constants that models share are drawn
    alike for all of them, a model's alike on all hardware, and all others alike in all layouts.
    """
    if fit is None:
        return normal
    # The more experiments share a constant, the earlier its column is taken.
    order = sorted(
        fit.paths,
        key=lambda path: (path == LAYOUT_SCALE, path.startswith(HARDWARE), path != DEPLOYMENT_SCALE),
    )
    places = [fit.paths.index(path) for path in order]
    rows = np.array(fit.rows)[np.ix_(places, places)]
    _, upper = np.linalg.qr(_root(rows))
    lower = upper.T * np.where(np.diag(upper) < 0, -1.0, 1.0)
    lower /= np.sqrt((lower**2).sum(axis=1, keepdims=True))  # written in few digits, 1 may have become .997
    mixed = lower @ np.array([normal[path] for path in order])
    return normal | dict(zip(order, mixed, strict=True))


def _root(rows: Floats) -> Floats:
    """The symmetric square root; an eigenvalue below zero comes from rounding."""
    variances, axes = np.linalg.eigh(rows)
    root: Floats = (axes * np.sqrt(np.maximum(variances, 0.0))) @ axes.T
    return root


def _column(experiment: Experiment, path: str, count: int) -> Floats:
    owner, names = _owner(experiment, path)
    name = f"{LAYOUT_SCALE}@{layout_name(experiment.layout)}" if path == LAYOUT_SCALE else path
    if not LEAST_ORTHOGONAL <= count <= MOST_ORTHOGONAL or name not in names:
        rng = np.random.default_rng([SEED, zlib.crc32(f"{owner} {name}".encode())])
        return _strata(count)[rng.permutation(count)]
    column: Floats = _columns(count, owner, names)[:, names.index(name)]
    return column


def _owner(experiment: Experiment, path: str) -> tuple[str, tuple[str, ...]]:
    """The owner of a constant, and all names that are orthogonal among this owner's."""
    fit, name = experiment.model.posterior, experiment.hardware.name
    if path.startswith(HARDWARE):
        fitted = path in fit.correlations and name in fit.hardware
        owner = fit.hardware[0] if fitted else name
        return owner, tuple(f"{HARDWARE}{field.name}" for field in fields(Efficiency))
    if path == DEPLOYMENT_SCALE:
        return "", (path,)
    if path.startswith(KERNELS):
        return "kernels", ()
    if path.startswith(TRANSFER):
        return "transfer", tuple(f"{TRANSFER}.{field.name}" for field in fields(TransferTime))
    others = (f"{MODEL}{field.name}" for field in fields(StepTime))
    own = tuple(path for path in others if path not in (DEPLOYMENT_SCALE, LAYOUT_SCALE))
    return experiment.model.name, (*own, *(f"{LAYOUT_SCALE}@{layout}" for layout in LAYOUTS))


@cache
def _columns(count: int, owner: str, names: tuple[str, ...]) -> Floats:
    """Stratified normals, a column for each name, as near to orthogonal as permutations can be.

    Columns without an owner, of hardware and of models have dimensions of their own; within them each owner's
    place is drawn. Orthogonalised columns are replaced by their ranks (Iman and Conover 1982), in rounds.
    """
    space = _dimensions(count, names[0])
    rng = np.random.default_rng([SEED, count, zlib.crc32(f"{owner} {names[0]}".encode())])
    columns = space @ _straightened(rng.standard_normal((space.shape[1], len(names))))
    for _ in range(TURNS):
        stratified = _strata(count)[columns.argsort(axis=0).argsort(axis=0)]
        columns = space @ _straightened(space.T @ stratified)
    return stratified


def _dimensions(count: int, name: str) -> Floats:
    """The subspace of columns with mean 0 in which this kind of constant lies."""
    rng = np.random.default_rng([SEED, count])
    axes, _ = np.linalg.qr(np.column_stack([np.ones(count), rng.standard_normal((count, count - 1))]))
    first = 2 + (count - 1) // HARDWARE_PART
    if name == DEPLOYMENT_SCALE:
        return axes[:, 1:2]
    return axes[:, 2:first] if name.startswith(HARDWARE) else axes[:, first:]


def _straightened(columns: Floats) -> Floats:
    left, _, right = np.linalg.svd(columns, full_matrices=False)
    straight: Floats = left @ right
    return straight


@cache
def _strata(count: int) -> Floats:
    return np.array([NORMAL.inv_cdf((place + 0.5) / count) for place in range(count)])
