"""The question beside an answer: an experiment in the words of its groups, and what its constants rest on."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from conf import kernels
from conf.compose import UNKNOWN, group_tree
from conf.constants import constants, fingerprint, transfers
from conf.keys import flat
from conf.specs.bounds import Slo
from conf.specs.engine import SCHEDULER_VERSION
from conf.specs.experiment import Constant, EmulatedEngine, Experiment, SimulatedEngine, Workload
from conf.words import groups

MODELLED = ("simulated", "vllm_emulated")
"""Engines whose step times are those of the engine model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentFacts:
    """The experiment behind an answer, in the words of its configuration groups.

    `vllm_version` is that of an emulated vLLM, or the one whose scheduling rules a simulated engine follows;
    `constants` (a fingerprint) are known of an emulated vLLM alone. Model, hardware,
    layout and routing of external endpoints are `unknown` unless words said them. `gpus_per_node` counts the
    GPUs that engines use. `workload` and its lengths, `tokens`, are as `workload_tokens` says. `outside` is
    what the fit behind a simulated engine's constants did not have (`conf.constants`).
    """

    engine: str
    vllm_version: str | None = None
    constants: str | None = None
    model: str
    hardware: str
    cluster: str = ""
    layout: str
    gpus_per_node: int | None = None
    routing: str
    data_path: str = ""
    sessions: int = 0
    conversations: str = ""
    workload: str
    tokens: str = ""
    arrivals: str = "poisson"
    search: str = ""
    nodes: int
    replicas: int
    slo: Slo
    seed: int | None = None
    time_scale: float = 1.0
    kernels: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def load(self) -> str:
        """The workload with its lengths, as it stands beside a rate."""
        return f"{self.workload}: {self.tokens}" if self.tokens else self.workload

    @property
    def is_modelled(self) -> bool:
        """True of an engine whose step times are those of the engine model."""
        return self.engine in MODELLED


def describe(experiment: Experiment) -> ExperimentFacts:
    """The experiment, as far as it belongs beside the answer."""
    engine, workload, layout = experiment.engine, experiment.workload, experiment.layout
    is_simulated, emulated = isinstance(engine, SimulatedEngine), isinstance(engine, EmulatedEngine)
    groups = ("model", "hardware", "cluster", "layout", "routing", "search")
    rules_of = SCHEDULER_VERSION if is_simulated else None
    chats = workload.conversations
    return ExperimentFacts(
        engine=engine.kind,
        vllm_version=engine.vllm_version if isinstance(engine, EmulatedEngine) else rules_of,
        constants=fingerprint(experiment.model, experiment.hardware) if emulated else None,
        **{group: getattr(experiment, group).name for group in groups},
        gpus_per_node=None if layout.name == UNKNOWN else layout.gpus_per_node,
        data_path="" if experiment.routing.name == UNKNOWN else experiment.routing.data_path,
        sessions=workload.sessions,
        conversations=chats.truncation.replace("_", "-") if chats else "",
        workload=f"{workload.name} changed" if _changes(workload) else workload.name,
        tokens=workload_tokens(workload),
        arrivals=_arrivals(experiment),
        nodes=experiment.cluster.nodes,
        replicas=experiment.replicas,
        slo=replace(experiment.slo, name=""),
        seed=experiment.seed,
        time_scale=experiment.time_scale,
        kernels=tuple(kernels.kernel_lines(experiment)),
        outside=_outside(experiment) if is_simulated else (),
    )


def _outside(experiment: Experiment) -> tuple[str, ...]:
    """What the fit behind the engine model's constants did not have."""
    return tuple(transfer.text for transfer in transfers(experiment))


def _arrivals(experiment: Experiment) -> str:
    arrivals, trace = experiment.workload.arrivals, experiment.workload.trace
    if experiment.concurrency:
        return f"closed loop, {experiment.concurrency} in flight"
    if arrivals.kind == "vllm_bench":
        uneven = "" if arrivals.burstiness == 1 else f", burstiness {arrivals.burstiness:g}"
        return f"those of vllm bench serve{uneven}"
    if arrivals.kind == "gamma":
        return f"gamma, burstiness {arrivals.burstiness:g}"
    return f"trace {trace}" if arrivals.kind == "trace" else arrivals.kind


@dataclass(frozen=True, slots=True)
class ConstantsBasis:
    """The uncertain constants as config keys, by what they rest on, and the fit's own words for its data."""

    measured: tuple[str, ...]
    fitted: tuple[str, ...]
    sourced: tuple[str, ...]
    assumed: tuple[str, ...]
    rests_on: str
    transfer: str = ""
    """Constants of the transfer of KV between the engines of a split node, with their intervals."""
    outside: tuple[str, ...] = ()
    """The model, GPU and layout if the fit had others."""


ASSUMED = "assumed"
"""The beginning of the source of a constant that nobody measured."""
FITTED = "fitted to"
"""The same of a constant of the model's own fit, also of one without correlations."""


def constants_basis(experiment: Experiment) -> ConstantsBasis:
    """The uncertain constants by what they rest on: `fitted` are those of the model's joint fit, `sourced`
    those with a source of their own each.
    """
    known = {path: constant for path, constant in constants(experiment).items() if any(constant.ln_sd)}
    fit, engine = experiment.model.posterior, experiment.engine
    calibrated = engine.constants_covariance if isinstance(engine, SimulatedEngine) else {}
    here = experiment.hardware.name in fit.hardware
    kinds: dict[str, list[str]] = {kind: [] for kind in ("measured", "fitted", "sourced", "assumed")}
    for path, constant in known.items():
        of_model = path.startswith("model.")
        joint = (
            path in fit.correlations and (here or of_model) or of_model and constant.source.startswith(FITTED)
        )
        assumed = constant.source.startswith(ASSUMED)
        kind = "measured" if path in calibrated else ASSUMED if assumed else "fitted" if joint else "sourced"
        kinds[kind].append(path)
    groups = {kind: tuple(paths) for kind, paths in kinds.items()}
    by = f"; by {' and '.join(fit.engines)}" if fit.engines else ""
    rests_on = f"{fit.rests_on}{by}" if kinds["fitted"] else ""
    return ConstantsBasis(
        **groups, rests_on=rests_on, transfer=_transfer(experiment), outside=_outside(experiment)
    )


def _transfer(experiment: Experiment) -> str:
    """What an answer assumes of the transfers of a split layout; nothing of any other."""
    layout = experiment.layout
    if layout.prefill is None:
        return ""

    def shown(constant: Constant, unit: float = 1.0) -> str:
        if constant.low is None or constant.high is None:
            return f"{constant.value * unit:.3g} (exact)"
        return f"{constant.value * unit:.3g} [{constant.low * unit:.3g}, {constant.high * unit:.3g}]"

    rate, latency = layout.transfer.gpu_bytes_per_s, layout.transfer.latency_ms
    kinds = {"assumed" if it.source.startswith(ASSUMED) else it.source for it in (rate, latency)}
    how = "pulled when computed" if layout.transfer_mode == "read" else "pushed layer by layer"
    return (
        f"{shown(rate, 1e-9)} GB/s per GPU and {shown(latency)} ms per prompt, {how} by"
        f" {layout.connector}; {' and '.join(sorted(kinds))}, not measured on this machine"
    )


LENGTHS = ("input_tokens", "output_tokens")
SAID_ELSEWHERE = ("arrivals", "trace", "tokenizer", "images.tokens")
"""Beginnings of keys that other words say, or that follow from the model."""
READ_LATER = ("empirical", "conversation")
"""Kinds of lengths whose mean is read from a file or computed."""


def workload_tokens(workload: Workload) -> str:
    """Mean tokens of a prompt and of an answer, and each other key whose value is not that of the file."""
    means = workload.prompt_tokens, workload.output_tokens.mean
    tokens = "/".join(f"{mean:.0f}" if mean else UNKNOWN for mean in means)
    is_fixed = workload.input_tokens.kind == workload.output_tokens.kind == "fixed"
    others = [f"{key}={value}" for key, value in _changes(workload).items() if not key.startswith(LENGTHS)]
    return ", ".join([f"{tokens} tokens{'' if is_fixed else ' in the mean'}", *others])


def named(kind: str, name: str) -> str:
    """A name in a sentence; `unknown KIND` where no word and no file names one."""
    return f"unknown {kind}" if name == UNKNOWN else name


def _changes(workload: Workload) -> dict[str, Any]:
    """Keys -> values that are not those of the file with the workload's name; none without such a file."""
    file = flat(group_tree("workload", workload.name)) if workload.name in groups()["workload"] else {}
    read_later = [f"{name}.mean" for name in LENGTHS if getattr(workload, name).kind in READ_LATER]
    said = (*SAID_ELSEWHERE, *read_later)
    here = {key: value for key, value in flat(asdict(workload)).items() if not key.startswith(said)}
    return {key: value for key, value in here.items() if file and file.get(key) != value}
