"""From what a driver saw to what may be said: the tree of sweep.json and the exit code.

Knows the rules of a verdict (void is neither pass nor fail, an open end is a bound and not a number);
prints nothing and writes nothing.
"""

from collections import Counter
from typing import Any

import pyarrow as pa

from analysis import metrics, summary
from analysis.capacity import LIMITS
from analysis.dwell import in_window
from analysis.quantiles import quantile, sectioning
from analysis.summary import Tree
from analysis.validity import judge_run
from conf.schema import Experiment
from loadgen.sweep import Driver, Sweep


def of_sweep(experiment: Experiment, driver: Driver, sweep: Sweep, clock: str) -> Tree:
    """The conclusion of a search that ran to its end; `clock` is `wall` or `virtual`."""
    dwells = [o for o in sweep.outcomes if o.segment.kind == "dwell"]
    verdicts = [sweep.verdicts[o.segment.index] for o in dwells]
    tree = _base(experiment, driver)
    tree["evidence"] = _evidence(len(sweep.outcomes) - len(dwells), len(dwells), sweep.elapsed_s, clock)
    tree["checks"] = summary.worst_checks(verdicts)
    if sweep.capacity is not None:
        tree["capacity"] = summary.capacity_tree(sweep.capacity, experiment.layout.replicas_per_node)
    if sweep.stop.kind == "slo_not_met_at_lowest":
        return _end(tree, summary.EXIT_SLO_MISSED, sweep.stop.reason, valid=True)
    if sweep.stop.kind == "above_highest":
        return _end(tree, summary.EXIT_OPEN, sweep.stop.reason, valid=True)
    if sweep.capacity is None:
        void = next((v for v in driver.verdicts.values() if not v.valid), None)
        if void:
            return _end(tree, summary.EXIT_VOID, f"{void.reason}: {void.remedy}", valid=False)
        return _end(tree, summary.EXIT_OPEN, sweep.stop.reason, valid=True)
    verdict = judge_run(verdicts, experiment.search.min_dwells)
    if not verdict.valid:
        return _end(tree, summary.EXIT_VOID, f"{verdict.reason}: {verdict.remedy}", valid=False)
    if sweep.capacity.open_above or sweep.capacity.open_below:
        return _end(tree, summary.EXIT_OPEN, "the budget ran out with one end open", valid=True)
    return _end(tree, summary.EXIT_OK, "", valid=True)


def of_probe(experiment: Experiment, driver: Driver) -> Tree:
    """The conclusion of one held rate: each p90 with its interval against its bound."""
    outcome = driver.outcomes[0]
    rows, verdict = in_window(driver.requests(0), outcome.dwell), driver.verdicts[0]
    tree = _base(experiment, driver)
    tree["checks"] = summary.worst_checks([verdict])
    tree["evidence"] = f"one window of {outcome.segment.window_s:g} s, {rows.num_rows} requests"
    figures = {limit: _p90(rows, limit, getattr(experiment.slo, f"{limit}_p90_ms")) for limit in LIMITS}
    tree["probe"] = {
        "rate_qps_per_node": outcome.segment.rate_qps,
        "window_s": outcome.segment.window_s,
        **figures,
    }
    if not verdict.valid:
        return _end(tree, summary.EXIT_VOID, f"{verdict.reason}: {verdict.remedy}", valid=False)
    missed = [limit.upper() for limit in LIMITS if not figures[limit]["passed"]]
    if missed:
        return _end(tree, summary.EXIT_SLO_MISSED, f"p90 {' and '.join(missed)} over the bound", valid=True)
    return _end(tree, summary.EXIT_OK, "", valid=True)


def of_failure(experiment: Experiment, driver: Driver | None, exit_code: int, reason: str) -> Tree:
    """The conclusion of a run that was interrupted or lost its target: what was seen, no claim."""
    tree = _base(experiment, driver)
    tree["evidence"] = f"{len(driver.outcomes) if driver else 0} segments finished before the end"
    if driver is not None:
        tree["checks"] = summary.worst_checks(list(driver.verdicts.values()))
    return _end(tree, exit_code, reason, valid=False)


def count_requests(rows: pa.Table, planned: int) -> Tree:
    """Planned requests, rows, and rows by status; what was retracted before its due time stands apart."""
    states = zip(rows["status"].to_pylist(), rows["phase"].to_pylist(), strict=True)
    by_status = Counter("retracted" if phase == "retracted" else status for status, phase in states)
    return {"planned": planned, "rows": rows.num_rows, "by_status": dict(sorted(by_status.items()))}


def _base(experiment: Experiment, driver: Driver | None) -> Tree:
    outcomes = driver.outcomes if driver else []
    verdicts = driver.verdicts if driver else {}
    return {
        "schema_version": summary.SCHEMA_VERSION,
        "asked": summary.describe(experiment),
        "dwells": [summary.dwell_row(o.dwell, verdicts[o.segment.index], o.segment.reason) for o in outcomes],
    }


def _p90(rows: pa.Table, limit: str, bound_ms: float) -> dict[str, Any]:
    latency = metrics.ttft(rows) if limit == "ttft" else metrics.tpot(rows)
    p90 = quantile(latency, 0.9)
    return {
        "p90_ms": p90,
        "interval_ms": sectioning(latency, 0.9),
        "bound_ms": bound_ms,
        "passed": p90 is not None and p90 <= bound_ms,
    }


def _evidence(ramps: int, dwells: int, elapsed_s: float, clock: str) -> str:
    ramp = f"{ramps} ramp steps and " if ramps else ""
    return f"{ramp}{dwells} dwells in {elapsed_s:.0f} s of {clock} time"


def _end(tree: Tree, exit_code: int, reason: str, *, valid: bool) -> Tree:
    return {
        **tree,
        "valid": valid,
        "passed": exit_code == summary.EXIT_OK,
        "exit_code": exit_code,
        "reason": reason,
    }
