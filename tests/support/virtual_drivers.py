"""Drivers over virtual targets, some of which break; starts no Ray."""

import dataclasses
from typing import Any

import pyarrow as pa

from analysis.rows import records
from conf import Experiment, load
from loadgen.drive.driver import Driver
from loadgen.drive.plan import LoadPlan
from loadgen.fleet.target import LostActor, Observation
from loadgen.search.policy import Start
from loadgen.traffic.schedule import NS, ArrivalSchedule
from serve_apps.engine_model import BlockEngine, VirtualService
from tests.support.virtual_target import VirtualTarget


def plan(experiment: Experiment, start: Start, **more: Any) -> LoadPlan:
    asked = experiment
    return LoadPlan(asked.search, asked.slo, asked.workload, asked.cluster.nodes, asked.seed, start, **more)


def virtual(experiment: Experiment) -> VirtualTarget:
    spec: Any = experiment.engine
    parts = experiment.model, experiment.hardware, experiment.layout
    return VirtualTarget(
        VirtualService([BlockEngine(spec, *parts, seed=i) for i in range(experiment.replicas)])
    )


def driver(
    words: list[str], start: Start | None = None, **more: Any
) -> tuple[Driver, Experiment, list[tuple[str, Any]]]:
    experiment = load(words)
    events: list[tuple[str, Any]] = []
    emit = lambda kind, /, **facts: events.append((kind, facts))  # noqa: E731
    target = more.pop("target", None) or virtual(experiment)
    return Driver(target, plan(experiment, start or Start(8.0)), emit, **more), experiment, events


def altered(rows: pa.Table, row: dict[str, Any], from_ns: int = 0) -> pa.Table:
    """The rows due at or after `from_ns` with other figures."""
    changed = [old | (row if old["due_ns"] >= from_ns else {}) for old in rows.to_pylist()]
    return pa.Table.from_pylist(changed, schema=records.PROGRESS)


class Altering(VirtualTarget):
    """A virtual target whose observations are changed before the driver sees them."""

    def __init__(self, experiment: Experiment, **row: Any) -> None:
        inner = virtual(experiment)
        super().__init__(inner._service)
        self._spoil = row

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        seen = super().run(schedule, until_ns)
        return Observation(altered(seen.ended, self._spoil), altered(seen.pending, self._spoil))


LOST = LostActor(1, 1, 2, "killed")


class Healing(VirtualTarget):
    """A virtual target that loses an actor at `at_s`, which can be replaced `times` times."""

    def __init__(self, experiment: Experiment, at_s: float, times: int) -> None:
        super().__init__(virtual(experiment)._service)
        self._at_ns, self._times = int(at_s * NS), times

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        seen = super().run(schedule, until_ns)
        return dataclasses.replace(seen, lost_actors=[LOST] if until_ns >= self._at_ns else [])

    def heal(self) -> bool:
        self._times -= 1
        return self._times >= 0
