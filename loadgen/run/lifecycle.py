"""One measured run from start to folder, whatever happens in between; the service under test is handed in."""

import math
import os
import secrets
import traceback
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from typing import Any

import pyarrow as pa

from analysis.capacity import window_table
from analysis.live import state
from analysis.live.state import WindowSoFar
from analysis.results import energy
from analysis.results.energy import PowerFigures
from analysis.results.json_border import from_tree, to_tree
from analysis.results.summary import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_TARGET, EXIT_VOID
from analysis.results.verdicts import PlacingPrediction, RunVerdict
from analysis.rows import records, shards
from conf import Experiment
from conf.compose import dump
from conf.io.one_line import reason
from loadgen.drive.driver import Driver
from loadgen.drive.load_feed import LoadPlan, Past
from loadgen.drive.loss_recovery import TargetLost
from loadgen.drive.prepared_load import QueueTimeNotReported
from loadgen.fleet.fleet import LoadFleet
from loadgen.fleet.http_client import ClientPlan
from loadgen.fleet.target import FleetError
from loadgen.run import run_hosts, verdicts
from loadgen.run.endpoint import TargetError, access_to
from loadgen.run.jobs import Job, Service, Site
from loadgen.run.progress import Emit
from loadgen.run.run_folder import RunFolder, checksums, manifest, read_files, sha256_of
from loadgen.run.samplers import IDLE_S, PowerSampler, Scraper
from loadgen.search.window_plan import Start
from loadgen.traffic import trace

Failure = tuple[int, str]
"""Exit code and reason of a run without an answer."""

STREAMS_SPARE = 2.0
"""Requests in flight at the bounds, times this, must fit into the actors' files and ports (our choice)."""
LAST_WORDS = "deploy_failure.txt"
"""The file of a run folder that holds what a service that did not come up, or not again, wrote last."""


class RunLifecycle:
    """A run folder that `job` fills at `site`; `show` gets its events.

    `past` is what earlier sessions of the run left.
    """

    def __init__(self, job: Job, folder: RunFolder, site: Site, show: Emit, past: Past | None = None) -> None:
        self.experiment = experiment = job.experiment
        self.folder = folder
        self._job, self._site, self._show = job, site, show
        self._prediction: PlacingPrediction | None = None
        self._failure: Failure | None = None
        self._ended = False
        self._past = past
        self._driver: Driver | None = None
        self._fleet: LoadFleet | None = None
        self._service: Service | None = None
        self._scraper: Scraper | None = None
        self._power_unknown = "the run ended before a node was asked"
        self._lines: SimpleQueue[str] = SimpleQueue()
        before = folder.read_json("manifest.json") if past is not None else {}
        folder.secret = access_to(experiment.target).key if experiment.engine.kind == "external" else None
        self._salt = before.get("prompt_salt", secrets.randbits(31))
        self._manifest = manifest(folder.run_id, job.verb, experiment.seed, self._salt)
        if before:
            self._manifest["sessions_before"] = [*before.pop("sessions_before", []), before]
        self._manifest |= {key: sha256_of(path) for key, path in read_files(experiment).items()}
        if before:  # the sums that stand there end before what they sum up is written anew
            self._record()
        folder.write_text("config.yaml", dump(experiment))
        self._record()

    def emit(self, kind: str, /, **facts: Any) -> None:
        """Log an event and show it, after the lines that other threads have queued."""
        while not self._lines.empty():
            text = self._lines.get()
            self.folder.event("metrics", text=text)
            self._show("metrics", text=self.folder.cleaned(text))
        self.folder.event(kind, **facts)
        self._show(kind, **self.folder.cleaned(facts))

    def _record(self, **facts: Any) -> None:
        """Add facts to the manifest."""
        self._manifest |= facts
        self.folder.write_json("manifest.json", self._manifest)

    def measure(self) -> RunVerdict:
        """Load the service and conclude; never raises for what can go wrong with it, nor for Ctrl-C."""
        nodes, verb = self.experiment.cluster.nodes, self._job.verb
        for line in trace.cautions(self.experiment.workload):
            self.emit("trace", text=line)
        try:
            self._show("run", run_id=self.folder.run_id, verb=verb, nodes=nodes)
            start, self._prediction = self._site.start(self.experiment, verb, self.emit)
            with self._site.service(self.experiment, self.emit) as service:
                self._record(server=service.reported)
                self._failure = self._drive(service, start)
                self._ended = True
        except KeyboardInterrupt:
            when = "before the load began" if self._driver is None else "at once; answers in flight were cut"
            self._fail(EXIT_INTERRUPTED, f"interrupted {when}")
        except (TargetError, FleetError) as error:
            self._keep_last_words(error)
            if self._ended:
                with suppress(OSError):  # it changes nothing of what was measured, but it must be known
                    self.emit("teardown", text=str(error))
            self._fail(EXIT_TARGET, str(error))
        except OSError as error:
            self._fail(EXIT_INTERNAL, str(error))
        except Exception as error:  # noqa: BLE001  the boundary of a run: what was received must be saved
            if not self._ended:
                self._fail(*self._internal(error))
        return self._saved()

    def _fail(self, exit_code: int, reason: str) -> None:
        """End the run without an answer; what happens after its end changes nothing."""
        if not self._ended:
            self._failure, self._ended = (exit_code, reason), True

    def _keep_last_words(self, error: TargetError | FleetError) -> None:
        """Save the last log lines of a failed service, which end with the service."""
        if isinstance(error, TargetError) and error.last_words:
            with suppress(OSError):  # the reason is told all the same
                self.folder.write_text(LAST_WORDS, "\n".join([str(error), *error.last_words, ""]))

    def _internal(self, error: Exception) -> Failure:
        with suppress(OSError):
            self.folder.write_text("traceback.txt", traceback.format_exc())
        return EXIT_INTERNAL, f"internal error, see traceback.txt: {type(error).__name__}: {error}"

    def _saved(self) -> RunVerdict:
        """Write the verdict and return it. One Ctrl-C is ignored meanwhile, to save what was measured."""
        try:
            with suppress(KeyboardInterrupt):
                return self._finish()
            return self._finish()
        except OSError as error:
            verdict = self._concluded()
            why = f"{verdict.reason or 'measured'}; then the run folder could not be written: {error}"
            rescue = f"mend that, then: python -m loadgen resume {self.folder.typed} recovers it"
            verdict = replace(verdict, reason=f"{why}; {rescue}", exit_code=EXIT_INTERNAL)
            return self._cleaned(replace(verdict, valid=False, passed=False))
        finally:
            self.folder.close()

    def _drive(self, service: Service, start: Start) -> Failure | None:
        """Load the service; returns why there is no answer, or None."""
        fleet, drain_s, self._service = self._start_fleet(service), self.experiment.fleet.drain_s, service
        with ExitStack() as samplers:
            meter = self._sampling(service, fleet, samplers)
            try:
                _refuse_cramped(self.experiment, fleet, service, start)
                self._rest(service, meter)
                repair = self._repair if service.recover and self.experiment.cluster.recovery_s else None
                plan = LoadPlan.from_experiment(self.experiment, service.replicas, start)
                self._driver = driver = Driver(
                    fleet,
                    plan,
                    self.emit,
                    self.folder.plan,
                    lambda: self._service.fault() if self._service else None,
                    self.folder.tell,
                    repair,
                )
                driver.windows.outages, driver.watcher = partial(run_hosts.outages, fleet), self._watched
                if self._past is not None:
                    driver.restore(self._past)
                self._job.service = service
                self._job.load(driver)
                # Nothing may be cut: whatever still flies ends by itself, or times out.
                drain_s = max(drain_s, self.experiment.request_timeout_s)
                return None
            except KeyboardInterrupt:
                waits = f"waiting up to {drain_s / self.experiment.time_scale:g} s for answers"
                self.emit("interrupted", text=f"interrupted: no more sends; {waits} (Ctrl-C cuts them)")
                return EXIT_INTERRUPTED, "every request received so far is saved"
            except TargetLost as error:
                return EXIT_TARGET, str(error)
            except QueueTimeNotReported as error:
                return EXIT_VOID, str(error)
            finally:
                fleet.finish(drain_s)
                for shard in fleet.left_behind:
                    where = f"rows that the driver could not fetch are on {shard}"
                    self.emit("left", text=f"{where}; copy it to shards/ and resume")

    def _watched(self, far: WindowSoFar) -> None:
        """Show the running window as it stands, and write it into the folder for other viewers."""
        self.folder.write_json(state.FILE, tree := to_tree(far))
        self._show(state.KIND, **tree)

    def _repair(self) -> frozenset[str] | None:
        """Wait until the service is whole again and load it from then on; returns the replicas to expect.

        Raises TargetLost when it does not come back in time.
        """
        limit_s, old = self.experiment.cluster.recovery_s, self._service
        assert old and old.recover and self._fleet
        self.emit("fault", text=f"waiting up to {limit_s:g} s until the service is whole again")
        try:
            new = old.recover(limit_s)
        except TargetError as error:
            self._keep_last_words(error)
            raise TargetLost(f"not whole again within {limit_s:g} s: {error}") from error
        before = [*self._manifest.get("servers_before", []), old.reported]
        self._record(servers_before=before, server=new.reported)
        self._fleet.retarget(new.urls)
        if self._scraper:
            self._scraper.follow(new.metrics_urls)
        self._service = new
        return new.replicas

    def _sampling(self, service: Service, fleet: LoadFleet, samplers: ExitStack) -> PowerSampler | None:
        """Sample metrics and power of the service until the end of `samplers`, where it reports them."""
        if service.metrics_urls:
            shard = self.folder.shards / f"server-{fleet.zero_wall_ns}.arrow"
            clock = fleet.now_ns, service.access, self._lines.put, self.experiment.time_scale
            self._scraper = samplers.enter_context(Scraper(service.metrics_urls, shard, *clock))
        if service.power is None:
            return None
        shard = self.folder.shards / f"power-{fleet.zero_wall_ns}.arrow"
        return samplers.enter_context(PowerSampler(service.power, shard, fleet.now_ns, self._lines.put))

    def _rest(self, service: Service, meter: PowerSampler | None) -> None:
        """Leave the service at rest for a moment if a node reports its power."""
        self._power_unknown = service.power_unknown
        if meter is None:
            return
        self.emit("power", text=f"the power of the service at rest, {IDLE_S:g} s if a node reports it")
        if why := meter.rest(IDLE_S):
            self._power_unknown = why
            self.emit("power", text=f"power unknown: {why}")

    def _start_fleet(self, service: Service) -> LoadFleet:
        experiment = self.experiment
        plan = ClientPlan(experiment, service.urls, service.access, self._salt)
        self._fleet = fleet = LoadFleet(
            experiment.fleet.actors,
            service.actors,
            plan,
            self.folder.shards.resolve(),
            first_client=self._past.next_client if self._past else 0,
            from_ns=self._past.end_ns if self._past else 0,
        )
        fleet.hosts = service.hosts
        fleet.cannot_start = lambda why: self.emit("fault", text=f"a load actor does not start yet: {why}")
        clock = {"time_scale": experiment.time_scale, "zero_wall_ns": fleet.zero_wall_ns}
        self._record(load_actors=[member.described() for member in fleet.members], clock=clock)
        self.emit("fleet", text=f"{len(fleet.members)} load actor(s) ready")
        return fleet

    def _concluded(self, rows: pa.Table | None = None) -> RunVerdict:
        """The verdict from the rows of the folder, so that a later recount gives the same."""
        try:
            if self._driver is not None and rows is not None:
                self._driver.recount_on(rows)
            if self._driver is not None and self._failure is None:
                return self._job.verdict(self._driver)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  the boundary of a run, as in `measure`
            self._failure = self._internal(error)
        assert self._failure is not None, "without a driver there was a failure"
        return verdicts.failure_verdict(self.experiment, self._driver, *self._failure)

    def _joined(self, verdict: RunVerdict) -> RunVerdict:
        """The verdict; a simulated capacity includes the uncertainty of the engine's constants."""
        if not (verdict.valid and verdict.capacity and verdict.experiment.is_modelled):
            return verdict
        try:
            constants = self._site.constants(self.experiment, self.emit)
        except KeyboardInterrupt:
            constants = "interrupted"
        except Exception as error:  # noqa: BLE001  the boundary of a run: its result is there already
            constants = reason(error)
        return replace(verdict, capacity=verdict.capacity.joined(constants))

    def _finish(self) -> RunVerdict:
        (self.folder.path / state.FILE).unlink(missing_ok=True)
        zero_wall_ns = self._fleet.zero_wall_ns if self._fleet else None
        rows = self.folder.collect(zero_wall_ns, self.experiment.time_scale)
        verdict = replace(
            self._joined(self._concluded(rows)),
            verb=self._job.verb,
            run_id=self.folder.run_id,
            folder=str(self.folder.typed),
            prediction=self._prediction,
            requests=verdicts.count_requests(rows, RunFolder.planned_in(self.folder.path)),
            unreadable=tuple(self.folder.unreadable),
        )
        verdict = self._cleaned(verdict)
        if verdict.windows:
            verdict = replace(verdict, power=self._power(verdict, rows))
        tree = to_tree(verdict)
        if verdict.windows:
            window_table.write(verdict.windows, tree["basis"], self.folder.path / "windows.parquet")
        self.folder.write_json("sweep.json", tree)
        if self._fleet:
            # Those that replaced others are among them by now.
            self._manifest["load_actors"] = [member.described() for member in self._fleet.members]
        if self._fleet and self._driver:
            servers = [*self._manifest.get("servers_before", []), self._manifest.get("server", {})]
            self._manifest["hosts"] = run_hosts.table(self._fleet, rows, servers)
        self._manifest["host"]["load_average_at_end"] = os.getloadavg()
        self._record(ended_at=datetime.now(UTC).isoformat(), files=checksums(self.folder.path))
        self.folder.event("end", exit_code=verdict.exit_code, reason=verdict.reason)
        return verdict

    def _power(self, verdict: RunVerdict, rows: pa.Table) -> PowerFigures:
        try:
            samples = shards.series(self.folder.path, "power.parquet", records.POWER, "node", ())
        except pa.ArrowException as error:  # the verdict does not depend on it
            return PowerFigures(f"power.parquet cannot be read: {error}".splitlines()[0])
        return energy.figures(samples, verdict.windows, rows, verdict.capacity, self._power_unknown)

    def _cleaned(self, verdict: RunVerdict) -> RunVerdict:
        """The verdict without the API key, as it is shown and becomes part of a study."""
        if self.folder.secret is None:
            return verdict
        cleaned = from_tree(RunVerdict, self.folder.cleaned(to_tree(verdict)), self.folder.path)
        return replace(cleaned, windows=tuple(self.folder.cleaned(list(verdict.windows))))


def _refuse_cramped(experiment: Experiment, fleet: LoadFleet, service: Service, start: Start) -> None:
    """Raise FleetError where requests in flight do not fit into the fleet's files and ports or the proxy."""
    guess = experiment.rate_qps or max([qps for _, qps in experiment.profile_qps], default=0.0)
    qps = (guess or start.prediction_qps or start.roofline_qps or 0.0) * experiment.cluster.nodes
    wanted = experiment.concurrency or math.ceil(STREAMS_SPARE * qps * experiment.answer_s)
    if reason := fleet.shortage(wanted):
        raise FleetError(reason)
    if service.front_streams is not None and wanted > service.front_streams:
        raise FleetError(
            f"HAProxy takes {service.front_streams} of {wanted} streams at once, the others would wait, "
            "which counts as TTFT: raise the hard limit of open files (`ulimit -Hn`, 2.5 for a stream) "
            "where Ray is started, ask for a lower rate, or use routing=client_side or per_node"
        )
