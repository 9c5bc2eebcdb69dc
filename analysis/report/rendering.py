"""A page as one self-contained HTML file: no script, no network, the same bytes for the same page.

Knows Jinja and the two files beside it; knows no run.
"""

from importlib import resources
from typing import Any

from analysis.report.blocks import Page

MOST_LETTERS = 40_000
"""Letters of any one text (our choice): whatever a server tells of itself, a page stays small."""


def html(page: Page) -> str:
    """The page as text; whatever a server or a user said is escaped, and cut where it is absurdly long."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("analysis.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_cut,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    css = resources.files("analysis.report").joinpath("page.css").read_text()
    return environment.get_template("page.html.j2").render(page=page, css=css)


def _cut(said: Any) -> Any:
    """What is put on the page; markup, which has `__html__`, is our own and stays whole."""
    if not isinstance(said, str) or hasattr(said, "__html__") or len(said) <= MOST_LETTERS:
        return said
    return f"{said[:MOST_LETTERS]} ... (cut here; the run's files have all of it)"
