"""The question beside an answer: an experiment in the words of its configuration groups."""

from analysis.results.types.shared_figures import AskedBounds, AskedExperiment
from conf import kernels
from conf.compose import UNKNOWN
from conf.constants import fingerprint
from conf.labels import workload_name, workload_tokens
from conf.specs.experiment import EmulatedEngine, Experiment, SimulatedEngine
from conf.transfers import transfers


def describe(experiment: Experiment) -> AskedExperiment:
    """The experiment, as far as it belongs beside the answer."""
    emulated = experiment.engine if isinstance(experiment.engine, EmulatedEngine) else None
    conversations = experiment.workload.conversations
    return AskedExperiment(
        engine=experiment.engine.kind,
        vllm_version=emulated.vllm_version if emulated else None,
        constants=fingerprint(experiment.model, experiment.hardware) if emulated else None,
        model=experiment.model.name,
        hardware=experiment.hardware.name,
        cluster=experiment.cluster.name,
        layout=experiment.layout.name,
        gpus_per_node=None if experiment.layout.name == UNKNOWN else experiment.layout.gpus_per_node,
        routing=experiment.routing.name,
        data_path="" if experiment.routing.name == UNKNOWN else experiment.routing.data_path,
        sessions=experiment.workload.sessions,
        conversations=conversations.truncation.replace("_", "-") if conversations else "",
        workload=workload_name(experiment.workload),
        tokens=workload_tokens(experiment.workload),
        arrivals=_arrivals(experiment),
        search=experiment.search.name,
        nodes=experiment.cluster.nodes,
        replicas=experiment.replicas,
        slo=AskedBounds.beside(experiment.slo),
        seed=experiment.seed,
        time_scale=experiment.time_scale,
        kernels=tuple(kernels.kernel_lines(experiment)),
        outside=_outside(experiment),
    )


def _outside(experiment: Experiment) -> tuple[str, ...]:
    """What the fit behind a simulated engine's constants did not have."""
    is_simulated = isinstance(experiment.engine, SimulatedEngine)
    return tuple(one.text for one in transfers(experiment)) if is_simulated else ()


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
