"""serve_apps/engine_model/service/balancer.py: policies choose alike one by one, in arrays and compiled."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.fleet.addresses import chosen
from serve_apps.engine_model.service import route_loop
from serve_apps.engine_model.service.balancer import POLICIES, Balance, Balancer, Loss, choice, pairs

GIVEN = ("roundrobin", "round_robin", "random", "consistent_hash", "client_side")


def balance(policy: str) -> Balance:
    return Balance(policy, vnodes=40, home=chosen)


def sessions(count: int = 400, users: int = 90) -> Any:
    return np.random.default_rng(2).integers(users, size=count)


@pytest.mark.parametrize("policy", GIVEN)
@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_what_nobody_needs_to_watch_is_chosen_alike_in_arrays_and_one_by_one(
    policy: str, replicas: int
) -> None:
    session = sessions()
    whole = choice(balance(policy), replicas, 7, np.arange(400.0), session)
    one = Balancer(balance(policy), replicas, 7)
    assert whole.mode == route_loop.GIVEN
    assert whole.one.tolist() == [one.choose(each, [0] * replicas) for each in session.tolist()]


def test_the_less_busy_of_two_and_the_next_with_room() -> None:
    two = Balancer(balance("pow2"), 4, 3)
    for number in range(50):
        one, other = pairs(3, 4, np.array([number]))[0].tolist()
        busy = [9 if each == one else 1 for each in range(4)]
        assert one != other and two.choose(0, busy) == other
    ring, bounded = Balancer(balance("consistent_hash"), 4, 3), Balancer(balance("bounded_hash"), 4, 3)
    for session in range(50):
        home = ring.choose(session, [0] * 4)
        full = [6 if each == home else 1 for each in range(4)]
        assert bounded.choose(session, [1] * 4) == home != bounded.choose(session, full)


def test_a_sticky_client_uses_the_rule_of_the_load_generator() -> None:
    session = sessions()
    found = choice(balance("client_side"), 6, 1, np.arange(400.0), session).one
    assert found.tolist() == [chosen(each, 6) for each in session.tolist()]


@given(st.integers(1, 70), st.integers(0, 20_000), st.integers(1, 300))
@settings(max_examples=30, deadline=None)
def test_pairs_are_two_replicas_and_do_not_depend_on_where_one_begins(
    replicas: int, first: int, count: int
) -> None:
    at = np.arange(first, first + count)
    found = pairs(5, replicas, at)
    assert np.array_equal(found[-1:], pairs(5, replicas, at[-1:]))
    assert ((found >= 0) & (found < replicas)).all()
    assert replicas == 1 or (found[:, 0] != found[:, 1]).all()


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


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown policy 'sticky'"):
        Balance("sticky")
    with pytest.raises(ValueError, match="needs requests that have one"):
        choice(balance("consistent_hash"), 3, 1, np.arange(4.0))
    assert {"leastconn", "pow2", "bounded_hash"} < set(POLICIES)
