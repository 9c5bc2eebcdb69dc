"""report.html: one self-contained page on a run, a study, or several runs side by side.

Jinja and matplotlib are imported on use.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from analysis.figures import canvas
from analysis.planning.plan import NoPlan, Plan
from analysis.report import pages
from analysis.report.blocks import Page
from analysis.results import studies
from analysis.results.locations import REPORT, local
from analysis.results.runs import Run, RunError, load_run
from analysis.results.studies import Study, load_study
from analysis.views.shown import environment
from conf.io import durable

__all__ = ["build_report", "command", "write", "write_plan"]


def build_report(runs: Sequence[Run | Study], out: Path | str) -> None:
    """Write the page of a run, a study, or several runs to `out`, whole or not at all.

    Raises RunError if a file of a run cannot be read, OSError if `out` cannot be written.
    """
    if not runs:
        raise RunError("a report needs a run")
    first, out = runs[0], Path(out)
    if len(runs) > 1:
        apart = [part for run in runs for part in (run.parts if isinstance(run, Study) else (run,))]
        page = pages.of_runs(apart)
    else:
        page = pages.of_study(first, out) if isinstance(first, Study) else pages.of_run(first)
    durable.write_text(out, html(page))


def write_plan(verdict: Plan | NoPlan, out: Path) -> None:
    """Write the page of a plan to `out`. Raises OSError."""
    durable.write_text(out, html(pages.of_plan(verdict)))


def write(path: Path) -> Path:
    """Write the report of the run or study in `path` into that folder, over an earlier one.

    Parts of a study get theirs first, because its page links to them. Raises RunError and OSError.
    """
    opened, out = _opened(path), path / REPORT
    for name in opened.begun if isinstance(opened, Study) else ():
        write(path / name)
    build_report([opened], out)
    return out


def command(places: Sequence[Path | str], out: Path | None) -> str:
    """`python -m analysis report`: write the page and return the line to print. Raises RunError.

    A place is the path of a folder, or its URI on a file system that Arrow knows; a repeated one counts once.
    """
    paths = [local(place) for place in places]
    if out is None and paths != [Path(place) for place in places[:1]]:
        raise RunError("several runs, or one that lies elsewhere, need --out FILE for their report")
    try:
        if out is None:
            return f"report {write(paths[0])}"
        if not out.parent.is_dir() or out.is_dir():
            raise RunError(f"{out} cannot be a file; choose another --out")
        once = {path.resolve(): path for path in paths}
        build_report([_opened(path) for path in once.values()], out)
    except OSError as error:
        raise RunError(f"cannot write the report: {error}; choose another --out") from error
    return f"report {out}"


def _opened(path: Path) -> Run | Study:
    return load_study(path) if studies.is_study(path) else load_run(path)


def html(page: Page) -> str:
    """The page as text."""
    css = resources.files("analysis.report").joinpath("page.css").read_text()
    return environment().get_template("page.html.j2").render(page=page, css=css, dark=canvas.DARK)
