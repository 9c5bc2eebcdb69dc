"""Grounds of a prediction's constants: measured here, fitted to others' measurements, or assumed."""

from collections.abc import Sequence

from analysis.results.types.prediction_verdict import (
    ConstantsBasis,
    GridCell,
    PredictionVerdict,
    SensitivityRow,
)
from conf.constants import constants
from conf.specs.experiment import Constant, Experiment, SimulatedEngine
from conf.transfers import transfers

ASSUMED = "assumed"
"""The beginning of the source of a constant that nobody measured."""
NAMED, LEAST_SHARE = 3, 0.03
"""Most assumed constants that are named, and the least part of the variance that each makes (our choice)."""
SHOWN = 12
READING = "QPS at the ends of each alone; of the variance, with constants of one fit moved together"
MEANINGS = {
    "model.step_time.deployment_scale": "ratio: steps of another team's deployment over those of the fit",
    "model.step_time.layout_scale": "ratio: steps of this layout over what the constants say; one per layout",
}
"""Constants whose unit does not say what they are."""


def basis(experiment: Experiment) -> ConstantsBasis:
    """The uncertain constants by what they rest on: `fitted` are those of the model's joint fit, `sourced`
    those with a source of their own each.
    """
    known = {path: it for path, it in constants(experiment).items() if any(it.ln_sd)}
    fit, engine = experiment.model.posterior, experiment.engine
    calibrated = engine.constants_covariance if isinstance(engine, SimulatedEngine) else {}
    here = experiment.hardware.name in fit.hardware
    kinds: dict[str, list[str]] = {kind: [] for kind in ("measured", "fitted", "sourced", "assumed")}
    for path, it in known.items():
        joint = path in fit.correlations and (here or path.startswith("model."))
        assumed = it.source.startswith(ASSUMED)
        kind = "measured" if path in calibrated else ASSUMED if assumed else "fitted" if joint else "sourced"
        kinds[kind].append(path)
    groups = {kind: tuple(paths) for kind, paths in kinds.items()}
    rests_on = fit.rests_on if kinds["fitted"] else ""
    outside = tuple(one.text for one in transfers(experiment))
    return ConstantsBasis(**groups, rests_on=rests_on, transfer=_transfer(experiment), outside=outside)


def lines(prediction: PredictionVerdict) -> list[str]:
    """Three lines, `measured:`, `fitted:` and `assumed:`; none of an answer saved before they were known."""
    known, calibration = prediction.constants, prediction.calibration
    if known is None:
        return []
    transfer = [f"KV transfer: {known.transfer}"] if known.transfer else []
    measured = f"this machine, calibrated by {calibration}" if calibration else "nothing of this machine"
    return [
        *transfer,
        f"measured: {measured}",
        f"fitted:   {_fitted(known)}",
        f"assumed:  {'; '.join([*known.outside, _assumed(known, prediction.sensitivity or ())])}",
    ]


def grid_lines(cells: Sequence[GridCell]) -> list[str]:
    """The lines of a grid, once: those of its first answer, and a note where other cells differ."""
    every = [found for cell in cells if cell.prediction and (found := lines(cell.prediction))]
    if not every:
        return []
    said = [dict.fromkeys(each) for each in zip(*every, strict=True)]
    notes = (f" (first cell; {len(each)} kinds of cells, all in --json)" for each in said)
    return [f"{next(iter(each))}{note * (len(each) > 1)}" for each, note in zip(said, notes, strict=True)]


def sensitivity_lines(rows: Sequence[SensitivityRow]) -> list[str]:
    """A table of the constants, those that make most of the variance first; none where that was not asked."""
    if not rows:
        return []
    head = f"  {'constant':<40} {'value':>9} {'elasticity':>10} {'QPS at its ends':>16} {'of variance':>11}"
    out = [f"  what to measure first: {READING}", head]
    for row in rows[:SHOWN]:
        it = row.constant
        ends = "exact" if row.at_low_qps is None else f"{row.at_low_qps:.2f} to {row.at_high_qps:.2f}"
        out.append(
            f"  {row.path:<40} {it.value:>9.4g} {row.elasticity:>+10.2f} {ends:>16}"
            f" {100 * row.share:>9.0f} %  {MEANINGS.get(row.path, it.unit)}"
        )
    if len(rows) > SHOWN:
        out.append(f"  and {len(rows) - SHOWN} more, which matter less (--json has all)")
    return out


def _transfer(experiment: Experiment) -> str:
    """Lines on what an answer assumes of the transfers of a split layout; none for any other."""
    layout = experiment.layout
    if layout.prefill is None:
        return ""
    rate, latency = layout.transfer.gpu_bytes_per_s, layout.transfer.latency_ms
    kinds = {"assumed" if it.source.startswith(ASSUMED) else it.source for it in (rate, latency)}
    how = "pulled when computed" if layout.transfer_mode == "read" else "pushed layer by layer"
    return (
        f"{_with_ends(rate, 1e-9)} GB/s per GPU and {_with_ends(latency)} ms per prompt, {how} by"
        f" {layout.connector}; {' and '.join(sorted(kinds))}, not measured on this machine"
    )


def _with_ends(constant: Constant, unit: float = 1.0) -> str:
    """The value with its interval, each times `unit`."""
    if constant.low is None or constant.high is None:
        return f"{constant.value * unit:.3g} (exact)"
    return f"{constant.value * unit:.3g} [{constant.low * unit:.3g}, {constant.high * unit:.3g}]"


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
