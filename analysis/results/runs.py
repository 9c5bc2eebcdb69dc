"""Opens a run folder, also of a run that was killed; knows file names and columns, not what they prove."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.capacity import window_table
from analysis.results import locations
from analysis.results.experiment_facts import ExperimentFacts, describe
from analysis.results.figures import CapacityFigures
from analysis.results.json_border import from_tree
from analysis.results.locations import RunError as RunError
from analysis.results.verdicts import RunVerdict
from analysis.rows import metrics, records, shards
from conf import Experiment, load
from conf.io.one_line import hint, nearest, plain, reason

if TYPE_CHECKING:
    from analysis.views.shown import Answer

Event = Mapping[str, Any]
"""One line of events.jsonl."""
RECORDED = (0, 3, 6)
"""Exit codes of a probe that measured what it says, be it that its bounds are missed, or are not shown."""


def refuse_out(out: Path | None, *suffixes: str, flag: str = "--out") -> None:
    """Raise RunError for a file of `flag` that exists, cannot be written, or ends in none of `suffixes`."""
    if out is None:
        return
    if out.exists():
        raise RunError(f"{out} exists; choose another {flag} or remove it")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise RunError(f"cannot write to {out.parent}; choose another {flag}")
    if suffixes and out.suffix not in suffixes:
        raise RunError(f"{flag} {out}: cannot be written as such; give it a name in {' or '.join(suffixes)}")


@dataclass(frozen=True, repr=False)
class Run:
    """A run folder. Tables are read when asked for; `verdict` is None for a run that did not end.

    `altered` are its small files that are not the ones it wrote; `locations.altered` checks all of them.
    Raises RunError for a file that is broken, or missing where a run that began has it.
    """

    path: Path
    manifest: Mapping[str, Any]
    verdict: RunVerdict | None
    altered: tuple[str, ...] = ()

    def __repr__(self) -> str:
        answer = self.answer()
        return f"<Run {self.path}: {answer.word}  {answer.headline}>"

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.resolve().name

    @cached_property
    def config(self) -> Experiment:
        """The saved configuration, read once. Raises ConfigError if it does not make an experiment."""
        with _readable(self.path):
            return load(base=_plain(self.path / "config.yaml"))

    @property
    def experiment(self) -> ExperimentFacts:
        """What was run: as the verdict has it, or by the configuration of a run without one."""
        return self.verdict.experiment if self.verdict else describe(self.config)

    def answer(self) -> "Answer":
        """The verdict as `python -m analysis show` prints it, of a killed run how far it came; Jupyter shows
        it as HTML.
        """
        from analysis.views import answers  # shows what this file opens

        return answers.of_opened(self)

    @property
    def capacity(self) -> CapacityFigures | None:
        """The capacity that the run claims; None where it claims none, as of altered files."""
        return self.verdict.capacity if self.verdict and self.claims else None

    @property
    def claims(self) -> bool:
        """True where the run may claim a capacity: it is valid, and its files are the ones it wrote."""
        return bool(self.verdict and self.verdict.valid) and not self.altered

    def requests(
        self,
        window_index: int | None = None,
        columns: Sequence[str] | None = None,
        phase: str | None = None,
        latencies: bool = False,
    ) -> pa.Table:
        """Every planned request, one row each, in order of due time (schema `records.REQUESTS`).

        Of one window and of one phase of the plan (`window` is what counts) where these are given. Only
        `columns` are read where given: most bytes are the gaps in `itl_us`. With `latencies` send_lag_ms,
        ttft_ms, tpot_ms and e2e_ms stand behind them: infinite of a failed request, null where unknown.
        """
        for name in columns or ():
            if name not in records.REQUESTS.names:
                near = hint(nearest(name, records.REQUESTS.names))
                raise RunError(f"requests have no column '{name}'{near} (latencies=True adds the latencies)")
        if latencies:
            shown = [*(records.REQUESTS.names if columns is None else columns), *metrics.NAMES]
            read = columns and tuple(dict.fromkeys((*columns, *metrics.NEEDED)))
            return metrics.with_latencies(self.requests(window_index, read, phase)).select(shown)
        asked_for = {"window_index": window_index, "phase": phase}
        wanted = [pc.field(name) == value for name, value in asked_for.items() if value is not None]
        where = wanted[0] & wanted[-1] if wanted else None
        with _readable(self.path):
            if self.is_collected:
                return records.read(self.path / "requests", columns, where)
            names = list(records.REQUESTS.names if columns is None else columns)
            rows = shards.requests(self.path, list(dict.fromkeys([*names, "window_index", "phase"])))
        return (rows if where is None else rows.filter(where)).select(names)

    @property
    def is_collected(self) -> bool:
        """True where requests/ alone has every planned request: a row for each, and no shard is left over.

        A plan is saved before its first send and never sent twice, so that counting is enough. Raises
        RunError where all rows of a run that ended are gone: these are no lost requests.
        """
        if shards.files(self.path):
            return False
        with _readable(self.path):
            rows = _count(records.files(self.path / "requests"))
            ended_with = self.verdict.requests.rows if self.verdict and self.verdict.requests else 0
            if ended_with and not rows:
                raise RunError(f"{self.path}/requests holds no row: the run ended with {ended_with}")
            plans = shards.plan_files(self.path)
            return not plans or _count(plans) <= rows

    def clients(self) -> pa.Table:
        """The load actors' own health: one row per actor and second (schema `records.CLIENTS`)."""
        return self._series("clients.parquet", records.CLIENTS, "client_id")

    def timeseries(self) -> pa.Table:
        """The servers' own figures: one row per replica and second (schema `records.SERVER`)."""
        return self._series("timeseries.parquet", records.SERVER, "replica")

    def power(self) -> pa.Table:
        """The power of the nodes: one row per node and sample (schema `records.POWER`)."""
        return self._series("power.parquet", records.POWER, "node")

    def _series(self, file: str, schema: pa.Schema, source: str) -> pa.Table:
        with _readable(self.path):
            return shards.series(self.path, file, schema, source, shards.read(self.path))

    def windows(self) -> pa.Table:
        """One row per window (schema `window_table.WINDOWS`); empty for a run that did not end."""
        path = self.path / "windows.parquet"
        with _readable(self.path):
            return window_table.read(path) if path.exists() else window_table.WINDOWS.empty_table()

    def events(self) -> list[Event]:
        """Every decision in order; a line cut by a kill is left out."""
        events = []
        with _readable(self.path):
            lines = _plain(self.path / "events.jsonl").read_bytes().splitlines()
        for line in lines:
            try:
                events.append(plain(json.loads(line)))
            except (ValueError, RecursionError):
                continue
        return events


def load_run(path: Path | str) -> Run:
    """Open the run folder at `path`, a local one or a URI.

    What lies on another file system is copied once, to where it stays until the process ends. Raises
    RunError if there is no run.
    """
    folder = locations.local(path)
    if (folder / locations.STUDY).exists():
        raise RunError(f"{path} is a study, not a run: choose one of its parts, {path}/NAME")
    ended = folder / "sweep.json"
    try:
        manifest = locations.read_json(folder / locations.MANIFEST)
        tree = locations.read_json(ended) if ended.exists() else None
        altered = locations.altered_files(folder, manifest.get("files"), locations.SMALL_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunError(f"{path} is not a run folder: it has no {locations.MANIFEST}") from error
    except OSError as error:
        raise RunError(f"{path} is not a readable run folder: {error}") from error
    if "verb" not in manifest:  # other programs have a manifest.json too
        raise RunError(f"{path} is not a run folder: its {locations.MANIFEST} is of something else")
    verdict = None if tree is None else from_tree(RunVerdict, tree, ended)
    if verdict and verdict.folder:  # where a copy lies, not where its original was written
        verdict = replace(verdict, folder=str(folder))
    return Run(folder, manifest, verdict, altered)


def load_runs(*places: Path | str) -> list[Run]:
    """Open run folders by path, glob or URI; a study stands for its parts, and a run counts once.

    Raises RunError for one that cannot be read, and where there is none.
    """
    paths = {path.resolve(): path for place in places for path in locations.folders(place)}
    return [load_run(path) for path in paths.values()]


def _plain(path: Path) -> Path:
    """The path of a file. Raises OSError for a pipe or a device, which would never end."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path.name} is no plain file")
    return path


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise RunError with one line where a file of the folder cannot be read."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} holds a file that cannot be read: {reason(error)}") from error


def _count(files: Sequence[Path]) -> int:
    return sum(pq.read_metadata(file).num_rows for file in files)
