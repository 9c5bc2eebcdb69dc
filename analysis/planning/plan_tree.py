"""A plan as a tree for JSON (plan.json) with the unit in every name; computes nothing."""

from dataclasses import asdict
from typing import Any

import numpy as np

from analysis.planning.efficiency import ScalingEfficiency
from analysis.planning.evidence import NotPlannable
from analysis.planning.plan import Plan
from analysis.results import summary
from analysis.results.json_border import to_tree
from analysis.stats.estimate import Estimate

SCHEMA_VERSION = 1

Tree = dict[str, Any]


def tree(found: Plan) -> Tree:
    """The whole plan; an unknown figure is None, never 0."""
    basis, up = found.basis, found.availability
    code = summary.EXIT_OPEN if basis.evidence.open_above else summary.EXIT_OK
    return {
        "schema_version": SCHEMA_VERSION,
        "verb": "plan",
        "valid": True,
        "exit_code": code,
        "reason": "only a lower bound of the capacity is known: at most so many nodes" if code else "",
        "planned_on": _evidence(found),
        "demand": asdict(found.load),
        "care": asdict(found.care),
        "answer": _answer(found),
        "nodes_at": dict(found.nodes_at),
        "rules": asdict(found.sizing),
        "efficiency": _efficiency(found),
        "few_spares": found.few_spares and asdict(found.few_spares),
        "power": found.power and asdict(found.power),
        "degraded": [asdict(one) for one in found.degraded],
        "availability": up and asdict(up) | {"spare_nodes": up.spare_nodes},
        "day": _day(found),
        "cost": found.money and asdict(found.money),
        "by_demand": [asdict(point) for point in found.curve],
    }


def refused(error: NotPlannable) -> Tree:
    """The tree of a run that allows no plan."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verb": "plan",
        "valid": False,
        "exit_code": error.exit_code,
        "reason": str(error),
    }


def _answer(found: Plan) -> Tree:
    gpus = found.basis.evidence.gpus_per_node
    return {
        "nodes": found.nodes,
        "nodes_at_high": found.nodes_at.get("high"),
        "binding": found.binding,
        "needed_nodes": found.needed_nodes,
        "naive_nodes": found.naive_nodes,
        "basis": found.basis.end,
        "planned_qps_per_node": found.sizing.qps_per_node,
        "engines": _engines(found),
        "gpus": gpus and gpus * found.nodes,
    }


def _engines(found: Plan) -> int | None:
    asked = found.basis.evidence.asked
    if asked.engine == "external":
        return None
    return round(found.nodes * asked.replicas / asked.nodes)


def _evidence(found: Plan) -> Tree:
    one = found.basis.evidence
    return {
        "name": one.name,
        "predicted": one.predicted,
        "found_by": one.word,
        "caution": one.caution,
        "asked": to_tree(one.asked),
        "load": one.asked.load,
        "qps_per_node": asdict(one.qps),
        "sampling_qps_per_node": one.sampling_qps and asdict(one.sampling_qps),
        "open_above": one.open_above,
        "lengths": asdict(one.lengths) if one.lengths else None,
        "ready_minutes": one.ready_minutes,
    }


def _efficiency(found: Plan) -> Tree:
    e, n = found.basis.service.efficiency, found.nodes
    fewest_up = n - found.care.spare_nodes
    return {
        "assumed": fewest_up < e.fewest or n > e.most,
        "at_planned": float(e.at(np.array([n]))[0]),
        "measured": _points(e),
        "fewest_measured_nodes": e.fewest,
        "most_measured_nodes": e.most,
    }


def _points(e: ScalingEfficiency) -> list[Tree]:
    rows = []
    for point in e.points:
        row: Tree = {"nodes": point.nodes, "qps_per_node": point.qps_per_node}
        if not e.assumed:
            exact = asdict(Estimate(1.0))
            row["efficiency"] = exact if point.nodes == e.fewest else asdict(e.figure(point.nodes))
        rows.append(row)
    return rows


def _day(found: Plan) -> Tree | None:
    if found.day is None:
        return None
    day, usd = asdict(found.day), found.care.node_hour_usd
    if usd is not None:
        day |= {f"{fleet}_usd": day[f"{fleet}_node_hours"] * usd for fleet in ("fixed", "autoscaled")}
    return day
