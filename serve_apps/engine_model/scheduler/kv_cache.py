"""The pool of KV blocks of one engine with vLLM's prefix cache.

The rules (vLLM's block_pool.py): only full blocks are hashed, at their allocation; a freed block goes
to the back of the free queue when it is hashed and to the front when it is not; an allocation takes
from the front and forgets the hashes it meets; a hit takes a block out of the queue. Blocks that live
and die together are kept as one run, so that the cost of a prompt grows with its runs, not its blocks.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import NamedTuple

Chain = tuple[Hashable, ...]
"""Hashes of a request's full blocks, each over all tokens up to its block's end."""


class BlockRun:
    """Blocks `start` to `end` of a chain, held by the same requests; those without a chain are not found."""

    __slots__ = ("alone", "chain", "end", "holders", "start")

    def __init__(self, chain: Chain, start: int, end: int, holders: Iterable["Holding"] = ()) -> None:
        self.chain = chain
        self.start = start
        self.end = end
        self.holders = set(holders)
        self.alone = True  # no other run has one of its hashes

    def __len__(self) -> int:
        return self.end - self.start


class Holding:
    """KV blocks of one request: `runs` cover its first ones, the rest of its `blocks` have no name."""

    __slots__ = ("blocks", "chain", "runs")

    def __init__(self, chain: Chain = ()) -> None:
        self.chain = chain
        self.runs: list[BlockRun] = []
        self.blocks = 0

    @property
    def named(self) -> int:
        return self.runs[-1].end if self.runs else 0


class Hit(NamedTuple):
    """Blocks `start` to `end` of a chain, found in `run`."""

    run: BlockRun
    start: int
    end: int


class KvCache:
    """`blocks` blocks of `block_size` tokens, all free at first; `caching` keeps freed ones for reuse.

    Raises ValueError unless there is at least one block.
    """

    def __init__(self, blocks: int, block_size: int, caching: bool = True) -> None:
        if blocks < 1:
            raise ValueError(
                f"a KV cache of {blocks} blocks serves nothing; set num_gpu_blocks to at least 1"
            )
        self.blocks = blocks
        self.block_size = block_size
        self.caching = caching
        self.free_blocks = blocks
        self._blank = blocks  # free and not hashed: always the front of the free queue
        self._idle: OrderedDict[BlockRun, None] = OrderedDict()  # the rest of it, least recently used first
        self._index: dict[Hashable, BlockRun] = {}
        # Runs beside the one in the index, oldest first.
        self._twins: dict[Hashable, dict[BlockRun, None]] = {}

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return 1 - self.free_blocks / self.blocks

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def find(self, chain: Chain, limit: int) -> list[Hit]:
        """The longest cached beginning of `chain`, of at most `limit` blocks; changes nothing."""
        hits: list[Hit] = []
        at, limit = 0, min(limit, len(chain)) if self.caching else 0
        while at < limit and (run := self._index.get(chain[at])) is not None:
            end = self._agree(run, chain, at, min(limit, run.end))
            if end <= at:  # not chained: this hash belongs elsewhere
                break
            hits.append(Hit(run, at, end))
            at = end
        return hits

    def hold(self, holding: Holding, hits: Iterable[Hit]) -> None:
        """Give the blocks just found to a request that holds none."""
        for run, start, end in hits:
            if start > run.start:
                self._set_back(self._split(run, start), run)
            held = run if end == run.end else self._split(run, end)
            if not held.holders:
                self._idle.pop(held, None)
                self.free_blocks -= len(held)
            held.holders.add(holding)
            holding.runs.append(held)
            holding.blocks = end

    def take(self, blocks: int) -> None:
        """Allocate free blocks, which must exist, and forget what they cached."""
        self.free_blocks -= blocks
        self._blank -= blocks
        while self._blank < 0:
            run = next(iter(self._idle))
            # Blocks that no request can find are as good as blank once they are the next to go.
            evicted = min(len(run), -self._blank) if run.chain else len(run)
            self._forget(run, run.end - evicted)
            if not run:
                del self._idle[run]
            self._blank += evicted

    def name(self, holding: Holding, blocks: int) -> None:
        """Enter the first `blocks` of a request into the cache, as far as its chain goes."""
        start, end = holding.named, min(blocks, len(holding.chain))
        if self.caching and start < end:
            run = BlockRun(holding.chain, start, end, (holding,))
            self._enter(run)
            holding.runs.append(run)

    def name_all(self, holding: Holding, blocks: int) -> None:
        """The same, with hashes that no other request has beyond the end of the chain."""
        if self.caching:
            own = blocks - len(holding.chain)
            holding.chain = (*holding.chain, *(object() for _ in range(own)))
            self.name(holding, blocks)

    def extend(self, holding: Holding, tokens: int) -> None:
        """Allocate the blocks that a request lacks for its first `tokens`, and cache the full ones."""
        blocks = self.blocks_for(tokens)
        if blocks > holding.blocks:
            self.take(blocks - holding.blocks)
            holding.blocks = blocks
        if holding.chain:
            self.name(holding, tokens // self.block_size)

    def free(self, holding: Holding, hashed: int) -> None:
        """Return all blocks of a request, of which the first `hashed` are hashed; the last ones go first."""
        named = holding.named
        hashed = max(hashed, named) if self.caching else 0
        self._blank += holding.blocks - hashed
        self.free_blocks += holding.blocks - named
        if hashed > named:
            self._idle[BlockRun((), named, hashed)] = None
        for run in reversed(holding.runs):
            run.holders.remove(holding)
            if not run.holders:
                self._idle[run] = None
                self.free_blocks += len(run)
        holding.runs = []
        holding.blocks = 0

    def _agree(self, run: BlockRun, chain: Chain, at: int, end: int) -> int:
        """End of the stretch from `at` that a look-up block by block would take from `run`."""
        if not run.alone:
            while at < end and self._index.get(chain[at]) is run:
                at += 1
            return at
        if run.chain is chain or run.chain[end - 1] == chain[end - 1]:
            return end
        return bisect_left(range(end), True, at, key=lambda index: run.chain[index] != chain[index])

    def _split(self, run: BlockRun, at: int) -> BlockRun:
        """Cut the blocks before `at` off a run, which keeps its place in the queue; returns the new run."""
        head = BlockRun(run.chain, run.start, at, run.holders)
        head.alone = run.alone
        for one in run.chain[run.start : at]:
            if self._index[one] is run:
                self._index[one] = head
            else:
                self._twins[one] = {head if twin is run else twin: None for twin in self._twins[one]}
        run.start = at
        for holding in run.holders:
            holding.runs.insert(holding.runs.index(run), head)
        return head

    def _set_back(self, head: BlockRun, rest: BlockRun) -> None:
        """Queue what was split off an idle run behind its rest, as the first blocks are evicted last."""
        if rest in self._idle:
            order = [(run, head) if run is rest else (run,) for run in self._idle]
            self._idle = OrderedDict.fromkeys(run for runs in order for run in runs)

    def _enter(self, run: BlockRun) -> None:
        named = run.chain[run.start : run.end]
        if self._index.keys().isdisjoint(named):
            self._index.update(dict.fromkeys(named, run))
            return
        for one in named:
            first = self._index.setdefault(one, run)
            if first is not run:
                self._twins.setdefault(one, {})[run] = None
                for twin in (first, *self._twins[one]):
                    twin.alone = False

    def _forget(self, run: BlockRun, end: int) -> None:
        """Evict the blocks of a run from `end` on."""
        for one in run.chain[end : run.end]:
            if run.alone or one not in self._twins:
                del self._index[one]
                continue
            twins = self._twins[one]
            heir = next(iter(twins))
            if self._index[one] is run:
                self._index[one] = heir
                del twins[heir]
            else:
                del twins[run]
            if not twins:
                del self._twins[one]
        run.end = end
