"""Linked lists of numbered things, compiled: a queue is (head, tail, count), links are (next, previous)."""

from typing import Any

from serve_apps.engine_model.engine.native import inlined, native

HEAD, TAIL, COUNT = range(3)
NEXT, PREVIOUS = range(2)
NONE = -1


@inlined
def append(queue: Any, links: Any, i: Any) -> None:
    """Put `i` last."""
    insert_after(queue, links, queue[TAIL], i)


@inlined
def prepend(queue: Any, links: Any, i: Any) -> None:
    """Put `i` first."""
    insert_after(queue, links, NONE, i)


@native
def insert_after(queue: Any, links: Any, before: Any, i: Any) -> None:
    """Put `i` behind `before`, or first where that is `NONE`."""
    after = queue[HEAD] if before == NONE else links[before, NEXT]
    links[i, NEXT], links[i, PREVIOUS] = after, before
    if before == NONE:
        queue[HEAD] = i
    else:
        links[before, NEXT] = i
    if after == NONE:
        queue[TAIL] = i
    else:
        links[after, PREVIOUS] = i
    queue[COUNT] += 1


@native
def remove(queue: Any, links: Any, i: Any) -> None:
    """Take `i` out."""
    after, before = links[i, NEXT], links[i, PREVIOUS]
    if before == NONE:
        queue[HEAD] = after
    else:
        links[before, NEXT] = after
    if after == NONE:
        queue[TAIL] = before
    else:
        links[after, PREVIOUS] = before
    queue[COUNT] -= 1


@native
def pop_first(queue: Any, links: Any) -> Any:
    """Take out the first, which must exist, and return it."""
    i = queue[HEAD]
    remove(queue, links, i)
    return i


@native
def move_all(queue: Any, other: Any) -> None:
    """All of `queue` become `other`, which must be empty."""
    for k in range(3):
        other[k] = queue[k]
    queue[HEAD] = queue[TAIL] = NONE
    queue[COUNT] = 0
