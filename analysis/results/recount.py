"""The capacity of a run again, from its Parquet files alone: beside the recorded one, or under other bounds.

Counts are compared exactly, figures derived from them within `TOLERANCE`: CPUs with other instructions add
in another order. Another bound needs no new run as long as its capacity lies within the rates that were
offered; the windows were placed for the old bounds, so that the interval is wider than that of a new search.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity import window_table
from analysis.capacity.checks import RULES
from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import RECENTRED_SD, Capacity, including, node_effects, posterior
from analysis.capacity.rules import Check, Facts, WindowEvidence, worst_by_name
from analysis.capacity.service_change import claimed
from analysis.capacity.window_counts import WindowCounts, count, count_by_stream
from analysis.results.experiment_facts import describe
from analysis.results.figures import CapacityFigures
from analysis.results.json_border import to_tree
from analysis.results.runs import Run, RunError
from analysis.results.verdicts import RunVerdict
from analysis.rows import metrics
from conf import ConfigError, load
from conf.keys import flat
from conf.specs.bounds import Slo, label, metric_of

COUNTS = ("requests", "completed", "failed", "pending", "waiting_at_start", "log_work")
TOLERANCE = 1e-9
"""Largest relative difference of a derived figure that counts as none (our choice).

CPUs differ by 1e-15; one answer more or less in a window of thousands moves figures by more than 1e-6."""
SMALLEST = 1e-12
"""Largest absolute difference that counts as none, for probabilities next to 0 (our choice)."""


@dataclass(frozen=True, slots=True)
class Recount:
    """Every window counted again, and the posterior of those that are not void; None without a prior.

    `checks` are those of the valid windows, under other bounds only.
    """

    windows: tuple[WindowCounts, ...]
    capacity: Capacity | None
    checks: tuple[Check, ...]


def recount(run: Run, slo: Slo | None = None) -> Recount:
    """Count every window of an ended run again. Raises RunError where the files do not hold what it takes.

    By default by its own bounds. Under others, `slo`, the prior of the search is widened to one that was far
    off, and a window may become void.
    """
    table = run.windows()
    if not table.num_rows:
        raise RunError(f"{run.path} has no windows.parquet: nothing was measured, or the run did not end")
    basis = window_table.basis_of(table)
    if basis is None:
        raise RunError(
            f"{run.path}/windows.parquet lacks the prior, the bounds and the planned ends that a recount "
            "needs; sweep.json still holds what was concluded"
        )
    requests = run.requests()
    window_index = metrics.numbers(requests, "window_index")

    def around(index: int) -> pa.Table:
        return requests.filter(pa.array(np.isin(window_index, [index - 1, index, index + 1])))

    counting = slo or basis.slo, basis.workload, basis.counted_ns
    prior = basis.prior and (Prior(basis.prior.centre, RECENTRED_SD) if slo else basis.prior)
    counted: list[WindowCounts] = []
    used: list[WindowCounts] = []
    checks: list[Check] = []
    for line in table.to_pylist():
        window, index = window_table.window(line), line["index"]
        rows = around(index)
        counts = replace(count(rows, window, *counting), weight=line["weight"])
        counted.append(counts)
        judged: list[Check] = []
        if slo and line["valid"]:
            facts = Facts(rows, window, slo, WindowEvidence())
            judged = [check for rule in RULES if rule.name in BY_BOUNDS and (check := rule.check(facts))]
        checks += judged
        if line["valid"] and not any(check.voids for check in judged):
            used += count_by_stream(rows, window, basis.streams, *counting) if basis.streams else (counts,)
    capacity = None
    if prior and run.verdict and run.verdict.capacity:
        capacity = claimed(used, prior, counted, around).capacity
    elif prior:
        capacity = including(posterior(used, prior), node_effects(used, prior))
    return Recount(tuple(counted), capacity, tuple(checks))


BY_BOUNDS = ("send_lag_p99", "path_p90", "path_over", "queue_told")
"""Rules about a window whose bounds follow from those of the latencies."""


def recomputed(run: Run) -> tuple[str, bool]:
    """The verdict of a run beside what its Parquet files give, and whether the two agree.

    Raises RunError if the files lack what a recount needs.
    """
    again, counts = recount(run), list[str]()
    for line, window in zip(run.windows().to_pylist(), again.windows, strict=True):
        fresh = {name: getattr(window, name) for name in COUNTS}
        old = dict(line)
        for limit, counted in window.limits.items():
            fresh |= {f"{limit}_over": counted.over, f"{limit}_determined": counted.determined}
        for bound in line["bounds"] or ():
            old |= {f"{bound['bound']}_{name}": bound[name] for name in ("over", "determined")}
        others = _differences({name: old.get(name) for name in fresh}, fresh)
        counts += [f"window {window.index}: {other}" for other in others]
    lines, agrees = _capacity_lines(run.verdict, again.capacity)
    agrees = agrees and not counts
    heads = [
        f"{'SAME' if agrees else 'DIFFERENT'}  {run.path} recomputed from its Parquet files",
        f"counts of {len(again.windows)} windows, exactly: {'; '.join(counts) or 'identical'}",
    ]
    return "\n".join([*heads, *lines]), agrees


def _capacity_lines(verdict: RunVerdict | None, capacity: Capacity | None) -> tuple[list[str], bool]:
    """Lines of the recorded capacity beside that of the files, and True if both agree."""
    searched = verdict.capacity if verdict else None
    required = verdict.probe.required if verdict and verdict.probe else None
    claimed = searched or (required.capacity if required else None)
    if claimed is None:
        return ["capacity: none was recorded"], True
    if capacity is None:
        return ["capacity: recorded, but the files hold no prior to compute it from"], False
    figures = CapacityFigures.from_posterior(capacity, None)
    if searched:
        figures = figures.joined_like(searched)
    # Figures per replica repeat those per node.
    recorded, fresh = (flat(to_tree(replace(each, qps_per_replica=None))) for each in (claimed, figures))
    lines = []
    for name in ("value", "low", "high", "certified"):
        old, new = (each[f"qps_per_node.{name}"] for each in (recorded, fresh))
        lines.append(f"  {name:<9} recorded {old!r}, recomputed {new!r} QPS per node")
    if figures.constants:
        lines.append("  joined with the engine model's constants as recorded: they are not drawn again")
    other = _differences(recorded, fresh)
    agreed = "identical" if recorded == fresh else "the same"
    lines.append(f"capacity, limits and windows used, within {TOLERANCE:g}: {'; '.join(other) or agreed}")
    return lines, not other


def same(recorded: Any, recomputed: Any) -> bool:
    """True for equal values, and for two floats within the tolerance."""
    if isinstance(recorded, float) and isinstance(recomputed, float):
        return math.isclose(recorded, recomputed, rel_tol=TOLERANCE, abs_tol=SMALLEST)
    return bool(recorded == recomputed)


def _differences(recorded: Mapping[str, Any], fresh: Mapping[str, Any]) -> list[str]:
    """The figures that are not the same, by their names."""
    pairs = ((name, recorded.get(name), fresh.get(name)) for name in {**fresh, **recorded})
    return [f"{name} recorded {old!r}, recomputed {new!r}" for name, old, new in pairs if not same(old, new)]


JUDGED = "judged by {new} with the windows of a search for {old}"
NEW_RUN = "that bound needs a new run"
ALONE = "they were drawn for the bounds of the search"


def rejudge(run: Run, *words: str) -> RunVerdict:
    """The verdict of a search under other bounds: `rejudge(run, "slo.ttft_p90_ms=500")`.

    `words` are slo.KEY=VALUE, or slo=NAME. Raises RunError with one line where the run claims no result,
    where its rows do not tell what a bound needs, and where the capacity lies beyond the rates offered.
    """
    verdict = _searched(run)
    recorded = verdict.experiment.slo
    slo = _bounds(run, recorded, words)
    again = recount(run, slo)
    capacity = _offered(run, again, slo, words)
    worst = worst_by_name(again.checks)
    replicas = verdict.experiment.replicas / verdict.experiment.nodes if verdict.experiment.replicas else None
    figures = CapacityFigures.from_posterior(capacity, replicas)
    return replace(
        verdict,
        experiment=replace(verdict.experiment, slo=describe(replace(run.config, slo=slo)).slo),
        capacity=replace(figures, constants_unknown=ALONE),
        checks=tuple(worst.get(check.name, check) for check in verdict.checks or ()),
        evidence=f"{len(capacity.windows)} windows of {verdict.evidence}",
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


def _bounds(run: Run, recorded: Slo, words: Sequence[str]) -> Slo:
    """The run's bounds with those of `words` in their place.

    Raises RunError for other words, and for a bound on gaps that the rows were not counted by.
    """
    for word in words:
        if word.partition("=")[0].partition(".")[0] != "slo":
            raise RunError(f"'{word}' is no bound; give slo.KEY=VALUE, such as slo.ttft_p90_ms=500")
    try:
        slo = load(words, base=run.path / "config.yaml").slo
    except ConfigError as error:
        raise RunError(str(error)) from error
    for limit in slo.limits:
        is_same = limit in recorded.limits and recorded.bound_ms(limit) == slo.bound_ms(limit)
        if metric_of(limit) == "itl_pooled" and not is_same:
            raise RunError(f"{run.path} counted no gaps against {slo.words(limit)}: {NEW_RUN}")
    if slo.itl_within != recorded.itl_within and slo.strictest_ms("itl") is not None:
        raise RunError(f"{run.path} recorded gaps at slo.itl_within={recorded.itl_within:g}: {NEW_RUN}")
    return slo


def _offered(run: Run, again: Recount, slo: Slo, words: Sequence[str]) -> Capacity:
    """The capacity. Raises RunError for a bound on what no row reports, and beyond the rates offered."""
    for limit in slo.limits:
        if not any(window.limits[limit].determined for window in again.windows):
            raise RunError(f"{run.path} did not record what {label(limit)} needs: {NEW_RUN}")
    capacity = again.capacity
    assert capacity is not None, "a search has a prior"
    loads = [math.exp(window.log_work) for window in again.windows if window.index in capacity.windows]
    if not loads:
        raise RunError(f"{run.path} has no window that is valid under these bounds: {NEW_RUN}")
    low, high, what = min(loads), max(loads), ""
    if capacity.open_above or capacity.queue_grew or capacity.qps_per_node > high:
        what = f"at most {high:.3g} QPS per node, and these bounds allow more"
    elif capacity.open_below or capacity.qps_per_node < low:
        what = f"at least {low:.3g} QPS per node, and these bounds allow less"
    if what:
        search = f"python -m loadgen sweep --config {run.path}/config.yaml {' '.join(words)}"
        raise RunError(f"{run.path} offered {what}: {search}")
    return capacity
