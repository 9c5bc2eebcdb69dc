"""The replicas that only compute prompts: where they are, and whether they are warm.

No client reaches them. The replicas that answer report them at one path; other servers do not have the path.
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
class PrefillReport:
    """The HTTP address of a replica's own metrics, and how many prompts it has computed."""

    url: str
    prompts: int


def reports(url: str) -> dict[str, PrefillReport] | None:
    """The prefill replicas by their ids, as the replica at `url` reports them; None if it does not."""
    try:
        answer = ask(f"{url}{PAGE}", TIMEOUT_S)
        if not answer.is_success:
            return None
        rows = json.loads(answer.body)["replicas"]
        return {str(name): PrefillReport(str(row["url"]), int(row["prompts"])) for name, row in rows.items()}
    except GARBLED:
        return None


def warm(
    url: str, wanted: Collection[str], send: Callable[[], object], deadline_s: float
) -> dict[str, PrefillReport]:
    """Call `send`, whose requests Serve spreads over them, until each wanted replica has computed a prompt.

    Returns their reports at `url`; empty if nothing is reported there. Raises WarmupError after `deadline_s`
    (monotonic).
    """
    while (replicas := reports(url)) is not None:
        cold = {name for name in wanted if name not in replicas or not replicas[name].prompts}
        if not cold:
            return {name: replicas[name] for name in wanted}
        if time.monotonic() > deadline_s:
            raise WarmupError(f"{len(cold)} of {len(wanted)} prefill replicas never computed a prompt")
        if cold <= set(replicas):
            send()
        else:
            time.sleep(RETRY_S)  # a new replica is reported a moment later
    return {}
