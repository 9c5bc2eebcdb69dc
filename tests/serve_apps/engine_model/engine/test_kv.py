"""serve_apps/engine_model/engine/kv.py: stories, and the answers of a pool of single blocks."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_apps.engine_model.engine import kv, state
from serve_apps.engine_model.engine.native import NONE
from serve_apps.engine_model.engine.state import RUNNING, Arrays
from tests.support.virtual.books import check_integrity

Pieces = Sequence[tuple[int, int]]
"""Names of what a prompt shares, and the blocks where they end."""


class Pool:
    """The books of one engine, and the requests that hold blocks in them by number."""

    def __init__(self, blocks: int, caching: bool = True) -> None:
        self.arrays = Arrays(engines=1, queues=(1, state.QUEUES))
        engines, self.arrays.queues[:] = self.arrays.engines, np.array((NONE, NONE, 0), state.QUEUE)
        engines["blocks"] = engines["free"] = engines["blank"] = blocks
        engines["block_size"], engines["enable_prefix_caching"] = 16, caching
        self.arrays.make_requests(100)
        self.arrays.requests["serial"] = np.arange(100)
        self.arrays.make_books(blocks, 1000)
        self._pieces: list[Any] = []

    @property
    def free(self) -> int:
        return int(self.arrays.engines["free"][0])

    def ask(self, pieces: Pieces) -> int:
        """The number of a new request that shares these pieces."""
        number, shared = len(self._pieces), np.array(pieces, np.int64)
        self._pieces.append(shared)
        self.arrays.requests["shares"][number] = shared.ctypes.data
        self.arrays.requests["pieces"][number] = len(pieces)
        return number

    def found(self, pieces: Pieces, limit: int = 99) -> tuple[int, int]:
        """Blocks that are cached, and how many of them nobody holds."""
        blocks, idle = kv.find(self.arrays.address, 0, self.ask(pieces), limit, False)
        return int(blocks), int(idle)

    def hold(self, pieces: Pieces, blocks: int, limit: int = 99) -> int:
        """A request that has found what there was, computed the rest, and named what it can."""
        number, address = self.ask(pieces), self.arrays.address
        hits, _ = kv.find(address, 0, number, limit, True)
        kv.take(address, 0, blocks - hits)
        self.arrays.requests["blocks"][number] = blocks
        kv.name(address, 0, number, blocks)
        self.arrays.requests["place"][number] = RUNNING
        return number

    def give_back(self, number: int, hashed: int) -> None:
        kv.free(self.arrays.address, 0, number, hashed)
        self.arrays.requests["place"][number] = 0


def test_a_prefix_is_shared_while_it_is_held_and_after() -> None:
    pool = Pool(10)
    first = pool.hold([(1, 2), (3, 3)], 4)
    second = pool.hold([(1, 2), (9, 3)], 4)
    assert pool.free == 4, "two of the first's blocks are the second's too"
    check_integrity(pool.arrays)
    pool.give_back(first, 3)
    pool.give_back(second, 3)
    assert pool.free == 10
    assert pool.found([(1, 2), (3, 3)]) == pool.found([(1, 2), (9, 3)]) == (3, 3)
    assert pool.found([(2, 1)]) == (0, 0) and pool.found([(1, 2), (3, 3)], limit=1) == (1, 1)


def test_blank_blocks_go_first_then_the_longest_unused_and_of_those_the_last() -> None:
    pool = Pool(6)
    old, new = pool.hold([(1, 2)], 2), pool.hold([(3, 2)], 3)
    pool.give_back(old, 2)
    pool.give_back(new, 2)
    items = []
    for blocks in (2, 1, 2):
        kv.take(pool.arrays.address, 0, blocks)
        items.append((pool.found([(1, 2)])[0], pool.found([(3, 2)])[0]))
    assert items == [(2, 2), (1, 2), (0, 1)], "first one never used and one not full"


def test_an_own_text_is_nobody_elses() -> None:
    pool = Pool(8)
    both = [pool.hold([(1, 2)], 4) for _ in range(2)]
    for number in both:
        pool.arrays.requests["own_blocks"][number] = 4
        kv.name(pool.arrays.address, 0, number, 4)
    assert [kv.find(pool.arrays.address, 0, number, 9, False)[0] for number in both] == [4, 4]
    assert pool.found([(1, 2), (7, 4)])[0] == 2


def test_room_that_is_used_up_is_an_error_and_not_a_wrong_answer() -> None:
    pool = Pool(10)
    pool.arrays.set(cells=np.zeros(3, state.CELL))
    pool.hold([(1, 1), (2, 2)], 2)
    with pytest.raises(MemoryError, match="no room"):  # a third cell does not exist
        pool.hold([(3, 1)], 1)


class BlockByBlock:
    """vLLM's BlockPool in short: a list of free blocks, each with its hash and its reference count."""

    def __init__(self, blocks: int) -> None:
        self.free = list(range(blocks))
        self.hashes: dict[int, object] = {}
        self.references = [0] * blocks
        self.cached: defaultdict[object, list[int]] = defaultdict(list)

    def find(self, chain: Sequence[object], limit: int) -> list[int]:
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


def pieces_of(path: list[int], names: dict[tuple[int, ...], int]) -> Pieces:
    """A tree of texts, in which a 1 begins another text than a 0."""
    pieces: list[tuple[int, int]] = []
    for at, branch in enumerate(path):
        if branch or not pieces:
            pieces.append((names.setdefault(tuple(path[: at + 1]) if branch else (), len(names)), at + 1))
        else:
            pieces[-1] = pieces[-1][0], at + 1
    return pieces


paths = st.lists(st.sampled_from([0, 0, 0, 1]), max_size=9)
arrivals = st.tuples(st.just(True), paths, st.integers(0, 3), st.integers(0, 9))
departures = st.tuples(st.just(False), st.just([]), st.integers(0, 9), st.just(0))


@given(st.lists(st.one_of(arrivals, departures), max_size=60), st.integers(8, 24))
def test_runs_answer_as_single_blocks_do(story: list[tuple[bool, list[int], int, int]], blocks: int) -> None:
    pool, truth, names = Pool(blocks), BlockByBlock(blocks), {}  # type: ignore[var-annotated]
    present: list[tuple[int, list[int], int]] = []
    for arrives, path, number, limit in story:
        if arrives:
            chain: Any = [tuple(path[: at + 1]) for at in range(len(path))]
            pieces, true_hits = pieces_of(path, names), truth.find(chain, limit)
            idle = sum(not truth.references[block] for block in true_hits)
            assert pool.found(pieces, limit) == (len(true_hits), idle)
            new = len(path) + number - len(true_hits)  # some of its blocks have no name
            if new + idle > pool.free:
                continue
            row = pool.hold(pieces, len(path) + number, limit)
            truth.touch(true_hits)
            own = truth.take(new)
            for block, one in zip(own, chain[len(true_hits) :], strict=False):
                truth.name(block, one)
            named = len(path) + min(number, 1)  # and of these the first may be full
            for block in own[len(path) - len(true_hits) :][: named - len(path)]:
                truth.name(block, object())
            present.append((row, true_hits + own, named))
        elif present:
            row, true_blocks, named = present.pop(number % len(present))
            pool.give_back(row, named)
            truth.give_back(true_blocks)
        assert pool.free == len(truth.free)
        check_integrity(pool.arrays)
