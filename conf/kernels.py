"""Published speeds of other kernels than those of the step-time fit; times no step."""

from collections.abc import Mapping
from typing import Any

from conf.specs.engine import FITTED_BACKEND
from conf.specs.experiment import Constant, Experiment, KernelRatio, SimulatedEngine

AITER_SPEED = (0.991, 1.04, 1.095)
"""Speed with AITER over that without: lowest, usual and highest over the models and concurrencies of arXiv
2603.10031, which are 3 to 5 % at high concurrency, 10 % at 1, and once a loss of 0.9 %."""
_AITER = "arXiv 2603.10031, AITER on over off: a range over its models and concurrencies, not of this model"
_FIGURE = (
    "vLLM blog on ROCm attention backends, Qwen3-235B FP8 TP8 on MI300X: python -m tests.benchmarks.backends"
)
ERA = "of releases of 2026: in May 2025 vLLM 0.8.5 served 44 to 48 % less than this without AITER"
"""How old kernels compare: vLLM pull request 17535, Qwen3-235B FP8 on four MI300X, beside this model
(`python -m tests.benchmarks.evidence`)."""
_EXACT = Constant(1.0, "ratio", "the kernels of the fit")
BACKENDS: Mapping[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "ROCM_AITER_UNIFIED_ATTN": ((1.24, 1.25, 1.26), (0.891, 0.94, 0.991)),
    "TRITON_ATTN": ((1.55, 1.6, 1.65), (4.9, 5.08, 5.27)),
    "ROCM_ATTN": ((7.53, 10.9, 15.8), (3, 3.43, 3.92)),
}
"""Time of a KV read and of prefill's attention over those of ROCM_AITER_FA: lowest, value and highest.

`python -m tests.benchmarks.backends` fits them. The ends meet throughput and TTFT of the figure at 64 and at
128 requests in flight.
"""
NO_SPLIT = "ROCM_ATTN"
"""The backend that costs 140 ms a step in that figure at 64 requests in flight and at 128: no ratio of reads
meets both, so its interval spans them."""


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
    read, attention = (_constant(ends, _FIGURE) for ends in BACKENDS[backend])
    return KernelRatio(_EXACT, read, attention)


def ratio(engine: Mapping[str, Any], model: Mapping[str, Any]) -> KernelRatio | None:
    """The speed of the chosen kernels, from the trees of an engine and a model with their defaults.

    None if the kernels are those of the fit, or their speed is unknown (`kernel_lines` says which). The
    figure's backends are not for latent attention. The gain of a Triton fit from AITER is unknown.
    """
    if engine["kernels"] == "triton" and model.get("fitted_with") == "aiter":
        return KernelRatio(_constant(AITER_SPEED, _AITER), _EXACT, _EXACT)
    return None if model.get("kv_lora_rank") else backend_ratio(str(engine["attention_backend"]))


def kernel_lines(experiment: Experiment) -> list[str]:
    """Lines on the kernel speeds behind an answer; none if the kernels are those of the fit."""
    engine, model = experiment.engine, experiment.model
    if not isinstance(engine, SimulatedEngine):
        return []
    return [*_kernel_words(engine, model.fitted_with), *_backend_words(engine, model.kv_lora_rank > 0)]


def _kernel_words(engine: SimulatedEngine, fitted_with: str) -> list[str]:
    if engine.kernels in ("fitted", fitted_with):
        return []
    if engine.kernel_ratio and engine.kernels == "triton":
        span = _span(engine.kernel_ratio.step, "a range that was published for other models")
        return [f"kernels without AITER: a step over the same with it is {span}", f"kernels: {ERA}"]
    kernels = "unknown" if fitted_with == "unknown" else fitted_with.capitalize()
    return [
        f"kernels {engine.kernels}: their speed is not in the model, the figures are those of its constants, "
        f"whose kernels are {kernels}"
    ]


def _backend_words(engine: SimulatedEngine, latent: bool) -> list[str]:
    backend, ratio = engine.attention_backend, engine.kernel_ratio
    if backend == FITTED_BACKEND:
        return []
    if ratio is None:
        return [unknown_backend(backend, latent)]
    source = "by a figure of Qwen3-235B on MI300X"
    if backend == NO_SPLIT:
        source += ", where it costs a step as much at 64 requests in flight as at 128"
    read, prefill = _span(ratio.kv_read, ""), _span(ratio.attention, source)
    return [f"attention backend {backend}: KV reads over {FITTED_BACKEND}'s are {read}, prefill {prefill}"]


def _span(ratio: Constant, source: str) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.4g}, as given"
    return f"{ratio.value:.4g} [{ratio.low:.4g}, {ratio.high:.4g}]{', ' if source else ''}{source}"


def _constant(ends: tuple[float, float, float], source: str) -> Constant:
    low, value, high = ends
    return Constant(value, "ratio", source, low, high)
