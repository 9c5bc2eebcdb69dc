"""A page as one self-contained HTML file: no script, no network, the same bytes for the same page.

Knows Jinja and the two files beside it; knows no run.
"""

from importlib import resources

from analysis.report.blocks import Page


def html(page: Page) -> str:
    """The page as text; whatever a server or a user said is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("analysis.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    css = resources.files("analysis.report").joinpath("page.css").read_text()
    return environment.get_template("page.html.j2").render(page=page, css=css)
