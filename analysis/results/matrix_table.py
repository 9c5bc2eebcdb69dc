"""A measured grid: what study.json says of each cell, and the same as a table.

Knows the conclusions of sweeps and the ratios that were found for them; computes no statistics.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.results import grid_table

Tree = dict[str, Any]

KIND = "matrix"
REFERENCE, PAIRED, UNPAIRED = "reference", "paired", "unpaired"
"""How a ratio came about: 1 by definition, on common arrivals, or from two independent capacities."""
COLUMNS = (("QPS/node", 10), ("95 % interval", 17), ("certified", 11), ("limit", 7), ("ratio", 23), ("", 10))


def row(name: str, at: Mapping[str, Any], refused: str, tree: Mapping[str, Any] | None) -> Tree:
    """A cell before its ratio is known; `refused` says why it makes no experiment, `tree` what it concluded.

    `exit_code` is None of a cell that is still to come.
    """
    if refused:
        known: Mapping[str, Any] = {"exit_code": 2, "reason": refused}
    else:
        known = tree or {"exit_code": None, "reason": ""}
    capacity = (known.get("capacity") or {}) if known.get("valid") else {}
    return {
        "name": name,
        "at": dict(at),
        "exit_code": known["exit_code"],
        "reason": known["reason"],
        "hold": known.get("hold"),
        "qps_per_node": capacity.get("qps_per_node"),
        "binding": capacity.get("binding"),
        "open_above": capacity.get("open_above"),
        "open_below": capacity.get("open_below"),
        "ratio": None,
    }


def headline(tree: Mapping[str, Any]) -> str:
    """How much of the grid has an answer."""
    answered = sum(cell["exit_code"] == 0 for cell in tree["cells"])
    return f"{answered} of {len(tree['cells'])} cells have a capacity"


def lines(tree: Mapping[str, Any]) -> list[str]:
    """The table, and below it what its ratios rest on."""
    cells: Sequence[Tree] = tree["cells"]
    named = [{**cell, "at": {"cell": cell["name"], **cell["at"]}, "reason": _why(cell)} for cell in cells]
    shown = grid_table.lines(["cell", *tree["axes"]], named, COLUMNS, _figures)
    return [f"  {line}" for line in [*shown, *_notes(cells)]]


def _notes(cells: Sequence[Tree]) -> list[str]:
    by_how: dict[str, list[Tree]] = {}
    for cell in cells:
        if cell["ratio"]:
            by_how.setdefault(cell["ratio"]["how"], []).append(cell)
    notes = []
    if REFERENCE in by_how and len(by_how) > 1:
        first = by_how[REFERENCE][0]["name"]
        notes.append(f"ratio: capacity over that of {first}, each with a 95 % interval of its own")
        notes.append("each service was deployed once: how far deployments differ is in no interval")
    if PAIRED in by_how:
        notes.append("paired: got the same arrivals and lengths, scaled in time (common random numbers)")
    reasons: dict[str, list[str]] = {}
    for cell in by_how.get(UNPAIRED, ()):
        reasons.setdefault(cell["ratio"]["why"], []).append(cell["name"])
    return notes + [f"unpaired, {', '.join(names)}: {why}" for why, names in reasons.items()]


def _figures(cell: Mapping[str, Any]) -> list[str] | None:
    q, ratio = cell["qps_per_node"], cell["ratio"]
    if q is None:
        return None
    limit = cell["binding"].upper()
    if cell["open_above"]:
        return [f">= {q['low']:.2f}", "open", "unknown", limit, "", ""]
    if cell["open_below"]:
        return [f"<= {q['high']:.2f}", "open", "unknown", limit, "", ""]
    figures = [f"{q['estimate']:.2f}", f"[{q['low']:.2f}, {q['high']:.2f}]", f"{q['certified']:.2f}", limit]
    if ratio is None:
        return [*figures, "", ""]
    if ratio["how"] == REFERENCE:
        return [*figures, "1", ""]
    return [*figures, f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]", ratio["how"]]


def _why(cell: Mapping[str, Any]) -> str:
    """What stands in place of figures."""
    if cell["exit_code"] is None:
        return "not measured yet"
    return (
        f"{'refused' if cell['exit_code'] == 2 else 'no result'} (exit {cell['exit_code']}): {cell['reason']}"
    )
