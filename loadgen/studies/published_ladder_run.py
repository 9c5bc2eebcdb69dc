"""The MI325X paper's benchmark over HTTP: a study of whole runs, each on a service deployed anew.

Knows how the load generator plays a level; `published_ladder` has the levels, `published_verdict` the table.
"""

from dataclasses import replace
from functools import partial

from analysis.results import published_ladder as judged
from analysis.results import summary
from analysis.results.published_ladder import Figures
from analysis.results.summary import Tree
from conf import Experiment
from loadgen.drive import fixed_rate
from loadgen.drive.driver import Driver
from loadgen.drive.service_warmup import warm_up
from loadgen.run import verdicts
from loadgen.run.lifecycle import Conclude
from loadgen.studies import published_ladder, published_verdict
from loadgen.studies.study import StudyPlan, Trees, seed_of

KIND = "progressive"
ENDS = (summary.EXIT_OK, summary.EXIT_SLO_MISSED, summary.EXIT_VOID)
"""Exit codes of a run after which the next one begins: its figures stand, with their cautions."""


def of(asked: Experiment) -> StudyPlan:
    """The study of `progressive.runs` runs; one that was cut short is run anew."""
    return StudyPlan(
        kind=KIND,
        verb=KIND,
        asked=asked,
        names=tuple(f"run-{number}" for number in range(1, asked.progressive.runs + 1)),
        part=lambda name, _: replace(asked, seed=seed_of(asked.seed, name), run=name),
        verdict=partial(verdict, asked),
        act=lambda _: act,
        anew=True,
        results=ENDS,
    )


def act(experiment: Experiment, driver: Driver) -> Conclude:
    """One run: every level in order, on a service that only the first phase warms up."""
    driver.replan(warmup_requests=0)
    warm_up(driver)
    asked = published_ladder.levels(experiment)
    for number, level in enumerate(asked):
        start_ns = driver.feed.next_start_ns()
        schedule = level.schedule(number, start_ns, driver.feed.next_seq)
        fixed_rate.loop(
            driver, schedule, start_ns, f"{level.phase}, C = {level.concurrency}", to_the_end=True
        )
        driver.emit(
            "level",
            text=published_verdict.progress_line(level, judged.figures(driver.windows.ledger.rows(number))),
        )
    driver.drain()
    return lambda: run_verdict(experiment, driver)


def run_verdict(experiment: Experiment, driver: Driver) -> Tree:
    """The verdict of one run, from its saved rows."""
    seen = [
        judged.figures(driver.windows.ledger.rows(number)) for number in range(len(driver.windows.outcomes))
    ]
    void = {number: one.reason for number, one in driver.windows.verdicts.items() if not one.valid}
    tree = verdicts.of_levels(experiment, driver)
    return tree | published_verdict.verdict(experiment, [seen], "wall", void) | {"dwells": tree["dwells"]}


def verdict(asked: Experiment, parts: Trees) -> Tree:
    """The verdict of all runs; a level is void if it was void in any of them."""
    found = [part["progressive"] for part in parts.values()]
    runs = [[Figures(**level) for level in each["figures"][0]] for each in found]
    void: dict[int, str] = {}
    for each in found:
        void = _void(each) | void
    tree = published_verdict.verdict(asked, runs, "wall", void)
    return tree | {"evidence": f"{len(runs)} runs, each of a service deployed anew", "remedy": ""}


def _void(found: Tree) -> dict[int, str]:
    return {number: line["void"] for number, line in enumerate(found["levels"]) if line.get("void")}
