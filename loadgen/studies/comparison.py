"""Replay of one run's windows on another service, scaled in time, and the study of two services that uses it.

`search.replay_policy` chooses rates, `analysis.capacity.paired_ratio` holds the statistics.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from analysis.capacity import paired_ratio
from analysis.capacity.paired_ratio import LEAST_PAIRS, Latencies, Pair, Ratio
from analysis.capacity.window_counts import NS, Window, in_window, over_bound, parts_over
from analysis.capacity.window_table import window
from analysis.results import summary
from analysis.results.runs import Run, load_run
from analysis.results.studies import Parts, PartVerdict
from analysis.results.verdicts import StudyVerdict
from analysis.stats.estimate import Estimate
from conf import Experiment
from conf.specs.experiment import Slo
from loadgen.drive.driver import Driver
from loadgen.run.jobs import Job, SearchCapacity
from loadgen.search.pacing import fitted
from loadgen.search.policy import next_window, prior
from loadgen.search.replay_policy import next_pair, without_evidence
from loadgen.search.window_plan import Stop, WindowPlan
from loadgen.studies.study import TwoSides, differing, seed_of

KIND = "compare"
ENDED_NS = 2**62
"""A time after the end of every request on record."""
SHARED = ("workload", "slo", "search", "fleet")
"""Groups that both sides must share, since B would otherwise answer another question."""
OF_BOTH = ("seed", "run", "out")
"""Keys that a study has only once."""


def unlike(a: Experiment, b: Experiment) -> str:
    """What keeps B from getting A's requests; empty if nothing does."""
    if group := next((group for group in SHARED if getattr(a, group) != getattr(b, group)), ""):
        return f"{group} differs"
    if a.workload.conversations is not None:
        return "conversations are not scaled in time"
    if a.cluster.nodes != b.cluster.nodes or a.streams != b.streams:
        return "cluster.nodes or routing=per_node differs"
    return "engine.time_scale differs" if a.time_scale != b.time_scale else ""


@dataclass(frozen=True, slots=True)
class PlayedWindows:
    """The valid windows of a search, ended or under way: plan and place of each, and its rows by its index.

    They began at `centre` (ln QPS), by its ramp or prediction. Of rows is known what was at `now_ns`.
    """

    seed: int
    centre: float
    slo: Slo
    windows: Sequence[tuple[WindowPlan, Window]]
    rows: Callable[[int], pa.Table]
    now_ns: int = ENDED_NS

    @classmethod
    def of_run(cls, run: Run) -> "PlayedWindows":
        """Those in the folder of a run that has ended."""
        assert run.verdict and run.verdict.basis and run.verdict.basis.prior
        done = [event for event in run.events() if event["event"] == "window_done"]
        plans = {event["index"]: WindowPlan(**event["plan"]) for event in done}
        valid = [row for row in run.verdict.windows if row["kind"] == "window" and row["valid"]]
        windows, rows = [(plans[row["index"]], window(dict(row))) for row in valid], run.requests()
        return cls(run.config.seed, run.verdict.basis.prior.centre, run.config.slo, windows, lambda _: rows)

    @classmethod
    def of_driver(cls, driver: Driver) -> "PlayedWindows":
        """Those of a driver so far."""
        plan, outcomes, now_ns = driver.plan, driver.windows.outcomes, driver.feed.target.now_ns()
        belief = prior(plan.search, plan.begin, outcomes)
        assert belief is not None
        windows = [
            (each.plan, each.counts) for each in outcomes if each.plan.kind == "window" and not each.void
        ]
        return cls(plan.seed, belief.centre, plan.slo, windows, driver.windows.requests, now_ns)

    def latencies(self, place: Window) -> Latencies:
        """The latencies of a window's requests over their bounds in order of due time."""
        inside, slo, now_ns = in_window(self.rows(place.index), place).sort_by("seq"), self.slo, self.now_ns
        return {
            bound.limit: np.column_stack(parts_over(inside, slo, bound, now_ns)).astype(np.float64)
            if slo.is_about_gaps(bound.limit)
            else over_bound(inside, slo, bound, now_ns)
            for bound in slo.bounds
        }


class Original:
    """The search that B replays: its whole windows, each with the times that it took, and their latencies."""

    def __init__(self, played: PlayedWindows) -> None:
        self.seed, self.centre = played.seed, played.centre
        whole = [(plan, place) for plan, place in played.windows if not place.aborted]
        self.templates = {
            plan.index: replace(
                plan,
                transition_s=(place.window_start_ns - place.start_ns) / NS,
                window_s=(place.planned_end_ns - place.window_start_ns) / NS,
            )
            for plan, place in whole
        }
        self._latencies = {place.index: played.latencies(place) for _, place in whole}

    def pairs(self, b: PlayedWindows) -> list[Pair]:
        """The replays on B, each paired with its window of A."""
        return [
            paired_ratio.pair(
                plan.pair,
                math.log(plan.rate_qps / self.templates[plan.pair].rate_qps),
                not place.aborted,
                self._latencies[plan.pair],
                b.latencies(place),
            )
            for plan, place in b.windows
            if plan.pair is not None
        ]


class Comparison(TwoSides):
    """B beside A: A is searched, B replays its windows."""

    kind = verb = KIND

    def __init__(self, a: Experiment, b: Experiment) -> None:
        # Common to both are the arrivals, not the noise of a simulated engine.
        super().__init__(a, b, b_seed=seed_of(a.seed, "b"))

    def job(self, name: str, experiment: Experiment) -> Job:
        return SearchCapacity(experiment) if name == "a" else ReplayWindows(experiment, self.path / "a")

    def conclude(self, verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
        """The verdict with the ratio, from the rows of both folders; too few pairs are an open end."""
        original = Original(PlayedWindows.of_run(load_run(self.path / "a")))
        pairs = PairedReplays.of(original, load_run(self.path / "b"))
        evidence = f"{pairs.whole} of {len(original.templates)} windows of A paired"
        verdict = replace(verdict, differs=differing(self.experiment, self.other), evidence=evidence)
        if pairs.ratio is None or pairs.lack:
            reason = f"{pairs.lack}; raise search.budget_s"
            return replace(verdict, passed=False, exit_code=summary.EXIT_OPEN, reason=reason)
        if pairs.ratio.unlike:
            return replace(
                verdict, ratio=replace(pairs.ratio, estimate=unpaired_ratio(parts["a"], parts["b"]))
            )
        return replace(verdict, ratio=pairs.ratio)


class ReplayWindows(SearchCapacity):
    """The job of B: it replays the windows of the run in `path`."""

    def __init__(self, experiment: Experiment, path: Path) -> None:
        super().__init__(experiment)
        self.path = path

    def load(self, driver: Driver) -> None:
        self.original = Original(PlayedWindows.of_run(load_run(self.path)))
        driver.replan(seed=self.original.seed)
        super().load(driver)

    def next_step(self, driver: Driver) -> WindowPlan | Stop:
        return next_replay(driver, self.original)


@dataclass(frozen=True, slots=True)
class PairedReplays:
    """The ratio that `whole` complete replays show; None if they are too few. An open one is only a bound
    (`lack`).
    """

    whole: int
    ratio: Ratio | None

    @classmethod
    def of(cls, original: Original, b: Run) -> "PairedReplays":
        """The pairs from the folder of a run that has replayed the original's windows."""
        played = PlayedWindows.of_run(b)
        whole = [pair for pair in original.pairs(played) if pair.whole]
        enough = len(whole) >= LEAST_PAIRS
        return cls(len(whole), paired_ratio.ratio(whole, played.centre - original.centre) if enough else None)

    @property
    def lack(self) -> str:
        """The reason why there is no ratio with two ends; empty if there is one."""
        if ratio := self.ratio:
            bound = ratio.estimate.low if ratio.open == "above" else ratio.estimate.high
            says = f"{self.whole} whole pairs say no more than that B / A is {ratio.open} {bound:.3g}"
            return says if ratio.open else ""
        if self.whole < LEAST_PAIRS:
            return f"{self.whole} whole pairs of windows are too few: {LEAST_PAIRS} are needed"
        return f"in {self.whole} whole pairs of windows too few or too many requests were over a bound"


def unpaired_ratio(a: PartVerdict, b: PartVerdict) -> Estimate:
    """Ratio of two capacities as if they were independent, with its 95 % interval."""
    assert a.capacity is not None and b.capacity is not None
    return paired_ratio.unpaired(a.capacity.sampling, b.capacity.sampling)


def next_replay(driver: Driver, original: Original) -> WindowPlan | Stop:
    """B's own ramp, then the windows of A at the ratio that each window updates."""
    spec, start, outcomes = driver.plan.search, driver.plan.begin, driver.windows.outcomes
    if prior(spec, start, outcomes) is None:
        return next_window(spec, start, outcomes, driver.elapsed_s())
    played = PlayedWindows.of_driver(driver)
    pairs, begin = original.pairs(played), played.centre - original.centre
    if ratio := paired_ratio.ratio(pairs, begin):
        log_ratio = ratio.log_next
    else:
        replays = [each for each in outcomes if each.plan.pair is not None and not each.void]
        log_ratio = without_evidence(replays, [pair.log_ratio for pair in pairs], begin)
    templates = list(original.templates.values())
    return next_pair(fitted(spec, start, outcomes), templates, outcomes, log_ratio, driver.elapsed_s())
