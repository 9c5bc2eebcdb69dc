"""Frame of all figures: sizes, colours with a second carrier, log ticks, one legend, and small stable SVG.

matplotlib's constrained layout places everything; no room is measured here.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis.stats.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:
    Axes = Figure = Any


Floats = NDArray[np.float64]
Look = dict[str, Any]
"""Keywords of a drawing method."""
Draw = Callable[[Figure], object]

WIDTH_IN, HEIGHT_IN = 6.4, 3.2
PAGE_IN = 4.8
"""Width of a drawing on a page: its letters have nine pixels on a phone's screen of 390."""
PX_PER_IN, PT_PER_IN = 100, 72
LABEL_PT, TICK_PT, NOTE_PT = 9, 8, 8
MOST_COLUMNS = 4
"""Most columns of a legend."""

INK, PALE, GRID, PAPER = "#222222", "#767676", "#e4e4e4", "#ffffff"
SHADE, BAND = "#efefef", "#fcf0d9"
"""Areas: a stretch of time, and an interval of the capacity."""
BLUE, VERMILLION, GREEN, ORANGE = "#0072b2", "#d55e00", "#009e73", "#e69f00"
PURPLE, SKY = "#cc79a7", "#56b4e9"
"""Okabe and Ito, Color Universal Design (2008), without the yellow, which is too pale for a line on white."""

DARK = {
    **{INK: "#dde2e8", PALE: "#98a2ac", GRID: "#2c343c", PAPER: "#14191e"},
    **{SHADE: "#222a32", BAND: "#3a321f"},
    **{BLUE: "#5fb2f0", VERMILLION: "#f08040", GREEN: "#3cc79a", ORANGE: "#f0b440"},
    **{PURPLE: "#dd97bd", SKY: "#3d7ea6"},
}
"""Each colour on a dark page."""

NO_ZERO = 1000.0


def style(color: str, marker: str, dashes: Any) -> Look:
    """Keywords of `Axes.plot` for a series: never told apart by its colour alone."""
    return line(color, dashes) | {"marker": marker, "markersize": 4.5, "markeredgewidth": 1.0}


def line(color: str, dashes: Any = "-", width: float = 1.3) -> Look:
    """Keywords of `Axes.plot` for a line without marks."""
    return {"color": color, "linestyle": dashes, "linewidth": width}


def dots(color: str, marker: str, size: float = 6.0) -> Look:
    """Keywords of `Axes.plot` for marks without a line."""
    return {"color": color, "linestyle": "", "marker": marker, "markersize": size}


STYLES = (
    style(BLUE, "o", "-"),
    style(VERMILLION, "s", "--"),
    style(GREEN, "^", "-."),
    style(PURPLE, "D", ":"),
    style(ORANGE, "v", (0, (6, 2))),
    style(INK, "P", (0, (3, 1, 1, 1, 1, 1))),
    style(SKY, "X", (0, (1, 3))),
)
"""Looks of series in their order; a figure that needs more draws too much."""
LIMIT = line(VERMILLION, (0, (8, 3)), 1.2)
"""A line that must not be crossed, in every figure."""
MIDDLE: Look = {"xycoords": "axes fraction", "ha": "center", "va": "center"}
"""A note in the middle of a panel, which says why the panel is empty."""
OVER: Look = {"bbox": {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.6}}
"""A note that lies on lines and stays readable."""
CORNER: Look = {"xycoords": "axes fraction", "ha": "right", "va": "top", **OVER}
"""A note in the upper right corner of a panel."""
BETWEEN: Look = {"facecolor": BAND, "linewidth": 0, "zorder": 0}
"""The interval of a capacity."""
BELOW_DATA = 1.5
"""Above the grid and areas, below every line and mark of a series."""


def notebook_figure(draw: Draw, height_in: float) -> Figure:
    """The drawing as a figure that a cell shows as its last value, and that can be changed or saved."""
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    pyplot.close(figure)  # or Jupyter would show it a second time
    draw(figure)
    add_legend(figure)
    return figure


def svg(draw: Draw, height_in: float, name: str, width_in: float = PAGE_IN) -> str:
    """A drawing as inline <svg>, as much higher as its legend needs: always the same bytes, texts as texts.

    Ids depend on the name, so that a page can hold several. Nothing of the machine's matplotlibrc counts, no
    text is taken for mathematics, and neither date nor version of the maker is written.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(), warnings.catch_warnings():
        # It is the reader's browser that needs the letters.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name, "text.parse_math": False})
        figure = Figure((width_in, height_in), dpi=PT_PER_IN)
        draw(figure)
        height_in += add_legend(figure)
        figure.set_size_inches(width_in, height_in)
        layout = ConstrainedLayoutEngine()
        figure.set_layout_engine(layout)
        layout.execute(figure)
        figure.set_layout_engine(None)  # placed: `savefig` would draw all of it once more for that
        drawn = io.StringIO()
        omitted = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(drawn, format="svg", metadata=omitted, transparent=True)
    return _inline(drawn.getvalue(), round(width_in * PX_PER_IN), round(height_in * PX_PER_IN))


def add_legend(figure: Figure) -> float:
    """One legend above all panels, in as many columns as fit; returns its height in inches.

    It names each label once. A figure without labels has none.
    """
    named: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    look: Look = {"fontsize": NOTE_PT, "frameon": False, "labelcolor": INK, "handlelength": 2.6}
    for columns in range(min(len(named), MOST_COLUMNS), 0, -1):
        made = figure.legend(
            named.values(), named.keys(), loc="outside upper left", ncols=columns, columnspacing=1.2, **look
        )
        box = made.get_window_extent()
        if box.width <= figure.bbox.width or columns == 1:
            return float(box.height / figure.dpi)
        made.remove()
    return 0.0


def label(ax: Axes, x: str, y: str, **limits: Any) -> None:
    """Names of the axes with their units and limits, and a quiet grid without a frame."""
    ax.set(**limits)
    ax.set_xlabel(x, fontsize=LABEL_PT, color=INK)
    ax.set_ylabel(y, fontsize=LABEL_PT, color=INK)
    ax.tick_params(labelsize=TICK_PT, labelcolor=INK, color=PALE, length=3)
    ax.grid(True, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(PALE)


def log_axis(ax: Axes, which: str) -> None:
    """A logarithmic `x` or `y` with plain numbers; call it when the limits are set.

    Ticks are as close as the span needs: at every figure, at 1, 2 and 5, or at every power of ten. A lower
    limit that has no logarithm becomes a thousandth of the upper one.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    axis, (low, high) = getattr(ax, f"{which}axis"), getattr(ax, f"get_{which}lim")()
    low = low if low > 0 else high / NO_ZERO
    ax.set(**{f"{which}lim": (low, high), f"{which}scale": "log"})
    decades = float(np.log10(high / low))
    subs = (1, 1.5, 2, 3, 4, 5, 6, 8) if decades < 0.8 else (1, 2, 5) if decades < 3 else (1,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter("{x:,.10g}")
    axis.set_minor_locator(NullLocator())


def note(ax: Axes, x: float, y: float, text: str, **look: Any) -> None:
    """Small text at a place of the data; `look` are keywords of `Axes.annotate`."""
    placed: Look = {"xytext": (0, 0), "textcoords": "offset points", "annotation_clip": False}
    ax.annotate(text, (x, y), **{"fontsize": NOTE_PT, "color": INK, **placed, **look})


def bound(ax: Axes, value: float, text: str) -> None:
    """A horizontal line that must not be crossed, named at its left end, below all data."""
    ax.axhline(value, **LIMIT)
    place: Look = {"xycoords": ax.get_yaxis_transform(), "xytext": (0, 3), "ha": "left", "va": "bottom"}
    note(ax, 0.005, value, text, **OVER, **place, zorder=BELOW_DATA)


def latency_axis(ax: Axes, values: Iterable[float | None], bound_ms: float | None, of: str = "") -> float:
    """A log axis of latencies in ms with their bound `of` something; returns where an infinite one stands."""
    values = list(values)
    ends = [value for value in (*values, bound_ms) if value and math.isfinite(value)] or [1.0]
    # What is infinite stands above the bound's name.
    high = max(ends) * (3 if math.inf in values else 1.45)
    ax.set_ylim(min(ends) / 1.6, high)
    log_axis(ax, "y")
    if bound_ms is not None:
        bound(ax, bound_ms, f"bound{of} {bound_ms:,.10g} ms")
    return high / 1.12


def qps(value: float) -> str:
    """A rate without its unit."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def counted(count: int, noun: str) -> str:
    """A count with its noun in the right number."""
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def within(estimate: Estimate, left: float, right: float) -> tuple[float, float]:
    """The interval's ends; an open one is that of the axis."""
    low, high = estimate.ends
    return left if low is None else low, right if high is None else high


def series(
    ax: Axes, points: Iterable[tuple[float, float | None]], most: float = math.inf, **look: Any
) -> None:
    """The points (x, y) whose y is known as one line, what is above `most` at it; nothing without one."""
    known = [(x, min(y, most)) for x, y in points if y is not None]
    if known:
        ax.plot(*zip(*known, strict=True), **look)


def _inline(text: str, width_px: int, height_px: int) -> str:
    """The svg element alone, without what is the same in all of them, and without ids that nothing names."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[^"]+_\d+"', "", text)
    text = re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", text)
    coordinates = r'(?<= (?:d|x|y)=")[^"]+|(?<= transform=")[^"]+'
    text = re.sub(coordinates, lambda match: re.sub(r"-?\d+\.\d{2,}", _rounded, match[0]), text)
    text = re.sub(r"\s*\n\s*", "\n", text)
    size = f'width="{width_px}" height="{height_px}" stroke-linejoin="round" stroke-linecap="butt"'
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', size, text, count=1)


def _rounded(number: re.Match[str]) -> str:
    """A coordinate to a tenth of a point, those of markers to a hundredth."""
    value = float(number[0])
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
