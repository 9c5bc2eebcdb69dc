"""Writes a run in a format of other programs, to a file or to standard output."""

import sys
from collections.abc import Iterable, Iterator
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
"""Formats, and how the file of a command line ends that has one."""


def export(run: Run | Path | str, format: str, out: Path | str | None = None) -> None:
    """Write a run, or the one at a path or URI; of a study all parts, as `inferencex` only.

    Complete in `out`, or not at all; without it to standard output. Raises RunError for an unknown format,
    for what is no run, and for an `out` that exists.
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
        # Data is exact in a file or a pipe; a terminal must not obey it.
        sys.stdout.writelines(map(terminal.shown, blocks) if sys.stdout.isatty() else blocks)
        return
    part = out.with_name(out.name + ".tmp")
    try:
        _write(part, blocks)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def _write(path: Path, blocks: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(blocks)


def _blocks(path: Path, format: str) -> Iterator[str]:
    if format == "inferencex":
        yield inferencex.text(load_runs(path))
        return
    if studies.is_study(path):
        raise RunError(f"{path} is a study: export one of its parts, {path}/NAME, or --format inferencex")
    run: Run = load_run(path)
    yield from {"csv": request_rows.csv, "jsonl": request_rows.jsonl, "vllm-bench": vllm_result.lines}[
        format
    ](run)
