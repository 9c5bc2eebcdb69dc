"""The arrays behind all engines of a service, which compiled functions reach by one address.

numba hands every array over in seven parts, each time one function calls another: with all arrays as
arguments the engine's sixty functions take 95 CPU seconds to compile, with one address of a table of them 27.
The table has four numbers for each array: where its data is, and up to three lengths. `Arrays` keeps both
alive.
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

INT, FLOAT = np.dtype(np.int64), np.dtype(np.float64)
KINDS: dict[str, tuple[np.dtype[Any], int]] = {
    "service": (records.SERVICE, 1),
    "engines": (records.ENGINE, 1),
    "groups": (records.GROUP, 1),
    "batches": (records.BATCH, 1),
    "queues": (INT, 3),
    "needing": (INT, 2),
    "ring": (INT, 3),
    "emits": (INT, 2),
    "requests": (records.REQUEST, 1),
    "links": (INT, 3),
    "names": (INT, 1),
    "ends": (INT, 1),
    "runs": (records.RUN, 1),
    "cells": (records.CELL, 1),
    "table": (INT, 2),
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
        self.set(links=np.zeros((5, 0, 2), np.int64), **arrays)

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

    def __getattr__(self, name: str) -> Any:
        return self._arrays[name]


def _getter(name: str) -> Callable[[Any], Any]:
    """A compiled function that takes the address of a table and returns the array of this name."""
    kind, size = KINDS[name]
    array_type, place = types.Array(from_dtype(kind), size, "C"), list(KINDS).index(name) * PARTS

    def get(context: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            number = ir.IntType(64)
            table = builder.inttoptr(arguments[0], number.as_pointer())
            data, *shape = (
                builder.load(cgutils.gep_inbounds(builder, table, place + k)) for k in range(1 + size)
            )
            array = make_array(array_type)(context, builder)
            strides = [ir.Constant(number, kind.itemsize)]
            for length in reversed(shape[1:]):
                strides.insert(0, builder.mul(strides[0], length))
            pointer = builder.inttoptr(data, array.data.type)
            populate_array(array, pointer, shape, strides, kind.itemsize, None)
            return array._getvalue()

        return array_type(types.int64), code

    return intrinsic(get)  # type: ignore[no-any-return]


service = _getter("service")
engines = _getter("engines")
groups = _getter("groups")
batches = _getter("batches")
queues = _getter("queues")
needing = _getter("needing")
ring = _getter("ring")
emits = _getter("emits")
requests = _getter("requests")
links = _getter("links")
names = _getter("names")
ends = _getter("ends")
runs = _getter("runs")
cells = _getter("cells")
table = _getter("table")
pool = _getter("pool")
noise = _getter("noise")
tokens = _getter("tokens")
costs = _getter("costs")
balancer = _getter("balancer")
open_counts = _getter("open")
replicas_with = _getter("replicas_with")
choices = _getter("choices")
owners = _getter("owners")
heap = _getter("heap")
due = _getter("due")
due_s = _getter("due_s")
