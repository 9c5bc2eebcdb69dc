"""Facts that a replica reports over HTTP: models, version, engine arguments, vLLM's cache configuration.

A fact that is not reported is left out.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from conf.io.http_get import AskError, ask

TIMEOUT_S = 10.0
GARBLED = (AskError, ValueError, RecursionError, KeyError, TypeError, AttributeError)
"""Errors of reading an answer of another shape."""
_CARD = ("id", "max_model_len", "root")
"""Keys of a model's card that are equal on all replicas of one configuration."""
_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
PROFILED = ("num_gpu_blocks", "num_cpu_blocks", "engine", "kv_cache_memory_bytes", "kv_cache_size_tokens")
"""Labels that each engine measures when it starts; they differ a little between equal engines."""


def reported_facts(url: str) -> dict[str, Any]:
    """Facts that the replica at `url` reports of its engine; empty if it reports none."""
    facts: dict[str, Any] = {}
    with suppress(*GARBLED):
        cards = json.loads(_get(f"{url}/v1/models"))["data"]
        facts["models"] = [
            {key: card[key] for key in _CARD if isinstance(card.get(key), str | int)} for card in cards
        ]
    with suppress(*GARBLED):
        facts["version"] = json.loads(_get(f"{url}/version"))["version"]
    with suppress(*GARBLED):
        described = json.loads(_get(f"{url}/maxqps/replica"))
        facts["engine"] = described["engine"]
        if prefill := described.get("prefill"):  # in a split layout
            facts["prefill_engine"] = prefill["engine"]
    with suppress(AskError):
        if match := _CACHE.search(_get(f"{url}/metrics").decode(errors="replace")):
            facts["cache_config"] = dict(_LABEL.findall(match.group(1)))
    return facts


def digest(facts: Mapping[str, Any]) -> str | None:
    """sha256 of the facts that equal replicas share; None if there are no facts."""
    if not facts:
        return None
    cache = {key: value for key, value in facts.get("cache_config", {}).items() if key not in PROFILED}
    text = json.dumps({**facts, "cache_config": cache}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _get(url: str) -> bytes:
    """The body of a complete answer. Raises AskError."""
    answer = ask(url, TIMEOUT_S)
    if not answer.is_success:
        raise AskError(answer.said)
    return answer.body
