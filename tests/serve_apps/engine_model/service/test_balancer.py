"""serve_apps/engine_model/service/balancer.py: policies choose, in arrays and compiled."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.fleet.http_client import chosen
from serve_apps.engine_model.engine.state import Arrays
from serve_apps.engine_model.service import balancer as compiled
from serve_apps.engine_model.service.balancer import Balance, Loss, choice, pairs
from serve_apps.routing import policies

GIVEN = ("roundrobin", "round_robin", "consistent_hash", "client_side")


def balance(policy: str) -> Balance:
    return Balance(policy, vnodes=40, home=chosen)


def sessions(count: int = 400, users: int = 90) -> Any:
    return np.random.default_rng(2).integers(users, size=count)


@pytest.mark.parametrize("policy", GIVEN)
@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_the_choices_of_requests_do_not_depend_on_where_one_begins(policy: str, replicas: int) -> None:
    session, due_s = sessions(), np.arange(400.0)
    whole = choice(balance(policy), replicas, 7, due_s, session)
    parts = [
        choice(balance(policy), replicas, 7, due_s[at], session[at], first=at.start).one
        for at in (slice(0, 150), slice(150, 151), slice(151, 400))
    ]
    assert whole.mode == compiled.GIVEN
    assert whole.one.tolist() == np.concatenate(parts).tolist()


def chosen_by(policy: str, in_flight: list[int], session: int = 0, number: int = 0, seed: int = 3) -> int:
    """The replica of a request, with so many in flight on each."""
    count = len(in_flight)
    routed = choice(balance(policy), count, seed, np.zeros(1), np.array([session]), first=number)
    arrays = Arrays(balancer=1, choices=(4, 1))
    state, columns = arrays.balancer, arrays.choices
    state["mode"], state["load_factor"], state["lost"], state["gone"] = routed.mode, 1.25, -1, -1
    state["count"], state["in_flight"], state["fewest"] = count, sum(in_flight), min(in_flight)
    for row, column in enumerate((routed.one, routed.other)):
        columns[row, : len(column)] = column
    with_open = np.bincount(in_flight, minlength=20)[None].astype(np.int64)
    owners = np.ascontiguousarray(routed.owners, np.int64)
    arrays.set(open=np.array(in_flight), replicas_with=with_open, owners=owners)
    return int(compiled.choose(arrays.address, 0, 0))


def test_the_least_busy_the_less_busy_of_two_and_the_next_with_room() -> None:
    assert chosen_by("leastconn", [2, 2, 1]) == 2
    for number in range(50):
        one, other = pairs(3, 4, np.array([number]))[0].tolist()
        busy = [9 if each == one else 1 for each in range(4)]
        assert one != other and chosen_by("pow2", busy, number=number) == other
    for session in range(50):
        home = chosen_by("consistent_hash", [0] * 4, session)
        full = [6 if each == home else 1 for each in range(4)]
        assert chosen_by("bounded_hash", [1] * 4, session) == home
        assert chosen_by("bounded_hash", full, session) != home


def test_a_sticky_client_uses_the_rule_of_the_load_generator() -> None:
    session = sessions()
    result = choice(balance("client_side"), 6, 1, np.arange(400.0), session).one
    assert result.tolist() == [chosen(each, 6) for each in session.tolist()]


@given(st.integers(1, 70), st.integers(0, 20_000), st.integers(1, 300))
@settings(max_examples=30, deadline=None)
def test_pairs_are_two_replicas_and_do_not_depend_on_where_one_begins(
    replicas: int, first: int, count: int
) -> None:
    at = np.arange(first, first + count)
    result = pairs(5, replicas, at)
    assert np.array_equal(result[-1:], pairs(5, replicas, at[-1:]))
    assert ((result >= 0) & (result < replicas)).all()
    assert replicas == 1 or (result[:, 0] != result[:, 1]).all()


@pytest.mark.parametrize("policy", [*GIVEN, "pow2"])
def test_after_a_loss_nobody_is_sent_there_and_a_ring_moves_nobody_else(policy: str) -> None:
    session, due_s = sessions(), np.arange(400.0)
    kept = choice(balance(policy), 5, 7, due_s, session)
    lost = choice(balance(policy), 5, 7, due_s, session, Loss(2, 100.0))
    told = [lost.one] if policy != "pow2" else [lost.one, lost.other]
    assert np.array_equal(lost.one[:100], kept.one[:100])
    assert all(2 not in each[100:] and set(each[100:].tolist()) == {0, 1, 3, 4} for each in told)
    moved = (lost.one != kept.one)[100:]
    if policy == "consistent_hash":
        assert np.array_equal(moved, kept.one[100:] == 2)
    if policy == "client_side":
        assert moved.mean() > 0.5  # a remainder by another number


@pytest.mark.parametrize(
    ("in_flight", "replicas", "factor", "full"),
    [(10, 4, 1.25, 4), (7, 4, 1.0, 2), (8, 4, 1.0, 3), (0, 8, 1.25, 2)],
)
def test_a_replica_is_full_at_the_factor_times_the_mean_rounded_up(
    in_flight: int, replicas: int, factor: float, full: int
) -> None:
    assert policies.bound(in_flight, replicas, factor) == full
