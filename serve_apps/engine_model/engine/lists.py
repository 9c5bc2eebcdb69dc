"""Linked lists of numbered things, compiled: a `queue` is a record of head, tail and count.

Its things are rows of `links`, in which `family` is the column of all lists of one sort.
"""

from typing import Any

from serve_apps.engine_model.engine.native import inlined, native

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
    """Take out the first, which must exist, and return it."""
    i = queue.head
    remove(queue, links, family, i)
    return i


@inlined
def move_all(queue: Any, other: Any) -> None:
    """All of `queue` become `other`, which must be empty."""
    other.head, other.tail, other.count = queue.head, queue.tail, queue.count
    queue.head = queue.tail = NONE
    queue.count = 0
