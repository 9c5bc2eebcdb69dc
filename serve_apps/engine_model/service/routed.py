"""Runs of requests over many replicas, in one call: routed, found in caches, computed.

The rules are there, in `balancer` and in `prefix_reuse`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serve_apps.engine_model.compiled import loop
from serve_apps.engine_model.compiled.fast_engine import (
    OVERFLOW,
    FastEngine,
    FastSpec,
    Floats,
    Ints,
    Times,
    UnsupportedByFastPath,
    checked,
    worked,
)
from serve_apps.engine_model.cost.noise import Noise
from serve_apps.engine_model.service import prefix_reuse, route_loop
from serve_apps.engine_model.service.balancer import Balance, Choice, Loss, choice
from serve_apps.engine_model.service.prefix_reuse import Prefixes, SharedBeginnings


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in order of arrival: when each is sent, and its prompt, output and shared tokens (`asked`).

    Where they share more than one prefix, `prefixes` takes the place of the shared tokens. Requests before
    `from_s` fill the caches and nothing else: they have no times (nan).
    """

    sent_s: Floats
    asked: Sequence[Ints]
    prefixes: SharedBeginnings | None = None
    from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas of one kind behind a balancer; `seed` draws their noise and the balancer's random choices."""

    count: int = 1
    balance: Balance = Balance()  # noqa: RUF009  # frozen
    seed: int = 0
    loss: Loss | None = None


def serve_open(spec: FastSpec, requests: Requests, replicas: Replicas = Replicas()) -> Times:  # noqa: B008
    """All requests to their end, each sent at its time, whatever is in flight.

    Where they share several prefixes, `prefix_reuse` counts the tokens that each finds in its replica's
    cache, and a prompt waits while it and its answer do not fit beside those that run, each counted whole, so
    that none is preempted.

    Raises UnsupportedByFastPath, or ValueError for a request that can never be served.
    """
    prompt, output, *shared = requests.asked
    prefixes, sent_s, session = requests.prefixes, requests.sent_s, None
    if prefixes is not None:
        shared, session = [np.zeros_like(prompt)], prefixes.session
    asked = checked(spec, [prompt, output, *shared])
    if replicas.count == 1 and prefixes is None:
        return FastEngine(spec, int(asked[1].max(initial=1)), replicas.seed).serve(sent_s, asked)
    routed = choice(replicas.balance, replicas.count, replicas.seed, sent_s, session, replicas.loss)
    if prefixes is not None:
        routed = routed._replace(from_s=requests.from_s)
    cached = prefixes if spec.spec.enable_prefix_caching else None
    return _routed(spec, Requests(sent_s, asked, cached), routed, replicas)


def in_enough_room(spec: FastSpec, seed: int, room: int, serve: Callable[[int], int]) -> None:
    """Call `serve` with room for that many requests on each engine, doubled until it is enough.

    Raises UnsupportedByFastPath, also for engines with noise.
    """
    if not Noise(spec.spec, seed).silent:
        raise UnsupportedByFastPath("noise of many engines is drawn by each of them")
    while (why := serve(room)) == loop.OUT_OF_ROOM:
        room *= 2
    if why == loop.OUT_OF_KV:
        raise UnsupportedByFastPath(OVERFLOW)


def _routed(spec: FastSpec, requests: Requests, routed: Choice, replicas: Replicas) -> Times:
    """All requests over many replicas; their columns have a row for each."""
    taken, place, engines = engines_after(spec, requests, routed, replicas)
    served = requests.sent_s >= routed.from_s
    found = engines.requests[taken, place]
    first, last, queued, scheduled = (
        np.where(served, found[name], np.nan) for name in ("first_s", "last_s", "queued_s", "scheduled_s")
    )
    work, queue_s = worked(engines.states), scheduled - queued
    return Times(requests.sent_s, first, last, found["cached"] * served, taken, work, queue_s=queue_s)


def engines_after(
    spec: FastSpec, requests: Requests, routed: Choice, replicas: Replicas, steps: int = 0
) -> tuple[Ints, Ints, loop.EngineArrays]:
    """The engine of each request and its number there, and the engines when all have ended.

    The ends of the first `steps` steps of each engine are kept.
    """
    sent_s, asked, count = requests.sent_s, requests.asked, replicas.count
    taken, longest = np.zeros(len(sent_s), np.int64), int(asked[1].max(initial=1))
    engines = spec.arrays(0, 0, longest)

    def serve(room: int) -> int:
        nonlocal engines
        engines = spec.arrays(count, room, longest, counted=requests.prefixes is not None)
        engines = engines._replace(ends_s=np.zeros((count, steps)))
        balancer = route_loop.balancer_arrays(count, len(sent_s))
        caches = caches_of(spec, requests, count)
        return route_loop.route(taken, sent_s, tuple(asked), routed, balancer, caches, engines)  # type: ignore[no-any-return]

    room = len(sent_s) // count + 64
    if routed.mode == route_loop.GIVEN:
        room = int(np.bincount(routed.one[sent_s >= routed.from_s], minlength=count).max())
    in_enough_room(spec, replicas.seed, room, serve)
    # Each engine numbers its requests in order of arrival; those before `from_s` were not served.
    served = sent_s >= routed.from_s
    order = np.argsort(taken, kind="stable")
    among = np.cumsum(served[order])
    began = np.searchsorted(taken[order], np.arange(count))
    before = np.concatenate([[0], among])[began]
    place = np.zeros(len(taken), np.int64)
    place[order] = np.maximum(among - 1 - before[taken[order]], 0)
    return taken, place, engines


def caches_of(spec: FastSpec, requests: Requests, replicas: int) -> Any:
    """Empty prefix caches; of no request where none are counted."""
    size, asked = spec.spec.block_size, requests.asked
    prefixes = requests.prefixes
    if prefixes is None:
        prefixes = Prefixes(*(np.zeros(0, np.int64) for _ in range(7)))
        asked = [column[:0] for column in asked]
    pieces = prefixes.pieces(size)
    own = (asked[0] + asked[1] - 1) // size - pieces.blocks.sum(axis=0)
    return prefix_reuse.caches(pieces, own, replicas, spec.blocks)
