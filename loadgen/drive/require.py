"""One rate, passed or failed: windows at it without a gap until the answer is clear or the time is over.

Knows when an answer is clear; the driver loads and judges, the posterior says what is shown.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import Literal

from analysis.capacity.backlog import falls_behind
from analysis.capacity.limit_posterior import Prior
from analysis.capacity.node_effects import including, node_effects
from analysis.capacity.posterior import DEPENDENCE, LEAST_REQUESTS, LIMITS, Capacity, posterior
from analysis.capacity.window_counts import NS, Dwell, count
from analysis.stats.alpha_spending import LEVEL, tail_at
from conf import ConfigError, Experiment
from conf.specs.experiment import Slo
from loadgen.drive.driver import Driver
from loadgen.drive.prepared_load import load_prepared
from loadgen.drive.service_warmup import warm_up
from loadgen.search.policy import (
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
"""Each limit's root may lie this far (ln) on either side of its centre (`prior`)."""
FAIL_WINDOWS, PASS_WINDOWS = 3, 5
"""The interval decides from so many windows on. With fewer than three the overdispersion is unknown; a pass
waits longer because a quiet start is seen more often than a bad one: with three, one run in ten passed 3 %
above the capacity where both limits bind."""
CALM_WINDOWS, CALM_BOUND, CALM_OVER, HOPELESS_OVER = 4, 0.7, 0.04, 0.9
"""What is clear without it. So few requests over so much of each bound pass: far below the knee the
posterior, which counts at the bounds only, needs minutes more. More than so many over a bound fail. At the
capacity none of 220 simulated runs of S1, S2 and S4 shows either at any look; three windows would show the
first in 1 %, and more than 0.6 over in the first window are 1 to 4 % of them."""
INTERVAL_LEVEL = 0.9 * LEVEL
"""What of the level the intervals spend; the rest is for the clear cases."""
DRIFT_SD, DRIFT_MEMORY_S = 0.015, 120.0
"""A capacity may drift by so much (ln) with so long a memory, and some minutes at one rate cannot tell that
from another capacity: a pass allows for it. Of drawn runs at a capacity that drifts by 2 % 5 to 8 % pass then
(where the windows alone would pass 9 to 12 %), with less drift at most 3 %; a larger sd lets too few pass 3 %
below the capacity (simulated, 0 to 0.02). A failure does not allow for it: 3 to 7 % fail there with 2 %."""
LEAST_TAIL = 1e-6
"""No posterior is known further out."""
HOLDS = f"at most {100 * LEVEL:g} % of runs say so wrongly, over all looks"
BEHIND_WINDOWS = 3
"""So many last windows say whether answers keep up with the requests (our choice)."""
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
    """How it ended: the last look, how many there were, and why nothing more could be measured if so.

    `whole_s` are the seconds of all windows that fit into the longest time, over which looks share a level.
    """

    look: Look
    looks: int
    whole_s: float
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
    """What is believed before the first window at a rate per node: the capacity is above or below it alike.

    It is the smaller of two roots, so that the centre of each lies above the rate: where a root is above
    with probability p, the capacity is with (1 - `DEPENDENCE`) p^2 + `DEPENDENCE` p.
    """
    apart = 1 - DEPENDENCE
    above = (math.sqrt(DEPENDENCE**2 + 2 * apart) - DEPENDENCE) / (2 * apart)
    return Prior(math.log(rate_qps) + PRIOR_SD * NormalDist().inv_cdf(above), PRIOR_SD)


def require(driver: Driver, rate_qps: float, longest_s: float) -> Required:
    """Offer a rate per node until a look decides, or one more window would exceed `longest_s`.

    A look that decides is taken again when every answer has ended; if it no longer does, the load goes on.
    """
    warm_up(driver)
    transition_s, looks = TRANSITION_S, 0
    whole_s = windows_s(longest_s, transition_s, _window_s(rate_qps), driver.feed.bridge_ns / NS)
    why = "the required rate"
    while True:
        if stop := driver.feed.replace_actors() or _voided(driver.windows.outcomes):
            driver.drain()
            return Required(look(driver, rate_qps, whole_s), looks, whole_s, stop)
        index = len(driver.windows.outcomes)
        window_s = max(_window_s(rate_qps), WINDOW_E2E * _lasting_s(driver))
        load_prepared(
            driver, Segment(index, "dwell", rate_qps, transition_s, window_s, False, why), may_abort=False
        )
        found, looks, transition_s = look(driver, rate_qps, whole_s), looks + 1, 0.0
        late = driver.elapsed_s() + window_s > longest_s
        if found.verdict != "undecided" or late:
            driver.drain(run_out=True)
            found = look(driver, rate_qps, whole_s)
            transition_s = max(TRANSITION_S, TRANSITION_E2E * _lasting_s(driver))
            late = driver.elapsed_s() + transition_s + window_s > longest_s
        why = f"look {looks}: {found.reason}"
        driver.emit("look", index=looks, verdict=found.verdict, text=why)
        if found.verdict != "undecided" or late:
            return Required(found, looks, whole_s)


def look(driver: Driver, rate_qps: float, whole_s: float) -> Look:
    """What is shown of a rate by all windows that are not void, as known now."""
    used = [outcome for outcome in driver.windows.outcomes if not outcome.void]
    behind = bool(used) and _behind(driver, [outcome.dwell for outcome in used[-BEHIND_WINDOWS:]])
    return decide(rate_qps, dwells_of(used), _tightened(driver, used), whole_s, behind)


def decide(
    rate_qps: float, dwells: Sequence[Dwell], tightened: Sequence[Dwell], whole_s: float, behind: bool
) -> Look:
    """The rule: a clear case, or else an interval that holds over all looks lies on one side of the rate.

    `tightened` are the same windows counted at `CALM_BOUND` of each bound, `whole_s` the seconds of all
    windows that there may be. While answers fall `behind` the requests nothing passes: a service that still
    fills looks better than it is.
    """
    if not any(dwell.requests >= LEAST_REQUESTS for dwell in dwells):
        return Look("undecided", "no window says anything yet", None)
    belief = prior(rate_qps)
    effects = node_effects(dwells, belief)
    found = including(posterior(dwells, belief), effects)
    over, tight = ([_over(counted, limit) for limit in LIMITS] for counted in (dwells, tightened))
    if max(over) > HOPELESS_OVER:
        return Look("failed", f"{max(over):.0%} of the requests are over a bound", found)
    shares = _shares(dwells, whole_s)
    tail = max(tail_at(shares, INTERVAL_LEVEL), LEAST_TAIL)
    sure = including(posterior(dwells, belief, tail), effects, tail)
    low_qps = _allowing_for_drift(sure, tail, shares[-1] * whole_s)
    if len(shares) >= FAIL_WINDOWS and sure.high <= rate_qps:
        return Look("failed", f"the capacity is at most {sure.high:.3g} QPS per node ({HOLDS})", found)
    calm = len(shares) >= CALM_WINDOWS and max(tight) <= CALM_OVER
    if not calm and (len(shares) < PASS_WINDOWS or low_qps < rate_qps):
        within = f"the capacity is within [{found.low:.3g}, {found.high:.3g}] QPS per node (95 %)"
        return Look("undecided", within, found)
    if behind:
        return Look(
            "undecided", "answers end more slowly than requests come, as in a service that fills", found
        )
    if calm:
        return Look("passed", f"only {max(tight):.1%} are over {CALM_BOUND:.0%} of a bound", found)
    drift = f"with up to {100 * DRIFT_SD:g} % drift"
    return Look("passed", f"the capacity is at least {low_qps:.3g} QPS per node ({HOLDS}, {drift})", found)


def _allowing_for_drift(capacity: Capacity, tail: float, seconds: float) -> float:
    """The interval's low end, below which lies `tail`, lower by what drift may do in so many seconds.

    Of an AR(1) of memory m the mean over T has 2 m / T (1 - m / T (1 - e^(-T / m))) of its variance.
    """
    memory = DRIFT_MEMORY_S / seconds
    sd = DRIFT_SD * math.sqrt(2 * memory * (1 + memory * math.expm1(-1 / memory)))
    below = math.log(capacity.qps_per_node / capacity.low)
    return capacity.qps_per_node * math.exp(-math.hypot(below, NormalDist().inv_cdf(1 - tail) * sd))


def _shares(dwells: Sequence[Dwell], whole_s: float) -> list[float]:
    """Of all windows that there may be, the share that had passed at each look; nodes share their windows."""
    seconds = {dwell.index: dwell.seconds for dwell in dwells}
    return [min(passed / whole_s, 1.0) for passed in accumulate(seconds[index] for index in sorted(seconds))]


def windows_s(longest_s: float, transition_s: float, window_s: float, bridge_s: float) -> float:
    """Seconds of all windows that fit into the longest time, one at least, with a bridge between any two."""
    more = (longest_s - transition_s - window_s) / (window_s + bridge_s)
    return window_s * (1 + max(0, math.floor(more)))


def _behind(driver: Driver, windows: Sequence[Dwell]) -> bool:
    """True if answers fell behind the requests from the first window's start to the last one's end."""
    rows = driver.windows.ledger.rows(*range(windows[-1].index + 1))
    return falls_behind(rows, windows[0].window_start_ns, windows[-1].window_end_ns)


def _over(dwells: Iterable[Dwell], limit: str) -> float:
    """Share over one limit in all windows together; of a limit that does not apply none is."""
    counts = [getattr(dwell, limit) for dwell in dwells]
    over, determined = (sum(getattr(one, name) for one in counts) for name in ("over", "determined"))
    return float(over / max(1, determined))


def _tightened(driver: Driver, outcomes: Sequence[Outcome]) -> list[Dwell]:
    """The windows counted at tighter bounds."""
    slo, now_ns = driver.plan.slo, driver.feed.target.now_ns()
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
