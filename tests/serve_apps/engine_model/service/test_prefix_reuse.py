"""serve_apps/engine_model/service/prefix_reuse.py: blocks against bare tokens, fast path against blocks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conf import load
from conf.specs.experiment import SimulatedEngine
from loadgen.fleet.addresses import chosen
from serve_apps.engine_model.compiled.fast_engine import FastSpec
from serve_apps.engine_model.service.balancer import Balance, Loss
from serve_apps.engine_model.service.routed import Replicas, Requests, serve_open
from serve_apps.engine_model.service.whole_service import serve
from tests.support.prompts.chats import Chats, by_blocks, chats, tokens

ASKED = load(["engine=simulated"])


def parts(**fields: Any) -> Any:
    assert isinstance(ASKED.engine, SimulatedEngine)
    return replace(ASKED.engine, **fields), ASKED.model, ASKED.hardware, ASKED.layout


def fast(
    asked: Chats, of: Any, policy: str, replicas: int, loss: Loss | None = None, from_s: float = 0.0
) -> Any:
    by = Replicas(replicas, Balance(policy, vnodes=100, home=chosen), 3, loss)
    return serve_open(FastSpec.of(*of), Requests(asked.due_s, asked.asked, asked.prefixes, from_s), by)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [800, 1])
def test_blocks_hit_what_the_longest_earlier_beginning_has_in_whole_blocks(cut: int) -> None:
    """A cache that forgets nothing, on one replica; tokens compared one by one."""
    asked = chats(1.5, 60, seed=5, turns=8, gap_s=12.0, context=1500, step=cut)
    of = parts(num_gpu_blocks=100_000)
    seen, words = by_blocks(of, asked, Balance(), 1), tokens(asked)
    size = of[0].block_size
    came: dict[Any, Any] = {}  # all prompts so far, as a tree of their tokens
    for i, prompt in enumerate(words):
        node, known = came, 0
        for at, token in enumerate(prompt):
            known += known == at and token in node
            node = node.setdefault(token, {})
        assert seen["cached"][i] == min(known // size, (len(prompt) - 1) // size) * size
    assert 0.3 < seen["cached"].sum() / asked.asked[0].sum() < 0.95
    counted = fast(asked, of, "leastconn", 1).cached_tokens
    assert (
        counted == seen["cached"]
    ).mean() > 0.98  # a prompt may come before the one it builds on is admitted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "replicas", "blocks"),
    [("leastconn", 1, 4000), ("leastconn", 3, 30_000), ("round_robin", 3, 4000), ("pow2", 3, 4000)]
    + [("consistent_hash", 3, 4000), ("bounded_hash", 4, 4000), ("client_side", 2, 30_000)]
    + [("random", 2, 4000)],
)
def test_the_fast_path_is_the_block_by_block_engine_but_for_a_little(
    policy: str, replicas: int, blocks: int
) -> None:
    """With room for all sessions, and with room for a small part of them."""
    asked, of = chats(4.0 * replicas, 200, seed=1), parts(num_gpu_blocks=blocks)
    slow = by_blocks(of, asked, Balance(policy, vnodes=100, home=chosen), replicas, 3)
    quick = fast(asked, of, policy, replicas)
    counts = asked.due_s > 80
    prompt, output = (column[counts] for column in asked.asked)
    hits = [each[counts].sum() / prompt.sum() for each in (slow["cached"], quick.cached_tokens)]
    assert hits[1] == pytest.approx(hits[0], abs=0.01)
    p90 = []
    for first, last in ((slow["first"], slow["last"]), (quick.first_token_s, quick.last_token_s)):
        ttft, tpot = (first - asked.due_s)[counts], (last - first)[counts] / np.maximum(output - 1, 1)
        p90.append((np.quantile(ttft, 0.9), np.quantile(tpot, 0.9)))
    assert p90[1] == pytest.approx(p90[0], rel=0.05)
    if policy not in ("leastconn", "pow2", "bounded_hash"):  # those look at what is in flight
        assert np.array_equal(slow["replica"], quick.replica)


def test_without_a_cache_nothing_is_found_and_sessions_still_keep_their_replica() -> None:
    asked, of = chats(6.0, 60, seed=2), parts(enable_prefix_caching=False)
    seen = fast(asked, of, "consistent_hash", 3)
    assert not seen.cached_tokens.any()
    assert np.array_equal(seen.replica, fast(asked, parts(), "consistent_hash", 3).replica)


def test_what_fills_the_caches_is_not_served() -> None:
    asked, of = chats(8.0, 300, seed=4), parts()
    whole, half = (fast(asked, of, "consistent_hash", 2, from_s=from_s) for from_s in (0.0, 150.0))
    served = asked.due_s >= 150
    assert np.array_equal(np.isnan(half.first_token_s), ~served) and not half.cached_tokens[~served].any()
    assert np.array_equal(half.cached_tokens[served], whole.cached_tokens[served])
    assert half.work.sequences == asked.asked[1][served].sum()
    late = asked.due_s >= 200
    assert half.last_token_s[late] == pytest.approx(whole.last_token_s[late], abs=0.05)


@pytest.mark.parametrize("policy", ["leastconn", "pow2", "bounded_hash", "consistent_hash"])
def test_a_lost_replica_gets_nothing_from_then_on(policy: str) -> None:
    asked, of = chats(8.0, 200, seed=4), parts()
    seen = fast(asked, of, policy, 4, loss=Loss(1, 100.0))
    assert 1 in seen.replica[asked.due_s < 100] and 1 not in seen.replica[asked.due_s >= 100]
    assert np.isfinite(seen.last_token_s).all()
    assert (np.bincount(seen.replica[asked.due_s >= 100], minlength=4)[[0, 2, 3]] > 0).all()


def test_in_a_full_cache_prompts_wait_and_all_are_served() -> None:
    asked, of = chats(60.0, 20, seed=6), parts(num_gpu_blocks=800)
    seen = fast(asked, of, "leastconn", 2)
    assert np.isfinite(seen.last_token_s).all() and (seen.last_token_s >= seen.first_token_s).all()
    roomy = fast(asked, parts(), "leastconn", 2)
    assert seen.first_token_s.mean() > roomy.first_token_s.mean()


def test_beyond_the_rules_of_the_loop_the_same_requests_go_block_by_block() -> None:
    asked = chats(6.0, 60, seed=2)
    lengths = [*asked.asked, np.zeros_like(asked.asked[0])]
    requests = Requests(asked.due_s, lengths, asked.prefixes)
    replicas = Replicas(2, Balance("client_side", home=chosen), 3)
    slow, quick = (serve(*parts(max_num_seqs=seats), requests, replicas) for seats in (10**4, 64))
    assert np.isnan(slow.work.busy_s) and not np.isnan(quick.work.busy_s)
    assert np.array_equal(slow.replica, quick.replica)
    assert slow.last_token_s == pytest.approx(quick.last_token_s, abs=0.05)
    assert slow.cached_tokens.sum() == pytest.approx(quick.cached_tokens.sum(), rel=0.02)


def test_pieces_add_up_to_the_blocks_of_the_chain() -> None:
    asked = chats(6.0, 100, seed=2)
    pieces = asked.prefixes.pieces(16)
    chains = [asked.prefixes.chain(i, 16) for i in range(len(asked.prefixes))]
    assert pieces.blocks.sum(axis=0).tolist() == [len(chain) for chain in chains]
    assert len({hash for chain in chains for hash in chain}) < sum(map(len, chains))
    named = [set(row[blocks > 0].tolist()) for row, blocks in zip(pieces.names, pieces.blocks, strict=True)]
    assert not set.intersection(*named[:2]) and not set.intersection(*named[2:])
