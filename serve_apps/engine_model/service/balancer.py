"""The routing policies' choice of a replica for each request, compiled where it depends on what is in flight;
the ring, its hash and its bound are `serve_apps.routing.policies`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.specs.routing import SESSION_POLICIES
from serve_apps.engine_model.engine import state
from serve_apps.engine_model.engine.native import NONE, inlined, native
from serve_apps.routing import policies

Ints = NDArray[np.int64]
POLICIES = ("leastconn", "roundrobin", "round_robin", "pow2", *SESSION_POLICIES)
PAIRS_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Balance:
    """A policy with its settings, as the spec `Routing` has them.

    It is one of `POLICIES`. `home` gives the replica of a session, by session and number of replicas, under
    `client_side`.
    """

    policy: str = "leastconn"
    vnodes: int = 1000
    load_factor: float = 1.25
    home: Callable[[int, int], int] | None = None


class Loss(NamedTuple):
    """A replica that gets no request from `at_s` on."""

    replica: int
    at_s: float


class Choice(NamedTuple):
    """The columns for `choose`, by `mode`.

    `one` is the replica, or with `other` a pair of which the less busy one is taken, or the start on the
    ring, whose replicas are `owners`.
    """

    mode: int
    one: Ints = np.zeros(0, np.int64)
    other: Ints = np.zeros(0, np.int64)
    owners: Ints = np.zeros(0, np.int64)


def choice(
    balance: Balance,
    replicas: int,
    seed: int,
    due_s: NDArray[np.float64],
    session: Ints | None = None,
    loss: Loss | None = None,
    first: int = 0,
) -> Choice:
    """The policy over requests that are due at `due_s`, in order of arrival; `seed` draws random choices.

    The number of the first request is `first`. After a loss the survivors share the requests by the same
    rule. A policy that goes by sessions needs some.
    """
    if balance.policy == "leastconn":
        return Choice(LEAST)
    everyone = tuple(range(replicas))
    if balance.policy == "bounded_hash":
        places, owners = _ring(balance, everyone, seed)
        return Choice(BOUNDED, _starts(places, session), owners=owners)
    before = len(due_s) if loss is None else int(np.searchsorted(due_s, loss.at_s))
    left = everyone if loss is None else tuple(each for each in everyone if each != loss.replica)
    parts = (
        _fixed(balance, who, seed, first + at, None if session is None else session[at])
        for who, at in ((everyone, np.arange(before)), (left, np.arange(before, len(due_s))))
    )
    one, other = (np.concatenate(pair) for pair in zip(*parts, strict=True))
    return Choice(FEWER if balance.policy == "pow2" else GIVEN, one, other)


def _fixed(balance: Balance, replicas: tuple[int, ...], seed: int, at: Ints, session: Any) -> Any:
    """The replica, or the pair, of the requests numbered `at`, whatever is in flight."""
    count, who, nothing = len(replicas), np.array(replicas), np.zeros(0, np.int64)
    match balance.policy:
        case "roundrobin" | "round_robin":
            return who[at % count], nothing
        case "pow2":
            return tuple(who[pairs(seed, count, at)].T)
        case "client_side":
            assert balance.home is not None, "client_side is the load generator's rule; hand it in"
            sessions, inverse = np.unique(session, return_inverse=True)
            homes = np.array([balance.home(each, count) for each in sessions.tolist()], np.int64)
            return who[homes[inverse]], nothing
    places, owners = _ring(balance, replicas, seed)
    return owners[_starts(places, session)], nothing


def pairs(seed: int, replicas: int, at: Ints) -> Ints:
    """Two replicas, different if there are two, for each request of the ascending numbers `at`."""
    if not len(at):
        return np.zeros((0, 2), np.int64)
    first, last = int(at[0]) // PAIRS_CHUNK, int(at[-1]) // PAIRS_CHUNK
    drawn: Ints = np.concatenate([_pairs_chunk(seed, replicas, chunk) for chunk in range(first, last + 1)])
    return drawn[at - first * PAIRS_CHUNK]


@lru_cache(maxsize=8)
def _pairs_chunk(seed: int, replicas: int, chunk: int) -> Ints:
    rng = np.random.default_rng([seed, chunk])
    first = rng.integers(replicas, size=PAIRS_CHUNK)
    away = rng.integers(1, max(2, replicas), size=PAIRS_CHUNK)
    return np.column_stack([first, (first + away) % replicas])


@lru_cache(maxsize=8)
def _ring(balance: Balance, replicas: tuple[int, ...], seed: int) -> tuple[Any, Ints]:
    """The ring of replicas whose names carry the seed, as every deployment has names of its own."""
    places, owners = policies.ring([f"{seed}-{each}" for each in replicas], balance.vnodes)
    return places, np.array(replicas, np.int64)[owners]


def _starts(places: Any, session: Any) -> Ints:
    assert session is not None, "the policy goes by sessions"
    sessions, inverse = np.unique(session, return_inverse=True)
    return policies.starts(places, map(policies.session_key, sessions.tolist()))[inverse]


LEAST, GIVEN, FEWER, BOUNDED = range(4)
"""Ways to choose: the least busy of all; as given; the less busy of two; the next on the ring with room."""

_bound = native(policies.bound)


@native
def choose(arrays: Any, side: Any, k: Any) -> Any:
    """The replica, by its number in the service, of the `k`-th of the requests that are due."""
    balancer, opened = state.balancer(arrays, side), state.open_counts(arrays)
    if balancer.mode == LEAST:
        return balancer.first + _least_busy(arrays, side)
    replica, other = state.choices(arrays)[2 * side, k], state.choices(arrays)[2 * side + 1, k]
    if balancer.mode == BOUNDED:
        replica = _next_with_room(arrays, side, replica)
    elif balancer.mode == FEWER and opened[balancer.first + other] < opened[balancer.first + replica]:
        replica = other
    return balancer.first + replica


@native
def recount(arrays: Any, side: Any, g: Any, change: Any) -> None:
    """So many more requests are open on replica `g`."""
    balancer, opened = state.balancer(arrays, side), state.open_counts(arrays)
    before = opened[g]
    opened[g] = before + change
    if g - balancer.first != balancer.gone:
        replicas_with = state.replicas_with(arrays)[side]
        replicas_with[before] -= 1
        replicas_with[before + change] += 1
        balancer.in_flight += change
        balancer.fewest = min(balancer.fewest, before + change)


@native
def lose(arrays: Any, now_s: Any) -> None:
    """A replica that answers is passed over once it is lost, and its open requests count no longer."""
    balancer = state.balancer(arrays, 0)
    if balancer.lost != balancer.gone and now_s >= balancer.lost_s:
        opened = state.open_counts(arrays)[balancer.lost]
        balancer.gone = balancer.lost
        balancer.in_flight -= opened
        state.replicas_with(arrays)[0, opened] -= 1


@inlined
def _least_busy(arrays: Any, side: Any) -> Any:
    """The first replica in turn of those with the fewest open requests."""
    balancer, opened = state.balancer(arrays, side), state.open_counts(arrays)
    while state.replicas_with(arrays)[side, balancer.fewest] == 0:
        balancer.fewest += 1
    at = balancer.turn
    while opened[balancer.first + at] != balancer.fewest or at == balancer.gone:
        at = at + 1 if at + 1 < balancer.count else 0
    balancer.turn = at + 1 if at + 1 < balancer.count else 0
    return at


@inlined
def _next_with_room(arrays: Any, side: Any, start: Any) -> Any:
    """The first replica on the ring, from `start` on, that is neither full nor lost."""
    balancer, opened, owners = state.balancer(arrays, side), state.open_counts(arrays), state.owners(arrays)
    alive, at = balancer.count - (balancer.gone != NONE), start
    most = _bound(balancer.in_flight, alive, balancer.load_factor)
    while opened[balancer.first + owners[at]] >= most or owners[at] == balancer.gone:
        at = at + 1 if at + 1 < len(owners) else 0
    return owners[at]
