"""The words of the command line become an experiment, or are refused with the remedy. A composition root: it
asks the engines.

Short words stand for full ones: `http://10.0.0.7:8000 model=my-model isl=512 search.budget_s=15m` for
engine=external, target.urls, model.served_name, workload.input_tokens.mean and seconds.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from conf import Experiment, kernels, load
from conf.io.check import ConfigError
from conf.specs.experiment import EmulatedEngine, SimulatedEngine, VllmEngine
from conf.specs.request_sizes import tokens_of
from conf.specs.search import Progressive
from conf.words import groups
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

PROBE_KEYS = ("rate_qps", "profile_qps", "concurrency", "requests", "duration_s")
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
    workload = text_pool.located(with_mean_lengths(trace.resolve(experiment.workload)))
    experiment = with_image_tokens(
        replace(experiment, workload=workload, target=endpoint.located(experiment.target))
    )
    _refuse_words_of_other_verbs(experiment, verb)
    why = word_without_effect(experiment, verb, typed)
    if verb in ("sweep", "compare"):
        why = why or budget_too_short(experiment, typed)
    if why:
        raise ConfigError(why)
    if verb == "progressive" and experiment.progressive.lengths == "paper":
        _refuse_own_lengths(words)
    kind = experiment.engine.kind
    if kind == "external" and verb != "predict":
        endpoint.access_to(experiment.target)
        is_named = config is not None or any(word.startswith("model.served_name=") for word in typed)
        experiment = endpoint.with_served_model(experiment, is_named)
    elif kind != "simulated" and verb == "predict":
        raise ConfigError(f"predict needs engine=simulated, not {kind}")
    return experiment


def with_image_tokens(experiment: Experiment) -> Experiment:
    """The experiment with the model's tokens per image, if it sends images."""
    images, workload = experiment.workload.images, experiment.workload
    if not images.most:
        return experiment
    tokens = tokens_of(images.width_px, images.height_px, experiment.model.image_token_px)
    return replace(experiment, workload=replace(workload, images=replace(images, tokens=tokens)))


def _refuse_own_lengths(words: Sequence[str]) -> None:
    own = ("workload=", "workload.input_tokens", "workload.output_tokens")
    if idle := next((word for word in words if word.startswith(own)), ""):
        raise ConfigError(
            f"{idle}: progressive sends requests of the paper's lengths; leave it out, or add "
            "progressive.lengths=workload"
        )


def _refuse_words_of_other_verbs(experiment: Experiment, verb: str) -> None:
    """Refuse words that the verb does not honour, and a probe without a load."""
    loads = {"predict": ("rate_qps", "concurrency", "requests"), "recipe": ("rate_qps", "duration_s")}
    honoured = loads.get(verb, ())
    set_keys = [key for key in PROBE_KEYS if getattr(experiment, key) and key not in honoured]
    if verb != "probe" and set_keys:
        own = "has levels of its own" if verb == "progressive" else "finds the rate itself"
        raise ConfigError(f"{set_keys[0]} belongs to probe; {verb} {own}")
    replayed = verb == "predict" and experiment.is_replay
    if experiment.workload.arrivals.kind == "vllm_bench" and not replayed:
        raise ConfigError(
            "workload.arrivals.kind=vllm_bench sends a number of requests, which predict rate_qps=... "
            "requests=N replays; take kind=poisson, or kind=gamma with its burstiness"
        )
    if verb != "predict":
        _refuse_replay(experiment)
    if verb in ("probe", "recipe") and experiment.search.expected_qps:
        raise ConfigError(
            "search.expected_qps belongs to a search; probe offers the given load: "
            "leave it out, or add search.expected_qps=null where a file has it"
        )
    if verb != "progressive" and experiment.progressive != Progressive():
        raise ConfigError(f"progressive.* belongs to the verb progressive, not to {verb}; leave it out")
    if verb == "predict" and experiment.time_scale != 1:
        raise ConfigError("predict has no real clock; leave engine.time_scale out (or set it to 1)")
    parts = experiment.search.parts
    if parts > 1 and verb in ("predict", "probe", "recipe", "progressive"):
        raise ConfigError(
            f"{verb} is one run, not the {parts} of search.deployments and search.repeats; "
            "add search.deployments=1 search.repeats=1"
        )
    offered = (experiment.rate_qps, experiment.profile_qps, experiment.concurrency)
    if verb == "probe" and not any(offered) and experiment.workload.arrivals.kind != "trace":
        raise ConfigError(
            "probe needs rate_qps=... (QPS per node), profile_qps=[[second,QPS],...], concurrency=... or "
            "workload=trace"
        )


def _refuse_replay(experiment: Experiment) -> None:
    """Refuse, for a verb that measures, words that only a predicted replay of requests supports."""
    if experiment.requests is not None and experiment.concurrency is None:
        raise ConfigError(
            "requests=... needs concurrency=...; rate_qps=... is held for duration_s=... (predict replays "
            "requests=... at a rate)"
        )
    if experiment.concurrency is not None and experiment.closed_requests <= experiment.concurrency:
        raise ConfigError(
            f"requests={experiment.requests} must be above concurrency={experiment.concurrency}: the first "
            "requests only fill it (predict replays such a burst)"
        )


# Words without effect belong to an engine, a policy or a search that was not chosen. Only typed words are
# looked at, because a saved file holds every key.
SEARCHED = ("search.budget_s", "search.min_windows", "search.confirm_s")
VIRTUAL = ("search.min_windows", "search.confirm_s", "fleet.")
NOT_OF = {
    "probe": (SEARCHED, "a search; a probe lasts duration_s=..."),
    "progressive": (SEARCHED, "a search; progressive has levels of its own"),
    "predict": (VIRTUAL, "what is measured; predict sends nothing"),
    "replay": (("search.", *VIRTUAL), "a search or a fleet; a replay sends a number of requests"),
}
"""Verb -> prefixes of keys that it ignores, and what they belong to; `replay` is one kind of predict."""


MIXED = "lengths of another kind: that of a mixture follows from its values and weights"
HASHED = ("consistent_hash", "bounded_hash")
IDLE_KEYS: tuple[tuple[str, Callable[[Experiment], bool], str], ...] = (
    ("target.", lambda facts: facts.engine.kind == "external", "engine=external"),
    ("cluster.address", lambda facts: facts.cluster.session == "address", "cluster.session=address"),
    (
        "fleet.cpus_per_actor",
        lambda facts: facts.engine.kind != "external" or facts.cluster.session == "address",
        "load actors on Ray: cluster.session=address, or an engine that is deployed",
    ),
    (
        "routing.vnodes",
        lambda facts: facts.routing.policy in HASHED,
        "routing=consistent_hash or bounded_hash",
    ),
    ("routing.load_factor", lambda facts: facts.routing.policy == "bounded_hash", "routing=bounded_hash"),
    (
        "engine.drift_memory_s",
        lambda facts: getattr(facts.engine, "drift_sd", 0.0) > 0,
        "engine.drift_sd above 0",
    ),
    (
        "engine.stall_mean_s",
        lambda facts: getattr(facts.engine, "stall_every_steps", 0) > 0,
        "engine.stall_every_steps above 0",
    ),
    ("workload.input_tokens.mean", lambda facts: facts.workload.input_tokens.kind != "mixture", MIXED),
    ("workload.output_tokens.mean", lambda facts: facts.workload.output_tokens.kind != "mixture", MIXED),
    (
        "workload.images.",
        lambda facts: facts.workload.images.most > 0,
        "images, which workload.images.most=N adds",
    ),
    (
        "workload.conversations.truncation_step_tokens",
        lambda facts: facts.workload.conversations is None or facts.workload.conversations.step_tokens > 1,
        "workload.conversations.truncation=cache_aware",
    ),
)
"""Prefixes of keys, the experiments in which they have an effect, and the choice that gives them one."""


def word_without_effect(experiment: Experiment, verb: str, words: Sequence[str]) -> str:
    """The reason why a word has no effect, with the remedy; empty if all have one."""
    keys = [word.partition("=")[0] for word in words]
    for prefix, has_effect, home in IDLE_KEYS:
        for key in keys:
            if key.startswith(prefix) and not has_effect(experiment):
                return f"{key} belongs to {home}; leave it out"
    if verb != "quality":
        if gate_key := next((key for key in keys if key.startswith("quality.")), ""):
            return f"{gate_key} belongs to quality; leave it out"
        if "engine.defect" in keys:
            return "engine.defect belongs to quality: only compared answers show it"
    begins, home = NOT_OF.get("replay" if verb == "predict" and experiment.is_replay else verb, ((), ""))
    key = next((key for key in keys if key.startswith(begins)), "") if begins else ""
    return f"{key} belongs to {home}; leave it out" if key else ""


def budget_too_short(experiment: Experiment, words: Sequence[str]) -> str:
    """The reason why the fewest windows do not fit a typed budget, with the remedy; empty if they fit."""
    search = experiment.search
    budget_s = search.budget_s / search.deployments
    if search.least_s <= budget_s or not any(word.startswith("search.") for word in words):
        return ""
    fitting = int(budget_s * search.min_windows / search.least_s)
    fewer = f"lower search.min_windows to {fitting}" if fitting else "shorten search.window_s"
    return (
        f"search.min_windows={search.min_windows} need {search.least_s:g} s, above search.budget_s="
        f"{search.budget_s:g}; {fewer}, or raise search.budget_s to {search.least_s * search.deployments:g}"
    )


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
