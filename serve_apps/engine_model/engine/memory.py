"""The arrays behind all engines of a service, which compiled functions reach by one address.

numba hands every array over in seven parts, each time one function calls another: with all arrays as
arguments the engine's sixty functions take 95 CPU seconds to compile, with one address of a table of them 27.
The table has four numbers for each array: where its data is, and up to three lengths. They stay as they are
while compiled code runs, which may keep them in registers. `Arrays` keeps data and table alive.
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

from serve_apps.engine_model.engine import records
from serve_apps.engine_model.engine.native import inlined

INT, FLOAT = np.dtype(np.int64), np.dtype(np.float64)
KINDS: dict[str, tuple[np.dtype[Any], int]] = {
    "service": (records.SERVICE, 1),
    "engines": (records.ENGINE, 1),
    "groups": (records.GROUP, 1),
    "batches": (records.BATCH, 1),
    "queues": (records.QUEUE, 2),
    "needing": (records.COUNT, 2),
    "ring": (records.QUEUE, 2),
    "emits": (records.COUNT, 2),
    "requests": (records.REQUEST, 1),
    "links": (records.LINK, 2),
    "names": (INT, 1),
    "ends": (INT, 1),
    "runs": (records.RUN, 1),
    "run_links": (records.LINK, 2),
    "cells": (records.CELL, 1),
    "table": (records.NAME, 1),
    "pool": (INT, 1),
    "noise": (FLOAT, 3),
    "tokens": (FLOAT, 1),
    "costs": (FLOAT, 2),
    "balancer": (records.BALANCER, 1),
    "open": (INT, 1),
    "replicas_with": (INT, 2),
    "choices": (INT, 2),
    "owners": (INT, 1),
    "heap": (INT, 1),
    "due": (INT, 2),
    "due_s": (FLOAT, 1),
}
"""Element and number of dimensions of every array, by name; `records` says what they are."""
PARTS = 4


class Arrays:
    """The arrays by name; `address` is what the compiled functions take."""

    def __init__(self, **arrays: Any) -> None:
        self._table = np.zeros((len(KINDS), PARTS), np.int64)
        self._arrays: dict[str, Any] = {}
        self.set(**{name: np.zeros((0,) * size, kind) for name, (kind, size) in KINDS.items()})
        self.set(**arrays)

    @property
    def address(self) -> int:
        return int(self._table.ctypes.data)

    def set(self, **arrays: Any) -> None:
        """Put arrays in the place of those of the same names."""
        for name, array in arrays.items():
            kind, size = KINDS[name]
            assert array.dtype == kind and array.ndim == size and array.flags.c_contiguous, name
            self._arrays[name] = array
            self._table[list(KINDS).index(name), : 1 + size] = array.ctypes.data, *array.shape

    def extend(self, **rows: Any) -> None:
        """Put rows behind those of the arrays of the same names."""
        for name, more in rows.items():
            held = self._arrays[name]
            self.set(**{name: np.concatenate([held, more]) if len(held) else more})

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


def _array(name: str) -> Callable[[Any], Any]:
    """A compiled function that takes the address of a table and returns the array of this name."""
    kind, size = KINDS[name]
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


def _record(name: str) -> Callable[..., Any]:
    """A compiled function that takes the address of a table and returns a record of the array of this name.

    Its row, and its column in an array of two dimensions, are not negative.
    """
    kind, size = KINDS[name]
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

    return intrinsic(of_row if size == 1 else of_cell)  # type: ignore[no-any-return]


service = _record("service")
engine, engines = _record("engines"), _array("engines")
group = _record("groups")
batch = _record("batches")
queue = _record("queues")
needing = _record("needing")
bucket, ring = _record("ring"), _array("ring")
emits = _record("emits")
request = _record("requests")
link, links = _record("links"), _array("links")
names = _array("names")
ends = _array("ends")
run, runs = _record("runs"), _array("runs")
run_link, run_links = _record("run_links"), _array("run_links")
cell, cells = _record("cells"), _array("cells")
named, table = _record("table"), _array("table")
pool = _array("pool")
noise = _array("noise")
tokens = _array("tokens")
costs = _array("costs")
balancer, balancers = _record("balancer"), _array("balancer")
open_counts = _array("open")
replicas_with = _array("replicas_with")
choices = _array("choices")
owners = _array("owners")
heap = _array("heap")
due = _array("due")
due_s = _array("due_s")


@inlined
def count(arrays: Any, r: Any, place: Any) -> Any:
    """How many requests one of the queues of an engine has."""
    return queue(arrays, r, place).count
