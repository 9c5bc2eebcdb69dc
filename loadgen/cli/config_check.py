"""Configuration check: refuses an experiment that no engine could run. A composition root: it asks the
engines.

It refuses before anything starts: weights that do not fit, prompts that are too long, arguments that vLLM
would refuse.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from conf import ConfigError, Experiment
from conf import kernels as kernels_of
from conf.specs.experiment import EmulatedEngine, SimulatedEngine, VllmEngine
from loadgen.cli.words import experiment_of
from loadgen.prompts import text_pool
from loadgen.traffic.traffic import Traffic
from serve_apps.engine_model.cost.node import refuse_experts, refuse_small
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.vllm_emulated.platform_plugin import has_gpu, refuse_gpu_node
from serve_apps.vllm_emulated.platform_plugin import installed_vllm as installed_vllm
from serve_apps.vllm_engine.prepared import prepared
from serve_apps.vllm_recipes.recipes import resolve
from serve_apps.vllm_recipes.vllm_flags import argument_name

PER_REQUEST_METRICS = "enable_per_request_metrics"
"""vLLM's argument with which an answer tells its time in the queue, in `metrics.queue_time_ms`."""


def experiment(verb: str, words: Sequence[str], config: Path | None) -> Experiment:
    """The experiment that the words ask of a verb. Raises ConfigError if it cannot be run."""
    made = experiment_of(verb, words, config)
    if isinstance(made.engine, EmulatedEngine) and not made.engine.vllm_version:
        # It belongs to the label of every figure.
        made = replace(made, engine=replace(made.engine, vllm_version=installed_vllm()))
    refuse_misfit(made)
    return made


def kernels(experiment: Experiment) -> list[str]:
    """Lines about kernels whose speed the engine model lacks or takes from elsewhere."""
    spec = experiment.engine
    if not isinstance(spec, VllmEngine):
        return kernels_of.kernel_lines(experiment)
    installed = installed_vllm()
    recipe = resolve(spec, experiment.model, experiment.layout, installed, experiment.hardware)
    return [recipe.unknown_speed] if recipe.unknown_speed else []


def all_kernels(experiments: Iterable[Experiment]) -> list[str]:
    """The lines of several experiments, each once."""
    return list(dict.fromkeys(line for one in experiments for line in kernels(one)))


def refuse_misfit(experiment: Experiment) -> None:
    """Raise ConfigError for weights, prompts or hardware that do not fit, and for a bad tokenizer."""
    spec = experiment.engine
    text_pool.refuse(experiment.workload, experiment.model.vocab)
    _refuse_untold(experiment)
    if isinstance(spec, VllmEngine):
        _refuse_vllm(spec, experiment)
    if not isinstance(spec, SimulatedEngine):
        return
    parts = spec, experiment.model, experiment.hardware, experiment.layout
    try:
        refuse_experts(experiment.model, experiment.layout)
        refuse_small(*parts, "engine.max_model_len")
        engine = EngineKind.of(*parts)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    context = experiment.model.max_context_tokens
    if spec.max_model_len > context:
        raise ConfigError(
            f"engine.max_model_len={spec.max_model_len} exceeds the model's {context} tokens; lower it"
        )
    room = min(spec.max_model_len, engine.blocks * spec.block_size)
    tokens = Traffic(experiment.workload).longest_request_tokens
    if tokens > room:
        raise ConfigError(
            f"workload: requests of up to {tokens} tokens exceed the {room} that the engine holds "
            "(engine.max_model_len, engine.num_gpu_blocks); shorten them"
        )


def _refuse_untold(experiment: Experiment) -> None:
    """Refuse a bound on a queue that the engine does not tell; of other servers the run learns it."""
    spec, layout = experiment.engine, experiment.layout
    if experiment.slo.strictest_ms("queue") is None:
        return
    args = {argument_name(word): value for word, value in getattr(spec, "args", {}).items()}
    if isinstance(spec, VllmEngine) and not args.get(PER_REQUEST_METRICS):
        raise ConfigError(
            f"slo.queue_...: vLLM tells a request's time in its queue only if asked; add engine.args."
            f"{PER_REQUEST_METRICS}=true"
        )
    if layout.prefill is not None:
        raise ConfigError(
            f"slo.queue_...: a request waits in two queues of layout={layout.name} and no server tells both; "
            "leave the bound out, or take slo.ttft_p90_ms"
        )


def _refuse_vllm(spec: VllmEngine, experiment: Experiment) -> None:
    """Refuse what this vLLM or the hardware would refuse, and an emulated vLLM beside a GPU."""
    tokens = Traffic(experiment.workload).longest_request_tokens
    try:
        if isinstance(spec, EmulatedEngine):
            refuse_gpu_node()
        elif spec.kind == "vllm" and experiment.cluster.session != "address" and not has_gpu():
            raise ValueError(
                f"engine=vllm needs GPUs, which cluster={experiment.cluster.name} only pretends to have; use "
                "cluster=mi325x_1n in a Ray cluster of GPU nodes, or engine=vllm_emulated here"
            )
        prepared(spec, experiment.model, experiment.layout, experiment.hardware, tokens)
    except ValueError as error:
        raise ConfigError(str(error)) from error
