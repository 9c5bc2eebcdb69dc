"""The verdict of a search under other bounds than it searched for, from the rows that it recorded.

Every window is counted and judged anew, so that another bound needs no new run as long as its capacity lies
within the rates that were offered. The windows were placed for the old bounds: the interval is wider than
that of a new search.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from analysis.capacity.check import Check
from analysis.capacity.posterior import Capacity
from analysis.capacity.rules import RULES, Facts, WindowEvidence
from analysis.capacity.window_counts import Window
from analysis.results import claims
from analysis.results.asked import describe
from analysis.results.recount import Recount, recount
from analysis.results.runs import Run, RunError
from analysis.results.types.run_verdict import RunVerdict
from conf import ConfigError, load
from conf.specs.bounds import Slo, label, metric_of

JUDGED = "judged by {new} with the windows of a search for {old}"
BY_BOUNDS = ("send_lag_p99", "path_p90", "path_over", "queue_told")
"""Rules about a window whose bounds follow from those of the latencies."""
NEW_RUN = "that bound needs a new run"
ALONE = "they were drawn for the bounds of the search"


def rejudge(run: Run, *words: str) -> RunVerdict:
    """The verdict of a search under other bounds: `rejudge(run, "slo.ttft_p90_ms=500")`.

    `words` are slo.KEY=VALUE, or slo=NAME. Raises RunError with one line where the run claims no result,
    where its rows do not tell what a bound needs, and where the capacity lies beyond the rates offered.
    """
    verdict, slo = _searched(run), _bounds(run, words)
    recorded = verdict.asked.slo
    _refuse_unrecorded(run, recorded, slo)
    checks: list[Check] = []
    again = recount(run, slo, _judge(slo, checks))
    _refuse_unknown(run, again, slo)
    assert again.capacity is not None, "a search has a prior"
    _refuse_beyond(run, again, again.capacity, words)
    replicas = verdict.asked.replicas / verdict.asked.nodes if verdict.asked.replicas else None
    capacity = claims.figures(again.capacity, replicas)
    return replace(
        verdict,
        asked=replace(verdict.asked, slo=describe(replace(run.config, slo=slo)).slo),
        capacity=replace(capacity, constants_unknown=ALONE),
        checks=tuple(_worst(verdict.checks or (), checks)),
        evidence=f"{len(again.capacity.windows)} windows of {verdict.evidence}",
        reason=JUDGED.format(new=slo.text, old=recorded.text),
        passed=True,
        exit_code=0,
        hold=None,
        prediction=None,
        nodes=None,
        report="",
    )


def _searched(run: Run) -> RunVerdict:
    """The verdict of a search. Raises RunError for a run that has none, or whose verdict is void."""
    verdict = run.verdict
    if verdict is None:
        raise RunError(f"{run.path} did not end: python -m loadgen resume {run.path}")
    if run.altered:
        raise RunError(f"{run.path} was altered after it ended: {run.altered[0]}")
    if not verdict.valid:
        why = verdict.reason or "nothing is claimed"
        raise RunError(f"{run.path} is void ({why}): no bound makes it valid")
    if verdict.capacity is None:
        raise RunError(f"{run.path} searched for no capacity; its report has the quantiles of every window")
    return verdict


def _bounds(run: Run, words: Sequence[str]) -> Slo:
    """The run's bounds with those of `words` in their place. Raises RunError for other words."""
    for word in words:
        if word.partition("=")[0].partition(".")[0] != "slo":
            raise RunError(f"'{word}' is no bound; give slo.KEY=VALUE, such as slo.ttft_p90_ms=500")
    try:
        return load(words, base=run.path / "config.yaml").slo
    except ConfigError as error:
        raise RunError(str(error)) from error


def _refuse_unrecorded(run: Run, old: Slo, new: Slo) -> None:
    """Raise RunError for a bound on gaps that the rows were not counted by."""
    for limit in new.limits:
        same = limit in old.limits and old.bound_ms(limit) == new.bound_ms(limit)
        if metric_of(limit) == "itl_pooled" and not same:
            raise RunError(f"{run.path} counted no gaps against {new.words(limit)}: {NEW_RUN}")
    if new.itl_within != old.itl_within and new.strictest_ms("itl") is not None:
        raise RunError(f"{run.path} recorded gaps at slo.itl_within={old.itl_within:g}: {NEW_RUN}")


def _refuse_unknown(run: Run, again: Recount, slo: Slo) -> None:
    """Raise RunError for a bound on what no row of a window tells."""
    for limit in slo.limits:
        if not any(window.limits[limit].determined for window in again.windows):
            raise RunError(f"{run.path} did not record what {label(limit)} needs: {NEW_RUN}")


def _refuse_beyond(run: Run, again: Recount, capacity: Capacity, words: Sequence[str]) -> None:
    """Raise RunError where the capacity lies beyond the rates that were offered."""
    loads = [math.exp(window.log_work) for window in again.windows if window.index in capacity.windows]
    if not loads:
        raise RunError(f"{run.path} has no window that is valid under these bounds: {NEW_RUN}")
    low, high = min(loads), max(loads)
    search = f"python -m loadgen sweep --config {run.path}/config.yaml {' '.join(words)}"
    if capacity.open_above or capacity.queue_grew or capacity.qps_per_node > high:
        what = f"at most {high:.3g} QPS per node, and these bounds allow more"
        raise RunError(f"{run.path} offered {what}: {search}")
    if capacity.open_below or capacity.qps_per_node < low:
        what = f"at least {low:.3g} QPS per node, and these bounds allow less"
        raise RunError(f"{run.path} offered {what}: {search}")


def _judge(slo: Slo, checks: list[Check]) -> Callable[[pa.Table, Window], bool]:
    """Whether a window is still valid by the checks whose bounds follow from those of the latencies."""

    def holds(requests: pa.Table, window: Window) -> bool:
        facts = Facts(requests, window, slo, WindowEvidence())
        judged = [rule.check(facts) for rule in RULES if rule.name in BY_BOUNDS]
        checks.extend(filter(None, judged))
        return not any(check.voids for check in judged if check)

    return holds


def _worst(recorded: Sequence[Check], judged: Sequence[Check]) -> list[Check]:
    """The recorded checks, in place of those that were judged anew the worst of these."""
    worst: dict[str, Check] = {}
    for check in judged:
        known = worst.get(check.name)
        if known is None or (check.value or 0.0) > (known.value or 0.0):
            worst[check.name] = check
    return [worst.get(check.name, check) for check in recorded]
