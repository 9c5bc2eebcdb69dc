"""The end of a run on the screen, in the order of a planner's questions; `show --all` has everything else."""

from collections.abc import Sequence
from pathlib import Path

from analysis.capacity.rules import Check
from analysis.results import studies
from analysis.results.figures import CapacityFigures
from analysis.results.runs import load_run
from analysis.results.verdicts import RunVerdict, Verdict
from analysis.stats.estimate import certified, interval, middle
from analysis.views import answers, capacity, probe, rates
from analysis.views import verdict as shared
from analysis.views.shown import Answer, Fact

KEPT = ("service", "clock", "failed")
"""Facts about what an answer rests on that a planner needs."""


def answer(verdict: Verdict, resume: Path | None = None) -> Answer:
    """The short answer of one run; the whole answer of anything else."""
    whole = answers.answer(verdict, resume)
    if not isinstance(verdict, RunVerdict) or verdict.progressive:
        return whole
    figures = verdict.capacity if verdict.valid else None
    facts = [
        *shared.why(verdict),
        *(_capacity_facts(verdict, figures) if figures else ()),
        *(_hold_facts(verdict)),
        *(probe.facts(verdict.probe) if verdict.probe else ()),
        *(fact for fact in shared.rests_on(verdict) if fact[0] in KEPT),
        *_checks(verdict.checks or ()),
        *_place(verdict),
    ]
    tables = [rates.table(verdict.windows, verdict.asked.slo)] if verdict.windows else []
    headline = _headline(verdict, figures) if figures else whole.headline
    return Answer(whole.word, whole.tone, headline, tuple(facts), tuple(tables), whole.notes)


def of_folder(path: Path) -> Answer:
    """The short answer of a run or a study; of a run that did not end, what can be read."""
    if studies.is_study(path):
        return answers.of_folder(path)
    run = load_run(path)
    return answer(run.verdict, studies.whole(path)) if run.verdict else answers.unfinished(run)


def _headline(verdict: RunVerdict, figures: CapacityFigures) -> str:
    """The rate to plan with and the interval of the capacity; a bound alone is no rate to plan with."""
    q = figures.qps_per_node
    if q.certified is None or figures.claimed.is_bound:
        return capacity.headline(verdict) + shared.lengths(verdict)
    kind = capacity.interval_kind(verdict, figures)
    return (
        f"{certified(q)} QPS per node to plan with (certified); capacity {middle(q)}, {kind}95 % interval "
        f"{interval(q)}{shared.lengths(verdict)}"
    )


def _capacity_facts(verdict: RunVerdict, figures: CapacityFigures) -> list[Fact]:
    asked = verdict.asked
    facts = [capacity.limited_by(asked, figures), *capacity.at_rate(verdict, figures)]
    facts += capacity.doubts(figures, bool(asked.conversations))
    if verdict.nodes and verdict.nodes.differing:
        facts += capacity.node_facts(verdict.nodes)
    if verdict.folder:
        facts.append(("nodes for a demand", f"maxqps plan {verdict.folder} demand.peak_qps=QPS"))
    return facts


def _hold_facts(verdict: RunVerdict) -> list[Fact]:
    """The confirmation where it matters: it was void, or it vetoed the answer."""
    hold = verdict.hold
    return probe.hold_facts(hold)[:1] if hold and (hold.vetoed or not hold.valid) else []


def _checks(checks: Sequence[Check]) -> list[Fact]:
    """How many checks are ok, the failed ones with their figures, and the names of the notes."""
    outcomes = {check: shared.outcome(check) for check in checks if check.passed is not None}
    if not outcomes:
        return []
    passed = sum(outcome == "ok" for outcome in outcomes.values())
    failed = [shared.against(check) for check, outcome in outcomes.items() if outcome == "FAILED"]
    notes = [check.name for check, outcome in outcomes.items() if outcome == "note"]
    parts = f"{passed} of {len(outcomes)} ok", *(f"FAILED: {each}" for each in failed)
    return [("checks", "; ".join([*parts, *([f"notes: {', '.join(notes)}"] if notes else [])]))]


def _place(verdict: RunVerdict) -> list[Fact]:
    if not verdict.folder:
        return []
    report = [("report", Path(verdict.report).absolute().as_uri())] if verdict.report else []
    return [("run folder", verdict.folder), *report, ("all figures", f"maxqps show {verdict.folder} --all")]
