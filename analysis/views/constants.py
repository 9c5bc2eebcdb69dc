"""The uncertain constants of a prediction by what they rest on, and which of them matter most."""

from collections.abc import Sequence

from analysis.results.asked import ConstantsBasis
from analysis.results.predictions import GridCell, PredictionVerdict, SensitivityRow
from analysis.stats.estimate import number
from analysis.views.shown import Fact, Table

NAMED, LEAST_SHARE = 3, 0.03
"""Most assumed constants that are named, and the least part of the variance that each makes (our choice)."""
MOST_ROWS = 12
READING = (
    "QPS with one constant at each end of its interval; share of variance with fitted constants moved jointly"
)
MEANINGS = {
    "model.step_time.deployment_scale": "ratio: steps of another team's deployment over those of the fit",
    "model.step_time.layout_scale": "ratio: steps of this layout over what the constants say; one per layout",
}
"""Constants whose unit does not say what they are."""


def facts(prediction: PredictionVerdict) -> list[Fact]:
    """What the constants rest on: measured, fitted and assumed ones."""
    known, calibration = prediction.constants, prediction.calibration
    if known is None:
        return []
    transfer = [("KV transfer", known.transfer)] if known.transfer else []
    measured = f"this machine, calibrated by {calibration}" if calibration else "nothing of this machine"
    return [
        *transfer,
        ("measured", measured),
        ("fitted", _fitted(known)),
        ("assumed", "; ".join([*known.outside, _assumed(known, prediction.sensitivity or ())])),
    ]


def grid_lines(cells: Sequence[GridCell]) -> list[str]:
    """The facts of a grid, once: those of its first answer, and a note where other cells differ."""
    every = [shown for cell in cells if cell.prediction and (shown := facts(cell.prediction))]
    lines = []
    for name, value in every[0] if every else ():
        kinds = {dict(each).get(name) for each in every}
        note = f" (first cell; {len(kinds)} kinds of cells, all in --json)" if len(kinds) > 1 else ""
        lines.append(f"{name}: {value}{note}")
    return lines


def sensitivity(rows: Sequence[SensitivityRow]) -> Table:
    """The constants in the order of what they contribute to the variance of the answer."""
    cells = tuple(
        (
            row.path,
            number(row.constant.value),
            f"{row.elasticity:+.2f}",
            _ends(row),
            f"{100 * row.share:.0f} %",
            MEANINGS.get(row.path, row.constant.unit),
        )
        for row in rows[:MOST_ROWS]
    )
    more = f"and {len(rows) - MOST_ROWS} more, which matter less (--json has all)"
    return Table(
        f"what to measure first: {READING}",
        ("constant", "value", "elasticity", "QPS at its ends", "of variance", "unit"),
        cells,
        note=more if len(rows) > MOST_ROWS else "",
    )


def _ends(row: SensitivityRow) -> str:
    if row.at_low_qps is None or row.at_high_qps is None:
        return "exact"
    return f"{number(row.at_low_qps, 3)} to {number(row.at_high_qps, 3)}"


def _fitted(known: ConstantsBasis) -> str:
    parts = []
    if known.fitted:
        parts.append(f"{_constants(known.fitted)} jointly, to {known.rests_on or 'data not named'}")
    if known.sourced:
        parts.append(f"{_constants(known.sourced)} to others' figures, each by its own source")
    return "; ".join(parts) or "nothing"


def _assumed(known: ConstantsBasis, sensitivity: Sequence[SensitivityRow]) -> str:
    """The assumed constants that matter most, where that is known; else how many there are."""
    if not known.assumed:
        return "nothing"
    parts = [row for row in sensitivity if row.path in known.assumed and row.share >= LEAST_SHARE][:NAMED]
    if not sensitivity:
        return f"{_constants(known.assumed)} (predict --sensitivity says which matter)"
    if not parts:
        return f"{_constants(known.assumed)}, none of which matters much"
    named = ", ".join(f"{row.path.rpartition('.')[2]} {100 * row.share:.0f} %" for row in parts)
    return f"{_constants(known.assumed)}; most of the variance: {named}"


def _constants(paths: Sequence[str]) -> str:
    return f"{len(paths)} constant{'s' * (len(paths) != 1)}"
