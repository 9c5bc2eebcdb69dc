"""Asks a running service whether its router does what was asked; knows HTTP and the headers, no router.

A changed router may be ignored: one outlives the application it was made for where another takes the same
name, and measured as if it were the new one it is a wrong answer that looks right.
"""

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random

from cluster.deployment.serve_state import DeployError
from cluster.deployment.warmup import REPLICA_ID
from conf.io.http_get import OK, AskError, ask
from conf.specs.experiment import Routing

TIMEOUT_S = 30.0
PATIENCE_S, RETRY_S = 15.0, 0.5
SESSIONS, TURNS = 16, 3
"""Sixteen sessions of a ring all fall to one of two replicas once in 33,000 times."""
STICKY = ("consistent_hash", "bounded_hash")
SPREADING = ("round_robin", "pow2")
"""Of Serve's own routers; what HAProxy balances by itself has none that could be an old one."""
REMEDY = (
    "an old router may still be in force under this application's name: take Serve down (`serve shutdown`) "
    "and run again"
)


def check_router(
    url: str, routing: Routing, replicas: int, body: Mapping[str, object], patience_s: float = PATIENCE_S
) -> str | None:
    """One line on what the router does, None where there is nothing to ask: one replica, or no router.

    `body` is that of a request to /v1/completions, sent one at a time by sixteen made-up sessions, three
    times each. A proxy learns of a router late, and chooses by itself until then: so what is wrong is asked
    again for `patience_s`. Raises DeployError where sessions still wander that should stay, or stay that
    should wander.
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
    """One line on the replicas that `seen` sessions met, in order. Raises DeployError if it is wrong."""
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
    """The replica of every answer by session. Raises DeployError where one is not an answer."""
    seen: dict[str, list[str]] = defaultdict(list)
    order = [f"check-{number}" for number in range(SESSIONS)] * TURNS
    Random(0).shuffle(order)  # in turn, each session would meet the same one of 2, 4, 8 or 16 replicas
    for session in order:
        seen[session].append(_answering(url, body, session))
    return seen


def _answering(url: str, body: bytes, session: str) -> str:
    """The replica that answers a request of a session. Raises DeployError."""
    headers = {"Content-Type": "application/json", "x-session-id": session}
    try:
        answer = ask(f"{url}/v1/completions", TIMEOUT_S, body=body, headers=headers)
        if answer.status != OK:
            raise AskError(answer.said)
    except AskError as error:
        raise DeployError(f"the router cannot be checked at {url}: {error}") from error
    if REPLICA_ID not in answer.names:
        raise DeployError(f"the router cannot be checked: answers at {url} do not say {REPLICA_ID}")
    return answer.names[REPLICA_ID]
