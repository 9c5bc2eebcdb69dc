"""Ends a run over a driver: the search down to its posterior, or one required rate down to its acceptance.

The search decides rates, the driver loads and judges; the rule that accepts is in `search.acceptance`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from analysis.capacity.growing_queue import falls_behind
from analysis.capacity.posterior import Capacity
from analysis.capacity.window_counts import NS, WindowCounts, count, in_window, over_bound
from analysis.stats.quantiles import quantile
from conf import ConfigError, Experiment
from conf.specs.bounds import PER_REQUEST, allowed_over, metric_of
from loadgen.drive.driver import Driver
from loadgen.drive.load_feed import BRIDGE_NS
from loadgen.drive.loss_recovery import TargetLost
from loadgen.drive.prepared_load import load_prepared, warm_up
from loadgen.search.acceptance import PASS_WINDOWS, InterimAnalysis, decide, windows_s
from loadgen.search.pacing import TRANSITION_E2E, WINDOW_E2E, WINDOW_LEAST, lasting_s
from loadgen.search.policy import next_window
from loadgen.search.window_plan import MeasuredWindow, Stop, WindowPlan, counted_windows


@dataclass(frozen=True, slots=True)
class Sweep:
    """The outcomes of a sweep in order, the capacity that they claim, and why it ended."""

    outcomes: list[MeasuredWindow]
    capacity: Capacity | None
    stop: Stop
    elapsed_s: float


def focus(driver: Driver) -> WindowPlan | Stop:
    """The next step of "ramp, then focus"."""
    return next_window(driver.plan.search, driver.plan.begin, driver.windows.outcomes, driver.elapsed_s())


def sweep(driver: Driver, choose: Callable[[Driver], WindowPlan | Stop] = focus) -> Sweep:
    """Load what `choose` says until the budget or the search ends it. Raises TargetLost for a service that
    stays away.
    """
    warm_up(driver)
    while True:
        try:
            stop = _go_on(driver, choose)
        except TargetLost as lost:
            driver.recover(lost)
            continue
        if stop is not None:
            elapsed_s = driver.elapsed_s()
            driver.emit("stop", stop=stop.kind, text=f"end of search: {stop.reason}", elapsed_s=elapsed_s)
            return Sweep(driver.windows.outcomes, driver.windows.claimed_capacity(), stop, elapsed_s)


def _go_on(driver: Driver, choose: Callable[[Driver], WindowPlan | Stop]) -> Stop | None:
    """Load one window more; or else let every answer end and return why there is none."""
    step = choose(driver)
    if not isinstance(step, Stop):
        step = driver.loss.await_load_hosts() or step
    if isinstance(step, Stop):
        driver.drain(run_out=True)
        return step
    load_prepared(driver, step)
    return None


REQUIRED_S = 600.0
TRANSITION_S, WINDOW_S = 60.0, 45.0
"""A queue that is long at times takes minutes to fill: a pass must not count its first."""
BEHIND_WINDOWS = 3
"""Last windows that say whether answers keep up with the requests (our choice)."""
VOID_IN_A_ROW = 2


@dataclass(frozen=True, slots=True)
class Required:
    """The last interim analysis, their number, and why nothing more could be measured if so.

    `whole_s` are the seconds of all windows that fit into the longest time.
    """

    analysis: InterimAnalysis
    analyses: int
    whole_s: float
    stop: Stop | None = None


def refuse_requirement(experiment: Experiment) -> None:
    """Raise ConfigError for an experiment that cannot require a rate."""
    if not experiment.rate_qps:
        raise ConfigError("--require needs rate_qps=... (QPS per node): it passes or fails one rate")
    bridges_s = (PASS_WINDOWS - 1) * BRIDGE_NS / NS * experiment.time_scale
    least_s = TRANSITION_S + PASS_WINDOWS * _window_s(experiment.rate_qps) + bridges_s
    if required_s(experiment) < least_s:
        windows = f"the {PASS_WINDOWS} windows that a pass takes"
        raise ConfigError(
            f"duration_s={required_s(experiment):g} is short of {windows}; raise it to {math.ceil(least_s)}"
        )


def required_s(experiment: Experiment) -> float:
    """The longest that a required rate is offered, in seconds."""
    return experiment.duration_s or REQUIRED_S


def require(driver: Driver, rate_qps: float, longest_s: float) -> Required:
    """Offer a rate per node until an interim analysis decides, also once every answer has ended, or time is
    over.
    """
    warm_up(driver)
    transition_s, analyses = TRANSITION_S, 0
    whole_s = windows_s(longest_s, transition_s, _window_s(rate_qps), driver.feed.bridge_ns / NS)
    why = "the required rate"
    while True:
        if stop := driver.loss.await_load_hosts() or _voided(driver.windows.outcomes):
            driver.drain()
            return Required(analyse(driver, rate_qps, whole_s), analyses, whole_s, stop)
        index = len(driver.windows.outcomes)
        window_s = max(_window_s(rate_qps), WINDOW_E2E * _lasting_s(driver))
        plan = WindowPlan(index, "window", rate_qps, transition_s, window_s, False, why)
        load_prepared(driver, plan, may_abort=False)
        found, analyses, transition_s = analyse(driver, rate_qps, whole_s), analyses + 1, 0.0
        late = driver.elapsed_s() + window_s > longest_s
        if found.verdict != "undecided" or late:
            driver.drain(run_out=True)
            found = analyse(driver, rate_qps, whole_s)
            transition_s = max(TRANSITION_S, TRANSITION_E2E * _lasting_s(driver))
            late = driver.elapsed_s() + transition_s + window_s > longest_s
        why = f"interim analysis {analyses}: {found.reason}"
        driver.emit("look", index=analyses, verdict=found.verdict, text=why)
        if found.verdict != "undecided" or late:
            return Required(found, analyses, whole_s)


def analyse(driver: Driver, rate_qps: float, whole_s: float) -> InterimAnalysis:
    """Judge a rate by all windows that are not void, as known now."""
    used = [outcome for outcome in driver.windows.outcomes if not outcome.void]
    behind = False
    if last := [outcome.counts for outcome in used[-BEHIND_WINDOWS:]]:
        rows = driver.windows.ledger.rows(*range(last[-1].index + 1))
        behind = falls_behind(rows, last[0].window_start_ns, last[-1].window_end_ns)
    return decide(
        rate_qps, counted_windows(used), _at_quantile(driver, used) if used else [], whole_s, behind
    )


def _at_quantile(driver: Driver, outcomes: Sequence[MeasuredWindow]) -> list[WindowCounts]:
    """The windows counted at bounds, all by one factor wider or tighter, of which one is just kept.

    Gaps of a whole window are counted against their bound as they come, and stay at that bound.
    """
    slo, now_ns = driver.plan.slo, driver.feed.target.now_ns()
    windows = [outcome.counts for outcome in outcomes]
    rows = pa.concat_tables([in_window(driver.windows.requests(w.index), w) for w in windows])
    own = [
        quantile(over_bound(rows, slo, bound, now_ns), 1 - allowed_over(bound.limit))
        for bound in slo.bounds
        if metric_of(bound.limit) in PER_REQUEST
    ]
    factor = max((it for it in own if it is not None and math.isfinite(it)), default=0.0)
    if not factor:
        return []
    bounds = slo.scaled(factor)
    return [count(driver.windows.requests(w.index), w, bounds, driver.plan.workload, now_ns) for w in windows]


def _voided(outcomes: Sequence[MeasuredWindow]) -> Stop | None:
    last = outcomes[-VOID_IN_A_ROW:]
    if len(last) == VOID_IN_A_ROW and all(outcome.void for outcome in last):
        return Stop("void", f"{VOID_IN_A_ROW} windows in a row were void")
    return None


def _lasting_s(driver: Driver) -> float:
    return lasting_s(driver.plan.begin, driver.windows.outcomes)


def _window_s(rate_qps: float) -> float:
    return max(WINDOW_S, WINDOW_LEAST / rate_qps)
