"""Machine code of the engine model's loops, by numba, and linked lists in it: a `queue` is a record of head,
tail and count, its things are rows of `links`, whose column `family` is that of all lists of one sort."""

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba


@cache
def _folder() -> str | None:
    """A folder of the user's for machine code of exactly these sources; None where none can be written.

    numba looks at the file of a function alone, and would keep a function called from it that has changed.
    """
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parents[1].rglob("*.py")))
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "maxqps" / hashlib.sha256(sources).hexdigest()[:16]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return str(folder) if os.access(folder, os.W_OK) else None


def native(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled at its first call."""
    before, folder = numba.config.CACHE_DIR, _folder()
    numba.config.CACHE_DIR = folder or before
    compiled: Callable[..., Any] = numba.njit(
        cache=folder is not None, nogil=True, error_model="numpy", no_cfunc_wrapper=True
    )(function)
    numba.config.CACHE_DIR = before
    return compiled


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A named part of compiled functions, for which a call would cost more than what it does."""
    compiled: Callable[..., Any] = numba.njit(inline="always")(function)
    return compiled


NONE = -1


@inlined
def append(queue: Any, links: Any, family: Any, i: Any) -> None:
    """Put `i` last."""
    insert_after(queue, links, family, queue.tail, i)


@native
def insert_after(queue: Any, links: Any, family: Any, before: Any, i: Any) -> None:
    """Put `i` behind `before`, or first where that is `NONE`."""
    after = queue.head if before == NONE else links[before, family].next
    links[i, family].next, links[i, family].previous = after, before
    if before == NONE:
        queue.head = i
    else:
        links[before, family].next = i
    if after == NONE:
        queue.tail = i
    else:
        links[after, family].previous = i
    queue.count += 1


@native
def remove(queue: Any, links: Any, family: Any, i: Any) -> None:
    """Take `i` out."""
    after, before = links[i, family].next, links[i, family].previous
    if before == NONE:
        queue.head = after
    else:
        links[before, family].next = after
    if after == NONE:
        queue.tail = before
    else:
        links[after, family].previous = before
    queue.count -= 1


@native
def pop_first(queue: Any, links: Any, family: Any) -> Any:
    """Take out the first and return it; `NONE` without any."""
    i = queue.head
    if i != NONE:
        remove(queue, links, family, i)
    return i
