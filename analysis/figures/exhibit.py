"""An exhibit: a figure's data, its drawing, the table under it, the same in words, and its source.

`analysis.figures` lists the exhibits there are.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyarrow as pa

from analysis.figures import canvas
from analysis.figures.canvas import Figure

Row = dict[str, Any]
"""A row of a table, by column."""


class NoData(ValueError):
    """A figure cannot be drawn of this run; the message says why in one sentence for the reader."""


@dataclass(frozen=True, slots=True)
class Exhibit(ABC):
    """What a figure shows, read once; `draw`, `table` and `alt` show the same.

    `rows` are those of the table, compact and with units in the names of columns; `source` names files and
    columns. A run is read as `RunData`, so that several exhibits share one read.
    """

    rows: Sequence[Row]
    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    height_in: ClassVar[float] = canvas.HEIGHT_IN

    @classmethod
    @abstractmethod
    def read(cls, subject: Any) -> Self:
        """What is drawn of a run's data, of several runs, or of a study. Raises NoData without it."""

    @abstractmethod
    def draw(self, figure: Figure) -> None:
        """Draw on an empty figure; what has a label is named in its legend."""

    def table(self) -> pa.Table:
        """What is drawn, as a table."""
        return pa.Table.from_pylist(list(self.rows))

    @abstractmethod
    def alt(self) -> str:
        """What is seen, in sentences with numbers."""

    @classmethod
    def applies(cls, subject: Any) -> bool:
        """False for a subject that has no need of this figure."""
        return True

    @property
    def whole_height_in(self) -> float:
        """Height of the panels; a figure with a row for each part grows with them."""
        return self.height_in

    def figure(self) -> Figure:
        """The figure for a notebook."""
        return canvas.notebook_figure(self.draw, self.whole_height_in)

    def svgs(self, name: str = "") -> list[str]:
        """The figure as inline SVG for a desktop and for a phone, the same bytes for the same data.

        `name`, by default the exhibit's own, tells it from others on a page.
        """
        name = name or self.name
        widths = {name: canvas.WIDTH_IN, f"{name}-narrow": canvas.NARROW_IN}
        return canvas.svgs(self.draw, self.whole_height_in, widths)


def qps(value: float) -> str:
    """A rate without its unit."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def ms(value: float | None) -> str:
    """A latency with its unit, or `infinite`, or `unknown`."""
    if value is None or math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "infinite"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def counted(count: int, noun: str) -> str:
    """A count with its noun in the right number."""
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def share(value: float) -> str:
    """A share in per cent; 100 only for all."""
    if 0.9995 <= value < 1:
        return "over 99.9 %"
    return f"{100 * value:.3g} %"
