"""A grid, a line or a row for each cell: as text, and as columns of a file; knows widths and no engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from analysis.results.types.prediction_verdict import GridCell, PredictionVerdict
from analysis.stats.estimate import Estimate, span
from conf.specs.bounds import Limit, short

TextRow = tuple[Mapping[str, Any], Sequence[str] | None, str]
"""A cell: its value at each axis, its figures (None without any), and the reason why it has none."""
ASKED = ("model", "hardware", "layout", "routing", "workload", "tokens", "arrivals", "nodes", "seed")
TEXT, COUNT, FIGURE, TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()
RATIO = dict.fromkeys(("ratio_to_first", "ratio_to_first_low", "ratio_to_first_high"), FIGURE)


def lines(axes: Sequence[str], rows: Sequence[TextRow], columns: Sequence[tuple[str, int]]) -> list[str]:
    """A heading and a line per cell under `columns` (heading, least width); the reason where figures lack."""
    columns = [
        (name, max([width, *(len(figures[at]) + 1 for _, figures, _ in rows if figures)]))
        for at, (name, width) in enumerate(columns)
    ]
    widths = [max(len(axis), *(len(str(at[axis])) for at, _, _ in rows)) + 2 for axis in axes]
    heads = "".join(f"{axis:<{width}}" for axis, width in zip(axes, widths, strict=True))
    out = [(heads + "".join(f"{name:>{width}}" for name, width in columns)).rstrip()]
    for values, figures, reason in rows:
        at = "".join(f"{values[axis]!s:<{width}}" for axis, width in zip(axes, widths, strict=True))
        if figures is None:
            out.append(f"{at}  {reason}")
            continue
        pairs = zip(figures, columns, strict=True)
        out.append((at + "".join(f"{figure:>{width}}" for figure, (_, width) in pairs)).rstrip())
    return out


def rows(
    cells: Sequence[GridCell],
    types: Mapping[str, pa.DataType],
    found: Callable[[PredictionVerdict], Mapping[str, object]],
) -> pa.Table:
    """A row per cell: its words as text, then the columns of `types`; null where there is no figure.

    `found` are an answer's figures; those without a column are left out. Units are in the names.
    """
    axes = dict.fromkeys((f"asked.{key}" for cell in cells for key in cell.at), TEXT)
    schema = pa.schema([*axes.items(), *types.items()])
    return pa.Table.from_pylist([_row(cell, found) for cell in cells], schema=schema)


def _row(cell: GridCell, found: Callable[[PredictionVerdict], Mapping[str, object]]) -> dict[str, object]:
    one = cell.prediction
    row: dict[str, object] = {f"asked.{key}": str(value) for key, value in cell.at.items()}
    row |= {"exit_code": cell.answer.exit_code, "reason": cell.answer.reason}
    if one is not None:
        row |= {name: getattr(one.asked, name) for name in ASKED} | dict(found(one))
    return row | with_ends("ratio_to_first", cell.ratio) if cell.ratio else row


def with_ends(name: str, figure: Estimate) -> dict[str, object]:
    """A figure and its interval as columns."""
    return {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}


def over(missed: Sequence[Limit]) -> str:
    """The limits over their bound, as a cell of text."""
    if len(missed) > 1:
        return "both" if len(missed) == 2 else "several"
    return "".join(map(short, missed)) or "-"


def ratio(found: Estimate | None) -> str:
    """The ratio to the first cell, as a cell of text."""
    return span(found) if found else ""
