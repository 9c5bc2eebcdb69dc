"""Figure of capacities side by side, and of their ratios to the first.

Knows capacities and ratios as a study found them; runs without common arrivals are independent estimates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from analysis.capacity import paired_ratio
from analysis.figures import canvas, several
from analysis.figures.canvas import Axes, Look
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.several import CapacityRow, StudyOrRuns
from analysis.results.matrix_table import PAIRED, UNPAIRED

HEIGHT_IN = 3.6


def plot_compare(subject: StudyOrRuns, ax: Axes | None = None) -> Axes:
    """Capacities with 95 % intervals (QPS per node), and next to them their ratios to the first with theirs.

    A ratio is filled where its interval excludes 1; round where the parts had common arrivals, square where
    the estimates are independent. `subject` is the tree of a comparison or a matrix, or runs. Raises NoData
    where no ratio is known.
    """
    ax = ax or canvas.new_axes(HEIGHT_IN)
    found = _with_ratios(subject)
    left, right = canvas.beside(ax, top=0.08)
    several.forest(left, found)
    _draw_ratios(right, found)
    canvas.legend(left, columns=2)
    canvas.legend(right, columns=2)
    return ax


def compare_table(subject: StudyOrRuns) -> pa.Table:
    """One row per part: QPS per node and ratio to the first, with 95 % intervals, and how it was found."""
    rows = []
    for part in _with_ratios(subject):
        value, low, high = part.ratio or (None, None, None)
        rows.append(
            {
                "part": part.name,
                "qps_per_node": part.estimate,
                "low_qps_per_node": part.low,
                "high_qps_per_node": part.high,
                "ratio_to_first": value,
                "ratio_low": low,
                "ratio_high": high,
                "ratio_is": part.how,
                "why_not": part.why,
            }
        )
    return pa.Table.from_pylist(rows)


def compare_alt(subject: StudyOrRuns) -> str:
    """Every ratio with its interval and verdict."""
    first, *others = _with_ratios(subject)
    said = [
        f"{first.name} carries {first.words} QPS per node."
        if first.known
        else f"{first.name}: {first.words}."
    ]
    for part in others:
        if part.ratio:
            value, low, high = part.ratio
            interval = f"95 % interval {low:.2f} to {high:.2f}, {part.how}"
            said.append(f"{part.name} carries {value:.2f} times as much ({interval}): {_shown(part.ratio)}.")
    return " ".join(said)


def _shown(ratio: tuple[float, float, float]) -> str:
    if ratio[1] > 1:
        return "more"
    return "less" if ratio[2] < 1 else "no difference shown"


def _with_ratios(subject: StudyOrRuns) -> list[CapacityRow]:
    """The parts, with their ratios to the first: the study's, or those of two closed intervals of runs."""
    found = several.parts(subject)
    if not isinstance(subject, Mapping):
        found = _unpaired(found)
    elif ratio := subject.get("ratio") if subject.get("valid") else None:
        ends = ratio["value"], ratio["low"], ratio["high"]
        found = [found[0], replace(found[1], ratio=ends, how=PAIRED), *found[2:]]
    if not any(part.ratio for part in found):
        raise NoData("there are no two capacities whose ratio is known")
    return found


def _unpaired(found: Sequence[CapacityRow]) -> list[CapacityRow]:
    first, *others = found
    with_ratio = [first]
    for part in others:
        if first.closed and part.closed:
            part = replace(part, ratio=paired_ratio.unpaired(first.closed, part.closed), how=UNPAIRED)
        with_ratio.append(part)
    return with_ratio


def _draw_ratios(ax: Axes, found: Sequence[CapacityRow]) -> None:
    ax.axvline(1, **canvas.LIMIT)
    ends, named = [1.0], set()
    for place, part in enumerate(found):
        if not part.ratio:
            continue
        value, low, high = part.ratio
        ends += [low, high]
        ax.plot([low, high], [-place] * 2, color=canvas.BLUE, linewidth=1.8)
        fill = "white" if low <= 1 <= high else canvas.BLUE
        mark: Look = {
            "marker": "o" if part.how == PAIRED else "s",
            "markersize": 6.5,
            "markerfacecolor": fill,
        }
        name = "" if part.how in named else f"{part.how} ratio"
        ax.plot([value], [-place], color=canvas.BLUE, linestyle="", **mark, label=name)
        named.add(part.how)
        words = f"{value:.3f} [{low:.3f}, {high:.3f}]"
        canvas.note(ax, (low + high) / 2, -place, words, xytext=(0, 11), **canvas.OVER)
    canvas.note(ax, 1, 0, f"{found[0].name} = 1", **canvas.OVER)
    spare = 0.35 * (max(ends) - min(ends))
    ax.set_xlim(min(ends) - spare, max(ends) + spare)
    ax.set_ylim(-len(found) + 0.5, 0.8)
    canvas.label_rows(ax, f"capacity over that of {found[0].name}")


EXHIBIT = Exhibit(
    "compare",
    "Capacities and their ratios",
    plot_compare,
    compare_table,
    compare_alt,
    "study.json: parts or cells, ratio; or sweep.json of each run: capacity",
    HEIGHT_IN,
    several.count,
)
