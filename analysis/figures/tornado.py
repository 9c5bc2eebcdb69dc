"""What lengths and hits do to the capacity: a bar per input, from one end of what was measured to the other.

Knows the bars of `analysis.planning.sensitivity`; fits nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Look
from analysis.figures.exhibit import Exhibit, NoData
from analysis.planning.elasticity import LengthSensitivity

Subject = LengthSensitivity | Mapping[str, Any]
"""A `LengthSensitivity`, its tree, or the tree of a plan that has one."""

HEIGHT_IN = 3.0
NAMES = {
    "input_tokens": "prompt length",
    "output_tokens": "answer length",
    "prefix_hit": "prefix hit rate",
}
SIDES: Mapping[str, Look] = {
    "low": {"color": canvas.SKY, "hatch": ""},
    "high": {"color": canvas.ORANGE, "hatch": "///"},
}


def plot_sensitivity(subject: Subject, ax: Axes | None = None) -> Axes:
    """Capacity over that at the centre when one input goes to an end of the measured box, the widest on top.

    Whiskers are 95 % intervals where there are more runs than unknowns. Raises NoData where no input was
    varied.
    """
    whole = ax or canvas.new_axes(HEIGHT_IN)
    (ax,) = canvas.panels(whole, (1,), top=0.1)
    rows = sensitivity_table(subject).to_pylist()
    ends = [
        1.0,
        *(value for row in rows for name, value in row.items() if name.startswith("ratio") and value),
    ]
    spare = 0.2 * (max(ends) - min(ends))
    ax.set_xlim(min(ends) - spare, max(ends) + spare)
    for place, row in enumerate(rows):
        for side in SIDES:
            _draw_side(ax, row, side, -place)
        words = f"{_name(row)}, {row['at_low']:g} to {row['at_high']:g} {row['unit']}"
        canvas.note(ax, ax.get_xlim()[0], -place, words, xytext=(2, 20), va="center")
    ax.axvline(1, color=canvas.INK, linewidth=1, zorder=0.9)
    ax.set_ylim(-len(rows) + 0.55, 0.75)
    ax.set_yticks([])
    canvas.label(ax, "capacity over that at the centre", "")
    ax.grid(False, axis="y")
    canvas.legend(ax)
    return whole


def sensitivity_table(subject: Subject) -> pa.Table:
    """One row per input: its two ends and, at each, the capacity over the centre's with its 95 % interval."""
    rows = []
    for bar in _bars(subject):
        row = {"input": bar["name"], "unit": bar["unit"], "at_low": bar["at_low"], "at_high": bar["at_high"]}
        for side in SIDES:
            span = bar[f"ratio_at_{side}"]
            ratio = f"ratio_at_{side}"
            row |= {ratio: span["value"], f"{ratio}_from": span["low"], f"{ratio}_to": span["high"]}
        rows.append(row)
    return pa.Table.from_pylist(rows)


def sensitivity_alt(subject: Subject) -> str:
    """Each input's two ends and the capacity there."""
    said = [
        f"{_name(row)} from {row['at_low']:g} to {row['at_high']:g} {row['unit']} takes the capacity from"
        f" {row['ratio_at_low']:.2f} to {row['ratio_at_high']:.2f} times that at the centre"
        for row in sensitivity_table(subject).to_pylist()
    ]
    return "; ".join(said) + "."


def _bars(subject: Subject) -> list[Mapping[str, Any]]:
    tree: Mapping[str, Any] = asdict(subject) if isinstance(subject, LengthSensitivity) else subject
    found = (tree if "bars" in tree else tree.get("sensitivity") or {}).get("bars")
    if not found:
        raise NoData("no input was varied")
    return list(found)


def _name(row: Mapping[str, Any]) -> str:
    return NAMES.get(row["input"], str(row["input"]))


def _draw_side(ax: Axes, row: Mapping[str, Any], side: str, place: int) -> None:
    """A bar from 1 to the ratio, with its whisker and its figure behind both; of no effect nothing."""
    value, low, high = (row[f"ratio_at_{side}{end}"] for end in ("", "_from", "_to"))
    name = f"{side} end" if place == 0 else ""
    edge: Look = {"edgecolor": canvas.INK, "linewidth": 0.6}
    ax.barh([place], [value - 1], left=1, height=0.46, **SIDES[side], **edge, label=name)
    if low is not None and high is not None and low < high:
        ax.plot([low, high], [place] * 2, color=canvas.INK, linewidth=1.1)
    if round(value, 2) == 1:
        return
    right = value > 1
    end = max(value, high or value) if right else min(value, low or value)
    beside: Look = {"xytext": (4 if right else -4, 0), "ha": "left" if right else "right", "va": "center"}
    canvas.note(ax, end, place, f"{value:.2f}", **beside)


EXHIBIT = Exhibit(
    "sensitivity",
    "What lengths and hits do to the capacity",
    plot_sensitivity,
    sensitivity_table,
    sensitivity_alt,
    "plan.json: sensitivity.bars",
    HEIGHT_IN,
)
