"""The pool of KV blocks of one engine with vLLM's prefix cache, compiled.

The rules (vLLM's block_pool.py): only full blocks are hashed, at their allocation; a freed block goes to the
back of the free queue when it is hashed and to the front when it is not; an allocation takes from the front
and forgets the hashes it meets; a hit takes a block out of the queue. Blocks that live and die together are
one run, so that the cost of a prompt grows with its runs, not with its blocks. A hash is the name of a text
and the place of the block in it. Of runs with the same blocks the one that was entered first is found.
"""

from typing import Any

from serve_apps.engine_model.engine import memory
from serve_apps.engine_model.engine.native import inlined, native
from serve_apps.engine_model.engine.records import (
    FREE_CELL,
    FREE_RUN,
    FRESH_CELL,
    FRESH_RUN,
    NAME_FIRST,
    NAME_KEY,
    NAME_LAST,
    NAME_TWINS,
)

MIX, MIX_SHIFT = -7046029254386353131, 24
"""Multiplicative hashing (Knuth, volume 3, 6.4): 2**64 over the golden ratio."""
NAMELESS = -1
"""In `RUN.next` of blocks whose hashes no request can have."""
NO_ROOM = "no room for KV books"


@inlined
def blocks_for(engine: Any, tokens: Any) -> Any:
    """KV blocks of so many tokens."""
    return (tokens + engine.block - 1) // engine.block


@native
def find(arrays: Any, r: Any, i: Any, limit: Any) -> Any:
    """Blocks of request `i` that are cached, at most `limit`, and how many of them nobody holds."""
    request, at, idle = memory.requests(arrays)[i], 0, 0
    if not memory.engines(arrays)[r].caching:
        return 0, 0
    for piece in range(request.pieces + 1):
        name, end = _piece(arrays, request, piece)
        end, run = min(end, limit), 0
        if at >= end:
            continue
        slot = _place_of(arrays, r, name)
        while at < end:
            run = _covering(arrays, slot, at, run)
            if run == 0:
                return at, idle
            upto = min(end, _agreed(arrays, slot, run, at))
            if memory.runs(arrays)[run].refs == 0:
                idle += upto - at
            at = upto
    return at, idle


@native
def hold(arrays: Any, r: Any, i: Any, found: Any) -> None:
    """Give the `found` blocks to request `i`, which holds none."""
    request, at, runs = memory.requests(arrays)[i], 0, memory.runs(arrays)
    for piece in range(request.pieces + 1):
        name, end = _piece(arrays, request, piece)
        end, run = min(end, found), 0
        if at >= end:
            continue
        slot = _place_of(arrays, r, name)
        while at < end:
            run = _covering(arrays, slot, at, run)
            upto = min(end, _agreed(arrays, slot, run, at))
            if at > runs[run].start:
                head = _split(arrays, slot, run, at)
                if runs[run].refs == 0:  # the first blocks are evicted last
                    _queue_behind(arrays, r, run, head)
            held = run if upto == runs[run].end else _split(arrays, slot, run, upto)
            _take_up(arrays, r, request, held, at, held == run)
            run, at = held, upto
    request.blocks = request.named = found


@native
def take(arrays: Any, r: Any, blocks: Any) -> None:
    """Allocate free blocks, which must exist, and forget what they cached."""
    engine = memory.engines(arrays)[r]
    engine.free -= blocks
    engine.blank -= blocks
    while engine.blank < 0:
        run = engine.idle_first
        length = memory.runs(arrays)[run].end - memory.runs(arrays)[run].start
        # Blocks that no request can find are as good as blank once they are the next to go.
        evicted = length
        if memory.runs(arrays)[run].next != NAMELESS:
            evicted = min(length, -engine.blank)
        if evicted == length:
            _unqueue(arrays, r, run)
            if memory.runs(arrays)[run].next != NAMELESS:
                _forget(arrays, r, run)
            _free_run(arrays, run)
        else:
            memory.runs(arrays)[run].end -= evicted
        engine.blank += evicted


@native
def name(arrays: Any, r: Any, i: Any, blocks: Any) -> None:
    """Enter the first `blocks` of a request into the cache, as far as they have hashes."""
    request = memory.requests(arrays)[i]
    if not memory.engines(arrays)[r].caching:
        return
    for piece in range(request.pieces + 1):
        text, end = _piece(arrays, request, piece)
        end = min(end, blocks)
        if request.named < end:
            run = _new_run(arrays, text, request.named, end)
            memory.runs(arrays)[run].refs = 1
            _enter(arrays, r, run)
            _push_cell(arrays, request, run, request.named)
            request.named = end


@native
def name_all(arrays: Any, r: Any, i: Any, blocks: Any) -> None:
    """The same, with hashes that no other request has beyond those that it has."""
    if memory.engines(arrays)[r].caching:
        memory.requests(arrays)[i].own_blocks = max(blocks, memory.requests(arrays)[i].own_blocks)
        name(arrays, r, i, blocks)


@native
def extend(arrays: Any, r: Any, i: Any, tokens: Any) -> None:
    """Allocate the blocks that a request lacks for its first `tokens`, and cache the full ones."""
    request, engine = memory.requests(arrays)[i], memory.engines(arrays)[r]
    blocks = blocks_for(engine, tokens)
    if blocks > request.blocks:
        take(arrays, r, blocks - request.blocks)
        request.blocks = blocks
    if request.pieces or request.own_blocks:
        name(arrays, r, i, tokens // engine.block)


@native
def free(arrays: Any, r: Any, i: Any, hashed: Any) -> None:
    """Return all blocks of a request, of which the first `hashed` are hashed; the last ones go first."""
    request, engine, runs = memory.requests(arrays)[i], memory.engines(arrays)[r], memory.runs(arrays)
    hashed = max(hashed, request.named) if engine.caching else 0
    engine.blank += request.blocks - hashed
    engine.free += request.blocks - request.named
    if hashed > request.named:
        run = _new_run(arrays, 0, request.named, hashed)
        runs[run].next = NAMELESS
        _queue_behind(arrays, r, engine.idle_last, run)
    while request.cell:
        cell = request.cell
        run, start = memory.cells(arrays)[cell].run, memory.cells(arrays)[cell].start
        while True:
            runs[run].refs -= 1
            if runs[run].refs == 0:
                engine.free += runs[run].end - runs[run].start
                _queue_behind(arrays, r, engine.idle_last, run)
            if runs[run].start <= start:
                break
            run = runs[run].before
        request.cell = memory.cells(arrays)[cell].below
        memory.cells(arrays)[cell].below = memory.pool(arrays)[FREE_CELL]
        memory.pool(arrays)[FREE_CELL] = cell
    request.blocks = request.named = 0


@inlined
def _piece(arrays: Any, request: Any, piece: Any) -> Any:
    """The name of a piece of a request and the block where it ends; the last piece is the request's own."""
    if piece == request.pieces:
        return -1 - request.serial, request.own_blocks
    return memory.names(arrays)[request.piece + piece], memory.ends(arrays)[request.piece + piece]


@inlined
def _home(key: Any, mask: Any) -> Any:
    return (key * MIX >> MIX_SHIFT) & mask


@native
def _place_of(arrays: Any, r: Any, text: Any) -> Any:
    """The row of the table that a name of engine `r` has, or that it gets."""
    table, key = memory.table(arrays), text * len(memory.engines(arrays)) + r
    mask = len(table) - 1
    at = _home(key, mask)
    while table[at, NAME_FIRST] != 0 and table[at, NAME_KEY] != key:
        at = (at + 1) & mask
    return at


@native
def _covering(arrays: Any, slot: Any, at: Any, last: Any) -> Any:
    """The first run of a name that has block `at`; `last` is where the search was before. 0 is none."""
    runs, table = memory.runs(arrays), memory.table(arrays)
    if last and not table[slot, NAME_TWINS]:
        after = runs[last].next
        if after and runs[after].start <= at < runs[after].end:
            return after
    run = table[slot, NAME_FIRST]
    while run and not runs[run].start <= at < runs[run].end:
        run = runs[run].next
    return run


@native
def _agreed(arrays: Any, slot: Any, run: Any, at: Any) -> Any:
    """The block up to which a look-up block by block would take `run`, from `at` on."""
    runs, end = memory.runs(arrays), memory.runs(arrays)[run].end
    if memory.table(arrays)[slot, NAME_TWINS]:
        older = memory.table(arrays)[slot, NAME_FIRST]
        while older != run:
            if at < runs[older].start < end:
                end = runs[older].start
            older = runs[older].next
    return end


@native
def _split(arrays: Any, slot: Any, run: Any, at: Any) -> Any:
    """Cut the blocks before `at` off a run, which keeps its place in the queue; returns the new run."""
    runs = memory.runs(arrays)
    head = _new_run(arrays, runs[run].name, runs[run].start, at)
    runs[head].refs, runs[head].before = runs[run].refs, runs[run].before
    runs[run].start, runs[run].before = at, head
    previous = runs[run].previous
    runs[head].previous, runs[head].next, runs[run].previous = previous, run, head
    if previous:
        runs[previous].next = head
    else:
        memory.table(arrays)[slot, NAME_FIRST] = head
    return head


@inlined
def _take_up(arrays: Any, r: Any, request: Any, run: Any, start: Any, queued: Any) -> None:
    """A request holds `run` from now on; one that nobody held leaves the free queue, if it is `queued`."""
    runs = memory.runs(arrays)
    if runs[run].refs == 0:
        if queued:
            _unqueue(arrays, r, run)
        memory.engines(arrays)[r].free -= runs[run].end - runs[run].start
    runs[run].refs += 1
    top = request.cell
    if top and runs[run].before and runs[run].before == memory.cells(arrays)[top].run:
        memory.cells(arrays)[top].run = run
    else:
        _push_cell(arrays, request, run, start)


@inlined
def _enter(arrays: Any, r: Any, run: Any) -> None:
    """Put a run behind all others of its name."""
    runs, table = memory.runs(arrays), memory.table(arrays)
    slot = _place_of(arrays, r, runs[run].name)
    other = table[slot, NAME_FIRST]
    if other == 0:
        table[slot, NAME_KEY] = runs[run].name * len(memory.engines(arrays)) + r
        table[slot, NAME_FIRST], table[slot, NAME_TWINS], runs[run].previous = run, 0, 0
    else:
        while other and not table[slot, NAME_TWINS]:
            if runs[other].start < runs[run].end and runs[run].start < runs[other].end:
                table[slot, NAME_TWINS] = 1
            other = runs[other].next
        runs[run].previous = table[slot, NAME_LAST]
        runs[runs[run].previous].next = run
    runs[run].next, table[slot, NAME_LAST] = 0, run


@inlined
def _forget(arrays: Any, r: Any, run: Any) -> None:
    """Take a run out of the index."""
    runs, table = memory.runs(arrays), memory.table(arrays)
    slot = _place_of(arrays, r, runs[run].name)
    before, after = runs[run].previous, runs[run].next
    if before:
        runs[before].next = after
    else:
        table[slot, NAME_FIRST] = after
    if after:
        runs[after].previous = before
    else:
        table[slot, NAME_LAST] = before
    if not before and not after:
        _vacate(table, slot)


@inlined
def _vacate(table: Any, hole: Any) -> None:
    """Close the gap that a name leaves in the table (Knuth, volume 3, 6.4, algorithm R)."""
    mask = len(table) - 1
    at = (hole + 1) & mask
    while table[at, NAME_FIRST] != 0:
        home = _home(table[at, NAME_KEY], mask)
        if (at - home) & mask >= (at - hole) & mask:
            for k in range(4):
                table[hole, k] = table[at, k]
            hole = at
        at = (at + 1) & mask
    table[hole, NAME_FIRST] = 0


@native
def _queue_behind(arrays: Any, r: Any, older: Any, run: Any) -> None:
    """Put a run into the free queue behind `older`; 0 is the front."""
    runs, engine = memory.runs(arrays), memory.engines(arrays)[r]
    newer = runs[older].newer if older else engine.idle_first
    runs[run].older, runs[run].newer = older, newer
    if older:
        runs[older].newer = run
    else:
        engine.idle_first = run
    if newer:
        runs[newer].older = run
    else:
        engine.idle_last = run


@native
def _unqueue(arrays: Any, r: Any, run: Any) -> None:
    """Take a run out of the free queue."""
    runs, engine = memory.runs(arrays), memory.engines(arrays)[r]
    older, newer = runs[run].older, runs[run].newer
    if older:
        runs[older].newer = newer
    else:
        engine.idle_first = newer
    if newer:
        runs[newer].older = older
    else:
        engine.idle_last = older


@native
def _new_run(arrays: Any, text: Any, start: Any, end: Any) -> Any:
    pool, runs = memory.pool(arrays), memory.runs(arrays)
    run = pool[FREE_RUN]
    if run:
        pool[FREE_RUN] = runs[run].next
    else:
        run = pool[FRESH_RUN]
        if run == len(runs):
            raise MemoryError(NO_ROOM)
        pool[FRESH_RUN] += 1
    one = runs[run]
    one.name, one.start, one.end, one.refs, one.before = text, start, end, 0, 0
    return run


@inlined
def _free_run(arrays: Any, run: Any) -> None:
    memory.runs(arrays)[run].next = memory.pool(arrays)[FREE_RUN]
    memory.pool(arrays)[FREE_RUN] = run


@native
def _push_cell(arrays: Any, request: Any, run: Any, start: Any) -> None:
    pool, cells = memory.pool(arrays), memory.cells(arrays)
    cell = pool[FREE_CELL]
    if cell:
        pool[FREE_CELL] = cells[cell].below
    else:
        cell = pool[FRESH_CELL]
        if cell == len(cells):
            raise MemoryError(NO_ROOM)
        pool[FRESH_CELL] += 1
    cells[cell].run, cells[cell].start, cells[cell].below = run, start, request.cell
    request.cell = cell
