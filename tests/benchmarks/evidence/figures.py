"""A published number, an experiment that has several, and the model's answers with intervals."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from analysis.stats.map_fit import Floats
from conf import Experiment, load
from conf.constants import replaced
from conf.specs.experiment import SimulatedEngine
from conf.specs.model import Z95
from loadgen.predict.draws import DEPLOYMENT_SCALE, LAYOUT_SCALE, drawn
from serve_apps.engine_model.engine.kinds import EngineKind

FORM = {"s": 0.04, "tok/s": 0.03, "1/s": 0.03, "share": 0.03, "ratio": 0.03, "GB": 0.0, "us": 0.0}
"""sd of what the form of the model misses, by unit (ln, or of a share): the residuals' own scatter."""

Values = Mapping[str, float]
"""Constants of the step time by config key."""


@dataclass(frozen=True, slots=True)
class Team:
    """Step times of whoever measured over those of the constants, and the sd of its logarithm.

    `layout_ln_sd` is that of a layout which was not fitted with this team's figures.
    """

    scale: float
    ln_sd: float
    layout_ln_sd: float = 0.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One published number: `value` in `unit`, and the sd of reading it (in ln, or of a share)."""

    label: str
    value: float
    unit: str
    reading: float

    @property
    def is_share(self) -> bool:
        return self.unit == "share"

    @property
    def scaled(self) -> float:
        """As it is compared: its logarithm, or itself where it is a share."""
        return self.value if self.is_share else math.log(self.value)

    def unscaled(self, scaled: float) -> float:
        """A number that is scaled so, in `unit`."""
        return min(1.0, max(0.0, scaled)) if self.is_share else math.exp(scaled)

    def error(self, scaled: float) -> str:
        """A prediction over this number less 1, or of a share the difference."""
        away = scaled - self.scaled
        return f"{100 * away:+.1f} points" if self.is_share else f"{100 * math.expm1(away):+.1f} %"


class Study(Protocol):
    """One experiment that was published; `predict` answers its figures in their order, scaled as they are.

    `team` is None where nobody's pace was fitted: then the intervals are those of `predict`.
    """

    @property
    def source(self) -> str: ...
    @property
    def experiment(self) -> Experiment: ...
    @property
    def team(self) -> Team | None: ...
    @property
    def figures(self) -> Sequence[Figure]: ...
    def predict(self, values: Values) -> Floats: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says of one figure; all scaled as `Figure.scaled`."""

    figure: Figure
    predicted: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        return self.low <= self.figure.scaled <= self.high

    @property
    def error(self) -> float:
        """Predicted over published less 1; of a share the difference."""
        away = self.predicted - self.figure.scaled
        return away if self.figure.is_share else math.expm1(away)

    def line(self) -> str:
        """Published, predicted with its interval, error."""
        figure = self.figure
        value, predicted, low, high = (
            100 * each if figure.is_share else each
            for each in (figure.value, *map(figure.unscaled, (self.predicted, self.low, self.high)))
        )
        unit = "%" if figure.is_share else figure.unit
        where = "inside" if self.inside else "OUTSIDE"
        return (
            f"  {figure.label:<52} {value:>8.4g} {unit:<5} {predicted:>8.4g} [{low:.4g}, {high:.4g}]  "
            f"{figure.error(self.predicted):>12}  {where}"
        )


@cache
def loaded(words: tuple[str, ...]) -> Experiment:
    """The experiment of some words, read once."""
    return load([*words])


def machine(experiment: Experiment, values: Values) -> EngineKind:
    """One replica with other constants."""
    kind = service_kind(experiment, values)
    assert isinstance(kind, EngineKind)
    return kind


def service_kind(experiment: Experiment, values: Values) -> EngineKind:
    """The engines of a layout, also of a split one, with other constants."""
    changed = replaced(experiment, values)
    assert isinstance(changed.engine, SimulatedEngine)
    return EngineKind.of(changed.engine, changed.model, changed.hardware, changed.layout)


def answers(study: Study, draws: int, sets: Sequence[Values] | None = None) -> list[Answer]:
    """Every figure of a study by the constants as they are, and by `draws` of their posterior.

    `sets` are other constants than those of conf/, then draws of them; conf/ has them at a known pace where
    the team that measured was fitted, and on its layouts.
    """
    centre_of, *own = sets or _sets(study, draws)
    centre = study.predict(centre_of)
    seen = [study.predict(values) for values in own] or [centre]
    low, high = (np.quantile(np.array(seen), share, axis=0) for share in (0.025, 0.975))
    rows = zip(study.figures, centre, np.minimum(low, centre), np.maximum(high, centre), strict=True)
    return [_widened(*row) for row in rows]


def _sets(study: Study, draws: int) -> list[Values]:
    """The constants of conf/ for a study, then draws of them."""
    own, team = drawn(study.experiment, draws), study.team
    if team is None:
        return [{}, *own]
    normals = np.random.default_rng(0).standard_normal((len(own), 2))
    paces = np.exp([math.log(team.scale), 0.0] + normals * [team.ln_sd, team.layout_ln_sd]).tolist()
    moved = (
        {**values, DEPLOYMENT_SCALE: pace, LAYOUT_SCALE: layout}
        for values, (pace, layout) in zip(own, paces, strict=True)
    )
    return [{DEPLOYMENT_SCALE: team.scale, LAYOUT_SCALE: 1.0}, *moved]


def _widened(figure: Figure, centre: float, low: float, high: float) -> Answer:
    beside = Z95 * math.hypot(FORM[figure.unit], figure.reading)
    return Answer(
        figure,
        float(centre),
        centre - math.hypot(centre - low, beside),
        centre + math.hypot(high - centre, beside),
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """Sign, size and interval of the errors of some rows: ln, or of a share the difference."""

    count: int
    inside: int
    bias: float
    spread: float
    error: float
    half: float

    @classmethod
    def of(cls, rows: Iterable[Answer]) -> "Summary":
        rows = list(rows)
        away = np.array([row.predicted - row.figure.scaled for row in rows])
        half = np.array([(row.high - row.low) / 2 for row in rows])
        spread = float(away.std()) / math.sqrt(len(rows))
        error = float(np.median([abs(row.error) for row in rows]))
        inside = sum(row.inside for row in rows)
        return cls(len(rows), inside, float(away.mean()), spread, error, float(np.median(half)))

    def cells(self) -> str:
        """The columns of `table`."""
        bias = f"{100 * self.bias:+.1f} ± {100 * self.spread:.1f}"
        return f"{self.count:>6} {bias:>14} {100 * self.error:>8.1f} {100 * self.half:>9.1f} {self.inside:>8}"


def table(by_source: Mapping[str, Sequence[Answer]]) -> list[str]:
    """A line for each source: rows, bias with its standard error, median error, half interval, inside."""
    wide = max(map(len, by_source))
    heads = f"{'rows':>6} {'bias %':>14} {'median %':>8} {'half %':>9} {'inside':>8}"
    lines = [f"  {name:<{wide}} {Summary.of(rows).cells()}" for name, rows in by_source.items()]
    return [f"  {'source':<{wide}} {heads}", *lines]


def verdict(rows: Sequence[Answer]) -> list[str]:
    """The two last lines: bias and half an interval, then the count of rows in their intervals."""
    summary = Summary.of(rows)
    return [
        f"bias {100 * summary.bias:+.1f} %, half interval {100 * summary.half:.1f} %",
        f"inside {summary.inside} of {summary.count}; median error {100 * summary.error:.1f} %",
    ]


Rows = Sequence[dict[str, str]]


def rows_of(path: Path) -> Rows:
    """The rows; lines that begin with # are notes. Raises ValueError for a file without rows."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    if not rows:
        raise ValueError(f"{path}: it has no rows")
    return rows


def by(rows: Rows, *columns: str) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Rows by the values of some columns, in the order of their first one."""
    parts: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        parts.setdefault(tuple(row[column] for column in columns), []).append(row)
    return parts
