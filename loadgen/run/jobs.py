"""What a run is handed: its job, and the site with the service under load."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from analysis.results.verdicts import PlacingPrediction, RunVerdict
from analysis.stats.estimate import Estimate
from conf import Experiment
from conf.io.http_get import DEFAULT_ACCESS, Access
from loadgen.drive import fixed_rate
from loadgen.drive.driver import Driver
from loadgen.drive.sweep import require, required_s, sweep
from loadgen.fleet.target import HostSource, NoHosts
from loadgen.run import verdicts
from loadgen.run.power_sampler import PowerSource
from loadgen.run.progress import Emit
from loadgen.search.window_plan import Start


@dataclass(frozen=True, slots=True)
class Service:
    """The service under load: its addresses, the replicas expected in answers, and what it reports of itself.

    `replicas` is None if answers do not name theirs. `metrics_urls` maps a replica (or an endpoint) to the
    address of its metrics. `recover` waits for up to so many seconds until the service is whole again and
    returns it as it is then, or raises TargetError; None if nothing is known of its return. A proxy in
    front of it serves `front_streams` requests at once; None if there is none, or nothing is known of it.
    `power` reads the power of its nodes; without it `power_unknown` says why nothing does. `hosts` watches
    the hosts of the cluster.
    """

    urls: list[str]
    replicas: frozenset[str] | None = None
    fault: Callable[[], str | None] = lambda: None
    reported: dict[str, Any] = field(default_factory=dict)
    metrics_urls: dict[str, str] = field(default_factory=dict)
    actor_options: dict[str, Any] = field(default_factory=dict)
    access: Access = DEFAULT_ACCESS
    recover: "Callable[[float], Service] | None" = None
    front_streams: int | None = None
    power: PowerSource | None = None
    power_unknown: str = ""
    hosts: HostSource = field(default_factory=NoHosts)


def no_constants(_: Experiment, __: Emit) -> str:
    """The uncertainty of the constants where no engine model is at hand."""
    return "no engine model was at hand"


@dataclass(frozen=True, slots=True)
class Site:
    """The place where runs are measured.

    `start(experiment, verb, emit)` is the start of the search, with the engine model's prediction if there is
    one; `service(experiment, emit)` is up and warm within its block. `constants(experiment, emit)` is the
    uncertainty of the engine model's constants, or why it is unknown.
    """

    start: Callable[[Experiment, str, Emit], tuple[Start, PlacingPrediction | None]]
    service: Callable[[Experiment, Emit], AbstractContextManager[Service]]
    constants: Callable[[Experiment, Emit], Estimate | str] = no_constants


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
        self._sweep = sweep(driver)

    def verdict(self, driver: Driver) -> RunVerdict:
        return verdicts.sweep_verdict(self.experiment, driver, self._sweep, "wall")


class OfferLoad(Job):
    """The job of a probe: one window of the load that the experiment names."""

    verb = "probe"

    def load(self, driver: Driver) -> None:
        fixed_rate.offer_load(driver, self.experiment)

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
