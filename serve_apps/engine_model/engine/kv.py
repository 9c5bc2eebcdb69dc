"""The pool of KV blocks of one engine with vLLM's prefix cache, compiled.

The rules (vLLM's block_pool.py): only full blocks are hashed, at their allocation; a freed block goes to the
back of the free queue when it is hashed and to the front when it is not; an allocation takes from the front
and forgets the hashes it meets; a hit takes a block out of the queue. Blocks that live and die together are
one run, so that the cost of a prompt grows with its runs, not with its blocks. A hash is the name of a text
and the place of the block in it. Of runs with the same blocks the one that was entered first is found.
"""

from typing import Any

from serve_apps.engine_model.engine import state
from serve_apps.engine_model.engine.native import NONE, append, inlined, insert_after, native, remove

MIX, MIX_SHIFT = -7046029254386353131, 24
"""Multiplicative hashing (Knuth, volume 3, 6.4): 2**64 over the golden ratio."""
NAMELESS = -(1 << 63)
"""The name of blocks whose hashes no request can have."""
NO_ROOM = "no room for KV books"


@inlined
def blocks_for(engine: Any, tokens: Any) -> Any:
    """KV blocks of so many tokens."""
    return (tokens + engine.block_size - 1) // engine.block_size


@native
def find(arrays: Any, r: Any, i: Any, limit: Any, holds: Any) -> Any:
    """Blocks of request `i` that are cached, at most `limit`, and how many of them nobody holds.

    With `holds` the request, which holds none, has them from now on.
    """
    request, at, idle = state.request(arrays, i), 0, 0
    if not state.engine(arrays, r).enable_prefix_caching:
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
                break
            upto = min(end, _agreed(arrays, slot, run, at))
            if state.run(arrays, run).refs == 0:
                idle += upto - at
            if holds:
                run = _take_up(arrays, r, request, slot, run, at, upto)
            at = upto
        if at < end:
            break
    if holds:
        request.blocks = request.named = at
    return at, idle


@native
def take(arrays: Any, r: Any, blocks: Any) -> None:
    """Allocate free blocks, which must exist, and forget what they cached."""
    engine, idle = state.engine(arrays, r), state.queue(arrays, r, state.IDLE)
    engine.free -= blocks
    engine.blank -= blocks
    while engine.blank < 0:
        oldest, run = idle.head, state.run(arrays, idle.head)
        # Blocks that no request can find are as good as blank once they are the next to go.
        evicted = run.end - run.start
        if run.name != NAMELESS:
            evicted = min(evicted, -engine.blank)
        engine.blank += evicted
        if evicted < run.end - run.start:
            run.end -= evicted
            continue
        remove(idle, state.run_links(arrays), state.RUNS_IDLE, oldest)
        if run.name != NAMELESS:
            _forget(arrays, r, oldest)
        state.run_link(arrays, oldest, state.RUNS_IDLE).next = state.pool(arrays)[state.FREE_RUN]
        state.pool(arrays)[state.FREE_RUN] = oldest


@native
def name(arrays: Any, r: Any, i: Any, blocks: Any) -> None:
    """Enter the first `blocks` of a request into the cache, as far as they have hashes."""
    request = state.request(arrays, i)
    if not state.engine(arrays, r).enable_prefix_caching:
        return
    for piece in range(request.pieces + 1):
        text, end = _piece(arrays, request, piece)
        end = min(end, blocks)
        if request.named < end:
            run = _new_run(arrays, text, request.named, end)
            state.run(arrays, run).refs = 1
            _enter(arrays, r, run)
            _push_cell(arrays, request, run, request.named)
            request.named = end


@inlined
def extend(arrays: Any, r: Any, i: Any, tokens: Any) -> None:
    """Allocate the blocks that a request lacks for its first `tokens`, and cache the full ones."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    if tokens > request.blocks * engine.block_size:
        blocks = blocks_for(engine, tokens)
        take(arrays, r, blocks - request.blocks)
        request.blocks = blocks
    if (request.pieces and request.computed < request.prompt) or request.own_blocks:
        name(arrays, r, i, tokens // engine.block_size)


@native
def free(arrays: Any, r: Any, i: Any, hashed: Any) -> None:
    """Return all blocks of a request, of which the first `hashed` are hashed; the last ones go first."""
    request, engine = state.request(arrays, i), state.engine(arrays, r)
    idle, links, pool = state.queue(arrays, r, state.IDLE), state.run_links(arrays), state.pool(arrays)
    hashed = max(hashed, request.named) if engine.enable_prefix_caching else 0
    engine.blank += request.blocks - hashed
    engine.free += request.blocks - request.named
    if hashed > request.named:
        append(idle, links, state.RUNS_IDLE, _new_run(arrays, NAMELESS, request.named, hashed))
    while request.cell:
        cell, number = state.cell(arrays, request.cell), request.cell
        held = cell.run
        while True:
            run = state.run(arrays, held)
            run.refs -= 1
            if run.refs == 0:
                engine.free += run.end - run.start
                append(idle, links, state.RUNS_IDLE, held)
            if run.start <= cell.start:
                break
            held = run.before
        request.cell, cell.below = cell.below, pool[state.FREE_CELL]
        pool[state.FREE_CELL] = number
    request.blocks = request.named = 0


@inlined
def _piece(arrays: Any, request: Any, piece: Any) -> Any:
    """The name of a piece of a request and the block where it ends; the last piece is the request's own."""
    if piece == request.pieces:
        return -1 - request.serial, request.own_blocks
    return state.number_at(request.shares, 2 * piece), state.number_at(request.shares, 2 * piece + 1)


@inlined
def _home(key: Any, mask: Any) -> Any:
    return (key * MIX >> MIX_SHIFT) & mask


@native
def _place_of(arrays: Any, r: Any, text: Any) -> Any:
    """The row of the table that a name of engine `r` has, or that it gets."""
    key, mask = text * len(state.engines(arrays)) + r, len(state.table(arrays)) - 1
    at = _home(key, mask)
    while state.named(arrays, at).count and state.named(arrays, at).key != key:
        at = (at + 1) & mask
    return at


@native
def _covering(arrays: Any, slot: Any, at: Any, last: Any) -> Any:
    """The first run of a name that has block `at`; `last` is where the search was before. 0 is none."""
    named = state.named(arrays, slot)
    if not named.count:
        return 0
    if last and not named.twins:
        after = state.run_link(arrays, last, state.RUNS_NAMED).next
        if after != NONE and _covers(arrays, after, at):
            return after
    run = named.head
    while run != NONE and not _covers(arrays, run, at):
        run = state.run_link(arrays, run, state.RUNS_NAMED).next
    return max(run, 0)


@inlined
def _covers(arrays: Any, run: Any, at: Any) -> bool:
    return state.run(arrays, run).start <= at < state.run(arrays, run).end  # type: ignore[no-any-return]


@native
def _agreed(arrays: Any, slot: Any, run: Any, at: Any) -> Any:
    """The block up to which a look-up block by block would take `run`, from `at` on."""
    named, end = state.named(arrays, slot), state.run(arrays, run).end
    if named.twins:
        older = named.head
        while older != run:
            if at < state.run(arrays, older).start < end:
                end = state.run(arrays, older).start
            older = state.run_link(arrays, older, state.RUNS_NAMED).next
    return end


@native
def _split(arrays: Any, slot: Any, number: Any, at: Any) -> Any:
    """Cut the blocks before `at` off a run, which keeps its place in the queue; returns the new run."""
    run, links = state.run(arrays, number), state.run_links(arrays)
    head = _new_run(arrays, run.name, run.start, at)
    state.run(arrays, head).refs, state.run(arrays, head).before = run.refs, run.before
    run.start, run.before = at, head
    before = state.run_link(arrays, number, state.RUNS_NAMED).previous
    insert_after(state.named(arrays, slot), links, state.RUNS_NAMED, before, head)
    return head


@native
def _take_up(arrays: Any, r: Any, request: Any, slot: Any, number: Any, start: Any, end: Any) -> Any:
    """A request holds blocks `start` to `end` of a run from now on; returns the run that has just these."""
    idle, links, whole = state.queue(arrays, r, state.IDLE), state.run_links(arrays), number
    if start > state.run(arrays, number).start:
        head = _split(arrays, slot, number, start)
        if state.run(arrays, number).refs == 0:  # the first blocks are evicted last
            insert_after(idle, links, state.RUNS_IDLE, number, head)
    if end < state.run(arrays, number).end:
        number = _split(arrays, slot, number, end)
    run, top = state.run(arrays, number), request.cell
    if run.refs == 0:
        if number == whole:
            remove(idle, links, state.RUNS_IDLE, number)
        state.engine(arrays, r).free -= run.end - run.start
    run.refs += 1
    if top and run.before and run.before == state.cell(arrays, top).run:
        state.cell(arrays, top).run = number
    else:
        _push_cell(arrays, request, number, start)
    return number


@inlined
def _enter(arrays: Any, r: Any, number: Any) -> None:
    """Put a run behind all others of its name."""
    run = state.run(arrays, number)
    named = state.named(arrays, _place_of(arrays, r, run.name))
    if not named.count:
        named.key, named.twins = run.name * len(state.engines(arrays)) + r, 0
        named.head = named.tail = NONE
    other = named.head
    while other != NONE and not named.twins:
        if state.run(arrays, other).start < run.end and run.start < state.run(arrays, other).end:
            named.twins = 1
        other = state.run_link(arrays, other, state.RUNS_NAMED).next
    append(named, state.run_links(arrays), state.RUNS_NAMED, number)


@inlined
def _forget(arrays: Any, r: Any, number: Any) -> None:
    """Take a run out of the index.

    The gap that its name may leave in the table is closed (Knuth, volume 3, 6.4, algorithm R).
    """
    hole, table = _place_of(arrays, r, state.run(arrays, number).name), state.table(arrays)
    remove(state.named(arrays, hole), state.run_links(arrays), state.RUNS_NAMED, number)
    if state.named(arrays, hole).count:
        return
    mask = len(table) - 1
    at = (hole + 1) & mask
    while table[at].count:
        home = _home(table[at].key, mask)
        if (at - home) & mask >= (at - hole) & mask:
            table[hole] = table[at]
            hole = at
        at = (at + 1) & mask
    table[hole].count = 0


@native
def _new_run(arrays: Any, text: Any, start: Any, end: Any) -> Any:
    pool = state.pool(arrays)
    number = pool[state.FREE_RUN]
    if number:
        pool[state.FREE_RUN] = state.run_link(arrays, number, state.RUNS_IDLE).next
    else:
        number = pool[state.FRESH_RUN]
        if number == len(state.runs(arrays)):
            raise MemoryError(NO_ROOM)
        pool[state.FRESH_RUN] += 1
    run = state.run(arrays, number)
    run.name, run.start, run.end, run.refs, run.before = text, start, end, 0, 0
    return number


@native
def _push_cell(arrays: Any, request: Any, run: Any, start: Any) -> None:
    pool = state.pool(arrays)
    number = pool[state.FREE_CELL]
    if number:
        pool[state.FREE_CELL] = state.cell(arrays, number).below
    else:
        number = pool[state.FRESH_CELL]
        if number == len(state.cells(arrays)):
            raise MemoryError(NO_ROOM)
        pool[state.FRESH_CELL] += 1
    cell = state.cell(arrays, number)
    cell.run, cell.start, cell.below = run, start, request.cell
    request.cell = number
