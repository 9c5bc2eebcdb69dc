"""What every command ends with: a plan or a result on the screen, the file of `--out`, the report."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from analysis.recommendation import ranking
from analysis.recommendation.ranking import RecommendationVerdict
from analysis.results import summary
from analysis.results.json_border import to_tree
from analysis.results.locations import REPORT
from analysis.results.predictions import GridVerdict
from analysis.results.verdicts import RunVerdict, StudyVerdict, Verdict
from analysis.rows import parquet
from analysis.views import answers
from analysis.views import recommend as recommend_view
from conf.io import terminal
from conf.io.one_line import reason
from loadgen.cli import dry_run
from loadgen.run.run_folder import finite

Measured = TypeVar("Measured", bound=RunVerdict | StudyVerdict)
TABLES = (".parquet", ".csv")
SUFFIXES = (*TABLES, ".json")


def plan(arguments: argparse.Namespace, planned: dry_run.PlannedRun | None, lines: Sequence[str] = ()) -> int:
    """Print the plan of a dry run, after `lines` about all of its runs; without one they are the plan."""
    if planned is None:
        tree: dict[str, Any] = {"notes": [line.removeprefix("# ") for line in lines]}
        text = "\n".join(lines)
    else:
        tree = dry_run.tree(planned)
        tree["notes"] = [*lines, *tree["notes"]]
        text = "\n".join([*(f"# {line}" for line in lines), dry_run.text(planned, arguments.all)])
    if arguments.json:
        event("plan", tree)
    else:
        terminal.tell(text)
    return summary.EXIT_OK


def event(kind: str, tree: Mapping[str, Any]) -> None:
    """Print an event as one JSON line on stdout."""
    terminal.data(json.dumps(finite({"event": kind, **tree}), default=str))


def noting(arguments: argparse.Namespace) -> Callable[[str], None]:
    """What prints a note on stderr; nothing with `--quiet`."""
    return (lambda _: None) if arguments.quiet else terminal.note


def printed(verdict: Verdict | GridVerdict | RecommendationVerdict, as_json: bool) -> int:
    """Print a result, a grid always as JSON, and return its exit code."""
    if as_json or isinstance(verdict, GridVerdict):
        event("result", to_tree(verdict))
    elif isinstance(verdict, RecommendationVerdict):
        terminal.tell(recommend_view.text(verdict))
    else:
        terminal.tell(str(answers.brief(verdict)))
    assert verdict.exit_code is not None
    return verdict.exit_code


def reported(verdict: RunVerdict | StudyVerdict, as_json: bool) -> int:
    """Print a measured result and return its exit code; then write its report, for which nobody waits.

    A study that began as a recommendation is printed as what that says by now.
    """
    folder = Path(verdict.folder)
    is_recommended = verdict.folder and (folder / ranking.FILE).exists()
    code = printed(ranking.read(folder) if is_recommended else verdict, as_json)
    write_report(verdict)
    return code


def with_report(verdict: Measured) -> Measured:
    """The verdict with the path of the report that `write_report` writes, if there is something to report."""
    if not verdict.folder or (verdict.requests is not None and not verdict.requests.planned):
        return verdict  # nothing was planned, as after a failed start: the answer says why
    return replace(verdict, report=str(Path(verdict.folder) / REPORT))


def write_report(verdict: RunVerdict | StudyVerdict) -> None:
    """Write the report that `with_report` names; a line on stderr if that fails, and no other result."""
    if not verdict.report:
        return
    # Pictures and templates, for which no answer waits.
    from analysis import report

    folder = Path(verdict.folder)
    try:
        report.write(folder)
        return
    except KeyboardInterrupt:
        why = "interrupted"
    except Exception as error:  # noqa: BLE001  what was measured must not be lost with its picture
        why = f"{type(error).__name__}: {reason(error)}"
    terminal.note(f"no report was written ({why}); python -m analysis report {folder} tries again")


def write(out: Path, table: pa.Table, whole: Mapping[str, Any]) -> None:
    """Write the file of `--out`: `table` as Parquet or CSV, or `whole` as JSON, complete or not at all.

    In CSV what is unknown is empty and what is infinite `inf`; in JSON null and "inf". Raises ValueError for
    another suffix.
    """
    if out.suffix not in SUFFIXES:
        raise ValueError(f"{out}: must end in one of {', '.join(SUFFIXES)}")
    if out.suffix == ".parquet":
        return parquet.write(table, out)
    part = out.with_name(out.name + ".tmp")
    try:
        if out.suffix == ".csv":
            pyarrow.csv.write_csv(_without_nan(table), part, pyarrow.csv.WriteOptions(quoting_style="needed"))
        else:
            part.write_text(json.dumps(finite(dict(whole)), indent=1, default=str), encoding="utf-8")
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def _without_nan(table: pa.Table) -> pa.Table:
    """The table with null in place of NaN, which CSV would write as a word."""
    for index, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            column = table.column(index)
            table = table.set_column(index, field, pc.if_else(pc.is_nan(column), None, column))
    return table
