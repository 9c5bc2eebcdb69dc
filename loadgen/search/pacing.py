"""Lengths of windows, transitions and budgets for answers that last as long as those seen so far."""

import math
from collections.abc import Sequence
from dataclasses import replace

from conf import Experiment
from conf.specs.experiment import Search
from loadgen.search.window_plan import MeasuredWindow, Start, nearly_all_failed, overloaded

RAMP_SHARE = 1 / 3
"""Largest share of a budget that the ramp takes: without windows there is no answer."""
RAMP_LEAST, WINDOW_LEAST = 6, 20
"""Requests that a ramp step or a window holds on average; at low rates it is longer (our choice)."""
TRANSITION_E2E = 2.0
"""Lives of an answer after which a service has forgotten the rate before (the method, 4.1)."""
WINDOW_E2E = 1.5
"""Shortest window in lives of an answer: its requests and those just before it then share their steps with no
others than these (our choice, simulated with answers of four minutes)."""
LEAST_QPS, MOST_LONGER = 1.0, 8.0
"""Rate per node below which a budget counts requests, as many as come at this rate in its seconds, and how
many times as long it may be for that: an answer of +-10 % takes some hundred requests around the capacity."""
TOO_HIGH = 3.0
"""How many times too high a guess may be for the budget to follow the rate down (our choice)."""
LONG_WINDOWS = 5
"""Fewest windows in the budget of long answers: two leave an end open too often (simulated)."""


def fitted(spec: Search, start: Start, outcomes: Sequence[MeasuredWindow]) -> Search:
    """The search with times and budget for answers that last as long as those of `outcomes`.

    Windows are no shorter than answers, a backlog has the time to be answered, and the budget has room for
    the least number of windows: fewer say too little, whatever was asked.
    """
    longest_s = min(longest_answer_s(outcomes), start.answer_s or math.inf)
    spec = replace(spec, budget_s=spec.budget_s * longer_at(_rate_qps(spec, start, outcomes)))
    return paced(spec, lasting_s(start, outcomes), longest_s)


def longer_at(rate_qps: float) -> float:
    """How many times as long as asked a search takes at a rate per node."""
    return min(max(1.0, LEAST_QPS / max(rate_qps, 1e-9)), MOST_LONGER)


def _rate_qps(spec: Search, start: Start, outcomes: Sequence[MeasuredWindow]) -> float:
    """The rate per node that a search is about: the mean over its windows without an overload.

    Before there is any the guess, or the last window's rate if that is lower, but not where nearly all
    requests fail: then no rate may be low enough.
    """
    windows = [o for o in outcomes if o.plan.kind == "window" and not nearly_all_failed(o.counts)]
    steady = [outcome for outcome in windows if not overloaded(outcome)]
    if seconds := sum(outcome.counts.seconds for outcome in steady):
        return sum(outcome.plan.rate_qps * outcome.counts.seconds for outcome in steady) / seconds
    guess = (start.prediction_qps if spec.start == "prediction" else start.roofline_qps) or LEAST_QPS
    return min([guess, *(max(outcome.plan.rate_qps, guess / TOO_HIGH) for outcome in windows[-1:])])


def paced(spec: Search, answer_s: float, longest_s: float) -> Search:
    """The search for answers that last `answer_s`, and `longest_s` in an overload."""
    window_s = max(spec.window_s, WINDOW_E2E * answer_s)
    windows = max(spec.min_windows, LONG_WINDOWS)
    least_s = max(spec.first_transition_s, TRANSITION_E2E * answer_s) + windows * window_s
    ramped_s = least_s / (1 - RAMP_SHARE)
    longer = window_s > spec.window_s
    budget_s = max(spec.budget_s, ramped_s) if longer else spec.budget_s
    settle_s = max(spec.settle_s, TRANSITION_E2E * longest_s)
    return replace(spec, window_s=window_s, settle_s=settle_s, budget_s=budget_s)


def longest_answer_s(outcomes: Sequence[MeasuredWindow]) -> float:
    """Longest median life of an answer in any window; 0 while nothing is known.

    An outage holds answers up, which says nothing of the service's pace.
    """
    return max([o.counts.median_e2e_s or 0.0 for o in outcomes if not o.felt_a_loss], default=0.0)


def lasting_s(start: Start, outcomes: Sequence[MeasuredWindow]) -> float:
    """Median life of an answer in the last window that was not bad; 0 while nothing but overloads is known.

    Within the bounds no answer lasts longer than `Start.answer_s`: one that does is part of an overload.
    """
    seen = [outcome for outcome in outcomes if not (outcome.bad or outcome.felt_a_loss)]
    lives_s = [outcome.counts.median_e2e_s for outcome in seen if outcome.counts.median_e2e_s is not None]
    if not lives_s or all(map(overloaded, seen)):
        return 0.0
    return min(lives_s[-1], start.answer_s or math.inf)


def within_bounds(spec: Search, rate: float) -> float:
    """The rate, no lower and no higher than the search allows."""
    return min(max(rate, spec.lowest_qps), spec.highest_qps)


def swept_s(experiment: Experiment) -> float:
    """Seconds of load of all sweeps, each with its confirmation run."""
    search = experiment.search
    return search.parts * (_swept_s(experiment) + search.confirm_s)


def compared_s(experiment: Experiment) -> float:
    """Seconds of load of A's sweep with its confirmation run and of B's, which is as long if B is as fast."""
    return 2 * _swept_s(experiment) + experiment.search.confirm_s


def _swept_s(experiment: Experiment) -> float:
    """Seconds of one sweep without its confirmation run; the least number of windows is granted beyond the
    budget."""
    longest = longest_search(experiment)
    return max(longest.budget_s, longest.least_s)


def longest_search(experiment: Experiment) -> Search:
    """Search of one deployment whose answers last as long as the bounds allow."""
    search, answer_s = experiment.search, experiment.answer_s
    alone = replace(search, deployments=1, budget_s=search.budget_s / search.deployments)
    return paced(alone, answer_s, answer_s)
