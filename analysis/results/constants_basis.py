"""Grounds of a prediction's constants: measured here, fitted to others' measurements, or assumed."""

from analysis.results.types.prediction_verdict import ConstantsBasis
from conf.constants import constants
from conf.specs.experiment import Constant, Experiment, SimulatedEngine
from conf.transfers import transfers

ASSUMED = "assumed"
"""The beginning of the source of a constant that nobody measured."""


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
    by = f"; by {' and '.join(fit.engines)}" if fit.engines else ""
    rests_on = f"{fit.rests_on}{by}" if kinds["fitted"] else ""
    outside = tuple(one.text for one in transfers(experiment))
    return ConstantsBasis(**groups, rests_on=rests_on, transfer=_transfer(experiment), outside=outside)


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
