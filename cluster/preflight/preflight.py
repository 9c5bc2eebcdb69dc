"""Inspects every node of a running Ray session at once; a node that does not answer in time is a failure."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from cluster.preflight.checks import (
    ALL_NODES,
    Expected,
    Finding,
    InspectedNode,
    Status,
    compare,
    environments,
    table,
)
from cluster.preflight.gpus import visible_devices
from cluster.preflight.judges import check_node
from cluster.preflight.node_facts import read_host
from cluster.ray_session.session import CLUSTER_HTTP_PORT, HEAD_RESOURCE, gather, on_node, serve_runs
from conf.specs.experiment import EmulatedEngine, Experiment, VllmEngine

ROUND_TRIPS = 20
FAILED = 5
"""Exit code of a cluster that is not as expected."""
MOST_FIGURES = 3
COLUMNS = ("check", "nodes", "status", "found", "expected", "remedy")


def expected_of(experiment: Experiment, env: Mapping[str, str]) -> Expected:
    """The nodes that an experiment expects; `env` is its recipe's environment."""
    engine, cluster = experiment.engine, experiment.cluster
    # An emulated engine reads no weights.
    real = engine if isinstance(engine, VllmEngine) and not isinstance(engine, EmulatedEngine) else None
    return Expected(
        engine=engine.kind,
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        hardware=experiment.hardware.name,
        arch=next((word for word in experiment.hardware.arch.split() if word.startswith("gfx")), ""),
        hbm_bytes=experiment.hardware.hbm_bytes,
        model_path=real.model_path if real else "",
        env=env,
        http_port=CLUSTER_HTTP_PORT if cluster.session == "address" else 0,
    )


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """The findings on the nodes by their names, in the order of the checks."""

    nodes: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0, or 5 if anything fails; what only warns or is unknown does not."""
        return FAILED if any(finding.status == "fail" for finding in self.findings) else 0

    def tree(self) -> dict[str, Any]:
        """The whole report as plain data for JSON."""
        return {
            "nodes": list(self.nodes),
            "exit_code": self.exit_code,
            "counts": self._counts(),
            "checks": [asdict(finding) for finding in self.findings],
        }

    def lines(self) -> list[str]:
        """An aligned table, nodes with equal judgements on one line, and a summary as the last line."""
        table = [finding for finding in self.findings if not _not_applicable(finding)]
        rows = [COLUMNS, *map(self._row, _grouped(table))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
        cells = ([word.ljust(width) for word, width in zip(row, widths, strict=True)] for row in rows)
        counts = ", ".join(f"{count} {status}" for status, count in self._counts().items())
        summary = f"preflight of {_count(len(self.nodes), 'node')}: {counts}"
        return [*("  ".join(row).rstrip() for row in cells), *self._unchecked(), summary]

    def _unchecked(self) -> list[str]:
        """A line per reason for skipped checks, which would fill the table on a laptop."""
        reasons: dict[str, list[Finding]] = {}
        for finding in filter(_not_applicable, self.findings):
            reasons.setdefault(finding.figure, []).append(finding)
        lines = []
        for reason, group in reasons.items():
            where = _count(len({finding.node for finding in group}), "node")
            checks = ", ".join(dict.fromkeys(finding.check for finding in group))
            lines.append(f"not checked on {where}, {reason}: {checks}")
        return lines

    def _row(self, group: Sequence[Finding]) -> tuple[str, ...]:
        first, nodes = group[0], len(group)
        where = first.node if nodes == 1 else f"{nodes} nodes"
        figures = list(dict.fromkeys(finding.figure for finding in group))
        figure = ", ".join(figures[:MOST_FIGURES]) + (" ..." if len(figures) > MOST_FIGURES else "")
        return first.check, where, first.status, figure, first.expected, first.remedy

    def _counts(self) -> dict[str, int]:
        counts = Counter(finding.status for finding in self.findings)
        return {status: counts[status] for status in ("pass", "warn", "fail", "unknown")}


def _not_applicable(finding: Finding) -> bool:
    return finding.status == "unknown" and not finding.expected


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings that share a line: equal ones, and for warnings and failures equal figures too."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        figure = finding.figure if finding.status in ("warn", "fail") else ""
        key = (finding.check, finding.status, finding.expected, finding.remedy, figure)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def inspect(expected: Expected) -> PreflightReport:
    """Inspect all alive nodes of the session that this process has joined, at once.

    Takes at most twice `expected.node_timeout_s`.
    """
    nodes = _alive_nodes()
    if serve_runs():  # then Serve listens there
        expected = replace(expected, http_port=0)
    request = expected.model_path, expected.http_port, dict(expected.env)
    tasks = {key: on_node(key, read_host).remote(*request) for key in nodes}
    hosts, lost = gather(tasks, expected.node_timeout_s)
    seen = {
        key: InspectedNode(*nodes[key], host, _offset_s(key, expected.node_timeout_s))
        for key, host in hosts.items()
    }
    seen = with_devices(seen, expected)
    remedy = "look at `ray status` and at the node itself; the package must be installed there"
    silent = [
        Finding("fail", reason, "an answer", remedy, check="node", node=nodes[key].name)
        for key, reason in lost.items()
    ]
    names = tuple(node.name for node in nodes.values())
    return PreflightReport(names, (*silent, *findings(list(seen.values()), expected)))


def findings(nodes: Sequence[InspectedNode], expected: Expected) -> list[Finding]:
    """Findings on the nodes that answered: first those across all nodes, then check by check."""
    across = [compare(check, nodes, expected) for check in table("across")]
    across.append(environments(nodes))
    single = [check_node(each, node, expected) for each in table("nodes") for node in nodes]
    return [_enough(nodes, expected), *(finding for finding in (*across, *single) if finding is not None)]


def _enough(nodes: Sequence[InspectedNode], expected: Expected) -> Finding:
    serving = sum(node.serves for node in nodes)
    good = serving >= expected.nodes
    remedy = "" if good else "start the missing nodes with --num-gpus, or lower cluster.nodes"
    status: Status = "pass" if good else "fail"
    wanted = f"at least {expected.nodes}"
    return Finding(status, str(serving), wanted, remedy, check="serving nodes", node=ALL_NODES)


class RayNode(NamedTuple):
    """A node as Ray lists it: the first fields of an `InspectedNode`."""

    name: str
    role: str
    ray_gpus: float
    is_head: bool


def _alive_nodes() -> dict[str, RayNode]:
    """The alive nodes by Ray's id.

    Nodes that share an address have the beginning of the id in their name.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    addresses = Counter(node["NodeManagerAddress"] for node in alive)
    nodes = {}
    for node in alive:
        key, name, resources = node["NodeID"], node["NodeManagerAddress"], node["Resources"]
        name += "" if addresses[name] == 1 else f"#{key[:6]}"
        role = node.get("Labels", {}).get("role", "")
        nodes[key] = RayNode(name, role, resources.get("GPU", 0.0), HEAD_RESOURCE in resources)
    return nodes


def _read_devices() -> dict[str, int | None]:
    """Visible devices of the GPUs that this task holds alone."""
    return visible_devices([str(gpu) for gpu in ray.get_runtime_context().get_accelerator_ids()["GPU"]])


def _offset_s(node: str, timeout_s: float) -> tuple[float, float] | None:
    """The node's clock against ours and its uncertainty: the best of twenty round trips."""
    trips, clock = [], on_node(node, lambda: time.time_ns())
    deadline = time.monotonic() + timeout_s
    for _ in range(ROUND_TRIPS):
        before = time.time_ns()
        try:
            remote = ray.get(clock.remote(), timeout=max(0.0, deadline - time.monotonic()))
        except RayError:  # GetTimeoutError is one too; the node may have gone since it answered
            return None
        after = time.time_ns()
        trips.append(((remote - (before + after) / 2) / 1e9, (after - before) / 2e9))
    return min(trips, key=lambda trip: trip[1])


def with_devices(nodes: Mapping[str, InspectedNode], expected: Expected) -> dict[str, InspectedNode]:
    """The nodes with the devices of each node that has real GPUs, all of which a task holds meanwhile."""
    usable = {
        key: node
        for key, node in nodes.items()
        if node.serves and node.gpus and node.ray_gpus and node.host.facts.get("torch")
    }
    if not usable:
        return dict(nodes)
    tasks = {key: on_node(key, _read_devices, node.ray_gpus).remote() for key, node in usable.items()}
    reported, _ = gather(tasks, expected.node_timeout_s)
    return {**nodes, **{key: replace(nodes[key], devices=devices) for key, devices in reported.items()}}
