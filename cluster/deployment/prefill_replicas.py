"""The replicas behind those that answer, which only compute prompts: where they are, and if they are warm.

Nothing reaches them but the replicas that answer, which tell of them at one path; a server that does not know
it tells nothing.
"""

import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from cluster.deployment.engine_facts import GARBLED
from cluster.deployment.warmup import WarmupError
from conf.io.http_get import ask

PAGE = "/maxqps/prefill"
TIMEOUT_S = 10.0
RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class ToldPrefill:
    """The HTTP address of a replica's own figures, and how many prompts it has computed."""

    url: str
    prompts: int


def told(url: str) -> dict[str, ToldPrefill] | None:
    """The prefill replicas by their ids, as the replica at `url` knows them; None if it cannot tell."""
    try:
        answer = ask(f"{url}{PAGE}", TIMEOUT_S)
        if not answer.is_success:
            return None
        found = json.loads(answer.body)["replicas"]
        return {str(name): ToldPrefill(str(it["url"]), int(it["prompts"])) for name, it in found.items()}
    except GARBLED:
        return None


def warm(
    url: str, wanted: Collection[str], send: Callable[[], object], deadline_s: float
) -> dict[str, ToldPrefill]:
    """Call `send`, whose requests Serve spreads over them, until each wanted replica has computed a prompt.

    Returns them as told at `url`; nothing if nothing is told there. Raises WarmupError after `deadline_s`
    (monotonic).
    """
    while (found := told(url)) is not None:
        cold = {name for name in wanted if name not in found or not found[name].prompts}
        if not cold:
            return {name: found[name] for name in wanted}
        if time.monotonic() > deadline_s:
            raise WarmupError(f"{len(cold)} of {len(wanted)} prefill replicas never computed a prompt")
        if cold <= set(found):
            send()
        else:
            time.sleep(RETRY_S)  # the news of a new replica takes a moment
    return {}
