"""Drivers over virtual targets, some of which break; starts no Ray."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from analysis.results.json_border import to_tree
from analysis.rows import records
from conf import Experiment, load
from loadgen.cli.engine_model import parts
from loadgen.drive.driver import Driver
from loadgen.drive.load_feed import LoadPlan
from loadgen.drive.programs import offer_rate, sweep
from loadgen.fleet.target import LostActor, Observation
from loadgen.run import verdicts
from loadgen.search.policy import Start
from loadgen.traffic.schedule import NS, ArrivalSchedule
from serve_apps.engine_model import EngineKind
from tests.support.virtual.virtual_service import VirtualService
from tests.support.virtual.virtual_target import VirtualTarget


def plan(experiment: Experiment, start: Start, **more: Any) -> LoadPlan:
    asked = experiment
    return LoadPlan(asked.search, asked.slo, asked.workload, asked.cluster.nodes, asked.seed, start, **more)


def engines(experiment: Experiment, seed: int = 0) -> VirtualService:
    """The simulated engines of an experiment behind their balancer, on a virtual clock."""
    return VirtualService(EngineKind.of(*parts(experiment)), experiment.replicas, seed=seed)


def virtual(experiment: Experiment, seed: int = 0) -> VirtualTarget:
    return VirtualTarget(engines(experiment, seed))


def silent(_kind: str, /, **_facts: Any) -> None:
    """Nobody looks on."""


def driver(
    words: list[str], start: Start | None = None, **more: Any
) -> tuple[Driver, Experiment, list[tuple[str, Any]]]:
    experiment = load(words)
    events: list[tuple[str, Any]] = []
    emit = lambda kind, /, **facts: events.append((kind, facts))  # noqa: E731
    target = more.pop("target", None) or virtual(experiment)
    return Driver(target, plan(experiment, start or Start(8.0)), emit, **more), experiment, events


class Killed(BaseException):
    """The process of a driver is gone."""


Searched = tuple[dict[str, Any], Driver, list[tuple[str, Any]]]


def searched(words: list[str], start: Start | None = None, **more: Any) -> Searched:
    """The verdict of a whole search, its driver and its events."""
    drive, experiment, events = driver(words, start, **more)
    return to_tree(verdicts.sweep_verdict(experiment, drive, sweep(drive))), drive, events


def probed(words: list[str], *, load: tuple[float, float, float], **more: Any) -> Searched:
    """The verdict of a held rate, given with its seconds and those of its transition; driver and events."""
    drive, experiment, events = driver(words, **more)
    offer_rate(drive, *load)
    return to_tree(verdicts.probe_verdict(experiment, drive)), drive, events


def altered(
    rows: pa.Table, row: dict[str, Any], from_ns: int = 0, until_ns: int = 2**62, *, where: Any = True
) -> pa.Table:
    """The rows due from `from_ns` until `until_ns`, and where else is said, with other figures."""
    due_ns = rows["due_ns"].to_numpy()
    chosen = (due_ns >= from_ns) & (due_ns < until_ns) & where
    if not chosen.any():
        return rows
    for name, value in row.items():
        place, field = rows.schema.get_field_index(name), rows.schema.field(name)
        changed = pc.if_else(pa.array(chosen), pa.scalar(value, field.type), rows[name])
        rows = rows.set_column(place, field, changed)
    return rows


class Changed(VirtualTarget):
    """A virtual target whose rows are changed before the driver sees them."""

    def __init__(self, service: Any, change: Callable[[pa.Table], pa.Table]) -> None:
        super().__init__(service)
        self._change = change

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        progress = super().run(schedule, until_ns)
        return Observation(self._change(progress.ended), self._change(progress.pending))


class Altering(Changed):
    """A virtual target whose rows all have these other figures."""

    def __init__(self, experiment: Experiment, **row: Any) -> None:
        super().__init__(engines(experiment), lambda rows: altered(rows, row))


SILENT = dict.fromkeys(("first_token_offset_ns", "last_token_offset_ns"))
REFUSED = SILENT | {"status": "conn_error", "error_kind": "ConnectionRefusedError"}
UNENDED = SILENT | {"status": records.PENDING, "end_offset_ns": None, "output_tokens": None}


class Breaking(Changed):
    """A virtual target that refuses every connection from `dies_s` until `repair`."""

    def __init__(self, experiment: Experiment, dies_s: float, row: dict[str, Any] = REFUSED) -> None:
        self._dies_ns, self._back_ns = int(dies_s * NS), 2**62
        super().__init__(engines(experiment), lambda rows: altered(rows, row, self._dies_ns, self._back_ns))

    def repair(self, after_s: float = 400) -> frozenset[str]:
        """Mend it; returns its one replica."""
        self._now_ns += int(after_s * NS)
        self._back_ns = self._now_ns
        return frozenset({"0"})


class Hanging(Breaking):
    """A virtual target whose requests of that time never end, as on a machine without power."""

    def __init__(self, experiment: Experiment, dies_s: float) -> None:
        super().__init__(experiment, dies_s, UNENDED)
        self._stuck: list[pa.Table] = []

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        progress = super().run(schedule, until_ns)
        ended = progress.ended
        stuck = ended.filter(pc.equal(ended["status"], records.PENDING))
        self._stuck += [stuck] if stuck.num_rows else []
        pending = pa.concat_tables([progress.pending, *self._stuck])
        return Observation(ended.filter(pc.equal(ended["status"], records.OK)), pending)

    def fault(self) -> str | None:
        return "1 of 1 replicas gone" if self._dies_ns <= self.now_ns() < self._back_ns else None


LOST = LostActor(1, 1, 2, "killed")


class Healing(VirtualTarget):
    """A virtual target that loses an actor at `at_s`, which can be replaced `times` times."""

    def __init__(self, experiment: Experiment, at_s: float, times: int) -> None:
        super().__init__(engines(experiment))
        self._at_ns, self._times = int(at_s * NS), times

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        progress = super().run(schedule, until_ns)
        return dataclasses.replace(progress, lost_actors=[LOST] if until_ns >= self._at_ns else [])

    def heal(self) -> bool:
        self._times -= 1
        return self._times >= 0
