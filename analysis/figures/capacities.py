"""Capacities side by side: those of several runs, or of the parts of a study."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.figures.exhibit import NoData
from analysis.results.runs import Run
from analysis.results.verdicts import PAIRED, UNPAIRED, MatrixCell, PartRow, StudyVerdict
from analysis.stats import estimate
from analysis.stats.estimate import Estimate, span

StudyOrRuns = StudyVerdict | Sequence[Run]


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """What is claimed in QPS per node, or `why` nothing is.

    `ratio` is that to the first part and `how` how it came about. `simulated` is the kind of a simulated
    interval, `sampling` the capacity by sampling noise alone.
    """

    name: str
    claim: Estimate | None
    why: str = ""
    ratio: Estimate | None = None
    how: str = ""
    simulated: str = ""
    sampling: Estimate | None = None

    @property
    def closed(self) -> Estimate | None:
        """The claim where both ends of its interval are known."""
        return self.claim if self.claim and not self.claim.is_open else None

    @property
    def low(self) -> float | None:
        return self.claim.low if self.claim else None

    @property
    def high(self) -> float | None:
        return self.claim.high if self.claim else None

    @property
    def certified(self) -> float | None:
        """The certified rate of a closed interval."""
        return self.closed.certified if self.closed else None

    @property
    def words(self) -> str:
        """The capacity as text, or why there is none."""
        kind = f" (simulated, {self.simulated})" if self.simulated else ""
        return f"{span(self.claim)}{kind}" if self.claim else self.why or "no result"

    @property
    def certified_words(self) -> str:
        """The certified rate, rounded down."""
        return f"certified {estimate.certified(self.closed)}" if self.closed else ""


def parts(subject: StudyOrRuns) -> list[CapacityRow]:
    """The parts of a study or the runs, in their order. Raises NoData where none has a capacity."""
    if isinstance(subject, StudyVerdict):
        rows = [_from_part(part) for part in subject.cells or subject.parts]
    else:
        rows = [of_run(run, name) for run, name in zip(subject, _names(subject), strict=True)]
    if not any(part.claim for part in rows):
        raise NoData("no part has a capacity")
    return rows


def together(subject: StudyOrRuns) -> list[CapacityRow]:
    """The capacity of a whole study as a row, if both ends of it are known; runs have none."""
    capacity = subject.capacity if isinstance(subject, StudyVerdict) and subject.valid else None
    if not isinstance(subject, StudyVerdict) or capacity is None or capacity.claimed.is_open:
        return []
    rule = "mean of the repeats" if subject.variation_pct else "pooled (random effects)"
    simulated = next((part.simulated for part in subject.parts if part.simulated), "")
    return [CapacityRow(rule, capacity.claimed, simulated=simulated)]


def of_run(run: Run, name: str = "capacity") -> CapacityRow:
    """The capacity of a run, or why it claims none."""
    verdict = run.verdict
    if verdict is None:
        return CapacityRow(name, None, "the run did not end")
    capacity = verdict.capacity if run.claims else None
    if capacity is None:
        return CapacityRow(name, None, verdict.reason or "no capacity is claimed")
    kind, sampling = capacity.kind(verdict.asked), capacity.claimed_of(capacity.sampling)
    return CapacityRow(
        name, capacity.claimed, simulated=kind, sampling=None if sampling.is_open else sampling
    )


def _names(runs: Sequence[Run]) -> list[str]:
    """Names of the folders, with the folder above where two are the same."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    return ["/".join(run.path.resolve().parts[-2:]) for run in runs]


def _from_part(part: PartRow | MatrixCell) -> CapacityRow:
    why = part.reason or ("not measured yet" if part.exit_code is None else "no result")
    # A part keeps the posterior of a void run too, which is no capacity.
    claim = part.qps_per_node if part.exit_code in (0, 6) else None
    ratio = part.ratio if isinstance(part, MatrixCell) else None
    if ratio is None or ratio.how not in (PAIRED, UNPAIRED):
        return CapacityRow(part.name, claim, why if claim is None else "", simulated=part.simulated)
    return CapacityRow(part.name, claim, "", ratio.estimate, ratio.how, part.simulated)
