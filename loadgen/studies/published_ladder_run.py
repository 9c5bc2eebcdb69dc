"""The MI325X paper's benchmark over HTTP: a study of whole runs, each on a service deployed anew.

`published_ladder` has the levels, `published_verdict` the table.
"""

from dataclasses import replace
from functools import partial

import pyarrow as pa

from analysis.results import published_ladder as judged
from analysis.results import summary
from analysis.results.studies import Parts
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.study_verdict import StudyVerdict
from conf import Experiment
from loadgen.drive import fixed_rate
from loadgen.drive.driver import Driver
from loadgen.drive.prepared_load import refuse_failing, warm_up
from loadgen.run import verdicts
from loadgen.run.jobs import Job
from loadgen.studies import published_ladder, published_verdict
from loadgen.studies.study import Study, seed_of

KIND = "progressive"
ENDS = (summary.EXIT_OK, summary.EXIT_SLO_MISSED, summary.EXIT_VOID)
"""Exit codes of a run after which the next one begins: its figures stand, with their cautions."""


class LadderStudy(Study):
    """`progressive.runs` runs of the benchmark; one that was cut short is run anew."""

    kind = verb = KIND
    anew = True
    ends = ENDS

    def __init__(self, experiment: Experiment) -> None:
        runs = experiment.progressive.runs
        super().__init__(experiment, [f"run-{number}" for number in range(1, runs + 1)])

    def part(self, name: str, done: Parts) -> Experiment:
        return replace(self.experiment, seed=seed_of(self.experiment.seed, name), run=name)

    def job(self, name: str, experiment: Experiment) -> Job:
        return PlayLadder(experiment)

    def conclude(self, verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
        """The verdict of all runs together; a level is void where it was in any of them."""
        played = [part.progressive for part in parts.values() if part.progressive]
        void: dict[int, str] = {}
        for each in played:
            void = {number: line.void for number, line in enumerate(each.levels) if line.void} | void
        ladder = published_verdict.figures(
            self.experiment, [each.figures[0] for each in played], "wall", void
        )
        return replace(
            verdict,
            windows=(),
            evidence=f"{len(played)} runs, each of a service deployed anew",
            remedy="",
            **published_verdict.verdict_fields(ladder, void),
        )


class PlayLadder(Job):
    """One run: every level in order, on a service that only the first phase warms up."""

    verb = KIND

    def load(self, driver: Driver) -> None:
        driver.replan(warmup_requests=0)
        warm_up(driver)
        levels = published_ladder.levels(self.experiment)
        play = partial(_play, driver)
        published_verdict.play_levels(levels, play, lambda line: driver.emit("level", text=line))
        driver.drain()

    def verdict(self, driver: Driver) -> RunVerdict:
        windows = driver.windows
        seen = [judged.figures(windows.ledger.rows(number)) for number in range(len(windows.outcomes))]
        judged_windows = [(window.index, window.verdict) for window in windows.outcomes]
        void = {number: verdict.reason for number, verdict in judged_windows if not verdict.valid}
        ladder = published_verdict.figures(self.experiment, [seen], "wall", void)
        seen_levels = replace(verdicts.levels_verdict(self.experiment, driver), clock="wall")
        return replace(seen_levels, **published_verdict.verdict_fields(ladder, void))


def _play(driver: Driver, number: int, level: published_ladder.LevelPlan) -> pa.Table:
    start_ns = driver.feed.next_start_ns()
    schedule = level.schedule(number, start_ns, driver.feed.next_seq)
    why = f"{level.phase}, C = {level.concurrency}"
    fixed_rate.play_closed_loop(driver, schedule, start_ns, why, to_the_end=True)
    rows = driver.windows.ledger.rows(number)
    if level.phase == published_ladder.WARM_UP:
        refuse_failing(rows)
    return rows
