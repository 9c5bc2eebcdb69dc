"""Prompts that begin alike (service/prefixes.py) on replicas: what their caches find, and a lost replica."""

from typing import Any

import numpy as np
import pytest

from conf import load
from conf.specs.experiment import SimulatedEngine
from loadgen.fleet.http_client import chosen
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service.balancer import POLICIES, Balance, Loss
from serve_apps.engine_model.service.prefixes import session_pieces
from serve_apps.engine_model.service.service import Replicas, Requests, serve
from tests.support.prompts.chats import Chats, chats, tokens

ASKED = load(["engine=simulated"])


def kind(**fields: Any) -> EngineKind:
    return EngineKind.of(SimulatedEngine(**fields), ASKED.model, ASKED.hardware, ASKED.layout)


def fast(
    chats: Chats, of: EngineKind, policy: str, replicas: int, loss: Loss | None = None, from_s: float = 0.0
) -> Any:
    by = Replicas(replicas, Balance(policy, vnodes=100, home=chosen), 3, loss)
    return serve(of, Requests(chats.due_s, chats.tokens, session_pieces(*chats.prefixes), from_s), by)


@pytest.mark.parametrize("cut", [800, 1])
def test_blocks_hit_what_the_longest_earlier_beginning_has_in_whole_blocks(cut: int) -> None:
    """A cache that forgets nothing, on one replica; tokens compared one by one."""
    asked = chats(1.5, 60, seed=5, turns=8, gap_s=12.0, context=1500, step=cut)
    of = kind(num_gpu_blocks=100_000)
    seen, words, size = fast(asked, of, "leastconn", 1), tokens(asked), of.spec.block_size
    came: dict[Any, Any] = {}  # all prompts so far, as a tree of their tokens
    expected = []
    for prompt in words:
        node, known = came, 0
        for at, token in enumerate(prompt):
            known += known == at and token in node
            node = node.setdefault(token, {})
        expected.append(min(known // size, (len(prompt) - 1) // size) * size)
    # A prompt may come before the one it builds on is admitted.
    assert (seen.cached_tokens == expected).mean() > 0.98
    assert 0.3 < seen.cached_tokens.sum() / asked.tokens[0].sum() < 0.95


@pytest.mark.parametrize("policy", POLICIES)
def test_a_small_cache_finds_less_and_serves_all(policy: str) -> None:
    asked = chats(6.0, 120, seed=1)
    roomy, small = (fast(asked, kind(num_gpu_blocks=blocks), policy, 2) for blocks in (30_000, 3000))
    assert np.isfinite(small.last_token_s).all()
    assert small.cached_tokens.sum() < roomy.cached_tokens.sum()


def test_without_a_cache_nothing_is_found_and_sessions_still_keep_their_replica() -> None:
    asked, of = chats(6.0, 60, seed=2), kind(enable_prefix_caching=False)
    seen = fast(asked, of, "consistent_hash", 3)
    assert not seen.cached_tokens.any()
    assert np.array_equal(seen.replica, fast(asked, kind(), "consistent_hash", 3).replica)


def test_what_fills_the_caches_is_not_served() -> None:
    asked, of = chats(8.0, 300, seed=4), kind()
    whole, half = (fast(asked, of, "consistent_hash", 2, from_s=from_s) for from_s in (0.0, 150.0))
    served = asked.due_s >= 150
    assert np.array_equal(np.isnan(half.first_token_s), ~served) and not half.cached_tokens[~served].any()
    assert np.array_equal(half.cached_tokens[served], whole.cached_tokens[served])
    assert half.work["sequences"] == asked.tokens[1][served].sum()
    late = asked.due_s >= 200
    assert half.last_token_s[late] == pytest.approx(whole.last_token_s[late], abs=0.05)


@pytest.mark.parametrize("policy", ["leastconn", "pow2", "bounded_hash", "consistent_hash"])
def test_a_lost_replica_gets_nothing_from_then_on(policy: str) -> None:
    asked, of = chats(8.0, 200, seed=4), kind()
    seen = fast(asked, of, policy, 4, loss=Loss(1, 100.0))
    assert 1 in seen.replica[asked.due_s < 100] and 1 not in seen.replica[asked.due_s >= 100]
    assert np.isfinite(seen.last_token_s).all()
    assert (np.bincount(seen.replica[asked.due_s >= 100], minlength=4)[[0, 2, 3]] > 0).all()


def test_pieces_have_names_of_their_own() -> None:
    asked = chats(6.0, 100, seed=2)
    names, ends, _ = session_pieces(*asked.prefixes)
    tokens = np.diff(ends, axis=0, prepend=0)
    named = [set(row[own > 0].tolist()) for row, own in zip(names, tokens, strict=True)]
    assert not set.intersection(*named[:2]) and not set.intersection(*named[2:])
    assert (tokens >= 0).all() and (ends <= asked.tokens[0]).all()
