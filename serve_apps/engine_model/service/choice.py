"""The choice of a replica for each request, compiled."""

from typing import Any

from serve_apps.engine_model.engine import memory
from serve_apps.engine_model.engine.lists import NONE
from serve_apps.engine_model.engine.native import inlined, native
from serve_apps.routing.hash_ring import bound

LEAST, GIVEN, FEWER, BOUNDED = range(4)
"""Ways to choose: the least busy of all; as given; the less busy of two; the next on the ring with room."""

_bound = native(bound)


@native
def choose(arrays: Any, side: Any, k: Any) -> Any:
    """The replica, by its number in the service, of the `k`-th of the requests that are due."""
    balancer, opened = memory.balancer(arrays, side), memory.open_counts(arrays)
    if balancer.mode == LEAST:
        return balancer.first + _least_busy(arrays, side)
    one = memory.choices(arrays)[2 * side, k]
    if balancer.mode == BOUNDED:
        return balancer.first + _next_with_room(arrays, side, one)
    if balancer.mode == FEWER:
        other = memory.choices(arrays)[2 * side + 1, k]
        if opened[balancer.first + other] < opened[balancer.first + one]:
            one = other
    return balancer.first + one


@native
def recount(arrays: Any, side: Any, g: Any, change: Any) -> None:
    """So many more requests are open on replica `g`."""
    balancer, opened = memory.balancer(arrays, side), memory.open_counts(arrays)
    before = opened[g]
    opened[g] = before + change
    if g - balancer.first != _gone(arrays, side):
        replicas_with = memory.replicas_with(arrays)[side]
        replicas_with[before] -= 1
        replicas_with[before + change] += 1
        balancer.in_flight += change
        balancer.fewest = min(balancer.fewest, before + change)


@native
def lose(arrays: Any, now_s: Any) -> None:
    """A replica that answers is passed over once it is lost, and its open requests count no longer."""
    balancer = memory.balancer(arrays, 0)
    if balancer.lost != NONE and _gone(arrays, 0) == NONE and now_s >= balancer.lost_s:
        opened = memory.open_counts(arrays)[balancer.lost]
        balancer.alive -= 1
        balancer.in_flight -= opened
        memory.replicas_with(arrays)[0, opened] -= 1


@native
def _of(arrays: Any, side: Any) -> Any:
    """The open requests of the replicas of a side."""
    balancers, opened = memory.balancers(arrays), memory.open_counts(arrays)
    end = balancers[1].first if side == 0 and len(balancers) > 1 else len(opened)
    return opened[balancers[side].first : end]


@native
def _gone(arrays: Any, side: Any) -> Any:
    """The replica that is lost by now, by its number on its side, or none."""
    balancer = memory.balancer(arrays, side)
    return balancer.lost if balancer.alive < len(_of(arrays, side)) else NONE


@inlined
def _least_busy(arrays: Any, side: Any) -> Any:
    """The first replica in turn of those with the fewest open requests."""
    balancer, opened = memory.balancer(arrays, side), _of(arrays, side)
    while memory.replicas_with(arrays)[side, balancer.fewest] == 0:
        balancer.fewest += 1
    at, gone = balancer.turn, _gone(arrays, side)
    while opened[at] != balancer.fewest or at == gone:
        at = at + 1 if at + 1 < len(opened) else 0
    balancer.turn = at + 1 if at + 1 < len(opened) else 0
    return at


@inlined
def _next_with_room(arrays: Any, side: Any, start: Any) -> Any:
    """The first replica on the ring, from `start` on, that is neither full nor lost."""
    balancer, opened, owners = memory.balancer(arrays, side), _of(arrays, side), memory.owners(arrays)
    most, at = _bound(balancer.in_flight, balancer.alive, balancer.load_factor), start
    gone = _gone(arrays, side)
    while opened[owners[at]] >= most or owners[at] == gone:
        at = at + 1 if at + 1 < len(owners) else 0
    return owners[at]
