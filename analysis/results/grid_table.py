"""A grid as text: a line for each cell, what it is on the left, its figures on the right.

Knows widths; what the figures mean is for the caller.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Cell = Mapping[str, Any]
"""One cell: its values `at` each axis, and the `reason` where it has no figures."""


def lines(
    axes: Sequence[str],
    cells: Sequence[Cell],
    columns: Sequence[tuple[str, int]],
    figures: Callable[[Cell], Sequence[str] | None],
) -> list[str]:
    """A heading and a line per cell under `columns` (heading, width); the reason where there is no figure."""
    widths = [max(len(axis), *(len(str(cell["at"][axis])) for cell in cells)) + 2 for axis in axes]
    heads = "".join(f"{axis:<{width}}" for axis, width in zip(axes, widths, strict=True))
    shown = [(heads + "".join(f"{name:>{width}}" for name, width in columns)).rstrip()]
    for cell in cells:
        at = "".join(f"{cell['at'][axis]!s:<{width}}" for axis, width in zip(axes, widths, strict=True))
        found = figures(cell)
        if found is None:
            shown.append(f"{at}  {cell['reason']}")
            continue
        pairs = zip(found, columns, strict=True)
        shown.append((at + "".join(f"{figure:>{width}}" for figure, (_, width) in pairs)).rstrip())
    return shown
