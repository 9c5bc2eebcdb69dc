"""Published speeds of other engine releases and kernels than those of the step-time fit; times no step."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.io import bounded_yaml
from conf.specs.engine import FITTED_BACKEND
from conf.specs.experiment import Constant, Experiment, KernelRatio, SimulatedEngine
from conf.specs.model import Z95, Model

TABLE: Mapping[str, Any] = bounded_yaml.read(Path(__file__).with_suffix(".yaml").read_text())
Ends = Sequence[float]
"""Lowest, usual and highest value."""
AITER_SPEED: Ends = TABLE["aiter_speed"]
RELEASE_LN_SD: Mapping[str, float] = TABLE["release_ln_sd"]
BACKENDS: Mapping[str, tuple[Ends, Ends]] = TABLE["backends"]
WITHOUT_AITER = " without AITER"
"""Ends the name of a release that was measured without the kernels of the fit."""


def is_known(backend: str, latent: bool = False) -> bool:
    """True if the speed of an attention backend is known; the figure has none for `latent` attention."""
    return not latent and (backend == FITTED_BACKEND or backend in BACKENDS)


def unknown_backend(backend: str, latent: bool = False) -> str:
    """The line on a backend of unknown speed; the fit of `latent` attention has its own backend."""
    of = "the model's fit" if latent else FITTED_BACKEND
    return f"attention backend {backend}: its speed is not in the model, the figures are those of {of}"


def backend_ratio(backend: str) -> KernelRatio | None:
    """Attention times of a backend over those of the fit; None for the fit's own and for unknown ones."""
    if backend not in BACKENDS:
        return None
    read, attention = (_constant(ends, TABLE["backends_source"]) for ends in BACKENDS[backend])
    return KernelRatio(kv_read=read, attention=attention)


def ratio(engine: Mapping[str, Any], model: Mapping[str, Any]) -> KernelRatio | None:
    """The speed of the chosen release and kernels, from the trees of an engine and a model.

    Both trees have their defaults. None if release and kernels are those of the fit, or their speed is
    unknown (`kernel_lines` says which). The figure's backends are not for latent attention. The gain of a
    Triton fit from AITER is unknown.
    """
    fit = model.get("posterior") or {}
    engines, releases = fit.get("engines", []), fit.get("releases", {})
    no_aiter = _is_without_aiter(engine["kernels"], str(model.get("fitted_with")))
    backend = None if model.get("kv_lora_rank") else backend_ratio(str(engine["attention_backend"]))
    if release := _other_release(engine.get("version", ""), engine.get("constants", ""), no_aiter, engines):
        return replace(backend or KernelRatio(), **_release_times(release, len(engines), releases))
    return KernelRatio(_constant(AITER_SPEED, TABLE["aiter_source"])) if no_aiter else backend


def other_release(engine: SimulatedEngine, model: Model) -> str:
    """The name of the engine's release if the model's constants were not fitted to it; else empty."""
    no_aiter = _is_without_aiter(engine.kernels, model.fitted_with)
    return _other_release(engine.version, engine.constants, no_aiter, model.posterior.engines)


def _other_release(version: str, calibration: str, no_aiter: bool, engines: Collection[str]) -> str:
    if calibration or not engines or not version or listed(version, engines):
        return ""
    return f"{version}{WITHOUT_AITER}" if no_aiter else version


def _is_without_aiter(kernels: str, fitted_with: str) -> bool:
    return kernels == "triton" and fitted_with == "aiter"


def listed(release: str, names: Collection[str]) -> str:
    """The one of `names` that a release is, in full or by its minor version; empty if there is none."""
    return next((name for name in (release, minor(release)) if name in names), "")


def minor(release: str) -> str:
    """A release with its minor version: `vLLM 0.16.0rc1` is `vLLM 0.16`."""
    return re.sub(r"^(\S+ \d+\.\d+)\S*", r"\1", release)


def _release_times(
    release: str, fitted: int, releases: Mapping[str, Mapping[str, Ends]]
) -> dict[str, Constant]:
    """Times of a release over those of a fit, to `fitted` other ones.

    Those of a release that nobody measured are in the mean of all that were, the fit's own among them.
    """
    if name := listed(release, releases):
        source = f"fitted to rows of {name} (python -m tests.benchmarks.evidence.releases)"
        return {time: _constant(releases[name][time], source) for time in RELEASE_LN_SD}
    no_aiter, times = release.endswith(WITHOUT_AITER), {}
    alike = [times_of for name, times_of in releases.items() if name.endswith(WITHOUT_AITER) == no_aiter]
    for time, ln_sd in RELEASE_LN_SD.items():
        own = math.log(AITER_SPEED[1]) if no_aiter and time == "step" else 0.0  # of those of the fit
        ln = (sum(math.log(each[time][1]) for each in alike) + fitted * own) / (len(alike) + fitted)
        low, value, high = (math.exp(ln + side * Z95 * ln_sd) for side in (-1, 0, 1))
        times[time] = _constant((low, value, high), TABLE["release_source"])
    return times


def kernel_lines(experiment: Experiment) -> list[str]:
    """Lines on the release and the kernels behind an answer; none if they are those of the fit."""
    engine, model = experiment.engine, experiment.model
    if not isinstance(engine, SimulatedEngine):
        return []
    lines, ratio, release = list[str](), engine.kernel_ratio, other_release(engine, model)
    is_slower = ratio is not None and _is_without_aiter(engine.kernels, model.fitted_with)
    if ratio and release:
        is_measured = listed(release, model.posterior.releases)
        known = "fitted to published rows of it" if is_measured else TABLE["release_source"]
        lines.append(
            f"engine {release}: launches take {_span(ratio.launch)} times as long as in the fit, whole steps "
            f"{_span(ratio.step)}; {known}"
        )
    elif ratio and is_slower:
        span = _span(ratio.step, "a range that was published for other models")
        lines += [
            f"kernels without AITER: a step over the same with it is {span}",
            f"kernels: {TABLE['era']}",
        ]
    if not is_slower and engine.kernels not in ("fitted", model.fitted_with):
        kernels = "unknown" if model.fitted_with == "unknown" else model.fitted_with.capitalize()
        lines.append(
            f"kernels {engine.kernels}: their speed is not in the model, the figures are those of its "
            f"constants, whose kernels are {kernels}"
        )
    return lines + _backend_lines(engine, model.kv_lora_rank > 0)


def _backend_lines(engine: SimulatedEngine, latent: bool) -> list[str]:
    backend, ratio = engine.attention_backend, engine.kernel_ratio
    if backend == FITTED_BACKEND:
        return []
    if ratio is None or not is_known(backend, latent):
        return [unknown_backend(backend, latent)]
    source = "by a figure of Qwen3-235B on MI300X"
    if backend == TABLE["backend_without_ratio"]:
        source += ", where it costs a step as much at 64 requests in flight as at 128"
    read, prefill = _span(ratio.kv_read), _span(ratio.attention, source)
    return [f"attention backend {backend}: KV reads over {FITTED_BACKEND}'s are {read}, prefill {prefill}"]


def _span(ratio: Constant, source: str = "") -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.4g}, as given"
    return f"{ratio.value:.4g} [{ratio.low:.4g}, {ratio.high:.4g}]{', ' if source else ''}{source}"


def _constant(ends: Ends, source: str) -> Constant:
    low, value, high = ends
    return Constant(value, "ratio", source, low, high)
