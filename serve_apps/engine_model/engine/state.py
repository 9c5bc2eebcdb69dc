"""The arrays behind all engines of a service; docs/engine_model.md says how they stand for vLLM's objects.

Compiled functions reach the arrays by one address. numba hands every array over in seven parts, each time one
function calls another: with all arrays as arguments the engine's sixty functions take 95 CPU seconds to
compile, with one address of a table of them 27. The table has four numbers for each array: where its data is,
and up to three lengths. They stay as they are while compiled code runs, which may keep them in registers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array
from numba.np.numpy_support import from_dtype

from serve_apps.engine_model.engine.native import NONE, inlined


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


OWN, HELD, REMOTE = range(3)
"""Whose KV a request decodes with: its own; its own, which another engine takes over; another engine's."""
NOWHERE, ARRIVING, WAITING, RUNNING, LOADING, KEPT = range(6)
"""The place of a request: in the front end, queued, scheduled, awaiting KV, or over with blocks held."""
STARTED, ENDED, UNREAD, FINISHED, SEEN, IDLE = 6, 7, 8, 9, 10, 12
"""Further queues: took blocks for KV, untold; transfers that ended, or whose end an empty step saw; finished
in the step that ended last; by the parity of a step in flight, requests whose transfers it saw. Last the free
runs of blocks that cache something."""
QUEUES = 13
QUEUE = np.dtype(_fields(np.int64, "head tail count"))
LINK = np.dtype(_fields(np.int32, "next previous"))
"""A linked list, and the neighbours of a thing in it (`native`)."""
PLACES, MOVES = range(2)
"""The links of queues that a request may be in at once."""
RUNS_IDLE, RUNS_NAMED = range(2)
"""The links of a run of blocks: in the queue of free ones, and among those of its name."""

TIMES = "sent_s ready_s queued_s scheduled_s begun_s first_s last_s moved_s taken_s computed_s"
LIMITS = "max_num_batched_tokens max_num_seqs long_prefill_token_threshold prefill_schedule_interval"
SETTINGS = f"{LIMITS} async_scheduling enable_prefix_caching block_size"
"""Keys of an engine's spec that its scheduler and its cache go by."""

REQUEST = np.dtype(
    _fields(np.float64, TIMES)
    + _fields(np.int64, "mate engine own_blocks named shares")
    + _fields(np.int32, "serial pieces token prompt output cached to_load own computed new blocks cell")
    + _fields(np.int32, "last_step scheduled emitted hashed")
    + _fields(np.int8, "kv place due loaded moving"),
    align=True,
)
"""A request. It is sent, is through the front end, is seen by the scheduler and first scheduled; its
computation begins; its first and last token exist; a transfer of its KV ends; blocks were taken for KV, and
its prompt was computed elsewhere (s, nan before).

Its hashed blocks are those of its `pieces`, name and last block of each one from the address `shares` on, and
after a preemption its `own_blocks`.
`mate` is the same request on the other side of a split node, and `token` its first place in `tokens`. Of its
prompt `cached` tokens had their KV at admission (-1 before); tokens beyond `own` are decoded. `computed`
tokens have KV in `blocks` blocks, of which `named` are in the cache's index, by the cells from `cell` on;
`new` of them were computed in `last_step`. The values of `hashed` tokens were known then: blocks of others
have no hash yet. It is `due` where it runs and the last step left some of its known tokens out.

Of its output `emitted` tokens exist and `scheduled` exist or are being computed.
"""
ENGINE = np.dtype(
    # The place of the costs of a step in `costs`; KV blocks in all, free, and free ones that cache nothing.
    _fields(np.int64, f"{SETTINGS} kind blocks free blank")
    # The last step with prefill; the last pass left requests waiting; running ones with tokens to compute.
    + _fields(np.int64, "prefill_step backed_up due")
    + _fields(np.float64, "front_end_s latency_s front_free_s")
    # Steps scheduled and completed; requests that are open, and loaded.
    + _fields(np.int64, "scheduled completed open loaded")
    # KV comes from elsewhere; comes or goes; nothing happens before an arrival or the end of a transfer.
    + _fields(np.int64, "receives moves stalled")
    # A step is scheduled ahead; one runs. The begin of the one scheduled last.
    + _fields(np.int64, "ahead stepping")
    + _fields(np.float64, "begin_s idle_until_s link_free_s")
    # Counters, as vLLM's metrics have them.
    + _fields(np.int64, "preemptions prompt_tokens generation_tokens prefix_queries prefix_hits")
    # Work of the step that was chosen last (`cost.step_time.Batch`), and sums over all steps.
    + _fields(np.int64, "decode prefill context samples")
    + _fields(np.float64, "pairs")
    + _fields(np.int64, "decode_tokens prefill_tokens context_tokens sequences")
    + _fields(np.float64, "attention_pairs kv_token_seconds")
    # What a rank last published, and requests sent to it since.
    + _fields(np.int64, "told_waiting told_running sent_since")
    + _fields(np.float64, "told_usage")
)
"""One scheduler with its KV cache, front end and counters: an engine, or a rank of one."""
GROUP = np.dtype(
    _fields(np.int64, "first width steps in_flight drawn start place side")
    + _fields(np.float64, "due_s free_s began_s end_s busy_s looks drift drifted_at_s")
)
"""A replica: its engines step together. The step that runs, the noise used, the state of the choice of a
rank, and, for the loop of a service, its balancer, its next event and its place in the heap of them."""
RUN = np.dtype(_fields(np.int64, "name start end refs before"))
"""KV blocks `start` to `end` of the text `name`, held by `refs` requests; 0 is no run. Those that were split
off begin with run `before`."""
CELL = np.dtype(_fields(np.int64, "run start below"))
"""A request holds `run`, and what was split off it back to block `start`; the cell `below` was there
before."""
NAME = np.dtype(_fields(np.int64, "key twins head tail count"))
"""A row of the hash table of names: the name, the list of its runs, and whether two of them overlap."""
FRESH_RUN, FREE_RUN, FRESH_CELL, FREE_CELL = range(4)


SERVICE = np.dtype(
    _fields(np.float64, "drift_sd drift_memory_s token_s latency_s last_share from_s")
    + _fields(np.int64, "noisy writes closed coupled apart arrived")
)
"""One row: the noise of steps, transfers of KV as `cost.links` has them (with `writes` KV flows while its
prompt is computed), and what the loop of a service needs.

Requests before `from_s` only fill caches. In a `closed` loop each end sends the next request. The engines of
a `coupled` service take their events in the order of time; none looks at the others where they are `apart`.
So many of the requests that are due have `arrived`."""
BALANCER = np.dtype(
    _fields(np.int64, "mode first count fewest in_flight gone lost turn")
    + _fields(np.float64, "load_factor lost_s")
)
"""A balancer over `count` replicas from number `first` on: the fewest open requests of one, requests in
flight, the replica that is `gone`, or will be `lost`, or none, and where the next search for the least busy
one begins."""


KINDS: dict[str, tuple[np.dtype[Any], int]] = {}
"""Element and number of dimensions of every array, by name."""
PARTS = 4


class Arrays:
    """The arrays by name; `address` is that of their table, which lives as long as this."""

    def __init__(self, **shapes: Any) -> None:
        self._table = np.zeros((len(KINDS), PARTS), np.int64)
        self._arrays: dict[str, Any] = {}
        self.make(**{name: (0,) * size for name, (_, size) in KINDS.items()} | shapes)

    @property
    def address(self) -> int:
        return int(self._table.ctypes.data)

    def make(self, **shapes: Any) -> None:
        """Put arrays of zeros in the place of those of the same names; memory is taken as they are used."""
        self.set(**{name: np.zeros(shape, KINDS[name][0]) for name, shape in shapes.items()})

    def set(self, **arrays: Any) -> None:
        """Put arrays in the place of those of the same names."""
        for name, array in arrays.items():
            kind, size = KINDS[name]
            assert array.dtype == kind and array.ndim == size and array.flags.c_contiguous, name
            self._arrays[name] = array
            self._table[list(KINDS).index(name), : 1 + size] = array.ctypes.data, *array.shape

    def grow(self, **rows: int) -> None:
        """Put so many rows of zeros behind those of the arrays of these names."""
        for name, more in rows.items():
            held = self._arrays[name]
            zeros = np.zeros((more, *held.shape[1:]), held.dtype)
            self.set(**{name: np.concatenate([held, zeros]) if len(held) else zeros})

    def make_requests(self, count: int) -> None:
        """Requests that have not been sent, and room for the links of their queues."""
        self.set(requests=np.repeat(NEW_REQUEST, count))
        self.make(links=(count, 2))

    def make_books(self, runs: int, cells: int) -> None:
        """Room for so many runs of blocks and cells."""
        self.make(runs=runs + 1, run_links=(runs + 1, 2), cells=cells + 1)
        self.make(table=1 << (2 * runs + 8).bit_length(), pool=4)
        self.pool[[FRESH_RUN, FRESH_CELL]] = 1

    def __getattr__(self, name: str) -> Any:
        return self._arrays[name]


def _parts(builder: Any, address: Any, name: str, count: int) -> list[Any]:
    """The address of an array's data, and as many of its lengths as make `count` numbers."""
    place, number = list(KINDS).index(name) * PARTS, ir.IntType(64)
    table = builder.inttoptr(address, number.as_pointer())
    parts = [builder.load(cgutils.gep_inbounds(builder, table, place + k)) for k in range(count)]
    for part in parts:
        part.set_metadata("invariant.load", builder.module.add_metadata([]))
    return parts


def _array(name: str, kind: np.dtype[Any], size: int) -> Callable[[Any], Any]:
    """A new array, as the compiled function that takes the address of a table and returns it."""
    KINDS[name] = kind, size
    array_type = types.Array(from_dtype(kind), size, "C")

    def get(context: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data, *shape = _parts(builder, arguments[0], name, 1 + size)
            array = make_array(array_type)(context, builder)
            strides = [ir.Constant(ir.IntType(64), kind.itemsize)]
            for length in reversed(shape[1:]):
                strides.insert(0, builder.mul(strides[0], length))
            pointer = builder.inttoptr(data, array.data.type)
            populate_array(array, pointer, shape, strides, kind.itemsize, None)
            return array._getvalue()

        return array_type(types.int64), code

    return intrinsic(get)  # type: ignore[no-any-return]


def _records(
    name: str, kind: np.dtype[Any], size: int = 1
) -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    """A new array of records, as compiled functions that return one of them, and all.

    The row, and the column in an array of two dimensions, are not negative.
    """
    record_type = from_dtype(kind)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, *shape = _parts(builder, arguments[0], name, 2 * size - 1)
        row, *column = arguments[1:]
        if column:
            row = builder.add(builder.mul(row, shape[1]), column[0])
        place = builder.add(data, builder.mul(row, ir.Constant(row.type, kind.itemsize)))
        return builder.inttoptr(place, context.get_value_type(record_type))

    def of_row(context: Any, address: Any, row: Any) -> Any:
        return record_type(types.int64, types.int64), code

    def of_cell(context: Any, address: Any, row: Any, column: Any) -> Any:
        return record_type(types.int64, types.int64, types.int64), code

    return intrinsic(of_row if size == 1 else of_cell), _array(name, kind, size)


@intrinsic  # type: ignore[untyped-decorator]
def number_at(context: Any, address: Any, place: Any) -> Any:
    """One of the whole numbers from an address on."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load(cgutils.gep_inbounds(builder, numbers, arguments[1]))

    return types.int64(types.int64, types.int64), code


INT, FLOAT = np.dtype(np.int64), np.dtype(np.float64)
service, _ = _records("service", SERVICE)
engine, engines = _records("engines", ENGINE)
group, _ = _records("groups", GROUP)
queue, _ = _records("queues", QUEUE, 2)
request, _ = _records("requests", REQUEST)
link, links = _records("links", LINK, 2)
run, runs = _records("runs", RUN)
run_link, run_links = _records("run_links", LINK, 2)
cell, cells = _records("cells", CELL)
named, table = _records("table", NAME)
pool = _array("pool", INT, 1)
noise = _array("noise", FLOAT, 3)
tokens = _array("tokens", FLOAT, 1)
emits = _array("emits", INT, 2)
"""Of each engine two rows, by the parity of a step in flight: the number of requests that get a token, then
these requests; `NONE` where one was dropped."""
costs = _array("costs", FLOAT, 2)
balancer, _ = _records("balancer", BALANCER)
open_counts = _array("open", INT, 1)
replicas_with, choices = _array("replicas_with", INT, 2), _array("choices", INT, 2)
owners, heap = _array("owners", INT, 1), _array("heap", INT, 1)
due, due_s = _array("due", INT, 1), _array("due_s", FLOAT, 1)


@inlined
def count(arrays: Any, r: Any, place: Any) -> Any:
    """How many requests one of the queues of an engine has."""
    return queue(arrays, r, place).count


NEW_REQUEST = np.zeros((), REQUEST)
NEW_REQUEST[TIMES.split()[2:]] = np.nan
NEW_REQUEST[["cached", "mate"]] = NONE
