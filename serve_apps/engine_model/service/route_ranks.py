"""Runs of requests over replicas of data-parallel ranks, in one call: routed to a replica, then to a rank.

A step of all ranks and the choice of one stand in `compiled.lockstep`.
"""

import math
from typing import Any

import numpy as np

from serve_apps.engine_model.compiled.fast_engine import Times, checked, worked
from serve_apps.engine_model.compiled.lockstep import RanksSpec, advance_ranks, choose_rank, engine_arrays
from serve_apps.engine_model.compiled.loop import OUT_OF_ROOM, REACHED, submit
from serve_apps.engine_model.compiled.native import native
from serve_apps.engine_model.service.balancer import choice
from serve_apps.engine_model.service.prefix_reuse import found
from serve_apps.engine_model.service.route_loop import balancer_arrays, choose, recount
from serve_apps.engine_model.service.routed import Replicas, Requests, caches_of, in_enough_room


def serve_ranks(spec: RanksSpec, requests: Requests, replicas: Replicas) -> Times:
    """`routed.serve_open` for replicas of data-parallel ranks; raises as it does, and for a lost replica."""
    assert replicas.loss is None, "no replica of data-parallel ranks is lost here"
    prompt, output, *shared = requests.asked
    prefixes, sent_s, count = requests.prefixes, requests.sent_s, replicas.count
    session = None if prefixes is None else prefixes.session
    if prefixes is not None:
        shared = [np.zeros_like(prompt)]
    asked = checked(spec.rank, [prompt, output, *shared])
    routed = choice(replicas.balance, count, replicas.seed, sent_s, session)
    if prefixes is not None:
        routed = routed._replace(from_s=requests.from_s)
    known = prefixes if spec.rank.spec.enable_prefix_caching else None
    longest, rows = int(asked[1].max(initial=1)), count * spec.time.ranks
    taken, place = np.zeros(len(sent_s), np.int64), np.zeros(len(sent_s), np.int64)
    engines, lock = engine_arrays(spec, 0, 0, longest, False), spec.arrays(count)

    def serve(room: int) -> int:
        nonlocal engines, lock
        engines, lock = engine_arrays(spec, count, room, longest, known is not None), spec.arrays(count)
        balancer = balancer_arrays(count, len(sent_s))
        caches = caches_of(spec.rank, Requests(sent_s, asked, known), rows)
        return route_ranks((taken, place), (sent_s, *asked), routed, balancer, caches, lock, engines)  # type: ignore[no-any-return]

    in_enough_room(spec.rank, replicas.seed, len(sent_s) // rows + 64, serve)
    served = sent_s >= routed.from_s
    seen = engines.requests[taken, place]
    first_s, last_s = (np.where(served, seen[name], np.nan) for name in ("first_s", "last_s"))
    # All ranks are busy in every step of theirs: the steps and seconds are those of the replica.
    work = worked(engines.states)._replace(
        steps=int(lock.groups["steps"].sum()), busy_s=float(lock.groups["busy_s"].sum())
    )
    return Times(sent_s, first_s, last_s, seen["cached"] * served, taken // spec.time.ranks, work)


@native
def route_ranks(
    placed: Any, arrivals: Any, choice: Any, balancer: Any, caches: Any, lock: Any, engines: Any
) -> int:
    """Give every one of the `arrivals` (due, prompt, output, shared) to a rank of a replica, and serve all.

    `placed` receives the row of each one's rank, and its number there.
    """
    taken, place = placed
    due_s, prompts, outputs, shares = arrivals
    counted, block, width = engines.limits.counted, engines.limits.block, lock.width
    for j in range(len(due_s)):
        now_s = due_s[j]
        for g in range(len(lock.groups)):
            status: int = advance_ranks(now_s, lock, engines, g)
            if status != REACHED:
                return status
            open_requests = 0
            for k in range(width):
                open_requests += engines.states[g * width + k].open
            recount(g, open_requests, balancer)
        g = choose(j, choice, balancer)
        if now_s < choice.from_s:
            taken[j] = g * width + j % width
            if counted:
                found(j, taken[j], caches)
            continue
        r = choose_rank(now_s, lock, engines, g)
        shared = min(found(j, r, caches), (prompts[j] - 1) // block) * block if counted else shares[j]
        i = submit(engines, r, now_s, prompts[j], outputs[j], shared)
        if i < 0:
            return OUT_OF_ROOM
        taken[j], place[j] = r, i
    for g in range(len(lock.groups)):
        status = advance_ranks(math.inf, lock, engines, g)
        if status != REACHED:
            return status
    return REACHED
