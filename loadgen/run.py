"""One measured run from start to folder: fleet, driver, conclusion, files; whatever happens in between.

Knows in which order things start, end and are written; the service under test is handed in.
"""

import contextlib
import os
import traceback
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis import summary
from analysis.summary import Tree
from conf import Experiment
from conf.load import dump
from loadgen import conclusion
from loadgen.endpoint import TargetError
from loadgen.fleet import Fleet, FleetError, FleetPlan
from loadgen.run_folder import RunFolder, checksums, manifest
from loadgen.search import Start
from loadgen.sweep import Driver, Plan, TargetLost

INTERRUPT_DRAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Service:
    """What is loaded: where it listens, the replicas expected in answers, and what it says of itself."""

    urls: list[str]
    replicas: frozenset[str] | None = None
    fault: Callable[[], str | None] = lambda: None
    reported: dict[str, Any] = field(default_factory=dict)
    actor_options: dict[str, Any] = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)


class Run:
    """A run folder being filled. `act` drives the target and concludes; `show` is the progress."""

    def __init__(
        self, experiment: Experiment, folder: RunFolder, verb: str, show: Callable[..., None]
    ) -> None:
        self.experiment = experiment
        self.folder = folder
        self.prediction: Tree | None = None
        self._show = show
        self._driver: Driver | None = None
        self._fleet: Fleet | None = None
        self._planned = 0
        self._salt = zlib.crc32(folder.run_id.encode())
        self._manifest = manifest(folder.run_id, verb, experiment.seed, self._salt)
        folder.write_text("config.yaml", dump(experiment))
        folder.write_json("manifest.json", self._manifest)

    def emit(self, kind: str, /, **facts: Any) -> None:
        """Log an event and show it."""
        self.folder.event(kind, **facts)
        self._show(kind, **facts)

    def measure(
        self,
        prepare: Callable[[], Start],
        service: AbstractContextManager[Service],
        act: Callable[[Driver], Tree],
    ) -> Tree:
        """Load the service and conclude; never raises for what can go wrong with it, nor for Ctrl-C.

        `prepare` says, before the service is started, where the search begins.
        """
        tree = None
        try:
            start = prepare()
            with service as up:
                self._manifest["server"] = up.reported
                self.folder.write_json("manifest.json", self._manifest)
                tree = self._drive(up, start, act)
        except KeyboardInterrupt:
            tree = tree or self._failed(summary.EXIT_INTERRUPTED, "interrupted before the load began")
        except (TargetError, FleetError) as error:
            tree = tree or self._failed(summary.EXIT_TARGET, str(error))
        except Exception as error:  # noqa: BLE001  the boundary of a run: what was received must be saved
            self.folder.write_text("traceback.txt", traceback.format_exc())
            reason = f"internal error, see traceback.txt: {type(error).__name__}: {error}"
            tree = tree or self._failed(summary.EXIT_INTERNAL, reason)
        return self._finish(tree)

    def _drive(self, service: Service, start: Start, act: Callable[[Driver], Tree]) -> Tree:
        self._fleet = self._start_fleet(service)
        drain_s = INTERRUPT_DRAIN_S
        try:
            self._driver = Driver(
                self._fleet, self._plan(service, start), self.emit, self._save, service.fault
            )
            tree = act(self._driver)
            drain_s = self.experiment.fleet.drain_s
        except KeyboardInterrupt:
            self.emit("interrupted", text="interrupted: no more sends; saving what was received")
            tree = self._failed(summary.EXIT_INTERRUPTED, "every request received so far is saved")
        except TargetLost as error:
            tree = self._failed(summary.EXIT_TARGET, str(error))
        finally:
            with contextlib.suppress(KeyboardInterrupt):
                self._fleet.finish(drain_s)
        return tree

    def _start_fleet(self, service: Service) -> Fleet:
        asked = self.experiment
        plan = FleetPlan(
            urls=service.urls,
            workload=asked.workload,
            model=asked.model.served_name,
            vocab=asked.model.vocab,
            salt=self._salt,
            timeout_s=asked.fleet.request_timeout_s,
            record_itl=asked.fleet.record_itl,
            api_key=service.api_key,
        )
        fleet = Fleet(
            asked.fleet.actors,
            asked.fleet.cpus_per_actor,
            plan,
            self.folder.shards.resolve(),
            service.actor_options,
        )
        offsets = [
            {"offset_us": o.offset_ns / 1e3, "within_us": o.round_trip_ns / 2e3} for o in fleet.offsets
        ]
        self._manifest["load_actor_nodes"] = fleet.nodes
        self._manifest["clock_offsets"] = offsets
        self.emit("fleet", text=f"{asked.fleet.actors} load actor(s) ready", clock_offsets=offsets)
        return fleet

    def _plan(self, service: Service, start: Start) -> Plan:
        asked = self.experiment
        return Plan(
            search=asked.search,
            slo=asked.slo,
            workload=asked.workload,
            nodes=asked.cluster.nodes,
            seed=asked.seed,
            start=start,
            warmup_requests=asked.fleet.warmup_requests,
            replicas=service.replicas,
        )

    def _save(self, schedule: Any) -> None:
        self._planned += len(schedule)
        self.folder.plan(schedule)

    def _failed(self, exit_code: int, reason: str) -> Tree:
        return conclusion.of_failure(self.experiment, self._driver, exit_code, reason)

    def _finish(self, tree: Tree) -> Tree:
        """Write every file of the folder, the verdict last."""
        wall_ns = self._fleet.start_wall_ns if self._fleet else None
        rows = self.folder.collect(wall_ns)
        tree |= {"run_id": self.folder.run_id, "folder": str(self.folder.path)}
        if self.prediction:
            tree["prediction"] = self.prediction
        tree["requests"] = conclusion.count_requests(rows, self._planned)
        if tree["dwells"]:
            pq.write_table(pa.Table.from_pylist(tree["dwells"]), self.folder.path / "dwells.parquet")
        self.folder.write_json("sweep.json", tree)
        self._manifest["ended_at"] = datetime.now(UTC).isoformat()
        self._manifest["host"]["load_average_at_end"] = os.getloadavg()
        self._manifest["files"] = checksums(self.folder.path)
        self.folder.write_json("manifest.json", self._manifest)
        self.folder.event("end", exit_code=tree["exit_code"], reason=tree["reason"])
        self.folder.close()
        return tree
