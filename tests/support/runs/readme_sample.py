"""The answer and the picture in README.md, both of the golden run.

make readme     # writes them again
"""

import contextlib
import io
from pathlib import Path

from analysis import load_run
from analysis.__main__ import main
from analysis.figures import canvas
from analysis.figures.exhibit import RunData
from analysis.figures.latency import Latency
from tests.support.runs.golden import GOLDEN

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
LIGHT, DARK = ROOT / "docs" / "latency.svg", ROOT / "docs" / "latency_dark.svg"
START, END = "<!-- answer -->\n", "<!-- end -->"
LINES = 12
"""Lines of the answer that a reader of the first screen needs: all but most rates (our choice)."""
NAMED = str(GOLDEN.relative_to(ROOT)), "runs/NAME"
"""The folder of the golden run, and its name in the sample."""


def readme() -> str:
    """README.md with the answer as the command prints it now."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.chdir(ROOT):
        main(["show", NAMED[0]])
    lines = printed.getvalue().replace(*NAMED).splitlines()
    first = "\n".join(lines[:LINES])
    before, after = README.read_text().split(START)
    return f"{before}{START}```\n{first}\n    ...\n```\n{after[after.index(END) :]}"


def pictures() -> dict[Path, str]:
    """Latency against load of the golden run, for a light and a dark page."""
    light = Latency(RunData(load_run(GOLDEN))).svg("latency", canvas.WIDTH_IN)
    dark = light
    for color, other in canvas.DARK.items():
        dark = dark.replace(color, other)
    return {LIGHT: light, DARK: dark}


if __name__ == "__main__":
    README.write_text(readme())
    for path, svg in pictures().items():
        path.write_text(svg)
