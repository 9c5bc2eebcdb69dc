"""A study: several runs that answer one question, each a run folder of its own in the study's folder.

A part is measured like any other run, and what the parts say together is computed in
`analysis.stats.pooling`.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from analysis.results import studies, summary
from analysis.results.experiment_facts import describe
from analysis.results.json_border import to_tree
from analysis.results.locations import SUMS, checksums
from analysis.results.runs import RunError, load_run
from analysis.results.studies import Parts, PartVerdict
from analysis.results.verdicts import PartRow, RunVerdict, StudyVerdict
from conf import ConfigError, Experiment, load
from conf.compose import dump
from conf.keys import differences
from loadgen.drive.load_feed import Past
from loadgen.run import resumption
from loadgen.run.jobs import Job, SearchCapacity
from loadgen.run.progress import Emit
from loadgen.run.run_folder import BusyError, Folder, LinkError, RunFolder

Opened = TypeVar("Opened", bound=Folder)

SEEDS = 1_000_000
"""Seeds of later parts are below this: six digits are easily copied."""

RunPart = Callable[[Job, RunFolder, Past | None], RunVerdict]
"""Does the job of one run in its folder; the last is what earlier sessions of it left."""


class Study(ABC):
    """Several runs that answer one question: the experiments of the parts, and how their verdicts become one.

    `experiment` is that of the study, `experiments` are those of its parts by name, in order. A part that
    ends with one of the exit codes `ends` has a result; any other ends the study. With `anew` no part is
    continued: one that was cut short is measured again. `path` is the study's folder, from the moment it
    runs.
    """

    kind: str
    path: Path
    verb = "sweep"
    anew = False
    ends: Collection[int] = (summary.EXIT_OK,)

    def __init__(self, experiment: Experiment, experiments: Mapping[str, Experiment]) -> None:
        self.experiment = experiment
        self.experiments = {name: replace(part, run=name) for name, part in experiments.items()}
        self.names = tuple(self.experiments)

    def files(self, folder: Folder) -> Mapping[str, str]:
        """Texts that a new folder of the study holds beside its config.yaml, by name."""
        return {}

    def part(self, name: str, done: Parts) -> Experiment:
        """The experiment of a part, given the verdicts before it; a resumed part keeps its experiment."""
        return self.experiments[name]

    def job(self, name: str, experiment: Experiment) -> Job:
        """The job of a part, whose experiment may be one that was saved."""
        return SearchCapacity(experiment)

    def with_parts(self, verdict: StudyVerdict, parts: Parts, cut: PartRow | None) -> StudyVerdict:
        """The verdict with what the parts show so far; `cut` was interrupted before it began."""
        return verdict

    @abstractmethod
    def conclude(self, verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
        """The verdict once every part has its result."""


class TwoSides(Study):
    """A study of two parts, A and B, which is run with a seed of its own if so; its folder stores B's
    configuration too.
    """

    def __init__(self, a: Experiment, b: Experiment, b_seed: int | None = None) -> None:
        super().__init__(a, {"a": a, "b": b if b_seed is None else replace(b, seed=b_seed)})
        self.other = b

    def files(self, folder: Folder) -> Mapping[str, str]:
        return {studies.OTHER: dump(self.other)}


def differing(a: Experiment, b: Experiment) -> dict[str, tuple[Any, ...]]:
    """Keys whose values are not the same in two experiments, as a verdict has them."""
    return {key: tuple(values) for key, values in differences(a, b).items()}


def numbered(experiment: Experiment, kind: str, count: int) -> dict[str, Experiment]:
    """So many equal parts of a kind, each with a seed of its own."""
    names = [f"{kind}-{number}" for number in range(1, count + 1)]
    return {name: replace(experiment, seed=seed_of(experiment.seed, name)) for name in names}


class Deployments(Study):
    """A search on several deployments, which share its budget; a later one begins where the first ended."""

    kind = "deployments"

    def __init__(self, experiment: Experiment) -> None:
        whole = experiment.search
        search = replace(whole, deployments=1, budget_s=whole.budget_s / whole.deployments)
        part = replace(experiment, search=search)
        super().__init__(experiment, numbered(part, "deployment", whole.deployments))

    def part(self, name: str, done: Parts) -> Experiment:
        part = self.experiments[name]
        if not done:
            return part
        first = next(iter(done.values())).capacity
        assert first is not None
        expected_qps = float(f"{first.qps_per_node.value:.4g}")
        return replace(part, search=replace(part.search, start="prediction", expected_qps=expected_qps))

    def conclude(self, verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
        return studies.pooled_deployments(verdict, parts, _replicas_per_node(self.experiment))


class Repeats(Study):
    """Whole searches, ramp included, each of which may pool several deployments."""

    kind = "repeats"

    def __init__(self, experiment: Experiment) -> None:
        part = replace(experiment, search=replace(experiment.search, repeats=1))
        super().__init__(experiment, numbered(part, "repeat", experiment.search.repeats))

    def conclude(self, verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
        return studies.mean_of_repeats(verdict, parts, _replicas_per_node(self.experiment))


def _replicas_per_node(experiment: Experiment) -> int | None:
    return None if experiment.engine.kind == "external" else experiment.layout.replicas_per_node


def several_sweeps(experiment: Experiment) -> Study:
    """The study of a search with several repeats or deployments; a repeat pools its deployments first."""
    return Repeats(experiment) if experiment.search.repeats > 1 else Deployments(experiment)


def seed_of(seed: int, name: str) -> int:
    """The seed of a part: that of the study for its first part, an unrelated one for each later part."""
    if name.endswith("-1"):
        return seed
    entropy = np.random.SeedSequence([seed, zlib.crc32(name.encode())])
    return int(entropy.generate_state(1)[0]) % SEEDS


def run(study: Study, folder: Folder, run_part: RunPart, show: Emit) -> StudyVerdict:
    """Run the parts that have not ended; returns the verdict, which is on disk by then as study.json.

    A part without a result ends the study with its exit code. Raises ConfigError if a folder is in use or
    cannot be continued.
    """
    with closing(folder):
        study.path = folder.path
        (folder.path / SUMS).unlink(missing_ok=True)  # what it summed up is about to change
        folder.write_text("config.yaml", dump(study.experiment))
        for name, text in study.files(folder).items():
            if not (folder.path / name).exists():
                (folder.path / name).parent.mkdir(exist_ok=True)
                folder.write_text(name, text)
        verdict = _measured(study, folder, run_part, show)
        folder.write_json(studies.FILE, to_tree(verdict))
        folder.write_json(SUMS, {"files": checksums(folder.path, "*")})
        tell(folder, show, f"end of study: {verdict.reason or 'every part has its result'}")
        return verdict


def _measured(study: Study, folder: Folder, run_part: RunPart, show: Emit) -> StudyVerdict:
    """The verdict of the parts in order, until one has no result."""
    done: dict[str, PartVerdict] = {}
    for name in study.names:
        try:
            folder.write_json(studies.FILE, to_tree(_running(study, folder, done)))
            tell(folder, show, f"part {len(done) + 1} of {len(study.names)}: {name}")
            part = _part(study, name, done, folder, run_part, show)
        except KeyboardInterrupt:
            why = "interrupted between two runs"
            row = PartRow(name=name, exit_code=summary.EXIT_INTERRUPTED, reason=why)
            return _cut(_running(study, folder, done, row), done, row)
        if part.exit_code not in study.ends:
            running = _running(study, folder, done | {name: part})
            cut = _cut(running, done, studies.part_row(name, part))
            return replace(cut, valid=part.valid, hold=part.hold)
        done[name] = part
    whole = replace(_running(study, folder, done), valid=True, passed=True, exit_code=summary.EXIT_OK)
    return replace(study.conclude(replace(whole, reason=""), done), state="ended")


def _cut(running: StudyVerdict, done: Parts, row: PartRow) -> StudyVerdict:
    """The verdict of a study that ended with the part of `row`."""
    good = sum(part.valid for part in done.values())
    return replace(
        running,
        state="ended",
        evidence=f"{good} of {len(running.names)} parts have a result",
        exit_code=row.exit_code,
        reason=f"{row.name}: {row.reason}",
    )


def result(path: Path) -> PartVerdict | None:
    """The verdict of a run or study that has ended and that `resume` would not change; None of others."""
    verdict: PartVerdict | None
    try:
        verdict = studies.load_verdict(path) if studies.is_study(path) else load_run(path).verdict
    except RunError:
        return None
    return None if verdict is None or summary.resumable(verdict) else verdict


def _part(study: Study, name: str, done: Parts, folder: Folder, run_part: RunPart, show: Emit) -> PartVerdict:
    """The verdict of one part: as it stands, resumed, or measured now."""
    path = folder.path / name
    verdict = result(path)
    if verdict is not None and (verdict.exit_code in study.ends or not study.anew):
        return verdict
    if study.anew and (path / "manifest.json").exists():
        cuts = len(list(path.parent.glob(f"{path.name}.cut*")))
        path.rename(path.with_name(f"{path.name}.cut{cuts + 1}"))
    config = path / "config.yaml"
    out = str(folder.typed)
    experiment = load(base=config) if config.exists() else replace(study.part(name, done), out=out)
    path.mkdir(exist_ok=True)
    if experiment.search.parts > 1:
        return run(several_sweeps(experiment), _opened(Folder, path), run_part, show)
    job = study.job(name, experiment)
    if not (path / "manifest.json").exists():
        return run_part(job, _opened(RunFolder, path), None)
    before = load_run(path)
    again, _ = resumption.reopen(before)
    return run_part(job, again, resumption.continued(before))


def _opened(kind: type[Opened], path: Path) -> Opened:
    """The folder of a part. Raises ConfigError for one that is in use, or leads elsewhere."""
    try:
        return kind(path)
    except (BusyError, LinkError) as error:
        raise ConfigError(f"cannot resume: {error}") from error


def tell(folder: Folder, show: Emit, text: str) -> None:
    folder.event("study", text=text)
    show("study", text=text)


def _running(study: Study, folder: Folder, parts: Parts, cut: PartRow | None = None) -> StudyVerdict:
    rows = [studies.part_row(name, part) for name, part in parts.items()]
    verdict = StudyVerdict(
        study=study.kind,
        state="running",
        verb=study.verb,
        run_id=folder.run_id,
        folder=str(folder.typed),
        experiment=describe(study.experiment),
        names=study.names,
        parts=(*rows, cut) if cut else tuple(rows),
        requests=studies.requests(parts.values()),
        evidence=f"{len(parts)} of {len(study.names)} parts ended",
        clock="wall",
        valid=False,
        passed=False,
        exit_code=None,
        reason="not ended",
    )
    return study.with_parts(verdict, parts, cut)
