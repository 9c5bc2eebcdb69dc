"""Studies: a study's folder read, and the verdict of several runs together."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.results import locations
from analysis.results.figures import CapacityFigures, RequestCounts
from analysis.results.json_border import from_tree
from analysis.results.locations import STUDY, part_names, read_json
from analysis.results.runs import RECORDED, Run, RunError, load_run
from analysis.results.verdicts import DeploymentSpread, PartRow, RunVerdict, StudyVerdict
from analysis.stats.estimate import Estimate
from analysis.stats.pooling import COMMON, Measured, pooled, repeated, student_t
from conf.io.one_line import reason
from conf.specs.bounds import LIMITS, Limit

if TYPE_CHECKING:
    from analysis.views.shown import Answer


FILE = STUDY
OTHER = "config-b.yaml"
"""The configuration of B of a comparison, beside A's config.yaml in the study's folder."""
FEW_REPEATS = 4
"""Fewest repeats; of fewer the interval by the t-distribution is over twice that of many (3.2 at 4)."""

PartVerdict = RunVerdict | StudyVerdict
"""The verdict of a part: a run, or a study of its own."""
Parts = Mapping[str, PartVerdict]
"""Verdicts of parts by name, in order."""


def is_study(path: Path) -> bool:
    """True for the folder of a study."""
    return (path / FILE).exists()


def whole(path: Path) -> Path:
    """The folder to resume: that of the comparison or matrix for a part, which alone would not go on."""
    above = path.resolve().parent
    typed = path.parent if path.parent.resolve() == above else above
    in_matrix = is_study(above) and load_verdict(above).is_matrix
    return typed if (above / OTHER).exists() or in_matrix else path


def load_verdict(path: Path) -> StudyVerdict:
    """study.json; `state` is `running` until it ended. Raises RunError if it cannot be read."""
    try:
        tree = read_json(path / FILE)
    except OSError as error:
        raise RunError(f"{path} is not a readable study: {reason(error)}") from error
    part_names(path, tree)
    verdict = from_tree(StudyVerdict, tree, path / FILE)
    return replace(verdict, folder=str(path)) if verdict.folder else verdict


def parts(path: Path) -> list[Path]:
    """The folders of a study's parts that have a result, or a run's own. Raises RunError if it has none.

    A probe that missed its bounds has one too: it measured what it says.
    """
    if not is_study(path):
        return [path]
    ended = [path / row.name for row in load_verdict(path).parts if row.exit_code in RECORDED]
    if not ended:
        raise RunError(f"{path}: no part of this study has a result yet")
    return ended


def part_row(name: str, verdict: PartVerdict) -> PartRow:
    """One part as study.json names it."""
    return PartRow.from_verdict(name, verdict, seed=verdict.experiment.seed)


def requests(verdicts: Iterable[PartVerdict]) -> RequestCounts:
    """Planned requests, rows, rows by status and failures by kind, summed over runs."""
    counted = [counts.requests for counts in verdicts if counts.requests]
    states = sum((Counter(counts.by_status) for counts in counted), Counter[str]())
    failed = sum((Counter(counts.by_failure) for counts in counted), Counter[str]())
    planned, rows = sum(counts.planned for counts in counted), sum(counts.rows for counts in counted)
    return RequestCounts(planned, rows, dict(sorted(states.items())), dict(failed.most_common()))


def pooled_deployments(study: StudyVerdict, parts: Parts, replicas_per_node: float | None) -> StudyVerdict:
    """The study with one capacity from deployments that each measured it, and the spread between them."""
    figures = [capacity.sampling for capacity in _capacities(parts)]
    estimates = [Measured.from_estimate(q) for q in figures]
    pool = pooled(estimates, COMMON)
    between, within = pool.between.value, math.sqrt(sum(e.sd**2 for e in estimates) / len(estimates))
    interval = "95 % of the mean over deployments (random effects); certified is its 5 % quantile"
    remedy = (
        "the deployments differ by more than each one's noise: more of them narrow the interval "
        f"(search.deployments={2 * len(parts)}), more minutes do not"
    )
    return replace(
        study,
        capacity=_capacity(parts, pool.qps, interval, replicas_per_node),
        between=DeploymentSpread(pool.between.times(100), 100 * within),
        effects_pct={name: effect.times(100) for name, effect in zip(parts, pool.effects, strict=True)},
        evidence=f"{len(parts)} deployments",
        remedy=remedy if between > within else "",
    )


def mean_of_repeats(study: StudyVerdict, parts: Parts, replicas_per_node: float | None) -> StudyVerdict:
    """The study with the mean of repeats, its interval by Student's t, and their coefficient of variation.

    Each one's own interval is not used: what repeats show is how far the whole procedure repeats itself.
    """
    repeats = repeated([capacity.qps_per_node.value for capacity in _capacities(parts)])
    count = len(parts)
    interval = "95 % of the mean over repeats, by the t-distribution; certified is its lower 5 % end"
    t = student_t(0.975, count - 1)
    remedy = f"{count} repeats make a wide interval (t = {t:.1f}): search.repeats=5 narrows it"
    return replace(
        study,
        capacity=_capacity(parts, repeats.mean, interval, replicas_per_node),
        variation_pct=repeats.variation.times(100),
        evidence=f"{count} repeats",
        remedy=remedy if count < FEW_REPEATS else "",
    )


def _capacities(parts: Parts) -> list[CapacityFigures]:
    return [part.capacity for part in parts.values() if part.capacity]


def _capacity(parts: Parts, qps: Estimate, interval: str, replicas_per_node: float | None) -> CapacityFigures:
    """The figures of a single run's capacity, as far as they make sense for several.

    Simulated parts have the constants of the engine model in common.
    """
    # Student's t knows no sign: few repeats that differ much have no lower end.
    low, certified = (end if end and end > 0 else None for end in (qps.low, qps.certified))
    figures, capacities = Estimate(qps.value, low, qps.high, certified), _capacities(parts)
    binding, probability = _likeliest(capacities)
    together = CapacityFigures(
        qps_per_node=figures,
        qps_per_replica=None if replicas_per_node is None else figures.per(replicas_per_node),
        interval=interval,
        binding=binding,
        binding_probability=probability,
    )
    return together.joined_like(next((each for each in capacities if each.constants), capacities[0]))


def _likeliest(capacities: Sequence[CapacityFigures]) -> tuple[Limit, float]:
    """The limit that binds with the highest mean probability; a part's other limits share what is left."""
    limits = list(capacities[0].limits or LIMITS)
    totals = dict.fromkeys(limits, 0.0)
    for capacity in capacities:
        likely = capacity.binding_probability or 0.0
        rest = (1 - likely) / max(1, len(limits) - 1)
        for limit in limits:
            totals[limit] += (likely if limit == capacity.binding else rest) / len(capacities)
    binding = max(totals, key=totals.__getitem__)
    return binding, totals[binding]


@dataclass(frozen=True, slots=True, repr=False)
class Study:
    """A study's folder: its verdict so far, the names of parts that have `begun`, and the runs among them."""

    path: Path
    verdict: StudyVerdict
    begun: tuple[str, ...]
    parts: tuple[Run, ...]

    def __repr__(self) -> str:
        answer = self.answer()
        return f"<Study {self.path}: {answer.word}  {answer.headline}>"

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    def answer(self) -> "Answer":
        """The verdict as `python -m analysis show` prints it; Jupyter shows it as HTML."""
        from analysis.views import answers  # shows what this file opens

        return answers.answer(self.verdict)


def load_study(path: Path | str) -> Study:
    """Open a study's folder: a local one, or a URI. Raises RunError if it cannot be read."""
    folder = locations.local(path)
    verdict = load_verdict(folder)
    runs = [name for name in verdict.names if (folder / name / locations.MANIFEST).exists()]
    begun = [name for name in verdict.names if name in runs or is_study(folder / name)]
    return Study(folder, verdict, tuple(begun), tuple(load_run(folder / name) for name in runs))
