"""Figure of capacities side by side, of all together, and of their ratios to the first.

Runs without common arrivals are independent estimates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from analysis.capacity import paired_ratio
from analysis.figures import canvas, several
from analysis.figures.canvas import Axes, Look
from analysis.figures.exhibit import Exhibit
from analysis.figures.several import CapacityRow, StudyOrRuns
from analysis.figures.windows import counted, qps
from analysis.results.matrix_table import PAIRED, UNPAIRED

HEIGHT_IN = 3.6


def plot_compare(subject: StudyOrRuns, ax: Axes | None = None) -> Axes:
    """Capacities with 95 % intervals (QPS per node), and next to them their ratios to the first with theirs.

    A ratio is filled where its interval excludes 1; round where the parts had common arrivals, square where
    the estimates are independent. `subject` is the tree of a study, or runs; a study that pools has its own
    capacity below its parts. Raises NoData where none has a capacity.
    """
    ax = ax or canvas.new_axes(HEIGHT_IN)
    found = _with_ratios(subject)
    left, *right = canvas.beside(ax, 2 if any(part.ratio for part in found) else 1, top=0.08)
    several.forest(left, found, several.together(subject))
    for panel in right:
        _draw_ratios(panel, found)
        panel.set_ylim(left.get_ylim())
    for panel in (left, *right):
        canvas.legend(panel, columns=3, inside=bool(right))
    return ax


def compare_table(subject: StudyOrRuns) -> pa.Table:
    """One row per part and one of all together: QPS per node and ratio to the first, with 95 % intervals."""
    rows = []
    for part in (*_with_ratios(subject), *several.together(subject)):
        value, low, high = part.ratio or (None, None, None)
        rows.append(
            {
                "part": part.name,
                "qps_per_node": part.estimate,
                "low_qps_per_node": part.low,
                "high_qps_per_node": part.high,
                "certified_qps_per_node": part.certified,
                "simulated": part.simulated,
                "ratio_to_first": value,
                "ratio_low": low,
                "ratio_high": high,
                "ratio_is": part.how,
                "why_not": part.why,
            }
        )
    return pa.Table.from_pylist(rows)


def compare_alt(subject: StudyOrRuns) -> str:
    """Range of the capacities, that of all together, and every ratio with its interval and verdict."""
    found = _with_ratios(subject)
    estimates = [part.estimate for part in found if part.estimate is not None]
    said = [f"{counted(len(found), 'part')}, {len(estimates)} with a capacity."]
    if estimates:
        said.append(f"They carry {qps(min(estimates))} to {qps(max(estimates))} QPS per node.")
    said += [f"All together, {one.name}: {one.words}." for one in several.together(subject)]
    for part in found:
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
        first, *others = found
        for place, part in enumerate(others, 1):
            if first.sampling and part.sampling:
                apart = paired_ratio.unpaired(first.sampling, part.sampling)
                found[place] = replace(part, ratio=apart, how=UNPAIRED)
    elif ratio := subject.get("ratio") if subject.get("valid") else None:
        ends = ratio["value"], ratio["low"], ratio["high"]
        found[1] = replace(found[1], ratio=ends, how=PAIRED)
    return found


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
    canvas.label_rows(ax, f"capacity over that of {found[0].name}")


EXHIBIT = Exhibit(
    "compare",
    "Capacities side by side",
    plot_compare,
    compare_table,
    compare_alt,
    "study.json: parts or cells, capacity, ratio; or sweep.json of each run: capacity",
    HEIGHT_IN,
    several.count,
)
