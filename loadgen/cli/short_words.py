"""Short words of the command line: an endpoint's URL alone, its model's name, lengths, times with a unit.

    maxqps sweep http://10.0.0.7:8000 model=my-model isl=512 osl=64 search.budget_s=15m

stands for engine=external, target.urls, model.served_name, workload.input_tokens.mean and so on. Every other
word stays as it is.
"""

import json
import re
from collections.abc import Sequence

from conf.io.check import ConfigError
from conf.words import groups

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
WARMUP_REQUESTS = 12
"""Warm-up of an endpoint, which most likely has served before: three seconds (our choice)."""
COMMON_VOCAB = 32_000
"""Token ids below this exist in nearly every vocabulary (Llama 2's and Mistral's have as many): prompts
for an unknown model consist of them."""


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
    defaults = {"cluster.nodes": "1", "fleet.warmup_requests": str(WARMUP_REQUESTS)}
    if chosen.get("model", "") not in groups()["model"]:
        defaults["model.vocab"] = str(COMMON_VOCAB)
    return [*words, *(f"{key}={value}" for key, value in defaults.items() if key not in chosen)]


def _named(word: str) -> str:
    """The word; `model=NAME` of an endpoint is the name in its requests unless NAME is a file of ours."""
    key, _, value = word.partition("=")
    return f"model.served_name={value}" if key == "model" and value not in groups()["model"] else word
