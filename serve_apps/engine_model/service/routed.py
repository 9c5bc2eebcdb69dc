"""Requests over many replicas, in one call: routed, found in caches, computed.

Knows how `route_loop.route` is called; what it does stands there, in `balancer` and in `prefix_reuse`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from serve_apps.engine_model.compiled import loop
from serve_apps.engine_model.compiled.fast_engine import (
    FastEngine,
    Floats,
    Ints,
    Machine,
    Times,
    Unfit,
    checked,
    columns,
    rings,
    states,
    worked,
)
from serve_apps.engine_model.compiled.native import plain
from serve_apps.engine_model.cost.noise import Noise
from serve_apps.engine_model.service import prefix_reuse, route_loop
from serve_apps.engine_model.service.balancer import Balance, Choice, Loss, choice
from serve_apps.engine_model.service.prefixes import Prefixes


def serve_open(
    machine: Machine,
    sent_s: Floats,
    asked: Sequence[Ints],
    seed: int = 0,
    replicas: int = 1,
    policy: str = "leastconn",
    native: bool = True,
) -> Times:
    """Requests at given times, in order, over engines behind one balancer, `leastconn` or `roundrobin`.

    `asked`: prompt, output and shared tokens of each. All requests are served to their end. Raises Unfit, or
    ValueError for a request that can never be served.
    """
    asked = checked(machine, asked)
    if replicas == 1:
        return FastEngine(machine, int(asked[1].max(initial=1)), seed, native).serve(sent_s, asked)
    routed = choice(Balance(policy), replicas, seed, sent_s)
    return _routed(machine, sent_s, asked, routed, None, seed, replicas, native)


def serve_prefixes(
    machine: Machine,
    sent_s: Floats,
    asked: Sequence[Ints],
    prefixes: Prefixes,
    balance: Balance,
    seed: int = 0,
    replicas: int = 1,
    loss: Loss | None = None,
    from_s: float = 0.0,
    native: bool = True,
) -> Times:
    """Requests that share several prefixes, over replicas with a prefix cache each; `asked`: prompt, output.

    What each finds in its replica's cache is that of `reuse`; a prompt waits while it and its answer do not
    fit beside those that run, of which each is counted whole, so that nobody is preempted. Requests before
    `from_s` fill the caches and nothing else: they have no times (nan). Raises as `serve_open`.
    """
    prompt, output, none = checked(machine, [*asked, np.zeros_like(asked[0])])
    cached = prefixes if machine.spec.enable_prefix_caching else None
    routed = choice(balance, replicas, seed, sent_s, prefixes.session, loss)._replace(from_s=from_s)
    return _routed(machine, sent_s, [prompt, output, none], routed, cached, seed, replicas, native)


def _routed(
    machine: Machine,
    sent_s: Floats,
    asked: Sequence[Ints],
    routed: Choice,
    prefixes: Prefixes | None,
    seed: int,
    replicas: int,
    native: bool,
) -> Times:
    """All requests over many replicas; their columns have a row for each, which grows until it is enough."""
    noise = Noise(machine.spec, seed)
    if not noise.silent:
        raise Unfit("noise of many engines is drawn by each of them")
    route = route_loop.route if native else plain(route_loop.route)
    limits, costs = machine.limits(counted=prefixes is not None), machine.costs(noise)
    room = len(sent_s) // replicas + 64
    if routed.mode == route_loop.GIVEN:
        room = int(np.bincount(routed.one[sent_s >= routed.from_s], minlength=replicas).max())
    while True:
        ints, floats = states(replicas)
        requests, ring = columns(replicas, room), rings(replicas, int(asked[1].max(initial=1)))
        taken = np.zeros(len(sent_s), np.int64)
        state = ints, floats, requests, ring, tuple(np.zeros(0) for _ in range(3))
        books = _books(machine, asked, prefixes, replicas)
        why = route(taken, sent_s, tuple(asked), tuple(routed), books, limits, costs, *state)
        if why == loop.REACHED:
            break
        if why == loop.OUT_OF_KV:
            raise Unfit("the KV cache may overflow")
        room *= 2
    # Each engine numbers its requests in order of arrival, and those that came before it served not at all.
    served = sent_s >= routed.from_s
    order = np.argsort(taken, kind="stable")
    among = np.cumsum(served[order])
    began = np.searchsorted(taken[order], np.arange(replicas))
    before = np.concatenate([[0], among])[began]
    place = np.zeros(len(taken), np.int64)
    place[order] = np.maximum(among - 1 - before[taken[order]], 0)
    cached, first, last = (requests[column][taken, place] for column in (5, 7, 8))
    first, last = (np.where(served, column, np.nan) for column in (first, last))
    return Times(sent_s, first, last, cached * served, taken, worked(ints.sum(axis=0), floats.sum(axis=0)))


def _books(machine: Machine, asked: Sequence[Ints], prefixes: Prefixes | None, replicas: int) -> Any:
    size = machine.spec.block_size
    if prefixes is None:
        prefixes = Prefixes(*(np.zeros(0, np.int64) for _ in range(7)))
        asked = [column[:0] for column in asked]
    pieces = prefixes.pieces(size)
    own = (asked[0] + asked[1] - 1) // size - pieces.blocks.sum(axis=0)
    return prefix_reuse.books(pieces, own, replicas, machine.blocks)
