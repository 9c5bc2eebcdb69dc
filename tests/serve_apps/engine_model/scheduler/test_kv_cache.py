"""serve_apps/engine_model/scheduler/kv_cache.py: stories, and the answers of a pool of single blocks."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_apps.engine_model.scheduler.kv_cache import Chain, Holding, KvCache
from tests.support.virtual.engines import check_blocks


def held(pool: KvCache, blocks: int, chain: Chain = ()) -> Holding:
    """A request that has found what there was, computed the rest, and named what it can."""
    holding = Holding(chain)
    hits = pool.find(chain, blocks)
    pool.hold(holding, hits)
    pool.take(blocks - holding.blocks)
    holding.blocks = blocks
    pool.name(holding, blocks)
    return holding


def found(pool: KvCache, chain: Chain, limit: int = 99) -> int:
    hits = pool.find(chain, limit)
    return hits[-1].end if hits else 0


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="num_gpu_blocks"):
        KvCache(blocks=0, block_size=16)


def test_a_prefix_is_shared_while_it_is_held_and_after() -> None:
    pool = KvCache(blocks=10, block_size=16)
    first = held(pool, 4, (1, 2, 3))
    second = held(pool, 4, (1, 2, 9))
    assert pool.free_blocks == 4, "two of the first's blocks are the second's too"
    check_blocks(pool, [first, second])
    pool.free(first, hashed=3)
    pool.free(second, hashed=3)
    assert (pool.free_blocks, pool.usage) == (10, 0)
    assert (found(pool, (1, 2, 3)), found(pool, (1, 2, 9)), found(pool, (2,))) == (3, 3, 0)
    assert found(pool, (1, 2, 3), limit=1) == 1


def test_blank_blocks_go_first_then_the_longest_unused_and_of_those_the_last() -> None:
    pool = KvCache(blocks=6, block_size=16)
    old, new = held(pool, 2, (1, 2)), held(pool, 3, (3, 4))
    pool.free(old, hashed=2)
    pool.free(new, hashed=2)
    pool.take(2)
    assert (found(pool, (1, 2)), found(pool, (3, 4))) == (2, 2), "one never used, one not full"
    pool.take(1)
    assert (found(pool, (1, 2)), found(pool, (3, 4))) == (1, 2)
    pool.take(2)
    assert (found(pool, (1, 2)), found(pool, (3, 4))) == (0, 1)


def test_without_caching_nothing_is_found() -> None:
    pool = KvCache(blocks=4, block_size=16, caching=False)
    pool.free(held(pool, 2, (1, 2)), hashed=2)
    assert (found(pool, (1, 2)), pool.free_blocks) == (0, 4)


def test_an_own_chain_is_nobody_elses() -> None:
    pool = KvCache(blocks=8, block_size=16)
    first, second = held(pool, 4, (1, 2)), held(pool, 4, (1, 2))
    for each in (first, second):
        pool.name_all(each, 4)
    assert first.chain[:2] == second.chain[:2] and len({*first.chain, *second.chain}) == 6
    assert found(pool, first.chain) == found(pool, second.chain) == 4


class BlockByBlock:
    """vLLM's BlockPool in short: a list of free blocks, each with its hash and its reference count."""

    def __init__(self, blocks: int) -> None:
        self.free = list(range(blocks))
        self.hashes: dict[int, object] = {}
        self.references = [0] * blocks
        self.cached: defaultdict[object, list[int]] = defaultdict(list)

    def find(self, chain: Chain, limit: int) -> list[int]:
        blocks: list[int] = []
        for one in chain[:limit]:
            if not self.cached[one]:
                break
            blocks.append(self.cached[one][0])
        return blocks

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if not self.references[block]:
                self.free.remove(block)
            self.references[block] += 1

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self.references[block] = 1
            if block in self.hashes:
                self.cached[self.hashes.pop(block)].remove(block)
        return taken

    def name(self, block: int, one: object) -> None:
        self.hashes[block] = one
        self.cached[one].append(block)

    def give_back(self, blocks: list[int]) -> None:
        blank, hashed = [], []
        for block in reversed(blocks):
            self.references[block] -= 1
            if not self.references[block]:
                (hashed if block in self.hashes else blank).append(block)
        self.free = blank + self.free + hashed


def chain_of(path: list[int]) -> Chain:
    """Chained: equal hashes stand for equal beginnings."""
    return tuple(tuple(path[: length + 1]) for length in range(len(path)))


paths = st.lists(st.sampled_from([0, 0, 0, 1]), max_size=9)
arrivals = st.tuples(st.just(True), paths, st.integers(0, 3), st.integers(0, 9))
departures = st.tuples(st.just(False), st.just([]), st.integers(0, 9), st.just(0))


@given(st.lists(st.one_of(arrivals, departures), max_size=60), st.integers(8, 24))
def test_runs_answer_as_single_blocks_do(story: list[tuple[bool, list[int], int, int]], blocks: int) -> None:
    pool, truth = KvCache(blocks, 16), BlockByBlock(blocks)
    present: list[tuple[Holding, list[int], int]] = []
    for arrives, path, number, limit in story:
        if arrives:
            chain = chain_of(path)
            hits, true_hits = pool.find(chain, limit), truth.find(chain, limit)
            assert [block for hit in hits for block in range(hit.start, hit.end)] == [*range(len(true_hits))]
            idle = sum(hit.end - hit.start for hit in hits if not hit.run.holders)
            assert idle == sum(not truth.references[block] for block in true_hits)
            new = len(path) + number - len(true_hits)  # some of its blocks have no name
            if new + idle > pool.free_blocks:
                continue
            holding = Holding(chain)
            pool.hold(holding, hits)
            pool.take(new)
            holding.blocks += new
            pool.name(holding, len(path))
            truth.touch(true_hits)
            own = truth.take(new)
            for block, one in zip(own, chain[len(true_hits) :], strict=False):
                truth.name(block, one)
            named = len(path) + min(number, 1)  # and of these the first may be full
            for block in own[len(path) - len(true_hits) :][: named - len(path)]:
                truth.name(block, object())
            present.append((holding, true_hits + own, named))
        elif present:
            holding, true_blocks, named = present.pop(number % len(present))
            pool.free(holding, named)
            truth.give_back(true_blocks)
        assert pool.free_blocks == len(truth.free)
        check_blocks(pool, [holding for holding, _, _ in present])
