"""Rows of a CSV file, and their groups."""

import csv
from collections.abc import Sequence
from pathlib import Path

Rows = Sequence[dict[str, str]]


def rows_of(path: Path) -> Rows:
    """The rows; lines that begin with # are notes. Raises ValueError for a file without rows."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    if not rows:
        raise ValueError(f"{path}: it has no rows")
    return rows


def by(rows: Rows, *columns: str) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Rows by the values of some columns, in the order of their first one."""
    parts: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        parts.setdefault(tuple(row[column] for column in columns), []).append(row)
    return parts
