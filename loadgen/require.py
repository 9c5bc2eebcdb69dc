"""One rate, passed or failed: windows at it without a gap until the answer is clear or the time is over.

Knows when an answer is clear; the driver loads and judges, the posterior says what is shown.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.capacity import LEAST_REQUESTS, LIMITS, Capacity, posterior
from analysis.dwell import Dwell, count
from analysis.nodes import including, node_effects
from analysis.root import Prior
from conf import ConfigError, Experiment
from conf.schema import Slo
from loadgen.driver import Driver
from loadgen.search import (
    DWELL_LEAST,
    TRANSITION_E2E,
    WINDOW_E2E,
    Outcome,
    Segment,
    Stop,
    dwells_of,
    lasting_s,
)

DEFAULT_S = 600.0
TRANSITION_S, WINDOW_S = 15.0, 45.0
PRIOR_SD = 0.25
"""The capacity may lie this far (ln) on either side of the rate: no side is favoured beforehand."""
FAIL_WINDOWS, PASS_WINDOWS = 3, 5
"""The interval decides from so many windows on. With fewer than three the overdispersion is unknown; a pass
waits longer because a quiet start is seen more often than a bad one: with three, one run in ten passed 3 %
above the capacity where both limits bind."""
CALM_WINDOWS, CALM_BOUND, CALM_OVER, HOPELESS_OVER = 3, 0.7, 0.04, 0.6
"""What is clear without it. So few requests over so much of each bound pass: far below the knee the
posterior, which counts at the bounds only, needs minutes more. At the capacity itself three windows show that
in at most 5 % of runs, 3 % above it in 1 %. More than so many over a bound fail: 3 % below the capacity the
first window shows that in 2 % of runs (150 simulated runs each of S1, S2, S4 and S5)."""
VOID_IN_A_ROW = 2

Verdict = Literal["passed", "failed", "undecided"]


@dataclass(frozen=True, slots=True)
class Look:
    """What was shown of a rate by then, and how. `capacity` is None before anything can be said of it."""

    verdict: Verdict
    reason: str
    capacity: Capacity | None


@dataclass(frozen=True, slots=True)
class Required:
    """How it ended: the last look, how many there were, and why nothing more could be measured if so."""

    look: Look
    looks: int
    stop: Stop | None = None


def refuse(experiment: Experiment) -> None:
    """Raise ConfigError for what cannot be required."""
    if not experiment.rate_qps:
        raise ConfigError("--require needs rate_qps=... (QPS per node): it passes or fails one rate")
    least_s = TRANSITION_S + _window_s(experiment.rate_qps)
    if seconds(experiment) < least_s:
        raise ConfigError(
            f"duration_s={seconds(experiment):g} is short of one window; raise it to {least_s:g}"
        )


def seconds(experiment: Experiment) -> float:
    """The longest that a required rate is offered."""
    return experiment.duration_s or DEFAULT_S


def prior(rate_qps: float) -> Prior:
    """What is believed of the capacity before the first window at a rate per node."""
    return Prior(math.log(rate_qps), PRIOR_SD)


def require(driver: Driver, rate_qps: float, longest_s: float) -> Required:
    """Offer a rate per node until a look decides, or one more window would exceed `longest_s`.

    A look that decides is taken again when every answer has ended; if it no longer does, the load goes on.
    """
    driver.warm_up()
    transition_s, looks = TRANSITION_S, 0
    why = "the required rate"
    while True:
        if stop := driver.heal() or _voided(driver.windows.outcomes):
            driver.drain()
            return Required(look(driver, rate_qps), looks, stop)
        index, window_s = (
            len(driver.windows.outcomes),
            max(_window_s(rate_qps), WINDOW_E2E * _lasting_s(driver)),
        )
        driver.load(Segment(index, "dwell", rate_qps, transition_s, window_s, False, why), may_abort=False)
        found, looks, transition_s = look(driver, rate_qps), looks + 1, 0.0
        late = driver.elapsed_s() + window_s > longest_s
        if found.verdict != "undecided" or late:
            driver.drain(run_out=True)
            found, transition_s = (
                look(driver, rate_qps),
                max(TRANSITION_S, TRANSITION_E2E * _lasting_s(driver)),
            )
            late = driver.elapsed_s() + transition_s + window_s > longest_s
        why = f"look {looks}: {found.reason}"
        driver.emit("look", index=looks, verdict=found.verdict, text=why)
        if found.verdict != "undecided" or late:
            return Required(found, looks)


def look(driver: Driver, rate_qps: float) -> Look:
    """What is shown of a rate by all windows that are not void, as known now."""
    used = [outcome for outcome in driver.windows.outcomes if not outcome.void]
    return decide(rate_qps, dwells_of(used), _tightened(driver, used))


def decide(rate_qps: float, dwells: Sequence[Dwell], tightened: Sequence[Dwell]) -> Look:
    """The rule: a clear case, or else the 95 % interval of the capacity lies on one side of the rate.

    `tightened` are the same windows counted at `CALM_BOUND` of each bound.
    """
    if not any(dwell.requests >= LEAST_REQUESTS for dwell in dwells):
        return Look("undecided", "no window says anything yet", None)
    belief = prior(rate_qps)
    found = including(posterior(dwells, belief), node_effects(dwells, belief))
    over, tight = ([_over(counted, limit) for limit in LIMITS] for counted in (dwells, tightened))
    if max(over) > HOPELESS_OVER:
        return Look("failed", f"{max(over):.0%} of the requests are over a bound", found)
    windows = len({dwell.index for dwell in dwells})
    if windows >= PASS_WINDOWS and found.low >= rate_qps:
        return Look("passed", f"the capacity is at least {found.low:.3g} QPS per node (97.5 %)", found)
    if windows >= FAIL_WINDOWS and found.high <= rate_qps:
        return Look("failed", f"the capacity is at most {found.high:.3g} QPS per node (97.5 %)", found)
    if windows >= CALM_WINDOWS and max(tight) <= CALM_OVER:
        return Look("passed", f"only {max(tight):.1%} are over {CALM_BOUND:.0%} of a bound", found)
    within = f"the capacity is within [{found.low:.3g}, {found.high:.3g}] QPS per node (95 %)"
    return Look("undecided", within, found)


def _over(dwells: Iterable[Dwell], limit: str) -> float:
    """Share over one limit in all windows together; of a limit that does not apply none is."""
    counts = [getattr(dwell, limit) for dwell in dwells]
    over, determined = (sum(getattr(one, name) for one in counts) for name in ("over", "determined"))
    return float(over / max(1, determined))


def _tightened(driver: Driver, outcomes: Sequence[Outcome]) -> list[Dwell]:
    """The windows counted at tighter bounds."""
    slo, now_ns = driver.plan.slo, driver.target.now_ns()
    tight = Slo(slo.name, CALM_BOUND * slo.ttft_p90_ms, CALM_BOUND * slo.tpot_p90_ms)
    windows = [outcome.dwell for outcome in outcomes]
    return [count(driver.windows.requests(w.index), w, tight, driver.plan.workload, now_ns) for w in windows]


def _voided(outcomes: Sequence[Outcome]) -> Stop | None:
    last = outcomes[-VOID_IN_A_ROW:]
    if len(last) == VOID_IN_A_ROW and all(outcome.void for outcome in last):
        return Stop("void", f"{VOID_IN_A_ROW} windows in a row were void")
    return None


def _lasting_s(driver: Driver) -> float:
    return lasting_s(driver.plan.begin, driver.windows.outcomes)


def _window_s(rate_qps: float) -> float:
    return max(WINDOW_S, DWELL_LEAST / rate_qps)
