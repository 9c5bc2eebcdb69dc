"""Frame of all figures: sizes, colours with a second carrier, log ticks, legends, and small stable SVG."""

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis.figures.inline_svg import inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any

Floats = NDArray[np.float64]
Look = dict[str, Any]
"""Keywords of a drawing method."""

WIDTH_IN, HEIGHT_IN = 6.4, 3.2
NARROW_IN = 4.8
"""Width of a drawing for a phone: its letters have nine pixels on a screen of 390."""
PX_PER_IN, PT_PER_IN = 100, 72
MARGINS_IN = (0.72, 0.50, 0.16, 0.16)
"""Left, bottom, right, top: room for tick labels and the axis label at the letter sizes below."""
NAME_IN = 0.47
"""Distance of the name of a y axis from it, in stacked panels."""
LABEL_PT, TICK_PT, NOTE_PT = 9, 8, 8
INK, PALE, GRID = "#222222", "#767676", "#e4e4e4"

BLUE, VERMILLION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
"""Okabe and Ito, Color Universal Design (2008), without the yellow, which is too pale for a line on white."""

NO_ZERO = 1000.0
MOST_POINTS = 300
"""Most points of a line: more are not seen at this width and only make the file large."""


@dataclass(frozen=True, slots=True)
class Style:
    """Look of a series: never told apart by its colour alone."""

    color: str
    marker: str
    line: Any

    @property
    def drawn(self) -> dict[str, Any]:
        """Keywords of `Axes.plot`."""
        return {"color": self.color, "marker": self.marker, "linestyle": self.line, **FINE}


FINE = {"linewidth": 1.3, "markersize": 4.5, "markeredgewidth": 1.0}
LIMIT: Look = {"color": VERMILLION, "linewidth": 1.2, "linestyle": (0, (8, 3))}
"""A line that must not be crossed, in every figure."""

OVER: Look = {
    "bbox": {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6},
    "ha": "center",
    "va": "center",
}
"""A note that lies on lines and stays readable."""

BELOW_DATA = 1.5
"""Above the grid and areas, below every line and mark of a series."""

STYLES = (
    Style(BLUE, "o", "-"),
    Style(VERMILLION, "s", "--"),
    Style(GREEN, "^", "-."),
    Style(PURPLE, "D", ":"),
    Style(ORANGE, "v", (0, (6, 2))),
    Style(BLACK, "P", (0, (3, 1, 1, 1, 1, 1))),
    Style(SKY, "X", (0, (1, 3))),
)
"""Styles of series in their order; a figure that needs more draws too much."""


def new_axes(height_in: float = HEIGHT_IN) -> Axes:
    """Axes of a new figure that a notebook shows."""
    from matplotlib import pyplot

    return _filled(pyplot.figure(figsize=(WIDTH_IN, height_in)))


def svg(
    draw: Callable[[Axes], object],
    width_in: float = WIDTH_IN,
    height_in: float = HEIGHT_IN,
    name: str = "figure",
) -> str:
    """The drawing of `draw` as an inline <svg>: always the same bytes, with texts as texts.

    Ids begin with `name`, so that a page can hold several. Nothing of the machine's matplotlibrc counts, no
    text is taken for mathematics, and neither date nor version of the maker is written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        # It is the reader's browser that needs the letters.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {"svg.fonttype": "none", "svg.hashsalt": "maxqps", "text.parse_math": False}
        )
        figure = Figure(figsize=(width_in, height_in), dpi=PT_PER_IN)
        draw(_filled(figure))
        drawn = io.StringIO()
        omitted = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        box = _room(figure)
        figure.savefig(drawn, format="svg", metadata=omitted, transparent=True, bbox_inches=box)
    return inline(drawn.getvalue(), name, round(box.width * PX_PER_IN), round(box.height * PX_PER_IN))


def _room(figure: Figure) -> Any:
    """The figure's box, higher where a legend needs it; one that ends too far right begins further left."""
    from matplotlib.transforms import Bbox, IdentityTransform

    width_in, height_in = figure.get_size_inches()
    top_in = height_in
    for one in filter(None, (ax.get_legend() for ax in _placed(figure))):
        extent = one.get_window_extent()
        left = min(extent.x1 - width_in * PT_PER_IN, extent.x0)
        if left > 0:
            one.set_bbox_to_anchor(one.get_bbox_to_anchor().translated(-left, 0), IdentityTransform())
        top_in = max(top_in, extent.y1 / PT_PER_IN)
    return Bbox(((0, 0), (width_in, top_in)))


def _placed(figure: Figure) -> list[Axes]:
    """All axes, where a drawing will put them: a whole drawing to learn that costs as much as the last."""
    found: list[Any] = list(figure.axes)
    for ax in found:  # those inside follow
        locate = ax.get_axes_locator()
        ax.apply_aspect(locate(ax, None) if locate else None)
        found += ax.child_axes
    return found


def panels(ax: Axes, heights: Sequence[float], top: float = 0.0, gaps: Sequence[float] = ()) -> list[Axes]:
    """Stacked panels inside `ax`, which itself is hidden; from the top, with one x axis, named in the last.

    `heights` are relative; `top`, for a legend, and `gaps`, below all but the last, are shares of the whole.
    """
    ax.set_axis_off()
    room = (1 - top - sum(gaps)) / sum(heights)
    found: list[Axes] = []
    above = 1 - top
    for height, gap in zip(heights, (*gaps, 0.0), strict=True):
        above -= height * room
        shared: Look = {"sharex": found[0]} if found else {}
        found.append(ax.inset_axes((0, above, 1, height * room), **shared))
        above -= gap
    width_in = ax.bbox.width / ax.figure.dpi
    for panel in found:
        panel.yaxis.set_label_coords(-NAME_IN / width_in, 0.5)
    for panel in found[:-1]:
        panel.tick_params(labelbottom=False)
    return found


def single(ax: Axes | None, height_in: float, top: float) -> tuple[Axes, Axes]:
    """`ax` or new axes, hidden, and one panel inside, with the share `top` of the whole for a legend."""
    whole = ax or new_axes(height_in)
    return whole, panels(whole, (1,), top)[0]


def beside(ax: Axes, count: int = 2, top: float = 0.0, gap: float = 0.14) -> list[Axes]:
    """Panels side by side inside `ax`, which itself is hidden; each with axes of its own."""
    ax.set_axis_off()
    width = (1 - gap * (count - 1)) / count
    return [ax.inset_axes((i * (width + gap), 0, width, 1 - top)) for i in range(count)]


def label(ax: Axes, x: str, y: str) -> None:
    """Names of the axes with their units, and a quiet grid without a frame."""
    ax.set_xlabel(x, fontsize=LABEL_PT, color=INK)
    ax.set_ylabel(y, fontsize=LABEL_PT, color=INK)
    ax.tick_params(labelsize=TICK_PT, labelcolor=INK, color=PALE, length=3)
    ax.grid(True, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(PALE)


def label_rows(ax: Axes, x: str) -> None:
    """`label` for a panel whose rows are named beside their marks: without ticks or lines on the y axis."""
    label(ax, x, "")
    ax.set_yticks([])
    ax.grid(False, axis="y")


def log_axis(ax: Axes, which: str) -> None:
    """A logarithmic `x` or `y` with plain numbers; call it when the limits are set.

    Ticks are as close as the span needs: at every figure, at 1, 2 and 5, or at every power of ten. A lower
    limit that has no logarithm becomes a thousandth of the upper one.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = ax.get_xlim() if which == "x" else ax.get_ylim()
    if low <= 0:
        low = high / NO_ZERO
        (ax.set_xlim if which == "x" else ax.set_ylim)(low, high)
    (ax.set_xscale if which == "x" else ax.set_yscale)("log")
    decades = float(np.log10(high / low))
    subs = (1, 1.5, 2, 3, 4, 5, 6, 8) if decades < 0.8 else (1, 2, 5) if decades < 3 else (1,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(_plain))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def note(ax: Axes, x: float, y: float, text: str, lift_pt: float = 0.0, **how: Any) -> None:
    """Small text, `lift_pt` above a place of the data; `how` are keywords of `Axes.annotate`."""
    placed: Look = {"xytext": (0, lift_pt), "textcoords": "offset points", "annotation_clip": False}
    ax.annotate(text, (x, y), **{"fontsize": NOTE_PT, "color": INK, **placed, **how})


def bound(ax: Axes, value: float, text: str, right: bool = True) -> None:
    """A horizontal line that must not be crossed, named at its end, where the name hides no data."""
    ax.axhline(value, **LIMIT)
    side, at = ("right", 0.995) if right else ("left", 0.005)
    place: Look = {"xycoords": ax.get_yaxis_transform(), "xytext": (0, 3), "ha": side, "va": "bottom"}
    note(ax, at, value, text, **{**OVER, **place, "zorder": BELOW_DATA})


def segments(ax: Axes, x: Sequence[Sequence[float]], y: Sequence[Sequence[float]], **look: Any) -> None:
    """Many lines that look the same as one: the file stays small. `x` and `y` have the points of each."""
    cut = [[*one, np.nan] for one in x], [[*one, np.nan] for one in y]
    ax.plot(*(np.concatenate([np.empty(0), *map(np.asarray, side)]) for side in cut), **look)


def bands(ax: Axes, spans: Sequence[tuple[float, float]], **look: Any) -> None:
    """Stretches of x over the whole height, all as one shape; nothing where there are none."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if not spans:
        return
    boxes = [Path([(a, 0), (a, 1), (b, 1), (b, 0), (a, 0)], closed=True) for a, b in spans]
    shape = PathPatch(Path.make_compound_path(*boxes), transform=ax.get_xaxis_transform(), **look)
    ax.add_patch(shape)


def legend(ax: Axes, columns: int = 3, inside: bool = False, **how: Any) -> None:
    """A legend without a frame above the axes, where it hides nothing; none if no series has a name.

    It has fewer columns where the figure is narrower, or, `inside`, the panel, which has a neighbour.
    """
    if ax.get_legend_handles_labels()[0] or how.get("handles"):
        place: Look = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "borderaxespad": 0.2}
        words: Look = {"ncols": columns, "fontsize": NOTE_PT, "frameon": False, "labelcolor": INK}
        made = ax.legend(**{**place, **words, "handlelength": 2.6, "columnspacing": 1.2, **how})
        if columns > 1 and made.get_window_extent().width > _width_px(ax, inside):
            legend(ax, columns - 1, inside, **how)


def _width_px(ax: Axes, inside: bool) -> float:
    """Width of the panel, or of its whole figure."""
    if inside:  # where a panel inside others lies is known once they are drawn
        _placed(ax.figure.get_figure(root=True))
    return float((ax if inside else ax.figure).bbox.width)


def thinned(*columns: Floats, most: int = MOST_POINTS) -> tuple[Floats, ...]:
    """The columns at `most` evenly spaced rows, the first and the last among them."""
    rows = len(columns[0])
    if rows <= most:
        return columns
    kept = np.unique(np.linspace(0, rows - 1, most).round().astype(np.int64))
    return tuple(column[kept] for column in columns)


def _plain(value: float, _: Any) -> str:
    """A tick of a log axis without an exponent."""
    return f"{value:,.0f}" if value >= 1 and value == round(value) else f"{value:.10f}".rstrip("0")


def _filled(figure: Figure) -> Axes:
    width_in, height_in = figure.get_size_inches()
    left, bottom, right, top = MARGINS_IN
    return figure.add_axes(
        (
            left / width_in,
            bottom / height_in,
            1 - (left + right) / width_in,
            1 - (bottom + top) / height_in,
        )
    )
