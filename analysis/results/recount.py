"""The capacity of a run again, from its Parquet files alone, beside the recorded one.

Counts are compared exactly, figures derived from them within `TOLERANCE`: CPUs with other instructions add
in another order.
"""

import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity import window_table
from analysis.capacity.growing_queue import upper_side
from analysis.capacity.limit_posterior import Prior
from analysis.capacity.node_effects import including, node_effects
from analysis.capacity.posterior import RECENTRED_SD, Capacity, posterior
from analysis.capacity.window_counts import Window, WindowCounts, count, count_by_stream
from analysis.results import claims, joint, studies
from analysis.results.json_border import to_tree
from analysis.results.runs import Run, RunError, load_run
from analysis.rows import metrics
from conf.specs.bounds import Slo

COUNTS = ("requests", "completed", "failed", "pending", "waiting_at_start", "log_work")
TOLERANCE = 1e-9
"""Largest relative difference of a derived figure that counts as none (our choice).

CPUs differ by 1e-15; one answer more or less in a window of thousands moves figures by more than 1e-6."""
SMALLEST = 1e-12
"""Largest absolute difference that counts as none, for probabilities next to 0 (our choice)."""


@dataclass(frozen=True, slots=True)
class Recount:
    """Every window counted again, and the posterior of those that are not void; None without a prior."""

    windows: tuple[WindowCounts, ...]
    capacity: Capacity | None


def recount(
    run: Run, slo: Slo | None = None, holds: Callable[[pa.Table, Window], bool] = lambda *_: True
) -> Recount:
    """Count every window of an ended run again. Raises RunError where the files do not hold what it takes.

    By default by its own bounds. Under others, `slo`, the prior of the search is widened to one that was far
    off; a valid window, by the rows around it, counts where it `holds`.
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
    for line in table.to_pylist():
        window, index = window_table.window(line), line["index"]
        rows = around(index)
        counts = replace(count(rows, window, *counting), weight=line["weight"])
        counted.append(counts)
        if line["valid"] and holds(rows, window):
            used += count_by_stream(rows, window, basis.streams, *counting) if basis.streams else (counts,)
    if prior is None:
        return Recount(tuple(counted), None)
    found = including(posterior(used, prior), node_effects(used, prior))
    searched = bool((run.sweep or {}).get("capacity"))
    return Recount(tuple(counted), upper_side(found, counted, around) if searched else found)


def recomputed(path: Path) -> tuple[str, bool]:
    """The verdict of a run beside what its Parquet files give, and whether the two agree."""
    if studies.is_study(path):
        raise RunError(f"{path} is a study: recompute one of its parts, {path}/NAME")
    lines, agrees = text(load_run(path))
    return f"{'SAME' if agrees else 'DIFFERENT'}  {path} recomputed from its Parquet files\n{lines}", agrees


def text(run: Run) -> tuple[str, bool]:
    """Lines of recorded figures beside those of the files, and True if both agree.

    Raises RunError if the files lack what a recount needs.
    """
    again = recount(run)
    counts = list(_other_counts(run, again))
    lines = [f"counts of {len(again.windows)} windows, exactly: {'; '.join(counts) or 'identical'}"]
    tree = run.sweep or {}
    required = (tree.get("probe") or {}).get("required") or {}
    recorded = tree.get("capacity") or required.get("capacity")
    if recorded is None:
        return "\n".join([*lines, "capacity: none was recorded"]), not counts
    if again.capacity is None:
        lines.append("capacity: recorded, but the files hold no prior to compute it from")
        return "\n".join(lines), False
    figures = claims.figures(again.capacity, None)
    if run.verdict and run.verdict.capacity:
        figures = joint.joined_like(figures, run.verdict.capacity)
    fresh = json.loads(json.dumps(to_tree(figures)))
    other = list(_other_figures(recorded, fresh, same))
    for name, old in recorded["qps_per_node"].items():
        new = fresh["qps_per_node"][name]
        lines.append(f"  {name:<9} recorded {old!r}, recomputed {new!r} QPS per node")
    if figures.constants:
        lines.append("  joined with the engine model's constants as recorded: they are not drawn again")
    agreed = "the same" if any(_other_figures(recorded, fresh, operator.eq)) else "identical"
    lines.append(f"capacity, limits and windows used, within {TOLERANCE:g}: {'; '.join(other) or agreed}")
    return "\n".join(lines), not counts and not other


def same(recorded: Any, recomputed: Any) -> bool:
    """True for equal values, and for two floats within the tolerance."""
    if isinstance(recorded, float) and isinstance(recomputed, float):
        return math.isclose(recorded, recomputed, rel_tol=TOLERANCE, abs_tol=SMALLEST)
    return bool(recorded == recomputed)


def _other_counts(run: Run, again: Recount) -> Iterator[str]:
    for line, counts in zip(run.windows().to_pylist(), again.windows, strict=True):
        fresh = {name: getattr(counts, name) for name in COUNTS}
        old = {name: line[name] for name in COUNTS}
        for one in line["bounds"] or ():
            old |= {f"{one['bound']}_over": one["over"], f"{one['bound']}_determined": one["determined"]}
        for limit, counted in counts.limits.items():
            fresh |= {f"{limit}_over": counted.over, f"{limit}_determined": counted.determined}
            old |= {name: line[name] for name in fresh if name in line}
        for name, value in fresh.items():
            if not same(old.get(name), value):
                yield f"window {counts.index}: {name} recorded {old.get(name)!r}, recomputed {value!r}"


def _other_figures(
    recorded: Mapping[str, Any], fresh: Mapping[str, Any], agree: Callable[[Any, Any], bool], path: str = ""
) -> Iterator[str]:
    """Paths at which two trees of a capacity do not `agree`; figures per replica repeat those per node."""
    for name, value in recorded.items():
        if isinstance(value, Mapping) and name != "qps_per_replica":
            yield from _other_figures(value, fresh[name], agree, f"{path}{name}.")
        elif name != "qps_per_replica" and not agree(value, fresh.get(name)):
            yield f"{path}{name} recorded {value!r}, recomputed {fresh.get(name)!r}"
