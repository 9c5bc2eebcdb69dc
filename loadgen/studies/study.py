"""A study: several runs that answer one question, each a run folder of its own in the study's folder.

Knows the order of the parts, their seeds and budgets, and the study's end. A part is measured like any other
run; `analysis.results.studies` pools the parts.
"""

import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from analysis.results import studies, summary
from analysis.results.integrity import own_checksums
from analysis.results.locations import SUMS
from analysis.results.runs import RunError, load_run
from analysis.results.summary import Tree
from conf import ConfigError, Experiment, load
from conf.load import dump
from loadgen.drive.plan import Past
from loadgen.run import measure
from loadgen.run.folder import BusyError, Folder, LinkError
from loadgen.run.measure import Act
from loadgen.run.progress import Emit
from loadgen.run.run_folder import RunFolder

SEEDS = 1_000_000
"""Seeds of later parts are below this: six digits are easily copied."""

Trees = Mapping[str, Tree]
"""Verdicts of the parts that ended well, by name, in order."""
Failed = tuple[str, Tree]
"""The part that ended a study, and its verdict."""
RunPart = Callable[[Experiment, RunFolder, Act, Past | None], Tree]
"""Measures one run in its folder; the last argument is what earlier sessions of it left."""


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """The experiments of the parts, and how their verdicts become one.

    - `names`: the parts in order.
    - `part(name, done)`: the experiment of a part, given the verdicts before it. It is called once: a resumed
      part keeps its experiment.
    - `act(name)`: what a part does with its driver. An exit code in `results` ends a part well; any other
      ends the study.
    - `shown(parts)`: fields that study.json always has; `verdict(parts)`: those that it gets at the end.
    - `anew`: no part is continued; one that was cut short is measured again.
    """

    kind: str
    verb: str
    asked: Experiment
    names: tuple[str, ...]
    part: Callable[[str, Trees], Experiment]
    verdict: Callable[[Trees], Tree]
    act: Callable[[str], Act] = lambda _: measure.search
    anew: bool = False
    results: Collection[int] = (summary.EXIT_OK,)
    shown: Callable[[Trees], Tree] = lambda _: {}


def of(asked: Experiment) -> StudyPlan:
    """The study of a search with several deployments or repeats; a repeat pools its deployments first."""
    kind = "repeats" if asked.search.repeats > 1 else "deployments"
    count = getattr(asked.search, kind)
    together = studies.mean_of_repeats if kind == "repeats" else studies.pooled_deployments
    replicas_per_node = None if asked.engine.kind == "external" else asked.layout.replicas_per_node
    return StudyPlan(
        kind=kind,
        verb="sweep",
        asked=asked,
        names=tuple(f"{kind.removesuffix('s')}-{number}" for number in range(1, count + 1)),
        part=lambda name, done: part(asked, kind, name, done),
        verdict=lambda done: together(done, replicas_per_node),
    )


def part(asked: Experiment, kind: str, name: str, done: Trees) -> Experiment:
    """The experiment of one of several deployments or repeats.

    Deployments share the budget; a later one begins where the first found the capacity, which saves the ramp.
    Repeats are whole, ramp included: they show how well the whole procedure repeats itself.
    """
    if kind == "repeats":
        search = replace(asked.search, repeats=1)
    else:
        count = asked.search.deployments
        search = replace(asked.search, deployments=1, budget_s=asked.search.budget_s / count)
        if done:
            first = next(iter(done.values()))
            found = first["capacity"]["qps_per_node"]["estimate"]
            search = replace(search, start="prediction", expected_qps=float(f"{found:.4g}"))
    return replace(asked, search=search, seed=seed_of(asked.seed, name), run=name)


def seed_of(seed: int, name: str) -> int:
    """The seed of a part: that of the study for its first part, an unrelated one for each later part."""
    if name.endswith("-1"):
        return seed
    entropy = np.random.SeedSequence([seed, zlib.crc32(name.encode())])
    return int(entropy.generate_state(1)[0]) % SEEDS


def run(study: StudyPlan, folder: Folder, run_part: RunPart, show: Emit) -> Tree:
    """Run the parts that have not ended; returns the tree of study.json, which is then on disk.

    A part without a result ends the study with its exit code, since fewer parts would answer another
    question. Raises ConfigError if a part's folder is in use or cannot be continued.
    """
    with closing(folder):
        (folder.path / SUMS).unlink(missing_ok=True)  # what it summed up is about to change
        folder.write_text("config.yaml", dump(study.asked))
        done, failed = _parts(study, folder, run_part, show)
        tree = _ended(study, folder, done, failed)
        folder.write_json(studies.FILE, tree)
        folder.write_json(SUMS, {"files": own_checksums(folder.path)})
        _tell(folder, show, f"end of study: {tree['reason'] or 'every part has its result'}")
        return tree


def _parts(study: StudyPlan, folder: Folder, run_part: RunPart, show: Emit) -> tuple[Trees, Failed | None]:
    """The verdicts of the parts in order, until one has no result; that one apart."""
    done: dict[str, Tree] = {}
    for name in study.names:
        try:
            folder.write_json(studies.FILE, _tree(study, folder, done))
            _tell(folder, show, f"part {len(done) + 1} of {len(study.names)}: {name}")
            tree = _part(study, name, done, folder, run_part, show)
        except KeyboardInterrupt:
            cut = {"exit_code": summary.EXIT_INTERRUPTED, "reason": "interrupted between two runs"}
            return done, (name, cut)
        if tree["exit_code"] not in study.results:
            return done, (name, tree)
        done[name] = tree
    return done, None


def result(path: Path) -> Tree | None:
    """The verdict of a run or study that has ended and that `resume` would not change; else None."""
    try:
        tree = studies.load_study(path) if studies.is_study(path) else load_run(path).sweep
    except RunError:
        return None
    return None if tree is None or summary.resumable(tree) else tree


def _part(study: StudyPlan, name: str, done: Trees, folder: Folder, run_part: RunPart, show: Emit) -> Tree:
    path = folder.path / name
    known = result(path)
    if known is not None and (known["exit_code"] in study.results or not study.anew):
        return known
    if study.anew:
        _set_aside(path)
    asked = path / "config.yaml"
    out = str(folder.typed)
    experiment = load(base=asked) if asked.exists() else replace(study.part(name, done), out=out)
    path.mkdir(exist_ok=True)
    try:
        if experiment.search.parts > 1:
            return run(of(experiment), Folder(path), run_part, show)
        if not (path / "manifest.json").exists():
            return run_part(experiment, RunFolder(path), study.act(name), None)
    except (BusyError, LinkError) as error:
        raise ConfigError(f"cannot resume: {error}") from error
    before = load_run(path)
    again, _ = measure.reopen(before)
    return run_part(experiment, again, study.act(name), measure.continued(before))


def _set_aside(path: Path) -> None:
    if (path / "manifest.json").exists():
        cuts = len(list(path.parent.glob(f"{path.name}.cut*")))
        path.rename(path.with_name(f"{path.name}.cut{cuts + 1}"))


def _tell(folder: Folder, show: Emit, text: str) -> None:
    folder.event("study", text=text)
    show("study", text=text)


def _tree(study: StudyPlan, folder: Folder, parts: Trees) -> Tree:
    return {
        "schema_version": summary.SCHEMA_VERSION,
        "study": study.kind,
        "state": "running",
        "verb": study.verb,
        "run_id": folder.run_id,
        "folder": str(folder.typed),
        "asked": summary.describe(study.asked),
        "names": list(study.names),
        "parts": [studies.part_row(name, tree) for name, tree in parts.items()],
        "requests": studies.requests(list(parts.values())),
        "evidence": f"{len(parts)} of {len(study.names)} parts ended",
        "clock": "wall",
        "valid": False,
        "passed": False,
        "exit_code": None,
        "reason": "not ended",
        **study.shown(parts),
    }


def _ended(study: StudyPlan, folder: Folder, done: Trees, failed: Failed | None) -> Tree:
    if failed is None:
        ended = {"valid": True, "passed": True, "exit_code": summary.EXIT_OK, "reason": ""}
        return _tree(study, folder, done) | ended | study.verdict(done) | {"state": "ended"}
    name, tree = failed
    return _tree(study, folder, {**done, name: tree}) | {
        "state": "ended",
        "evidence": f"{sum(map(_valid, done.values()))} of {len(study.names)} parts have a result",
        "valid": _valid(tree),
        "exit_code": tree["exit_code"],
        "reason": f"{name}: {tree['reason']}",
        **({"hold": tree["hold"]} if tree.get("hold") else {}),
    }


def _valid(tree: Tree) -> bool:
    """True if the part is valid; a part that was cut between two runs has no such field."""
    return bool(tree.get("valid"))
