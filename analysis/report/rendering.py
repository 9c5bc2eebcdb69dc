"""Render a page as one self-contained HTML file: no script, no network, the same bytes for the same page.

Knows Jinja and the two files beside it; knows no run.
"""

from importlib import resources
from typing import Any

from analysis.report.blocks import Page

MOST_LETTERS = 40_000
"""Most letters of any one text, so that no server's words make a page large (our choice)."""


def html(page: Page) -> str:
    """The page as text; words of servers and users are escaped, and cut if absurdly long."""
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


def _cut(value: Any) -> Any:
    """A value for the page; markup, which has `__html__`, is our own and stays whole."""
    if not isinstance(value, str) or hasattr(value, "__html__") or len(value) <= MOST_LETTERS:
        return value
    return f"{value[:MOST_LETTERS]} ... (cut here; the run's files have all of it)"
