"""Write the requests of a run as CSV or JSON lines, to a file or to standard output."""

import sys
from collections.abc import Iterator
from pathlib import Path

from analysis.exchange import foreign
from analysis.results import studies
from analysis.results.locations import local
from analysis.results.runs import Run, RunError, load_run, refuse_out
from conf.io import terminal

FORMATS = {
    "csv": (".csv",),
    "jsonl": (".jsonl", ".ndjson"),
}
"""Formats, each with the endings that `--out` may have."""


def export(run: Run | Path | str, format: str, out: Path | str | None = None) -> None:
    """Write the requests of a run, or of the run at a path or URI.

    `out` is written whole or not at all; without it the text goes to standard output. Raises RunError for an
    unknown format, for a place that is no run, and for an `out` that exists.
    """
    path = run.path if isinstance(run, Run) else local(run)
    out = None if out is None else Path(out)
    if format not in FORMATS:
        raise RunError(f"--format {format} is unknown; choose one of {', '.join(FORMATS)}")
    refuse_out(out)
    if path.is_file():
        raise RunError(f"{path} is a file; export writes run folders")
    blocks = _blocks(path, format)
    if out is None:
        # Exact data for a file or a pipe; a terminal must not obey it.
        sys.stdout.writelines(map(terminal.shown, blocks) if sys.stdout.isatty() else blocks)
        return
    part = out.with_name(out.name + ".tmp")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            file.writelines(blocks)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def _blocks(path: Path, format: str) -> Iterator[str]:
    if studies.is_study(path):
        raise RunError(f"{path} is a study: export one of its parts, {path}/NAME")
    yield from (foreign.csv if format == "csv" else foreign.jsonl)(load_run(path))
