"""What a running service says over HTTP: facts of its engines, its prefill replicas, its router's choices."""

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from cluster.deployment.warmup import REPLICA_ID, SESSION_ID, DeployError, successful
from conf.io.http_get import AskError, ask
from conf.specs.experiment import Routing

TIMEOUT_S = 10.0
GARBLED = (AskError, ValueError, RecursionError, KeyError, TypeError, AttributeError)
"""Errors of reading an answer of another shape."""
_CARD = ("id", "max_model_len", "root")
"""Keys of a model's card that are equal on all replicas of one configuration."""
_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


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


def _get(url: str) -> bytes:
    """The body of a complete answer. Raises AskError."""
    return successful(ask(url, TIMEOUT_S)).body


PAGE = "/maxqps/prefill"
RETRY_S = 0.2


def reports(url: str) -> dict[str, tuple[str, int]] | None:
    """The prefill replicas by their ids, as the replica at `url` reports them; None if it does not.

    Of each the HTTP address of its own metrics, and how many prompts it has computed.
    """
    try:
        rows = json.loads(_get(f"{url}{PAGE}"))["replicas"]
        return {str(name): (str(row["url"]), int(row["prompts"])) for name, row in rows.items()}
    except GARBLED:
        return None


def warm_prefill(
    url: str, wanted: Collection[str], send: Callable[[], object], deadline_s: float
) -> dict[str, str]:
    """Call `send`, whose requests Serve spreads over them, until each wanted replica has computed a prompt.

    Returns their addresses by the report at `url`; empty if nothing is reported there. Raises DeployError
    after `deadline_s` (monotonic).
    """
    while (replicas := reports(url)) is not None:
        cold = {name for name in wanted if not replicas.get(name, ("", 0))[1]}
        if not cold:
            return {name: replicas[name][0] for name in wanted}
        if time.monotonic() > deadline_s:
            raise DeployError(f"{len(cold)} of {len(wanted)} prefill replicas never computed a prompt")
        if cold <= set(replicas):
            send()
        else:
            time.sleep(RETRY_S)  # a new replica is reported a moment later
    return {}


ROUTED_S = 30.0
PATIENCE_S, AGAIN_S = 15.0, 0.5
SESSIONS, TURNS = 16, 3
"""All sixteen sessions of a hash ring fall to the same one of two replicas once in 33,000 times."""
STICKY = ("consistent_hash", "bounded_hash")
SPREADING = ("round_robin", "pow2")
"""Policies of Serve's own routers; HAProxy's own balancing has no router that could be old."""
REMEDY = (
    "an old router may still be in force under this application's name: take Serve down (`serve shutdown`) "
    "and run again"
)


def check_router(
    url: str, routing: Routing, replicas: int, body: Mapping[str, object], patience_s: float = PATIENCE_S
) -> str | None:
    """One line on the router's behaviour; None without a router or with one replica.

    `body` is that of a request to /v1/completions; sixteen made-up sessions send it three times each, one at
    a time. A proxy learns of a router late and chooses by itself until then, so a failed check is repeated
    for `patience_s`. Raises DeployError if sessions still move that should stay, or stay that should move.
    """
    if replicas < 2 or routing.policy not in STICKY + SPREADING:
        return None
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return verdict(routing.policy, _seen(url, json.dumps(body).encode()))
        except DeployError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(AGAIN_S)


def verdict(policy: str, replicas_of: Mapping[str, Sequence[str]]) -> str:
    """One line on the replicas of each session. Raises DeployError if they break the policy."""
    met = [len(set(replicas)) for replicas in replicas_of.values()]
    mean, used = sum(met) / len(met), len({replica for each in replicas_of.values() for replica in each})
    line = f"{mean:.2f} replicas per session, {used} in use"
    if policy in STICKY and max(met) > 1:
        raise DeployError(f"routing {policy} should keep sessions on their replicas: {line}; {REMEDY}")
    if policy in STICKY and used < 2:
        raise DeployError(f"routing {policy} should spread sessions: {line}; {REMEDY}")
    if policy in SPREADING and max(met) == 1:
        raise DeployError(f"routing {policy} should spread a session's requests: {line}; {REMEDY}")
    return f"routing {policy} checked: {line}"


def _seen(url: str, body: bytes) -> dict[str, list[str]]:
    """The replicas that answered each session, in order. Raises DeployError for a failed request."""
    replicas: dict[str, list[str]] = defaultdict(list)
    order = [f"check-{number}" for number in range(SESSIONS)] * TURNS
    Random(0).shuffle(order)  # in turn, each session would meet the same one of 2, 4, 8 or 16 replicas
    for session in order:
        headers = {"Content-Type": "application/json", SESSION_ID: session}
        try:
            answer = successful(ask(f"{url}/v1/completions", ROUTED_S, body=body, headers=headers))
        except AskError as error:
            raise DeployError(f"the router cannot be checked at {url}: {error}") from error
        if REPLICA_ID not in answer.names:
            raise DeployError(f"the router cannot be checked: answers at {url} do not say {REPLICA_ID}")
        replicas[session].append(answer.names[REPLICA_ID])
    return replicas
