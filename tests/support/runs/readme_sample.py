"""The answer in README.md: the first lines of `python -m analysis show` of the golden run.

python -m tests.support.runs.readme_sample     # writes them again
"""

import contextlib
import io
from pathlib import Path

from analysis.__main__ import main
from tests.support.runs.golden import GOLDEN

README = Path(__file__).parents[3] / "README.md"
START, END = "<!-- answer -->\n", "<!-- end -->"
FOLDER = "runs/today"
"""The folder of a reader's own run, in place of this machine's path."""
LINES = 8
"""Lines of the answer that a reader of the first screen needs (our choice)."""


def readme() -> str:
    """README.md with the answer as the command prints it now."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(["show", str(GOLDEN)])
    printed_lines = printed.getvalue().replace(str(GOLDEN), FOLDER).splitlines()
    first = "\n".join(printed_lines[:LINES])
    before, after = README.read_text().split(START)
    return f"{before}{START}```\n{first}\n  ...\n```\n{after[after.index(END) :]}"


if __name__ == "__main__":
    README.write_text(readme())
