"""An exhibit: a figure's drawing, the table under it, the same in words, and its source.

`analysis.figures` lists the exhibits there are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from analysis.figures import canvas
from analysis.figures.canvas import Axes

ROW_IN, MARGIN_IN = 0.42, 1.3
"""Height of a row with its name above it, and of what is around the rows."""


class NoData(ValueError):
    """A figure cannot be drawn of this run; the message says why in one sentence for the reader."""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A figure of one subject: a run, several runs, or the tree of a study or a plan.

    `plot(subject, ax=None)` draws on `ax`, or on a new one, and returns it; `table(subject)` has what is
    drawn, compact and with units in its names; `alt(subject)` says in sentences with figures what is seen;
    `source` names files and columns. All three raise NoData where the subject lacks what they need. Where
    `rows` counts rows of a subject, the figure grows with them beyond `height_in`. A subject to which it does
    not apply has no need of it.
    """

    name: str
    title: str
    plot: Callable[..., Axes]
    table: Callable[[Any], pa.Table]
    alt: Callable[[Any], str]
    source: str
    height_in: float = canvas.HEIGHT_IN
    rows: Callable[[Any], int] | None = None
    applies: Callable[[Any], bool] = lambda _: True

    def svg(self, subject: Any, name: str = "", width_in: float = canvas.WIDTH_IN) -> str:
        """The figure as inline SVG, the same bytes for the same subject.

        `name`, by default the exhibit's own, tells it from others on a page.
        """
        rows = self.rows(subject) if self.rows else 0
        height_in = max(self.height_in, MARGIN_IN + ROW_IN * rows)
        return canvas.svg(lambda ax: self.plot(subject, ax), width_in, height_in, name or self.name)
