"""The words of the command line become an experiment, or are refused with the remedy. A composition root: it
asks the engines.

Short words stand for full ones: `http://10.0.0.7:8000 model=my-model isl=512 search.budget_s=15m` for
engine=external, target.urls, model.served_name, workload.input_tokens.mean and seconds.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.quality.gate import fewest_prompts
from conf import Experiment, kernels, load
from conf.io.check import ConfigError
from conf.specs.experiment import EmulatedEngine, SimulatedEngine, VllmEngine
from conf.specs.request_sizes import tokens_of
from conf.specs.rules import check_rules
from conf.specs.search import Progressive
from conf.words import groups
from loadgen.predict import replay
from loadgen.prompts import text_pool
from loadgen.run import endpoint
from loadgen.traffic import trace
from loadgen.traffic.prefix_sharing import with_mean_lengths
from loadgen.traffic.traffic import Traffic
from serve_apps.engine_model.cost.node import refuse_experts, refuse_small
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.vllm_emulated.platform_plugin import has_gpu, refuse_gpu_node
from serve_apps.vllm_emulated.platform_plugin import installed_vllm as installed_vllm
from serve_apps.vllm_engine.config_file import prepared
from serve_apps.vllm_recipes.recipes import resolve
from serve_apps.vllm_recipes.vllm_flags import argument_name

RULES = Path(__file__).with_name("word_rules.yaml")
SHORT = {
    "isl": "workload.input_tokens.mean",
    "osl": "workload.output_tokens.mean",
    "duration": "duration_s",
    "budget": "search.budget_s",
}
"""Short keys, and the keys that they stand for."""
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
"""Seconds of each unit of time."""
TIME = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|s|m|h)")
COMMON_VOCAB = 32_000
"""Token ids below this exist in nearly every vocabulary (Llama 2's and Mistral's have as many): prompts
for an unknown model consist of them."""
PER_REQUEST_METRICS = "enable_per_request_metrics"
"""vLLM's argument with which an answer tells its time in the queue, in `metrics.queue_time_ms`."""


def experiment_of(verb: str, words: Sequence[str], config: Path | None) -> Experiment:
    """The experiment of the words; a prediction takes ten virtual hours unless the words choose a search.

    Raises ConfigError with the remedy for words that the verb does not honour.
    """
    words = spelled(words)
    typed = list(words)
    if verb == "predict" and not any(word.startswith("search=") for word in words):
        words.append("search=virtual")
    if verb == "predict" and not any(word.startswith("cluster.session=") for word in words):
        words.append("cluster.session=fake")  # nothing is started, so that any number of nodes will do
    experiment = load(words, config)
    workload = with_mean_lengths(trace.resolve(experiment.workload))
    workload = replace(workload, tokenizer=_absolute(workload.tokenizer))
    target = replace(experiment.target, ca_file=_absolute(experiment.target.ca_file))
    experiment = with_image_tokens(replace(experiment, workload=workload, target=target))
    # Only typed words can be idle, because a saved file holds every key.
    refuse(Command(verb, experiment), *(Word(verb, experiment, word) for word in typed))
    if experiment.engine.kind == "external":
        endpoint.access_to(experiment.target)
        is_named = config is not None or any(word.startswith("model.served_name=") for word in typed)
        experiment = endpoint.with_served_model(experiment, is_named)
    return experiment


def _absolute(path: str) -> str:
    """The absolute path: load actors run, and a run is resumed, elsewhere. An empty one stays so."""
    return path and str(Path(path).expanduser().absolute())


def refuse(*specs: object) -> None:
    """Raise ConfigError for the first of these that a rule of `word_rules.yaml` refuses."""
    try:
        for spec in specs:
            check_rules(spec, RULES)
    except ValueError as error:
        raise ConfigError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Command:
    """An experiment with its verb: what rules about commands read."""

    verb: str
    experiment: Experiment

    def __getattr__(self, name: str) -> Any:
        return getattr(self.experiment, name)

    @property
    def replays(self) -> bool:
        """True if requests of a number are replayed on the engine model."""
        return self.verb == "predict" and self.experiment.is_replay

    @property
    def unseen_limit(self) -> str:
        """A bound whose latency a replay does not see; empty without one."""
        return replay.unseen_limit(self.experiment.slo) if self.replays else ""

    @property
    def has_levels(self) -> bool:
        """True if a key of the published ladder has another value than its default."""
        return self.experiment.progressive != Progressive()

    @property
    def fewest_prompts(self) -> int:
        """The fewest prompts that can show that answers are the same."""
        return fewest_prompts(self.experiment.quality)

    @property
    def drafting(self) -> str:
        """An argument of vLLM for drafted tokens; empty without one."""
        args = getattr(self.experiment.engine, "args", {})
        return next((key for key in args if key.startswith("speculative")), "")

    @property
    def fitting_windows(self) -> int:
        """Windows that fit into the budget."""
        search = self.experiment.search
        return int(search.budget_s * search.min_windows / search.least_s)


@dataclass(frozen=True, slots=True)
class Word(Command):
    """A word of a command as it was `typed`: what rules about single keys read."""

    typed: str

    @property
    def word(self) -> str:
        """The key of the word."""
        return self.typed.partition("=")[0]


def with_image_tokens(experiment: Experiment) -> Experiment:
    """The experiment with the model's tokens per image, if it sends images."""
    images, workload = experiment.workload.images, experiment.workload
    if not images.most:
        return experiment
    tokens = tokens_of(images.width_px, images.height_px, experiment.model.image_token_px)
    return replace(experiment, workload=replace(workload, images=replace(images, tokens=tokens)))


def spelled(words: Sequence[str]) -> list[str]:
    """The words with their full keys; a URL among them chooses engine=external.

    Raises ConfigError for a URL beside words of another engine.
    """
    urls = [word for word in words if _is_url(word)]
    others = [_spelled(word) for word in words if not _is_url(word)]
    return [*_endpoint(urls, others), *map(_named, others)] if urls else others


def _is_url(word: str) -> bool:
    return word.startswith(("http://", "https://"))


def _spelled(word: str) -> str:
    """A word with its full key, and a time in seconds."""
    key, equals, value = word.partition("=")
    key = SHORT.get(key, key)
    if key.endswith("_s") and (time := TIME.fullmatch(value)):
        value = f"{float(time[1]) * UNITS[time[2]]:.12g}"
    return f"{key}{equals}{value}"


def _endpoint(urls: Sequence[str], others: Sequence[str]) -> list[str]:
    """The words that measure `urls`, without those that are among the others already."""
    chosen = {key: value for key, _, value in (word.partition("=") for word in others)}
    if chosen.get("engine", "external") != "external":
        raise ConfigError(
            f"{urls[0]} is measured as it is, but engine={chosen['engine']} deploys a service; leave one out"
        )
    if "target.urls" in chosen:
        raise ConfigError(f"{urls[0]} and target.urls=... both name the endpoint; leave one out")
    words = ["engine=external", f"target.urls={json.dumps(urls)}"]
    defaults = {"cluster.nodes": "1"}
    if chosen.get("model", "") not in groups()["model"]:
        defaults["model.vocab"] = str(COMMON_VOCAB)
    return [*words, *(f"{key}={value}" for key, value in defaults.items() if key not in chosen)]


def _named(word: str) -> str:
    """The word; `model=NAME` of an endpoint is the name in its requests unless NAME is a file of ours."""
    key, _, value = word.partition("=")
    return f"model.served_name={value}" if key == "model" and value not in groups()["model"] else word


# What no engine could run is refused before anything starts.


def checked_experiment(verb: str, words: Sequence[str], config: Path | None) -> Experiment:
    """The experiment that the words ask of a verb. Raises ConfigError if it cannot be run."""
    made = experiment_of(verb, words, config)
    if isinstance(made.engine, EmulatedEngine) and not made.engine.vllm_version:
        # It belongs to the label of every figure.
        made = replace(made, engine=replace(made.engine, vllm_version=installed_vllm()))
    refuse_misfit(made)
    return made


def kernel_lines(experiment: Experiment) -> list[str]:
    """Lines about kernels whose speed the engine model lacks or takes from elsewhere."""
    spec = experiment.engine
    if not isinstance(spec, VllmEngine):
        return kernels.kernel_lines(experiment)
    installed = installed_vllm()
    recipe = resolve(spec, experiment.model, experiment.layout, installed, experiment.hardware)
    return [recipe.unknown_speed] if recipe.unknown_speed else []


def all_kernels(experiments: Iterable[Experiment]) -> list[str]:
    """The lines of several experiments, each once."""
    return list(dict.fromkeys(line for experiment in experiments for line in kernel_lines(experiment)))


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
        prepared(experiment, tokens)
    except ValueError as error:
        raise ConfigError(str(error)) from error
