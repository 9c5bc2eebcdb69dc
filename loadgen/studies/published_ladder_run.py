"""The MI325X paper's benchmark over HTTP: a study of whole runs, each of a service deployed anew.

Knows how a level is played by the load generator and what the runs conclude together; the levels themselves
are those of `loadgen.progressive`.
"""

from dataclasses import replace
from functools import partial

from analysis.results import published_ladder as judged
from analysis.results import summary
from analysis.results.studies import Parts
from analysis.results.types.ladder_figures import LadderFigures
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.study_verdict import StudyVerdict
from conf import Experiment
from loadgen.drive import fixed_rate
from loadgen.drive.driver import Driver
from loadgen.run import verdicts
from loadgen.run.lifecycle import Conclude
from loadgen.studies import published_ladder
from loadgen.studies.study import Study, seed_of

KIND = "progressive"
ENDS = (summary.EXIT_OK, summary.EXIT_SLO_MISSED, summary.EXIT_VOID)
"""Exit codes of a run after which the next one begins: what was seen stands, with its statuses and doubts."""


def of(asked: Experiment) -> Study:
    """The study of so many runs; one that was cut short is run anew."""
    return Study(
        kind=KIND,
        verb=KIND,
        asked=asked,
        names=tuple(f"run-{number}" for number in range(1, asked.progressive.runs + 1)),
        part=lambda name, _: replace(asked, seed=seed_of(asked.seed, name), run=name),
        conclude=partial(concluded, asked),
        act=lambda _: act,
        anew=True,
        results=ENDS,
    )


def act(experiment: Experiment, driver: Driver) -> Conclude:
    """One run: every level in order, on a service that nobody warmed up but the first phase."""
    driver.plan = replace(driver.plan, warmup_requests=0)
    driver.warm_up()
    asked = published_ladder.levels(experiment)
    for number, level in enumerate(asked):
        start_ns = driver.next_start_ns()
        schedule = level.schedule(number, start_ns, driver.next_seq)
        fixed_rate.loop(
            driver, schedule, start_ns, f"{level.phase}, C = {level.concurrency}", to_the_end=True
        )
        driver.emit(
            "level", text=published_ladder.told(level, judged.figures(driver.windows.ledger.rows(number)))
        )
    driver.drain()
    return lambda: run_concluded(experiment, driver)


def run_concluded(experiment: Experiment, driver: Driver) -> RunVerdict:
    """The verdict of one run, from its rows as they were saved."""
    seen = [
        judged.figures(driver.windows.ledger.rows(number)) for number in range(len(driver.windows.outcomes))
    ]
    void = {
        number: verdict.reason for number, verdict in driver.windows.verdicts.items() if not verdict.valid
    }
    found = published_ladder.figures(experiment, [seen], "wall", void)
    verdict = replace(verdicts.of_levels(experiment, driver), clock="wall")
    return replace(verdict, **published_ladder.ending(found, void))


def concluded(asked: Experiment, verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
    """The verdict of all runs together; a level is void where it was in any of them."""
    played = [part.progressive for part in parts.values() if part.progressive]
    void: dict[int, str] = {}
    for each in played:
        void = _void(each) | void
    found = published_ladder.figures(asked, [each.figures[0] for each in played], "wall", void)
    return replace(
        verdict,
        dwells=(),
        evidence=f"{len(played)} runs, each of a service deployed anew",
        remedy="",
        **published_ladder.ending(found, void),
    )


def _void(found: LadderFigures) -> dict[int, str]:
    return {number: line.void for number, line in enumerate(found.levels) if line.void}
