"""Write a run in a format of other programs, to a file or to standard output."""

import sys
from collections.abc import Iterator
from pathlib import Path

from analysis.exchange import inferencex, request_rows, vllm_result
from analysis.results import studies
from analysis.results.locations import local
from analysis.results.runs import Run, RunError, load_run, load_runs, refuse_out
from conf.io import terminal

FORMATS = {
    "inferencex": (".json",),
    "csv": (".csv",),
    "jsonl": (".jsonl", ".ndjson"),
    "vllm-bench": (".json", ".jsonl"),
}
"""Formats, each with the endings that `--out` may have."""


def export(run: Run | Path | str, format: str, out: Path | str | None = None) -> None:
    """Write a run, or the run at a path or URI; of a study all parts, as `inferencex` only.

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
    if format == "inferencex":
        yield inferencex.text(load_runs(path))
        return
    if studies.is_study(path):
        raise RunError(f"{path} is a study: export one of its parts, {path}/NAME, or --format inferencex")
    writers = {"csv": request_rows.csv, "jsonl": request_rows.jsonl, "vllm-bench": vllm_result.lines}
    yield from writers[format](load_run(path))
