"""What a run is handed: its job, and the site with the service under load."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from analysis.results.verdicts import PlacingPrediction, RunVerdict
from analysis.stats.estimate import Estimate
from conf import Experiment
from conf.io.http_get import DEFAULT_ACCESS, Access
from loadgen.drive import programs
from loadgen.drive.driver import Driver
from loadgen.drive.programs import require, required_s, sweep
from loadgen.fleet.load_actor import Actors
from loadgen.fleet.local_actors import LocalActors
from loadgen.fleet.target import HostSource, NoHosts
from loadgen.run import verdicts
from loadgen.run.endpoint import TargetError
from loadgen.run.progress import Emit
from loadgen.search.window_plan import Start, Stop, WindowPlan
from loadgen.traffic.traffic import Traffic

DEPLOYED = ("cluster", "hardware", "model", "engine", "layout", "routing", "target")
"""Groups that decide what is deployed; an axis of another group changes the load on the same deployment."""


class PowerSource(Protocol):
    """A source of power readings of nodes."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""

    def read(self) -> Sequence[Mapping[str, Any]]:
        """The readings available now: columns of `records.POWER` but time and `idle`; returns at once."""


@dataclass(frozen=True, slots=True)
class Service:
    """The service under load: its addresses, the replicas expected in answers, and what it reports of itself.

    `replicas` is None if answers do not name theirs. `metrics_urls` maps a replica (or an endpoint) to the
    address of its metrics. `recover` waits for up to so many seconds until the service is whole again and
    returns it as it is then, or raises TargetError; None if nothing is known of its return. A proxy in
    front of it serves `front_streams` requests at once; None if there is none, or nothing is known of it.
    Its load comes from `actors`. `power` reads the power of its nodes; without it `power_unknown` says why
    nothing does. `hosts` watches the hosts of the cluster.
    """

    urls: list[str]
    replicas: frozenset[str] | None = None
    fault: Callable[[], str | None] = lambda: None
    reported: dict[str, Any] = field(default_factory=dict)
    metrics_urls: dict[str, str] = field(default_factory=dict)
    actors: Actors = field(default_factory=LocalActors)
    access: Access = DEFAULT_ACCESS
    recover: "Callable[[float], Service] | None" = None
    front_streams: int | None = None
    power: PowerSource | None = None
    power_unknown: str = ""
    hosts: HostSource = field(default_factory=NoHosts)


Deploy = Callable[[Experiment, Emit], AbstractContextManager[Service]]
"""Deploys the service of an experiment, up and warm within the block."""


@dataclass(frozen=True, slots=True)
class Site:
    """The place where runs are measured.

    `start(experiment, verb, emit)` is the start of the search, with the engine model's prediction if there is
    one; `service(experiment, emit)` is up and warm within its block. `constants(experiment, emit)` is the
    uncertainty of the engine model's constants, or why it is unknown.
    """

    start: Callable[[Experiment, str, Emit], tuple[Start, PlacingPrediction | None]]
    service: Deploy
    constants: Callable[[Experiment, Emit], Estimate | str] = lambda *_: "no engine model was at hand"


def same_service(a: Experiment, b: Experiment) -> bool:
    """True if the deployment for one experiment serves the other too."""
    return all(getattr(a, group) == getattr(b, group) for group in DEPLOYED)


class SharedService:
    """Lends one service at a time; takes it down for a run that needs another, after an error, or by `close`.

    `runs` are all runs that may come: a service has room for the largest fleet and the longest requests of
    those that share it. Progress of a service between two runs goes to `show`.
    """

    def __init__(self, deploy: Deploy, runs: Sequence[Experiment], show: Emit) -> None:
        self._deploy, self._runs, self._show = deploy, runs, show
        self._emit = show
        self._stack = ExitStack()
        self._up: tuple[Experiment, Service] | None = None
        self._failed: tuple[Experiment, TargetError] | None = None

    @contextmanager
    def service(self, experiment: Experiment, emit: Emit) -> Iterator[Service]:
        """The service for one run, as a `Site` has it. Raises TargetError if its deployment fails."""
        self._emit = emit
        try:
            yield self._lent(experiment)
        except BaseException:
            self.close()
            raise
        finally:
            self._emit = self._show

    def close(self) -> None:
        """Take down the service that is up; a teardown that fails is reported and left."""
        self._up = None
        try:
            self._stack.close()
        except TargetError as error:
            self._tell("teardown", text=f"the previous service did not go down cleanly: {error}")

    def _lent(self, experiment: Experiment) -> Service:
        if self._failed and same_service(self._failed[0], experiment):
            raise TargetError(f"not deployed again: {self._failed[1]}")
        if self._up and same_service(self._up[0], experiment):
            fault = self._up[1].fault()
            if fault is None:
                self._tell("deployed", text="the service of the previous run is up and serves this one too")
                return self._lend(experiment, self._up[1])
            self._tell("deploying", text=f"the service of the previous run is deployed again: {fault}")
        self.close()
        try:
            service = self._stack.enter_context(self._deploy(self._roomy(experiment), self._tell))
        except TargetError as error:
            self._failed = experiment, error
            raise
        return self._lend(experiment, service)

    def _roomy(self, experiment: Experiment) -> Experiment:
        """The experiment with the largest fleet and the longest requests of all that share its service."""
        sharing = [job for job in self._runs if same_service(job, experiment)]
        fleets, workloads = [job.fleet for job in sharing], [job.workload for job in sharing]
        return replace(
            experiment,
            fleet=max(fleets, key=lambda fleet: fleet.actors * fleet.cpus_per_actor),
            workload=max(workloads, key=lambda workload: Traffic(workload).longest_request_tokens),
        )

    def _lend(self, experiment: Experiment, service: Service) -> Service:
        """The service; after a recovery the next run gets the recovered one."""
        self._up = experiment, service
        recover = service.recover
        if recover is None:
            return service
        return replace(service, recover=lambda limit_s: self._lend(experiment, recover(limit_s)))

    def _tell(self, kind: str, /, **facts: Any) -> None:
        self._emit(kind, **facts)


class Job(ABC):
    """The work of one run: `load` the service, then a `verdict` once every row is final.

    `service` is the service under load, once it is up.
    """

    verb = "sweep"
    service: Service | None = None

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment

    @abstractmethod
    def load(self, driver: Driver) -> None:
        """Load the service. Raises TargetLost for a service that stays away."""

    @abstractmethod
    def verdict(self, driver: Driver) -> RunVerdict:
        """The verdict on what `load` has seen, all of it counted again on the rows as they were saved."""


class SearchCapacity(Job):
    """The job of a sweep."""

    def load(self, driver: Driver) -> None:
        self._stop = sweep(driver, self.next_step)

    def next_step(self, driver: Driver) -> WindowPlan | Stop:
        """The next window of the search, or its end."""
        return programs.focus(driver)

    def verdict(self, driver: Driver) -> RunVerdict:
        return verdicts.sweep_verdict(self.experiment, driver, self._stop)


class OfferLoad(Job):
    """The job of a probe: one window of the load that the experiment names."""

    verb = "probe"

    def load(self, driver: Driver) -> None:
        programs.offer_load(driver, self.experiment)

    def verdict(self, driver: Driver) -> RunVerdict:
        return verdicts.probe_verdict(self.experiment, driver)


class RequireRate(Job):
    """The job of a probe that passes or fails one rate."""

    verb = "probe"

    def load(self, driver: Driver) -> None:
        assert self.experiment.rate_qps
        longest_s = required_s(self.experiment)
        self._required = require(driver, self.experiment.rate_qps, longest_s)

    def verdict(self, driver: Driver) -> RunVerdict:
        return verdicts.required_verdict(self.experiment, driver, self._required)
