"""From what a driver saw to what may be said: the tree of sweep.json and the exit code.

Knows the rules of a verdict (void is neither pass nor fail, an open end is a bound and not a number);
prints nothing and writes nothing.
"""

from collections import Counter
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity import dwell_table, node_effects
from analysis.capacity.backlog import falls_behind
from analysis.capacity.dwell_table import CountingBasis
from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import LEAST_REQUESTS, posterior
from analysis.capacity.validity import REMEDIES, Verdict, judge_run
from analysis.capacity.window_counts import NS, Window, in_window
from analysis.results import summary
from analysis.results.summary import Tree
from analysis.rows import metrics, records
from analysis.stats.quantiles import quantile, sectioning
from conf.specs.bounds import LIMITS, QUANTILE
from conf.specs.experiment import Experiment
from loadgen.drive import require
from loadgen.drive.driver import Driver
from loadgen.drive.require import Required
from loadgen.drive.sweep import Sweep
from loadgen.search import acceptance
from loadgen.search.policy import prior
from loadgen.search.segments import Outcome, dwells_of


def of_sweep(experiment: Experiment, driver: Driver, sweep: Sweep, clock: str) -> Tree:
    """The conclusion of a search that ran to its end; `clock` is `wall` or `virtual`."""
    dwells = [o for o in sweep.outcomes if o.segment.kind == "dwell"]
    verdicts = [driver.windows.verdicts[o.segment.index] for o in dwells]
    verdict = judge_run(verdicts, experiment.search.min_dwells)
    tree = _base(experiment, driver)
    tree["clock"] = clock
    tree["evidence"] = _evidence(sweep, verdicts, clock, experiment.time_scale) + _waited(driver)
    if clock == "wall":
        # What was not used must not stand as evidence; of a void run every window is told.
        used = [v for v in verdicts if v.valid] if verdict.valid else list(driver.windows.verdicts.values())
        tree["checks"] = summary.worst_checks(used)
    if sweep.stop.kind == "actor_lost":
        why = f"actor_lost: {sweep.stop.reason}. {REMEDIES['actor_lost']}"
        return _end(tree, summary.EXIT_VOID, why, valid=False)
    if sweep.stop.kind == "void":
        last = [verdict for verdict in driver.windows.verdicts.values() if not verdict.valid][-1:]
        why = " ".join([f"{v.reason}: {v.remedy}" for v in last] + [sweep.stop.reason])
        return _end(tree, summary.EXIT_VOID, why, valid=False)
    if sweep.stop.kind == "slo_not_met_at_lowest":
        return _end(tree, summary.EXIT_SLO_MISSED, sweep.stop.reason, valid=True)
    capacity = driver.windows.capacity()
    if sweep.stop.kind == "above_highest" or capacity is None:
        return _end(tree, summary.EXIT_OPEN, sweep.stop.reason, valid=True)
    replicas_per_node = None if experiment.engine.kind == "external" else experiment.layout.replicas_per_node
    effects = driver.windows.node_effects()
    tree["capacity"] = summary.capacity_tree(node_effects.including(capacity, effects), replicas_per_node)
    if effects:
        tree["nodes"] = node_effects.tree(effects)
    if not verdict.valid:
        return _end(tree, summary.EXIT_VOID, f"{verdict.reason}: {verdict.remedy}", valid=False)
    if held := _held(experiment, driver):
        tree["hold"] = held
        if held["vetoed"]:
            why = (
                "vetoed: the certified rate was held, and what it showed lies below it; search again, longer"
            )
            return _end(tree, summary.EXIT_VOID, why, valid=False)
    if capacity.open_above or capacity.open_below:
        return _end(tree, summary.EXIT_OPEN, "the budget ran out with one end open", valid=True)
    return _end(tree, summary.EXIT_OK, "", valid=True)


def _held(experiment: Experiment, driver: Driver) -> Tree | None:
    """What the last hold of the certified rate showed, by itself; None where none was asked for.

    It vetoes where even the upper end of the capacity that it alone would give lies below the rate.
    """
    holds = [outcome for outcome in driver.windows.outcomes if outcome.segment.kind == "hold"]
    if not holds:
        return None
    last, rate_qps = holds[-1], holds[-1].segment.rate_qps
    rows, verdict = (
        in_window(driver.windows.requests(last.dwell.index), last.dwell),
        driver.windows.verdicts[last.dwell.index],
    )
    alone = posterior([replace(last.dwell, kind="dwell")], acceptance.prior_at(rate_qps))
    return {
        "rate_qps_per_node": rate_qps,
        "window_s": last.dwell.seconds,
        "requests": rows.num_rows,
        "valid": verdict.valid,
        "void_reason": verdict.reason,
        "capacity_high_qps_per_node": alone.high,
        "vetoed": verdict.valid and alone.high < rate_qps,
        **_p90s(experiment, rows),
    }


def of_probe(experiment: Experiment, driver: Driver) -> Tree:
    """The conclusion of one window without a search: each p90 with its interval against its bound."""
    outcome = driver.windows.outcomes[0]
    rows, verdict = in_window(driver.windows.requests(0), outcome.dwell), driver.windows.verdicts[0]
    tree = _base(experiment, driver)
    tree["checks"] = summary.worst_checks([verdict])
    tree["evidence"] = f"one window of {outcome.dwell.seconds:.4g} s, {rows.num_rows} requests"
    figures = _p90s(experiment, rows)
    tree["clock"] = "wall"
    tree["probe"] = {
        "loop": "closed" if experiment.concurrency else "open",
        "varies": experiment.rate_qps is None,
        "concurrency": experiment.concurrency,
        "rate_qps_per_node": outcome.segment.rate_qps,
        "offered": outcome.segment.reason,
        "window_s": outcome.dwell.seconds,
        "pieces": _pieces(experiment, rows, outcome.dwell),
        **figures,
    }
    if not verdict.valid:
        lost = "".join(f"{actor}. " for actor in driver.windows.lost_in(0))
        return _end(tree, summary.EXIT_VOID, f"{verdict.reason}: {lost}{verdict.remedy}", valid=False)
    if rows.num_rows < LEAST_REQUESTS:
        few = f"{rows.num_rows} requests say nothing; offer longer for {LEAST_REQUESTS} or more"
        return _end(tree, summary.EXIT_VOID, few, valid=False)
    missed = [limit.upper() for limit in LIMITS if figures[limit]["passed"] is False]
    if missed:
        return _end(tree, summary.EXIT_SLO_MISSED, f"p90 {' and '.join(missed)} over the bound", valid=True)
    if experiment.rate_qps and _behind(driver, outcome.dwell):
        why = "answers end more slowly than requests come: nothing passes; offer longer (duration_s=...)"
        return _end(tree, summary.EXIT_OPEN, why, valid=True)
    return _end(tree, summary.EXIT_OK, "", valid=True)


def _behind(driver: Driver, window: Window) -> bool:
    """True if answers fell behind the requests in a window, whenever those that ended in it were due."""
    rows = driver.windows.ledger.rows(window.index)
    return falls_behind(rows, window.window_start_ns, window.window_end_ns)


def of_levels(experiment: Experiment, driver: Driver) -> Tree:
    """What stands below several closed loops: the windows, their checks, and how much was seen."""
    tree = _base(experiment, driver, fitted=False)
    tree["checks"] = summary.worst_checks(list(driver.windows.verdicts.values()))
    tree["evidence"] = f"{len(driver.windows.outcomes)} closed loops in {driver.elapsed_s():.0f} s"
    return tree


def of_required(experiment: Experiment, driver: Driver, required: Required) -> Tree:
    """The conclusion on a required rate: passed, failed, or neither shown."""
    assert experiment.rate_qps
    look = require.analyse(driver, experiment.rate_qps, required.whole_s)
    used = [outcome for outcome in driver.windows.outcomes if not outcome.void]
    verdicts = [driver.windows.verdicts[outcome.segment.index] for outcome in driver.windows.outcomes]
    windows = [in_window(driver.windows.requests(o.segment.index), o.dwell) for o in used]
    rows = pa.concat_tables([records.PROGRESS.empty_table(), *windows])
    tree = _base(experiment, driver, acceptance.prior_at(experiment.rate_qps))
    tree["clock"] = "wall"
    tree["checks"] = summary.worst_checks([v for v in verdicts if v.valid] or verdicts)
    window_s = sum(outcome.dwell.seconds for outcome in used)
    tree["evidence"] = (
        f"{len(used)} of {len(verdicts)} windows used, {window_s:.4g} s, {rows.num_rows} requests"
    )
    tree["probe"] = {
        "loop": "open",
        "rate_qps_per_node": experiment.rate_qps,
        "window_s": window_s,
        **_p90s(experiment, rows),
        "required": {"verdict": look.verdict, "reason": look.reason, "looks": required.analyses},
    }
    if look.capacity is not None:
        tree["probe"]["required"]["capacity"] = summary.capacity_tree(look.capacity, None)
    if required.stop is not None or look.capacity is None:
        why = required.stop.reason if required.stop else look.reason
        return _end(tree, summary.EXIT_VOID, _void_reason(verdicts, why), valid=False)
    if look.verdict == "undecided":
        remedy = "offer longer (duration_s=...) or require another rate"
        why = f"neither is shown after {driver.elapsed_s():.0f} s: {look.reason}; {remedy}"
        return _end(tree, summary.EXIT_OPEN, why, valid=True)
    code = summary.EXIT_OK if look.verdict == "passed" else summary.EXIT_SLO_MISSED
    return _end(tree, code, look.reason, valid=True)


def _void_reason(verdicts: list[Verdict], why: str) -> str:
    """Why nothing is claimed, with the remedy of the last void window."""
    void = [verdict for verdict in verdicts if not verdict.valid]
    return f"{void[-1].reason}: {why}. {void[-1].remedy}" if void else why


def _p90s(experiment: Experiment, rows: pa.Table) -> Tree:
    return {bound.limit: _p90(rows, bound.limit, bound.ms) for bound in experiment.slo.bounds}


def _pieces(experiment: Experiment, rows: pa.Table, window: Window) -> list[Tree]:
    """Of a profile, the figures between each two of its points, and after the last."""
    starts_s = [second for second, _ in experiment.profile_qps]
    offset_s = (metrics.numbers(rows, "due_ns") - window.window_start_ns) / NS
    pieces = []
    for start_s, end_s in pairwise([*starts_s, window.seconds]):
        inside = rows.filter(pa.array((offset_s >= start_s) & (offset_s < end_s)))
        if end_s > start_s:
            pieces.append(
                {
                    "from_s": start_s,
                    "to_s": end_s,
                    "requests": inside.num_rows,
                    "rate_qps_per_node": inside.num_rows / (end_s - start_s) / window.nodes,
                    **_p90s(experiment, inside),
                }
            )
    return pieces


def of_failure(experiment: Experiment, driver: Driver | None, exit_code: int, reason: str) -> Tree:
    """The conclusion of a run that was interrupted or lost its target: what was seen, no claim."""
    tree = _base(experiment, driver, fitted=False)
    tree["evidence"] = f"{len(driver.windows.outcomes) if driver else 0} segments finished before the end"
    if driver is not None:
        tree["checks"] = summary.worst_checks(list(driver.windows.verdicts.values()))
    return _end(tree, exit_code, reason, valid=False)


def count_requests(rows: pa.Table, planned: int) -> Tree:
    """Planned requests, rows, and rows by status; what was retracted before its due time stands apart."""
    by_status = dict(sorted(summary.status_counts(rows).items()))
    return {"planned": planned, "rows": rows.num_rows, "by_status": by_status}


def _base(
    experiment: Experiment, driver: Driver | None, belief: Prior | None = None, fitted: bool = True
) -> Tree:
    """What every conclusion holds. `belief` is the posterior's prior where the search has none of its own."""
    tree = {"schema_version": summary.SCHEMA_VERSION, "asked": summary.describe(experiment), "dwells": []}
    if driver is None:
        return tree
    if driver.loss.recoveries:
        tree["recoveries"] = driver.loss.recoveries
    plan, outcomes = driver.plan, driver.windows.outcomes
    belief = belief or prior(plan.search, plan.begin, outcomes)
    replicas = len(plan.replicas) if plan.replicas else None
    basis = CountingBasis.of(plan.slo, plan.workload, plan.streams, driver.counted_ns, belief, replicas)
    rows = [_dwell_row(driver, outcome, basis) for outcome in outcomes]
    capacity = posterior(dwells_of(outcomes), belief) if belief and fitted else None
    return tree | {"dwells": dwell_table.with_dispersion(rows, capacity), "basis": asdict(basis)}


def _dwell_row(driver: Driver, outcome: Outcome, basis: CountingBasis) -> Tree:
    index = outcome.segment.index
    rows = in_window(driver.windows.requests(index), outcome.dwell)
    why = outcome.segment.reason
    return dwell_table.row(outcome.dwell, driver.windows.verdicts[index], basis, rows, why, outcome.bad)


def _p90(rows: pa.Table, limit: str, bound_ms: float) -> dict[str, Any]:
    """p90 of a limit's latency; what did not end by the end of the drain is infinitely late.

    `passed` is None where the latency does not apply, as TPOT to answers of one token.
    """
    latency = metrics.ttft(rows) if limit == "ttft" else metrics.tpot(rows)
    latency = np.where(metrics.status_in(rows, records.PENDING), np.inf, latency)
    p90 = quantile(latency, QUANTILE)
    return {
        "p90_ms": p90,
        "interval_ms": sectioning(latency, QUANTILE),
        "bound_ms": bound_ms,
        "passed": None if p90 is None else p90 <= bound_ms,
    }


def _evidence(sweep: Sweep, verdicts: list[Verdict], clock: str, time_scale: float) -> str:
    kinds = Counter(outcome.segment.kind for outcome in sweep.outcomes)
    ramp = f"{kinds['ramp']} ramp steps and " if kinds["ramp"] else ""
    void = Counter(verdict.reason for verdict in verdicts if not verdict.valid)
    lost = f" ({', '.join(f'{count} void: {reason}' for reason, count in void.items())})" if void else ""
    took = f"{sweep.elapsed_s:.0f} s of {clock} time"
    if clock == "wall" and time_scale != 1:
        took = (
            f"{sweep.elapsed_s:.0f} s of the engine's time, {sweep.elapsed_s / time_scale:.0f} s of wall time"
        )
    return f"{ramp}{len(verdicts)} dwells{lost} in {took}"


def _waited(driver: Driver) -> str:
    """How often the service was lost and came back, and the time of it, which no budget counts."""
    if not driver.loss.recoveries:
        return ""
    waited_s = sum(recovery["waited_s"] for recovery in driver.loss.recoveries)
    return f", and {waited_s:.0f} s in which the service came back ({len(driver.loss.recoveries)} time(s))"


def _end(tree: Tree, exit_code: int, reason: str, *, valid: bool) -> Tree:
    return {
        **tree,
        "valid": valid,
        "passed": exit_code == summary.EXIT_OK,
        "exit_code": exit_code,
        "reason": reason,
    }
