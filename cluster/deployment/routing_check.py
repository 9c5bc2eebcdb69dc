"""Checks over HTTP that the router of a running service follows its policy.

A router may outlive its application if another application takes the same name. A run would then measure the
old router as if it were the new one.
"""

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random

from cluster.deployment.serve_state import DeployError
from cluster.deployment.warmup import REPLICA_ID
from conf.io.http_get import AskError, ask
from conf.specs.experiment import Routing

TIMEOUT_S = 30.0
PATIENCE_S, RETRY_S = 15.0, 0.5
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
        time.sleep(RETRY_S)


def verdict(policy: str, seen: Mapping[str, Sequence[str]]) -> str:
    """One line on the replicas of each session in `seen`. Raises DeployError if they break the policy."""
    met = [len(set(replicas)) for replicas in seen.values()]
    mean, used = sum(met) / len(met), len({replica for each in seen.values() for replica in each})
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
    seen: dict[str, list[str]] = defaultdict(list)
    order = [f"check-{number}" for number in range(SESSIONS)] * TURNS
    Random(0).shuffle(order)  # in turn, each session would meet the same one of 2, 4, 8 or 16 replicas
    for session in order:
        seen[session].append(_answering(url, body, session))
    return seen


def _answering(url: str, body: bytes, session: str) -> str:
    """The replica that answers one request of a session. Raises DeployError."""
    headers = {"Content-Type": "application/json", "x-session-id": session}
    try:
        answer = ask(f"{url}/v1/completions", TIMEOUT_S, body=body, headers=headers)
        if not answer.is_success:
            raise AskError(answer.said)
    except AskError as error:
        raise DeployError(f"the router cannot be checked at {url}: {error}") from error
    if REPLICA_ID not in answer.names:
        raise DeployError(f"the router cannot be checked: answers at {url} do not say {REPLICA_ID}")
    return answer.names[REPLICA_ID]
