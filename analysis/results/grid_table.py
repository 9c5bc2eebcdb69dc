"""A grid as text: a line for each cell, what it is on the left, its figures on the right.

Knows widths; the meaning of the figures is for the caller.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GridRow:
    """One cell: its value `at` each axis, and its figures or the reason why it has none."""

    at: Mapping[str, Any]
    figures: Sequence[str] | None
    reason: str


def lines(axes: Sequence[str], rows: Sequence[GridRow], columns: Sequence[tuple[str, int]]) -> list[str]:
    """A heading and a line per cell under `columns` (heading, width); the reason where there is no figure."""
    widths = [max(len(axis), *(len(str(row.at[axis])) for row in rows)) + 2 for axis in axes]
    heads = "".join(f"{axis:<{width}}" for axis, width in zip(axes, widths, strict=True))
    out = [(heads + "".join(f"{name:>{width}}" for name, width in columns)).rstrip()]
    for row in rows:
        at = "".join(f"{row.at[axis]!s:<{width}}" for axis, width in zip(axes, widths, strict=True))
        if row.figures is None:
            out.append(f"{at}  {row.reason}")
            continue
        pairs = zip(row.figures, columns, strict=True)
        out.append((at + "".join(f"{figure:>{width}}" for figure, (_, width) in pairs)).rstrip())
    return out
