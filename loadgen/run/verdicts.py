"""Verdicts from what a driver saw: the rules that end in sweep.json and in the exit code."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from analysis.capacity import window_table
from analysis.capacity.checks import judge_run
from analysis.capacity.growing_queue import falls_behind
from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import LEAST_REQUESTS, posterior
from analysis.capacity.rules import REASONS, Verdict, worst_checks
from analysis.capacity.window_counts import NS, Window, latency_so_far, parts_over
from analysis.capacity.window_table import CountingBasis
from analysis.results.experiment_facts import describe
from analysis.results.figures import (
    CapacityFigures,
    HoldFigures,
    ProbeFigures,
    ProfilePiece,
    Quantile,
    RequestCounts,
    RequiredRate,
)
from analysis.results.summary import (
    EXIT_OK,
    EXIT_OPEN,
    EXIT_SLO_MISSED,
    EXIT_TARGET,
    EXIT_VOID,
    status_counts,
)
from analysis.results.verdicts import NodeSpread, RunVerdict, ServiceRecovery
from analysis.rows import failures, metrics, records
from analysis.stats.dispersion import quantile_interval
from analysis.stats.estimate import Estimate
from analysis.stats.quantiles import quantile
from conf.specs.bounds import PER_REQUEST, Bound, Limit, Slo, allowed_over, label, metric_of, quantile_of
from conf.specs.experiment import Experiment
from loadgen.drive.driver import Driver
from loadgen.drive.programs import Required, analyse
from loadgen.search import acceptance
from loadgen.search.window_plan import Stop, counted_windows

QUEUE_GREW = (
    "in the windows that kept the bounds near this rate more requests came than ended: the queue still grew, "
    "and longer windows would miss a bound; measure with a longer search.window_s"
)


def sweep_verdict(experiment: Experiment, driver: Driver, stop: Stop) -> RunVerdict:
    """The verdict of a search that ended by `stop`."""
    judged = [window.verdict for window in driver.windows.outcomes if window.plan.kind == "window"]
    whole = judge_run(judged, experiment.search.min_windows)
    evidence = _evidence(driver, judged, experiment.time_scale)
    claim = driver.windows.claim()
    if claim and claim.change:
        evidence += f"; {claim.change}"
    # What was not used must not stand as evidence; of a void run every window is judged.
    used = [verdict for verdict in judged if verdict.valid] if whole.valid else _every(driver)
    base = _base(experiment, driver)
    verdict = replace(base, clock="wall", evidence=evidence, checks=worst_checks(used))
    if stop.kind == "actor_lost" and whole.valid:
        verdict = replace(verdict, evidence=f"{evidence}; it ended early: {stop.reason}")
    elif stopped := _stopped(driver, stop, verdict):
        return stopped
    if stop.kind == "above_highest" or claim is None:
        return _ended(verdict, EXIT_OPEN, stop.reason)
    capacity, effects = claim.capacity, claim.nodes
    replicas_per_node = None if experiment.engine.kind == "external" else experiment.layout.replicas_per_node
    verdict = replace(
        verdict,
        capacity=CapacityFigures.from_posterior(capacity, replicas_per_node),
        nodes=NodeSpread.from_effects(effects) if effects else None,
    )
    if not whole.valid:
        return _ended(verdict, EXIT_VOID, f"{whole.reason}: {whole.remedy}", valid=False)
    verdict = replace(verdict, hold=_held(driver))
    if verdict.hold and verdict.hold.vetoed:
        why = "vetoed: the 5 % quantile was held, and what it showed lies below it; search again, longer"
        return _ended(verdict, EXIT_VOID, why, valid=False)
    if capacity.queue_grew:
        return _ended(verdict, EXIT_OPEN, QUEUE_GREW)
    limit = capacity.limits[capacity.binding]
    if capacity.open_below and limit.slope_unusual:
        missed, may = limit.over / limit.determined, allowed_over(capacity.binding)
        why = (
            f"of the requests {100 * missed:.2g} % missed the bound on {label(capacity.binding)}, hardly "
            f"fewer at lower rates, and {100 * may:.2g} % may: most likely no rate keeps it"
        )
        return _ended(verdict, EXIT_OPEN, why)
    if capacity.open_above or capacity.open_below:
        return _ended(verdict, EXIT_OPEN, "the budget ran out with one end open")
    return _ended(verdict, EXIT_OK, "")


def _stopped(driver: Driver, stop: Stop, verdict: RunVerdict) -> RunVerdict | None:
    """The verdict of a search that was stopped early, missed its bounds everywhere or had hardly an answer.

    None of others.
    """
    if stop.kind == "actor_lost":
        why = f"actor_lost: {stop.reason}. {REASONS['actor_lost'].remedy}"
        return _ended(verdict, EXIT_VOID, why, valid=False)
    if stop.kind == "void":
        last = [one for one in _every(driver) if not one.valid][-1:]
        why = " ".join([f"{one.reason}: {one.remedy}" for one in last] + [stop.reason])
        return _ended(verdict, EXIT_VOID, why, valid=False)
    windows = [
        window for window in driver.windows.outcomes if window.plan.kind == "window" and not window.void
    ]
    rows = [window.rows for window in windows]
    if rows and all(map(failures.nearly_all, rows)):
        why = f"at every rate: {failures.account(pa.concat_tables(rows))}"
        return _ended(verdict, EXIT_TARGET, why, valid=False)
    if stop.kind == "slo_not_met_at_lowest":
        return _ended(verdict, EXIT_SLO_MISSED, stop.reason)
    return None


def _held(driver: Driver) -> HoldFigures | None:
    """The last confirmation run at the certified rate, by itself; None where none was asked for.

    It vetoes where even the upper end of the capacity that it alone would give lies below the rate.
    """
    holds = [window for window in driver.windows.outcomes if window.plan.kind == "hold"]
    if not holds:
        return None
    last, rate_qps, judged = holds[-1], holds[-1].plan.rate_qps, holds[-1].verdict
    alone = posterior([replace(last.counts, kind="window")], acceptance.prior_at(rate_qps))
    return HoldFigures(
        rate_qps_per_node=rate_qps,
        window_s=last.counts.seconds,
        requests=last.rows.num_rows,
        valid=judged.valid,
        void_reason=judged.reason,
        capacity_high_qps_per_node=alone.high,
        vetoed=judged.valid and alone.high < rate_qps,
        limits=_limits(driver, last.rows, last.counts.seconds),
    )


def probe_verdict(experiment: Experiment, driver: Driver) -> RunVerdict:
    """The verdict of one window without a search: each p90 with its interval against its bound."""
    window = driver.windows.outcomes[0]
    counts, judged, rows = window.counts, window.verdict, window.rows
    probe = ProbeFigures(
        loop="closed" if experiment.concurrency else "open",
        varies=experiment.rate_qps is None,
        concurrency=experiment.concurrency,
        rate_qps_per_node=window.plan.rate_qps,
        offered=window.plan.reason,
        window_s=counts.seconds,
        pieces=tuple(_pieces(experiment, driver, rows, counts)),
        limits=_limits(driver, rows, counts.seconds),
    )
    verdict = replace(
        _base(experiment, driver),
        checks=worst_checks([judged]),
        evidence=f"one window of {counts.seconds:.4g} s, {rows.num_rows} requests",
        clock="wall",
        probe=probe,
    )
    if not judged.valid:
        lost = "".join(f"{actor}. " for actor in window.evidence.lost_actors)
        return _ended(verdict, EXIT_VOID, f"{judged.reason}: {lost}{judged.remedy}", valid=False)
    if rows.num_rows < LEAST_REQUESTS:
        few = f"{rows.num_rows} requests say nothing; offer longer for {LEAST_REQUESTS} or more"
        return _ended(verdict, EXIT_VOID, few, valid=False)
    if probe.missed:
        return _ended(verdict, EXIT_SLO_MISSED, f"{' and '.join(map(label, probe.missed))} over the bound")
    if not_shown := "; ".join(_not_shown(experiment, driver, probe, rows.num_rows)):
        remedy = "offer longer (duration_s=...)" if experiment.rate_qps else "offer more requests"
        why = f"the window is too short to show that the bounds are kept; {remedy}"
        return _ended(replace(verdict, probe=replace(probe, not_shown=not_shown)), EXIT_OPEN, why)
    return _ended(verdict, EXIT_OK, "")


def _not_shown(experiment: Experiment, driver: Driver, probe: ProbeFigures, requests: int) -> Iterator[str]:
    """Reasons why a rate within its bounds so far is not shown to stay there; of one rate alone a queue."""
    window = driver.windows.outcomes[0]
    if experiment.rate_qps:
        within = window.counts.window_start_ns, window.counts.window_end_ns
        checks = window.verdict.checks
        grew = any(check.name == "backlog_slope_t" and check.passed is False for check in checks)
        if grew or falls_behind(driver.windows.ledger.rows(0), *within):
            yield "the queue still grew"
    if probe.unshown:
        limits, needs = " and ".join(map(label, probe.unshown)), max(probe.unshown.values())
        yield f"{requests} requests, and the interval of {limits} needs {needs}"


def seen_verdict(experiment: Experiment, driver: Driver | None, evidence: str) -> RunVerdict:
    """A verdict without a claim about a capacity: windows, checks, and how much was seen."""
    return replace(
        _base(experiment, driver, fitted=False),
        evidence=evidence,
        checks=None if driver is None else worst_checks(_every(driver)),
    )


def required_verdict(experiment: Experiment, driver: Driver, required: Required) -> RunVerdict:
    """The verdict on a required rate: passed, failed, or neither shown."""
    assert experiment.rate_qps
    look = analyse(driver, experiment.rate_qps, required.whole_s)
    used = [window for window in driver.windows.outcomes if not window.void]
    judged = _every(driver)
    rows = pa.concat_tables([records.PROGRESS.empty_table(), *(window.rows for window in used)])
    window_s = sum(window.counts.seconds for window in used)
    capacity = None if look.capacity is None else CapacityFigures.from_posterior(look.capacity, None)
    shown = RequiredRate(verdict=look.verdict, reason=look.reason, looks=required.analyses, capacity=capacity)
    verdict = replace(
        _base(experiment, driver, acceptance.prior_at(experiment.rate_qps)),
        clock="wall",
        checks=worst_checks([one for one in judged if one.valid] or judged),
        evidence=f"{len(used)} of {len(judged)} windows used, {window_s:.4g} s, {rows.num_rows} requests",
        probe=ProbeFigures(
            rate_qps_per_node=experiment.rate_qps,
            window_s=window_s,
            limits=_limits(driver, rows, window_s),
            required=shown,
        ),
    )
    if required.stop is not None or look.capacity is None:
        why = required.stop.reason if required.stop else look.reason
        if void := [one for one in judged if not one.valid]:
            why = f"{void[-1].reason}: {why}. {void[-1].remedy}"
        return _ended(verdict, EXIT_VOID, why, valid=False)
    if look.verdict == "undecided":
        remedy = "offer longer (duration_s=...) or require another rate"
        why = f"neither is shown after {driver.elapsed_s():.0f} s: {look.reason}; {remedy}"
        return _ended(verdict, EXIT_OPEN, why)
    return _ended(verdict, EXIT_OK if look.verdict == "passed" else EXIT_SLO_MISSED, look.reason)


def _pieces(experiment: Experiment, driver: Driver, rows: pa.Table, window: Window) -> list[ProfilePiece]:
    starts_s = [second for second, _ in experiment.profile_qps]
    offset_s = (metrics.numbers(rows, "due_ns") - window.window_start_ns) / NS
    pieces = []
    for start_s, end_s in pairwise([*starts_s, window.seconds]):
        inside = rows.filter(pa.array((offset_s >= start_s) & (offset_s < end_s)))
        if end_s > start_s:
            pieces.append(
                ProfilePiece(
                    from_s=start_s,
                    to_s=end_s,
                    requests=inside.num_rows,
                    rate_qps_per_node=inside.num_rows / (end_s - start_s) / window.nodes,
                    limits=_limits(driver, inside, end_s - start_s),
                )
            )
    return pieces


def failure_verdict(experiment: Experiment, driver: Driver | None, exit_code: int, reason: str) -> RunVerdict:
    """The verdict of a run that was interrupted or lost its target: what was seen, no claim."""
    windows = len(driver.windows.outcomes) if driver else 0
    verdict = seen_verdict(experiment, driver, f"{windows} windows finished before the end")
    return _ended(verdict, exit_code, reason, valid=False)


def count_requests(rows: pa.Table, planned: int) -> RequestCounts:
    """Planned requests, rows, and rows by status; what was retracted before its due time stands apart."""
    states = dict(sorted(status_counts(rows).items()))
    return RequestCounts(planned, rows.num_rows, states, failures.kinds(rows))


def _base(
    experiment: Experiment, driver: Driver | None, belief: Prior | None = None, fitted: bool = True
) -> RunVerdict:
    """The part that every verdict holds. `belief` is the prior where the search has none of its own.

    It claims nothing yet: `_ended` says how the run ended.
    """
    verdict = RunVerdict(experiment=describe(experiment), valid=False, exit_code=EXIT_VOID)
    if driver is None:
        return verdict
    plan, outcomes = driver.plan, driver.windows.outcomes
    belief = belief or driver.windows.prior
    replicas = len(plan.replicas) if plan.replicas else None
    basis = CountingBasis.of(plan.slo, plan.workload, plan.streams, driver.counted_ns, belief, replicas)
    rows = [
        window_table.row(
            outcome.counts, outcome.verdict, basis, outcome.rows, outcome.plan.reason, outcome.bad
        )
        for outcome in outcomes
    ]
    capacity = posterior(counted_windows(outcomes), belief) if belief and fitted else None
    return replace(
        verdict,
        windows=tuple(window_table.with_dispersion(rows, capacity)),
        recoveries=tuple(ServiceRecovery(**recovery) for recovery in driver.loss.recoveries),
        basis=basis,
    )


def _limits(driver: Driver, rows: pa.Table, seconds: float) -> dict[Limit, Quantile]:
    """Each limited quantile of the rows of so many seconds against its bound."""
    rows, slo, now_ns = rows.sort_by("due_ns"), driver.plan.slo, driver.counted_ns
    return {bound.limit: _quantile(rows, seconds, slo, bound, now_ns) for bound in slo.bounds}


def _quantile(rows: pa.Table, seconds: float, slo: Slo, bound: Bound, now_ns: int) -> Quantile:
    """A limited quantile, or a share where requests have no one such latency; None if it does not apply."""
    q = quantile_of(bound.limit)
    if metric_of(bound.limit) not in PER_REQUEST:
        over, determined = parts_over(rows, slo, bound, now_ns)
        share = 1 - over.sum() / determined.sum() if determined.sum() else None
        return Quantile(
            ms=None,
            bound_ms=bound.ms,
            passed=None if share is None else bool(share >= q),
            share=None if share is None else float(share),
            needs=quantile_interval(np.zeros(rows.num_rows), q, seconds).needs,
        )
    # What did not end is infinitely late.
    is_open = metrics.status_in(rows, records.PENDING)
    latency = np.where(is_open, np.inf, latency_so_far(rows, bound, now_ns))
    value, interval = quantile(latency, q), quantile_interval(latency, q, seconds)
    return Quantile(
        ms=None if value is None else Estimate(value, *(interval.ends or (None, None))),
        bound_ms=bound.ms,
        passed=None if value is None else value <= bound.ms,
        needs=interval.needs,
        needs_s=interval.needs_s,
    )


def _every(driver: Driver) -> list[Verdict]:
    return [window.verdict for window in driver.windows.outcomes]


def _evidence(driver: Driver, judged: Sequence[Verdict], time_scale: float) -> str:
    kinds = Counter(outcome.plan.kind for outcome in driver.windows.outcomes)
    ramp = f"{kinds['ramp']} ramp steps and " if kinds["ramp"] else ""
    void = Counter(window.reason for window in judged if not window.valid)
    lost = f" ({', '.join(f'{count} void: {reason}' for reason, count in void.items())})" if void else ""
    took_s = driver.elapsed_s()
    took = f"{took_s:.0f} s of wall time"
    if time_scale != 1:
        took = f"{took_s:.0f} s of the engine's time, {took_s / time_scale:.0f} s of wall time"
    if recoveries := driver.loss.recoveries:
        # Losses from which the service came back: no budget counts their time.
        waited_s = sum(recovery["waited_s"] for recovery in recoveries)
        took += f", and {waited_s:.0f} s in which the service came back ({len(recoveries)} time(s))"
    return f"{ramp}{len(judged)} windows{lost} in {took}"


def _ended(verdict: RunVerdict, exit_code: int, reason: str, *, valid: bool = True) -> RunVerdict:
    return replace(verdict, valid=valid, passed=exit_code == EXIT_OK, exit_code=exit_code, reason=reason)
