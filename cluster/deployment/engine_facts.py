"""What a replica says of its own engine over HTTP: models, version, arguments and vLLM's cache configuration.

Knows these four answers of a model server; whatever one does not tell is left out.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from conf.io.http_get import OK, AskError, ask

TIMEOUT_S = 10.0
GARBLED = (AskError, ValueError, RecursionError, KeyError, TypeError, AttributeError)
"""What an answer of another shape raises when it is read."""
_CARD = ("id", "max_model_len", "root")
"""What of a model's card is the same for every replica of one configuration."""
_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
PROFILED = ("num_gpu_blocks", "num_cpu_blocks", "engine", "kv_cache_memory_bytes", "kv_cache_size_tokens")
"""What each engine finds out for itself when it starts; it differs a little between equal ones."""


def reported_facts(url: str) -> dict[str, Any]:
    """What the replica at `url` says of its engine; empty where it says nothing."""
    says: dict[str, Any] = {}
    with suppress(*GARBLED):
        cards = json.loads(_get(f"{url}/v1/models"))["data"]
        says["models"] = [
            {key: card[key] for key in _CARD if isinstance(card.get(key), str | int)} for card in cards
        ]
    with suppress(*GARBLED):
        says["version"] = json.loads(_get(f"{url}/version"))["version"]
    with suppress(*GARBLED):
        says["engine"] = json.loads(_get(f"{url}/maxqps/replica"))["engine"]
    with suppress(AskError):
        if found := _CACHE.search(_get(f"{url}/metrics").decode(errors="replace")):
            says["cache_config"] = dict(_LABEL.findall(found.group(1)))
    return says


def digest(says: Mapping[str, Any]) -> str | None:
    """sha256 of what equal replicas say alike; None of one that said nothing."""
    if not says:
        return None
    cache = {key: value for key, value in says.get("cache_config", {}).items() if key not in PROFILED}
    text = json.dumps({**says, "cache_config": cache}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _get(url: str) -> bytes:
    """The body of a whole answer. Raises AskError."""
    answer = ask(url, TIMEOUT_S)
    if answer.status != OK:
        raise AskError(answer.said)
    return answer.body
